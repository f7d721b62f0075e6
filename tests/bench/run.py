"""`make bench`: measures the speeds that are promised, and writes them with machine and date into tests/bench/results.

    python tests/bench/run.py                      every figure, 15 rounds
    python tests/bench/run.py steps --rounds 5     all figures that begin with "steps", a quick look

A result is written when its figure is done. A figure that misses its budget says NO in its table, and fails nothing.
"""

import argparse
import sys
import traceback
from time import perf_counter

import figures
import measuring


def main() -> None:
    """Measures the figures that were asked for, one after the other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("figures", nargs="*", help=f"any of {', '.join(figures.FIGURES)} (default: all)")
    parser.add_argument("--rounds", type=int, default=15, help="how often everything is measured (default: 15)")
    arguments = parser.parse_args()
    wanted = tuple(arguments.figures) or ("",)
    for word in wanted:
        if not any(name.startswith(word) for name in figures.FIGURES):
            parser.error(f"unknown figure {word!r}: choose from {', '.join(figures.FIGURES)}")
    chosen = [name for name in figures.FIGURES if name.startswith(wanted)]
    failed = [name for name in chosen if not _measured(name, arguments.rounds)]
    if failed:
        sys.exit(f"These could not be measured, see above: {', '.join(failed)}")


def _measured(name: str, rounds: int) -> bool:
    """Measures and writes one figure; False if it failed, which keeps no other from being measured."""
    print(f"{name}: {(figures.FIGURES[name].__doc__ or '').splitlines()[0]}", flush=True)
    start = perf_counter()
    try:
        for figure in figures.FIGURES[name](rounds):
            print(measuring.write(figure), flush=True)
    except Exception:  # noqa: BLE001  (whatever it was, the other figures are still wanted)
        traceback.print_exc()
        return False
    print(f"{name} took {perf_counter() - start:.0f} s\n", flush=True)
    return True


if __name__ == "__main__":
    main()
