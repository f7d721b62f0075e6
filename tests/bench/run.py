"""`make bench`: measures the speeds that are promised, and writes them with machine and date into tests/bench/results.

    python tests/bench/run.py                      every figure, 15 rounds
    python tests/bench/run.py steps --rounds 5     all figures that begin with "steps", a quick look

A result is written when its figure is done. Nothing here fails: a figure that misses its budget says NO in its table.
"""

import argparse
from time import perf_counter

import cloudpickle
import figures
import measuring
import workloads


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
    cloudpickle.register_pickle_by_value(workloads)  # the ranks do not find this folder
    for name in chosen:
        print(f"{name}: {(figures.FIGURES[name].__doc__ or '').splitlines()[0]}", flush=True)
        start = perf_counter()
        for figure in figures.FIGURES[name](arguments.rounds):
            print(measuring.write(figure))
        print(f"{name} took {perf_counter() - start:.0f} s\n", flush=True)


if __name__ == "__main__":
    main()
