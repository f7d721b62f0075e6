"""Judges from the recording alone what an answer kept in memory and what it sent."""

from collections.abc import Sequence

from zerolab.exercises.harness.exercise import Targets
from zerolab.recording.events import Event, RankRecording

FP32 = 4
COUNTERS = 64  # bytes that Adam's step counters may take: 4 for each tensor that it updates
SLACK = 8192  # bytes of small things: a batch, the loss, scalars
STATE = {"parameters": FP32, "gradients": FP32, "optimizer_state": 2 * FP32}


def judge_state(rank: RankRecording, padded: int, targets: Targets) -> str:
    """Empty if the rank keeps what the stage's formula says, at the optimizer's update.

    `padded` is the number of elements of the flat. Gradients may be larger by the scratch.
    """
    state = rank.meta.get("state")
    if not isinstance(state, dict):
        return f"rank {rank.rank}: the recording shows no update by an optimizer."
    part, free = padded // rank.world_size, _scratch(padded, rank.world_size, targets)
    for category, size in STATE.items():
        wanted = size * (part if category in targets.shards else padded)
        allowed = wanted + {"optimizer_state": COUNTERS, "gradients": free}.get(category, 0)
        if not wanted <= state.get(category, 0) <= allowed:
            return _explain_state(rank.rank, category, state.get(category, 0), wanted, size * padded)
    return ""


def _explain_state(rank: int, category: str, held: int, wanted: int, whole: int) -> str:
    name = category.replace("_", " ")
    why = f"rank {rank} holds {held:,} bytes of {name}; the target is {wanted:,}"
    if category == "optimizer_state" and whole <= held <= whole + COUNTERS:
        return f"{why}: it keeps optimizer state for the whole flat, not for its own part."
    if held >= wanted + whole:
        return f"{why}: it holds a second copy of the whole {name.rstrip('s')}."
    return f"{why}."


def judge_peak(rank: RankRecording, padded: int, targets: Targets) -> str:
    """Empty if the rank never held more than state, receive buffers and scratch; activations are not counted."""
    part, whole = padded // rank.world_size * FP32, padded * FP32
    state = sum(size * (part // FP32 if name in targets.shards else padded) for name, size in STATE.items())
    others = [event.live.get("other", 0) for event in rank.events if _between_updates(event)]
    unexplained = max(others, default=0) - min(others, default=0)  # what was there before the answer ran is not its own
    if unexplained > _scratch(padded, rank.world_size, targets):
        copies = "a second copy of the whole gradient or of the parameters" if unexplained >= whole else "extra tensors"
        return (
            f"rank {rank.rank} holds {copies}: {unexplained:,} bytes that are neither model state nor buffers of a "
            f"collective; {_scratch(padded, rank.world_size, targets):,} are free to use."
        )
    # Adam makes two temporaries as large as what it updates; the receive buffers are all parts but the own one.
    allowed = state + part * targets.scratch_parts + max(whole - part, 2 * part) + COUNTERS + SLACK
    peak = max((_without_activations(event) for event in rank.events), default=0)
    if peak > allowed:
        return f"rank {rank.rank} held up to {peak:,} bytes beside activations; {allowed:,} are enough."
    return ""


def _scratch(padded: int, world_size: int, targets: Targets) -> int:
    return padded // world_size * FP32 * targets.scratch_parts + SLACK


def _between_updates(event: Event) -> bool:
    """Whether the event lies outside of an optimizer's update, whose temporaries are torch's own business."""
    return event.phase != "step" and event.kind != "optimizer"


def _without_activations(event: Event) -> int:
    return sum(size for category, size in event.live.items() if category != "activations")


def judge_collectives(rank: RankRecording, padded: int, targets: Targets, turns: int) -> str:
    """Empty if each turn made exactly the target's collectives, over the whole flat, in order."""
    made = [event for event in rank.events if event.kind == "collective" and event.parent is None]
    names = [event.op for event in made]
    wanted = list(targets.collectives) * turns
    if rank.world_size > 1 and names != wanted:
        return f"rank {rank.rank}: {_explain_collectives(names, list(targets.collectives), turns)}"
    sent = sum(event.logical_bytes for event in made)
    target = len(wanted) * (padded - padded // rank.world_size) * FP32
    if rank.world_size > 1 and sent != target:
        return f"rank {rank.rank} sent {sent:,} bytes in {turns} turns; the target is {target:,}."
    return ""


def _explain_collectives(names: Sequence[str], wanted: list[str], turns: int) -> str:
    if "all_reduce" in names and "reduce_scatter" in wanted:
        return (
            "it made an all_reduce where a reduce_scatter is enough: every rank gets all the sums, and throws away "
            "those of the parts that others own."
        )
    made = ", ".join(names[: max(1, len(names) // turns)]) or "nothing"
    return f"a turn made {made}; the target is {', '.join(wanted)}."
