"""The tables of docs/gpus.md: forward and backward by the schedule, as `step_schedule` has them; and whole
steps by either of our two schedules, as a simulation has them that executes the engines.

    python tests/theory/schedule_table.py          # writes them into the page

test_schedule.py compares the page with them, to the letter.
"""

from pathlib import Path
from unittest.mock import patch

from step_schedule import SCHEDULES, offload_seconds, seconds

from zerolab import catalog, simulate
from zerolab.engines import reduction
from zerolab.theory.job import Job

PAGE = Path(__file__).parents[2] / "docs" / "gpus.md"
BEGIN, BETWEEN, END = "<!-- schedules -->\n", "<!-- simulated -->\n", "<!-- end of schedules -->\n"
OFFLOAD, END_OF_OFFLOAD = "<!-- offload -->\n", "<!-- end of offload -->\n"
MODEL, RANKS = "llama-7b", 8
PLACES = {"in one node": 8, "in 8 nodes": 1}
"""By what the table calls them: GPUs a node."""


def job(gpus_per_node: int) -> Job:
    """Eight H100 over NVLink in one node, or each in its own over InfiniBand NDR; one row of 2,048 tokens."""
    return Job(catalog.architecture(MODEL), RANKS, "bf16", 1, 2048, gpus_per_node=gpus_per_node)


def table() -> str:
    """A row for each place and stage, a column for each schedule, in milliseconds."""
    lines = [f"| 8 H100 | stage | {' | '.join(SCHEDULES)} |", "|---|---|" + "---:|" * len(SCHEDULES)]
    for place, gpus_per_node in PLACES.items():
        for stage, name in {"ddp": "ddp", "zero2": "zero1, zero2", "zero3": "zero3"}.items():
            times = [seconds(stage, job(gpus_per_node), schedule) for schedule in SCHEDULES.values()]
            lines.append(f"| {place} | {name} | {' | '.join(f'{1e3 * time:.0f}' for time in times)} |")
    return "\n".join(lines) + "\n"


def simulated() -> str:
    """A row for each place, a column for each stage: a step as over gloo, and as over NCCL, in milliseconds."""
    stages = ("ddp", "zero1", "zero2", "zero3")
    lines = [f"| 8 H100 | {' | '.join(stages)} |", "|---|" + "---:|" * len(stages)]
    for place, gpus_per_node in PLACES.items():
        found = []
        for streams in (False, True):
            with patch.object(reduction, "has_streams", lambda _, streams=streams: streams):
                found.append(simulate(stages, RANKS, MODEL, precision="bf16", gpus_per_node=gpus_per_node).rows)
        pairs = (
            f"{1e3 * gloo['step_seconds']:.0f}, {1e3 * nccl['step_seconds']:.0f}"
            for gloo, nccl in zip(*found, strict=True)
        )
        lines.append(f"| {place} | {' | '.join(pairs)} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """Both tables, as they stand in the page."""
    return table() + BETWEEN + simulated()


def offload() -> str:
    """A row for each place and stage: milliseconds that an offloaded update waits for its gradients."""
    lines = ["| 8 H100 | stage | after the backward | on a stream of their own |", "|---|---|---:|---:|"]
    for place, gpus_per_node in PLACES.items():
        for stage, name in {"ddp": "ddp", "zero2": "zero1, zero2", "zero3": "zero3"}.items():
            waits = [1e3 * offload_seconds(stage, job(gpus_per_node), own_stream=own) for own in (False, True)]
            lines.append(f"| {place} | {name} | {' | '.join(f'{wait:.0f}' for wait in waits)} |")
    return "\n".join(lines) + "\n"


def put(begin: str, text: str, end: str) -> None:
    """Writes what stands between two marks of the page."""
    before, _, rest = PAGE.read_text().partition(begin)
    PAGE.write_text(before + begin + text + end + rest.partition(end)[2])


if __name__ == "__main__":
    put(OFFLOAD, offload(), END_OF_OFFLOAD)
    put(BEGIN, page(), END)
