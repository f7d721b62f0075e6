"""Makes anew the runs that `explore()` shows at once: python tools/explore_recordings.py."""

from zerolab.figures.beforehand import every, ship

if __name__ == "__main__":
    size = sum(ship(stage, world_size).stat().st_size for stage, world_size in every())
    print(f"explore: {len(list(every()))} runs, {size / 1e3:.0f} kB")
