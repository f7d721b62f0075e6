"""Judges from the recording alone what a training answer kept in memory and what it sent."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from zerolab.recording.events import Event, RankRecording

FP32 = 4
COUNTERS = 256  # bytes of Adam's step counters, 4 for each tensor that it updates: a shard may be several
SLACK = 8192  # bytes of small things: a batch, the loss, scalars
STATE = {"parameters": FP32, "gradients": FP32, "optimizer_state": 2 * FP32}
IN_PLACE = "Work in place (`/` makes a new tensor, `div_` does not), and keep no copies."
WHOLE_UNITS = 2  # that may be whole at a time where a category is sharded: one in use, one on its way


@dataclass(frozen=True, slots=True)
class Budget:
    """What a rank may hold.

    Attributes:
        padded: elements of each flat, padding included.
        world_size: number of ranks.
        shards: the categories that are divided by N.
        scratch_shards: shards of the largest flat that may lie about beside the state.
        activations: bytes that one step's activations may take.
        batch: bytes of a rank's inputs and targets, which are neither state nor activations.
    """

    padded: list[int]
    world_size: int
    shards: tuple[str, ...]
    scratch_shards: int
    activations: int
    batch: int = 0

    @property
    def scratch(self) -> int:
        """Bytes that are free to use."""
        return self.beside("other") + self.batch

    def beside(self, category: str) -> int:
        """Bytes that may lie beside a category's state: of a sharded one shards only.

        With the slack for small things in it, a unit that is left whole would pass or not as the sizes are drawn.
        """
        if category == "parameters" and "parameters" not in self.shards:
            return self.own + SLACK
        shards = max(self.padded) // self.world_size * FP32 * self.scratch_shards
        return shards if category in self.shards else shards + SLACK

    @property
    def own(self) -> int:
        """Bytes of a copy of the shards that the rank owns, which an optimizer may update in place of the flats'."""
        return sum(self.padded) * FP32 // self.world_size if "optimizer_state" in self.shards else 0

    @property
    def largest(self) -> int:
        """Bytes of the largest flat."""
        return max(self.padded) * FP32

    def state(self, category: str) -> int:
        """Bytes of a category at the optimizer's update."""
        whole = sum(self.padded) * STATE[category]
        return whole // self.world_size if category in self.shards else whole

    def peak(self, category: str) -> int:
        """Bytes of a category at any moment of a step but the update itself."""
        if category in STATE:
            free = COUNTERS if category == "optimizer_state" else self.beside(category)
            return self.state(category) + self._whole_units(category) * self.largest + free
        rest = {"activations": self.activations + self.largest, "other": self.scratch}
        # What is on its way: all of the gradients where they stay whole, else one unit's.
        return rest.get(category, self.largest if "gradients" in self.shards else sum(self.padded) * FP32)

    def _whole_units(self, category: str) -> int:
        """How many units may be whole beside the state."""
        if category in self.shards:
            return WHOLE_UNITS
        # Where gradients stay whole, those of the step before may still be there when the next ones come; and a unit's
        # are there twice while they are laid end to end.
        return 1 + len(self.padded) if category == "gradients" and len(self.padded) > 1 else 0


def judge_state(rank: RankRecording, budget: Budget) -> str:
    """Empty if the rank keeps what the stage's formula says, at the optimizer's update.

    Gradients may be larger by what may lie beside them, and whole parameters by a copy of what the rank owns.
    """
    state = rank.info.state
    if state is None:
        return f"rank {rank.rank}: the recording shows no update by an optimizer."
    free = {"parameters": budget.own, "optimizer_state": COUNTERS, "gradients": budget.beside("gradients")}
    if "parameters" in budget.shards:
        free["parameters"] = 0
    for category, size in STATE.items():
        held, wanted = state.get(category, 0), budget.state(category)
        allowed = wanted + free[category]
        # Who keeps shards of the gradients where whole ones are due keeps less than is asked: that is no fault.
        least = sum(budget.padded) * FP32 // budget.world_size if category == "gradients" else wanted
        first = next((event.live.get(category, 0) for event in rank.events if event.kind == "optimizer"), 0)
        if held > allowed >= first >= least:  # the first step was right: it is no category that is left whole
            return (
                f"rank {rank.rank} holds {held:,} bytes of {category.replace('_', ' ')} at the last update, and "
                f"{first:,} at the first one: those of the steps before are still there. A list, or a view, keeps them."
            )
        if not least <= held <= allowed:
            return _explain_state(rank.rank, category, held, wanted, [size * padded for padded in budget.padded])
    return ""


