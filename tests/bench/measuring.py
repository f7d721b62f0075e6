"""How every figure is measured: interleaved rounds in random order, medians with their spread, machine and date.

Two things are compared only within one round, run next to each other, so that a machine that slows down for a minute
slows down both. A figure is a ratio to its baseline, taken round by round; its median and quartiles are reported.
"""

import datetime as dt
import json
import os
import platform
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

import torch

RESULTS = Path(__file__).parent / "results"
LOAD_BEFORE = round(os.getloadavg()[0], 1)  # of the last minute, before anything here started; a quiet machine has 0


@dataclass
class Figure:
    """Seconds (or another unit) by variant, one number a round; ratios are to `baseline`, budgets are upper limits.

    A figure without samples was not run; its note says why.
    """

    name: str
    title: str
    unit: str
    baseline: str | None
    budgets: dict[str, float] = field(default_factory=dict)  # of the ratio where there is a baseline, else of the value
    samples: dict[str, list[float]] = field(default_factory=dict)
    note: str = ""  # what a reader must know, beside the table
    plot: str = ""  # an SVG picture, saved beside the table

    def add(self, variant: str, value: float) -> None:
        """Adds one round's number."""
        self.samples.setdefault(variant, []).append(value)

    def rows(self) -> list[dict[str, str | float | int | None]]:
        """One row a variant: median and quartiles of the values and of the ratios, budget, and whether it is kept."""
        rows: list[dict[str, str | float | int | None]] = []
        for variant in sorted(self.samples, key=lambda name: (name != self.baseline, name)):
            values = self.samples[variant]
            low, middle, high = spread(values)
            row: dict[str, str | float | int | None] = {"variant": variant, "rounds": len(values)}
            row |= {"median": middle, "quartile 1": low, "quartile 3": high}
            judged = middle
            if self.baseline:
                ratios = [value / base for value, base in zip(values, self.samples[self.baseline], strict=True)]
                low, judged, high = spread(ratios)
                row |= {"ratio": judged, "ratio q1": low, "ratio q3": high}
            budget = self.budgets.get(variant)
            row |= {"budget": budget, "kept": None if budget is None else "yes" if judged <= budget else "NO"}
            rows.append(row)
        return rows


def interleaved(
    variants: list[str], rounds: int, measure: Callable[[str], float], seed: int = 0
) -> Iterator[tuple[str, float]]:
    """Measures every variant once a round, in a new random order each round; yields (variant, number) as they come."""
    shuffler = random.Random(seed)
    for number in range(rounds):
        order = shuffler.sample(variants, len(variants))
        print(f"  round {number + 1} of {rounds}", flush=True)
        for variant in order:
            yield variant, measure(variant)


def spread(values: list[float]) -> tuple[float, float, float]:
    """First quartile, median, third quartile."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, _, high = quantiles(values, n=4, method="inclusive")
    return low, median(values), high


def machine() -> dict[str, str | int | float]:
    """What the numbers depend on, and nothing that names the machine."""
    names = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "vector_instructions": torch.backends.cpu.get_cpu_capability(),
        "load_before": LOAD_BEFORE,
        "load_after": round(os.getloadavg()[0], 1),  # with what is measured in it
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
    }


def write(figure: Figure) -> str:
    """Writes results/<name>.json (every sample), .md (the table) and .svg (where there is a plot); returns the text."""
    RESULTS.mkdir(exist_ok=True)
    date, here, rows = dt.datetime.now(dt.UTC).date().isoformat(), machine(), figure.rows()
    content = {"title": figure.title, "unit": figure.unit, "date": date, "machine": here, "baseline": figure.baseline}
    content |= {"note": figure.note, "rows": rows, "samples": figure.samples}
    (RESULTS / f"{figure.name}.json").write_text(json.dumps(content, indent=1) + "\n")
    described = ", ".join(f"{name} {value}" for name, value in here.items())
    to = f"; ratios to {figure.baseline}, round by round" if figure.baseline else ""
    parts = [f"# {figure.title}", f"In {figure.unit}{to}. Measured on {date}: {described}."]
    parts += [figure.note] if figure.note else []
    if figure.plot:
        (RESULTS / f"{figure.name}.svg").write_text(figure.plot)
        parts.append(f"![{figure.title}]({figure.name}.svg)")
    text = "\n\n".join([*parts, markdown(rows)] if rows else parts) + "\n"
    (RESULTS / f"{figure.name}.md").write_text(text)
    return text


def markdown(rows: list[dict[str, str | float | int | None]]) -> str:
    """Rows as a markdown table."""
    columns = list(rows[0])
    cells = [[_show(row[column]) for column in columns] for row in rows]
    lines = [columns, ["---"] * len(columns), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _show(value: str | float | None) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:  # not Linux
        return []
