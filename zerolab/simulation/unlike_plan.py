"""Where `fit` counts otherwise than `theory.plan` under FSDP2: docs/planner.md names it all."""

from collections.abc import Iterable

from zerolab.simulation.fake import SIMULATED
from zerolab.simulation.needs import Question

TOLD = 0.03
"""From which part of the model on a note says what FSDP2 fills up: `plan` and `fit` differ by less otherwise."""


def unlike_plan(question: Question, stages: Iterable[str]) -> list[str]:
    """A sentence for each way in which `theory.plan` counts otherwise under these stages, which all have a row."""
    systems, notes = [stage for stage in dict.fromkeys(stages) if stage in SIMULATED], []
    if systems and question.micro_batches > 1 and not question.sync_each_batch:
        add = "adds" if len(systems) == 1 else "add"
        notes.append(
            f"{' and '.join(systems)} {add} up whole gradients until the last of {question.micro_batches} "
            "micro-batches, as under set_requires_gradient_sync(False); plan reduces each, as sync_each_batch=True does"
        )
    shapes = [parameter.shape for parameter in question.model().parameters()] if systems else []
    whole = sum(shape.numel() for shape in shapes)
    for stage in systems:
        ranks = question.shards(stage)
        # A rank has as many rows of a parameter as the first one; a parameter without rows is one row.
        filled = sum(-(-shape[:1].numel() // ranks) * ranks * shape[1:].numel() for shape in shapes)
        if (more := filled / whole - 1) > TOLD:
            notes.append(
                f"{stage} fills up the first dimension of each parameter to a multiple of {ranks}: {more:.0%} more "
                "than the model has, which plan does not count"
            )
    return notes