def _explain_state(rank: int, category: str, held: int, wanted: int, units: list[int]) -> str:
    name, whole = category.replace("_", " "), sum(units)
    why = f"rank {rank} holds {held:,} bytes of {name} at the update; the target is {wanted:,}"
    if wanted < whole <= held <= whole + SLACK:
        return f"{why}: it keeps {name} for the whole flat, not for its own shard."
    if wanted < held < whole and category == "gradients" and held - wanted in units:
        return (
            f"{why}: {held - wanted:,} too many, as much as one unit's whole gradient, so more than its own shard is "
            "still there. A variable still refers to it (a `for` variable too: `del gradient`), or a view of it does."
        )
    if wanted < held < whole:
        return f"{why}: more than its own shard is still there. A view of a tensor keeps all of it in memory."
    if wanted < whole < held:
        kept = {"parameters": "units are still whole. Release each when it has been used, in backward, too."}
        lists = f"whole {name} of what is done are still there. A list, or a view, keeps them in memory."
        return f"{why}: {kept.get(category, lists)}"
    if held >= wanted + whole:
        return f"{why}: it holds a second copy of the whole {name.rstrip('s')}. {IN_PLACE}"
    return f"{why}. {IN_PLACE}" if held > wanted and category == "gradients" else f"{why}."


def judge_peak(rank: RankRecording, budget: Budget) -> str:
    """Empty if in no moment of a step the rank held more of a category than its budget, but in the update itself.

    An optimizer's own temporaries are torch's business, so its update is left out.
    """
    inside = [event for event in rank.events if _is_telling(event)]
    for category in ("other", "parameters", "gradients", "activations", "communication"):
        # What there was before the answer ran is not its own.
        before = min(event.live.get(category, 0) for event in rank.events) if category == "other" else 0
        held = max((event.live.get(category, 0) for event in inside), default=0) - before
        if held > budget.peak(category):
            return _explain_peak(rank.rank, category, held, budget)
    return ""


def _is_telling(event: Event) -> bool:
    """Whether the event lies in a step, outside of the update, and not where a buffer is yet unknown."""
    amid = event.kind == "collective" and event.parent is not None
    return bool(event.step) and event.phase != "step" and event.kind != "optimizer" and not amid


def _explain_peak(rank: int, category: str, held: int, budget: Budget) -> str:
    allowed = budget.peak(category)
    if category == "other":
        whole = sum(budget.padded) * FP32
        copies = "a second copy of the whole gradient or of the parameters" if held >= whole else "extra tensors"
        remedy = f" {IN_PLACE}" if held >= whole else ""
        return (
            f"rank {rank} holds {copies}: {held:,} bytes that are neither model state nor buffers of a collective; "
            f"{allowed:,} are free to use.{remedy}"
        )
    why = f"rank {rank} held up to {held:,} bytes of {category.replace('_', ' ')}; {allowed:,} are enough"
    if category in budget.shards and len(budget.padded) > 1:
        remedy = {
            "parameters": "Release a unit before you gather the one after the next.",
            "gradients": "Reduce each gradient before the next backward but one.",
        }[category]
        return f"{why}: too many units were whole at a time. {remedy}"
    return f"{why}."


def judge_outside(rank: int, outside: int, budget: Budget) -> str:
    """Empty if outside of torch the rank held no more than what is free to use."""
    allowed = budget.beside("other")
    return outside_in_words(rank, outside, allowed) if outside > allowed else ""


