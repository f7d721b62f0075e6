"""Cost as work grows: step seconds and peak bytes for 1M to 100M parameters on 1 to 8 ranks."""

import os
from collections.abc import Iterator
from math import log
from pathlib import Path
from time import perf_counter

import plot
import workloads
from measuring import Figure, interleaved, markdown, spread

from zerolab import Cluster, theory

STAGES = ("zero2", "zero3")
WIDTHS = {1: 144, 10: 456, 50: 1020, 100: 1444}  # million parameters: width of the six blocks that have about so many
WORLD_SIZES = (1, 2, 4, 8)
ROWS = 8  # of a rank's batch: so few that bytes, not arithmetic, make the cost
SECONDS = 340.0  # no further round is begun that would not end within this time
LINEAR = 1.05  # the exponent of a line through the points, twice as many bytes at twice the cost being 1


def growth(rounds: int) -> Iterator[Figure]:
    """Step seconds and peak for 1M to 100M parameters and N = 1, 2, 4, 8, in as many rounds as there is time for.

    Recorded steps, so that both come from one run; the step's seconds are taken inside the ranks.
    """
    seconds: dict[str, list[float]] = {}
    peak: dict[str, list[float]] = {}
    names = {_name(stage, size, ranks): (stage, size, ranks) for stage, size, ranks in _grid()}
    fitting = {name: place for name, place in names.items() if _needed(*place) < _available()}
    start = perf_counter()
    for number in range(rounds):
        if number and (perf_counter() - start) * (number + 1) / number > SECONDS:
            break
        for name, (took, held) in _one_round(fitting, number):
            seconds.setdefault(name, []).append(took)
            peak.setdefault(name, []).append(float(held))
    left_out = [f"{name} ({_needed(*place) / 2**30:.0f} GiB)" for name, place in names.items() if name not in fitting]
    note = f"MLPs of six blocks, AdamW, {ROWS} rows a rank; all ranks share this machine's cores. "
    note += f"Not run, too large for the memory at hand: {', '.join(left_out)}. " if left_out else ""
    yield _figure("growth_seconds", "Step seconds as work grows", "seconds", seconds, note)
    yield _figure("growth_peak", "Peak bytes of a rank as the model grows", "bytes", peak, note)


def _grid() -> Iterator[tuple[str, int, int]]:
    return ((stage, size, ranks) for stage in STAGES for ranks in WORLD_SIZES for size in WIDTHS)


def _name(stage: str, size: int, ranks: int) -> str:
    return f"{stage}, N={ranks}, {size}M"


def _one_round(places: dict[str, tuple[str, int, int]], number: int) -> Iterator[tuple[str, tuple[float, int]]]:
    """Everything once, in random order; ranks are started fresh, so that no size inherits another's memory."""

    def measure(name: str) -> float:
        stage, size, ranks = places[name]
        with Cluster(world_size=ranks, device="cpu", timeout=180) as cluster:
            cluster.run(workloads.watch)
            steps = 1 if size >= 50 else 3
            found = cluster.record(workloads.grown, stage, WIDTHS[size], ROWS, steps).results
        held[name] = max(peak for _, peak in found)
        return max(seconds for seconds, _ in found)

    held: dict[str, int] = {}
    for name, seconds in interleaved(list(places), 1, measure, seed=number):
        yield name, (seconds, held[name])


def _numel(size: int) -> int:
    return 6 * (8 * WIDTHS[size] ** 2 + 5 * WIDTHS[size])


def _needed(stage: str, size: int, ranks: int) -> int:
    """Bytes of all ranks together at the worst moment: the state, beside it the model as it was built."""
    return ranks * (sum(theory.state_bytes(stage, _numel(size), ranks).values()) + 4 * _numel(size))


def _available() -> float:
    """Bytes that may be used: 60 % of what the machine has free, so that it need not swap."""
    try:
        with Path("/proc/meminfo").open() as lines:
            kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except OSError:  # not Linux
        return 0.3 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 0.6 * 1024 * kilobytes


def bytes_of_all_ranks(stage: str, size: int, ranks: int) -> int:
    """The work of a step in bytes, all ranks together: model state, which the update reads and writes, and traffic."""
    numel = _numel(size)
    state = sum(theory.state_bytes(stage, numel, ranks).values())
    return ranks * (state + theory.traffic_bytes(stage, numel, ranks))


def _figure(name: str, title: str, unit: str, samples: dict[str, list[float]], note: str) -> Figure:
    """All points, a table of them by size and ranks, the exponents and a plot."""
    medians = {variant: spread(values)[1] for variant, values in samples.items()}
    scale = 1 if unit == "seconds" else 2**20
    rows: list[dict[str, str | float | int | None]] = []
    lines: dict[str, list[tuple[float, float]]] = {}
    for stage in STAGES:
        for ranks in WORLD_SIZES:
            points = {size: medians[key] for size in WIDTHS if (key := _name(stage, size, ranks)) in medians}
            line = [(bytes_of_all_ranks(stage, size, ranks) / 2**20, value / scale) for size, value in points.items()]
            lines[f"{stage}, N={ranks}"] = line
            cells = {f"{size}M": points[size] / scale if size in points else None for size in WIDTHS}
            rows.append({"stage": stage, "N": ranks, **cells, **_verdict(line)})
    shown = "seconds" if scale == 1 else "MiB"
    text = (
        f"{note}In the table by size and N: {shown}; the exponent is that of a line through the points of 10M and more"
    )
    text += (
        f" parameters over the bytes of a step (state and traffic of all ranks), 1 being linear.\n\n{markdown(rows)}"
    )
    picture = plot.svg(title, "MiB of state and traffic of all ranks", shown, lines)
    return Figure(name, title, unit, None, {}, samples, note=text, plot=picture)


def _verdict(line: list[tuple[float, float]]) -> dict[str, str | float | None]:
    """The exponent of a power law through all points but the smallest model's, where latency and caches count."""
    found = exponent(line[1:])
    return {"exponent": found, "linear": None if found is None else "yes" if found <= LINEAR else "NO"}


def exponent(points: list[tuple[float, float]]) -> float | None:
    """The slope of the least-squares line through the logarithms; None for fewer than two points."""
    if len(points) < 2:
        return None
    across, up = ([log(point[axis]) for point in points] for axis in (0, 1))
    middle_x, middle_y = sum(across) / len(across), sum(up) / len(up)
    spread_x = sum((x - middle_x) ** 2 for x in across)
    return sum((x - middle_x) * (y - middle_y) for x, y in zip(across, up, strict=True)) / spread_x