def outside_in_words(rank: int, outside: int, allowed: int) -> str:
    """What is wrong with so many bytes outside of torch."""
    return (
        f"rank {rank} held {outside:,} bytes outside of torch, in numpy arrays, lists or the like; {allowed:,} are "
        "enough. They take memory as tensors do."
    )


def started(rank: RankRecording) -> list[Event]:
    """The exchanges that a rank started, without those that they are made of."""
    return [event for event in rank.events if event.kind == "collective" and event.parent is None]


def judge_waits(rank: RankRecording) -> str:
    """Empty if every exchange that the rank started was waited for. Without, a result is a matter of luck.

    A barrier brings no result, and `monitored_barrier` gives nothing to wait for: it waits itself.
    """
    waited = {event.parent for event in rank.events if event.kind == "wait"}
    for event in started(rank):
        if event.seq not in waited and rank.world_size > 1 and event.op != "barrier":
            return (
                f"rank {rank.rank} never waited for its {event.op}: call wait() on what it returned, or the result is "
                "there only by luck."
            )
    return ""


def judge_order(ranks: Sequence[RankRecording]) -> str:
    """Empty if all ranks started the same exchanges, of the same units, in the same order.

    Messages that carry a name find each other in any order; NCCL, which has no names, would mix them or wait for ever.
    """
    first, *others = [[(event.op, event.unit) for event in started(rank) if event.step] for rank in ranks]
    for rank, made in enumerate(others, 1):
        for (op, unit), (usual, other) in zip(made, first, strict=False):
            if op != usual or (unit != other and unit is not None and other is not None):  # zeros are of no unit
                return (
                    f"rank {rank} started {op} of {unit} where rank 0 started {usual} of {other}: it makes the same in "
                    "another order. The order must not depend on the rank."
                )
    return ""


def judge_collectives(
    rank: RankRecording, budget: Budget, collectives: Sequence[str], steps: int, *, in_steps: bool
) -> str:
    """Empty if each step made exactly the target's collectives over each flat; over a single one, in order.

    `in_steps` leaves out what happens outside of training steps: an engine's checks and its first broadcast.
    """
    made = [event for event in started(rank) if event.step or not in_steps]
    names, wanted = [event.op for event in made], list(collectives) * steps * len(budget.padded)
    if rank.world_size == 1:
        return ""
    if Counter(names) != Counter(wanted) or (len(budget.padded) == 1 and names != wanted):
        return f"rank {rank.rank}: {_explain_collectives(names, list(collectives), steps, len(budget.padded))}"
    sent = sum(event.logical_bytes for event in made)
    target = sum(_passes(op) for op in wanted) * (sum(budget.padded) // rank.world_size) * (rank.world_size - 1) * FP32
    target //= len(budget.padded)
    if sent != target:
        return f"rank {rank.rank} sent {sent:,} bytes in {steps} steps; the target is {target:,}."
    return ""


def _passes(op: str) -> int:
    return 2 if op == "all_reduce" else 1


def _explain_collectives(names: Sequence[str], wanted: list[str], steps: int, units: int) -> str:
    # One that comes on top of all that are due stands in place of none.
    if "all_reduce" in names and names.count("reduce_scatter") < wanted.count("reduce_scatter") * steps * units:
        return (
            "it made an all_reduce where a reduce_scatter is enough: every rank gets all the sums, and throws away "
            "those of the shards that others own."
        )
    if units == 1:
        made = ", ".join(names[: max(1, len(names) // steps)]) or "nothing"
        return f"a step made {made}; the target is {', '.join(wanted)}."
    made = ", ".join(f"{count} {name}" for name, count in Counter(names).items()) or "nothing"
    target = ", ".join(f"{count * units * steps} {name}" for name, count in Counter(wanted).items())
    return f"{steps} steps over {units} units made {made}; the target is {target}."
