"""What one rank needs for your own model: a simulated training step under one stage, and what we read from it."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from torch import nn
from torch.compiler import set_stance

from zerolab import theory
from zerolab.engines import ENGINES
from zerolab.engines.collectives import granule
from zerolab.engines.engine import LossFunction
from zerolab.engines.partition import FlatLayout, partition
from zerolab.names import check_count, check_known
from zerolab.recording.events import Event, RankRecording
from zerolab.recording.recorder import Recorder
from zerolab.simulation import own
from zerolab.simulation.checkpointing import Checkpointing, checkpoint_blocks
from zerolab.simulation.costs import Hardware
from zerolab.simulation.fake import SIMULATED, world
from zerolab.simulation.own import Own
from zerolab.simulation.run import STEPS, Prepared, execute, executing
from zerolab.theory import forms
from zerolab.theory.allocator import Allocator

STAGES = (*theory.STAGES, *SIMULATED)
TERMS = ("parameters", "gathered", "gradients", "optimizer_state", "activations", "communication", "buffers", "update")
"""What a rank needs at the peak of a step: its own parameters and what it has gathered besides; gradients, including
whole ones that a backward has just made; activations, logits included; buffers of collectives; the model's buffers
and the batch; temporaries of the update."""
SIZES = (*TERMS, "needs", "lacks")  # columns of bytes

EFFORT = {"ddp": 0.0, "zero1": 0.1, "zero2": 0.2, "hsdp": 0.9, "fsdp2": 1.0, "zero3": 1.1}
AGAIN = {"none": 0.0, "selective": 0.5, "block": 2.0}
"""What to try first, as practitioners do: shard what costs no extra traffic; recompute a little; gather parameters,
which sends half as much again; recompute whole blocks, a third more arithmetic."""

ELSEWHERE = {
    "offload": "here all memory is the GPU's; ask found.offload(), and write it with found.settings(offload=True)",
    "precision": "give it to fit itself, as precision=",
    "units": "give them to fit itself, as units=",
    "lr": "no size depends on it",
}
"""What engines take and the options of `fit` do not, and what to do instead."""


@dataclass(frozen=True)
class Cell:
    """One simulated rank: bytes by `TERMS` at its highest moment, and what else it showed."""

    stage: str
    precision: str
    policy: Checkpointing  # what `checkpointing` is the name of
    terms: dict[str, int]
    seen: dict[str, Any]
    highest: str = "not run"
    seconds: float | None = None
    recording: RankRecording | None = None

    @property
    def checkpointing(self) -> str:
        """The policy's name."""
        return str(name_of(self.policy))

    @property
    def needs(self) -> int:
        """Bytes of the peak."""
        return sum(self.terms.values())

    @property
    def with_offload(self) -> int:
        """Bytes of the peak if the optimizer and its state were in main memory; under FSDP2 the shards are, too.

        FSDP2's reduced gradients are counted although they leave, so there it is that much at most.
        """
        if self.recording is None:
            raise ValueError("the model could not be run as shapes: its peak without the optimizer is unknown")
        moved = self.state["optimizer_state"] + (self.state["parameters"] if self.stage in SIMULATED else 0)
        phases = self.recording.info.peaks
        return max(sum(live.values()) for name, live in phases.items() if name != "step") - moved

    @property
    def in_main_memory(self) -> int:
        """Bytes of this rank in main memory then: what the optimizer updates, its gradients, and its state."""
        if self.stage in SIMULATED:  # all that is sharded
            return sum(self.state.values())
        # Masters, their gradients and Adam's two moments are of one size and dtype.
        return 4 * self.state["optimizer_state"] // (2 if self.precision == "fp32" else 3)

    @property
    def state(self) -> dict[str, int]:
        """Bytes of the model state at the update, by category."""
        found = self.recording and self.recording.info.state
        return found or self.terms


@dataclass(frozen=True)
class Question:
    """What we ask about a model: everything but the stage, the precision and the checkpointing.

    Raises ValueError for a count below 1.
    """

    own: Own
    units: list[str]
    world_size: int
    rows: int | None
    length: int | None
    hardware: Hardware
    usable: float
    loss_fn: LossFunction
    micro_batches: int
    options: Mapping[str, Any]
    sync_each_batch: bool = False
    COUNTS: ClassVar = {
        "world_size": "world size",
        "rows": "number of rows",
        "length": "length",
        "micro_batches": "number of micro-batches",
    }

    def __post_init__(self) -> None:
        for name, words in self.COUNTS.items():
            count = getattr(self, name)
            if not (count is None and name in ("rows", "length")):  # those of the batch
                object.__setattr__(self, name, check_count(words, count))

    def cell(self, stage: str, precision: str, checkpointing: Checkpointing) -> Cell:
        """One simulated rank under this. Raises ValueError for anything that the stage cannot do with the model."""
        if stage == "hsdp" and not has_nodes(self.world_size, self.hardware.gpus_per_node):
            raise ValueError(
                f"hsdp shards among the GPUs of a node, and {self.world_size} are not several nodes of "
                f"{self.hardware.gpus_per_node}: give gpus_per_node, which divides them, or take fsdp2"
            )
        how = f"{stage}, {precision}, checkpointing {name_of(checkpointing)}"
        with executing(f"{how}: two steps of rank 0 of {self.world_size}"):
            return self._run(stage, precision, checkpointing)

    def shards(self, stage: str) -> int:
        """Among how many ranks a stage shards what it shards."""
        return self.hardware.gpus_per_node if stage == "hsdp" else self.world_size

    def flats(self, stage: str) -> list[FlatLayout]:
        """The model's units as the stage divides them."""
        with world(1, on_gpu=self.hardware.on_gpu):
            model = self.own.build()
            multiple = 1 if stage in SIMULATED else granule(model)
            return partition(model, self.shards(stage), self.units, granule=multiple)

    def model(self) -> nn.Module:
        """The model as shapes."""
        with world(1):
            return self.own.build()

    def _run(self, stage: str, precision: str, checkpointing: Checkpointing) -> Cell:
        seen: dict[str, Any] = {"kept": {}, "runs": False}

        def prepare() -> Prepared:
            model = self.own.build()
            _check_positions(self.own, model, self.length)
            checkpoint_blocks(model, checkpointing, self.units)
            return model, *self.own.batch(self.rows, self.length)

        try:
            with own.nothing_packed(), set_stance("force_eager"):  # a compiler would look for memory
                recording, costs, _ = execute(
                    stage,
                    self.world_size,
                    prepare,
                    precision,
                    self.hardware,
                    loss_fn=self.loss_fn,
                    options={"units": self.units, **self.options},
                    micro_batches=self.micro_batches,
                    sync_each_batch=self.sync_each_batch,
                    begun=partial(_watch, seen, self.micro_batches),
                )
        except own.FAILURES as error:
            if isinstance(error, (ValueError, TypeError)) and not seen["runs"]:  # the stage refuses model or options
                raise
            if own.lacks_values(error):
                return self._state_only(stage, precision, checkpointing, own.first_line(error))
            given = own.in_words(self.own.batch(self.rows, self.length)[0])
            raise RuntimeError(
                f"a step of {self.own.name} failed on shapes with {type(error).__name__} ({own.first_line(error)}): it "
                f"was given {given}; pass inputs= (--inputs 4x64; several as a mapping of keywords), targets= and "
                "loss_fn= as your loop does"
            ) from error
        terms, highest = _terms(recording, seen["buffers and batch"]), _highest(recording)
        return Cell(stage, precision, checkpointing, terms, seen, highest, costs["seconds"], recording)

    def _state_only(self, stage: str, precision: str, checkpointing: Checkpointing, why: str) -> Cell:
        """What is known about a model that cannot be run without values: its state, in closed form."""
        flats, terms = self.flats(stage), Counter[str]()
        form, of_shards = (stage, precision) if stage not in SIMULATED else ("zero3", "fp32")  # shards are masters
        for dtype in {flat.dtype for flat in flats}:
            alike = [flat for flat in flats if flat.dtype == dtype]
            numels = [(flat.numel if stage in SIMULATED else flat.padded, flat.frozen) for flat in alike]
            count, trained = (sum(numel for numel, frozen in numels if every or not frozen) for every in (True, False))
            # "fp32" leaves each parameter in its own dtype, and all that belongs to it.
            word, per = (dtype.itemsize, forms.FP32_BYTES) if of_shards == "fp32" else (1, 1)
            state = forms.state_bytes(form, count * word, self.shards(stage), of_shards, trained=trained * word)
            if of_shards != "fp32":  # the update reads an fp32 copy of the gradients, as large as the masters
                state["gradients"] += state["optimizer_state"] // 3
            terms.update({name: nbytes // per for name, nbytes in state.items()})
        return Cell(stage, precision, checkpointing, dict(terms), {"why": why, "kept": {}})


def has_nodes(world_size: int, gpus_per_node: int) -> bool:
    """Whether there are several nodes: hybrid sharding is among the ranks of one, as in `theory.plan`."""
    return 1 < gpus_per_node < world_size and world_size % gpus_per_node == 0


def check_options(what: str, options: Iterable[str], known: list[str]) -> None:
    """Raises ValueError for an option that is not known, with its place if it is given elsewhere."""
    for option in options:
        if option in ELSEWHERE:
            raise ValueError(f"options cannot have {option}: {ELSEWHERE[option]}")
        check_known(what, option, known)


def options_of(stage: str) -> list[str]:
    """The options that a stage's engine has, without what is given elsewhere."""
    unfit = (*ELSEWHERE, "self", "model", "optimizer_cls", "optimizer_keywords", "arguments", "others")
    return [name for name in inspect.signature(ENGINES[stage]).parameters if name not in unfit]


def name_of(value: Any) -> Any:
    """How a value is written in a table: a policy by its function's name."""
    if isinstance(value, Mapping):
        return ", ".join(f"{pattern}: {name_of(how)}" for pattern, how in value.items())
    return value if isinstance(value, (str, int, float, bool)) else getattr(value, "__name__", str(value))


def learned_positions(model: nn.Module) -> int | None:
    """How many positions a Hugging Face model has learned: as many tokens has a row at most. None if it computes them.

    OPT's and BART's tables have two that nobody uses; RoBERTa counts from behind the padding token's.
    """
    longest = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    if not isinstance(longest, int):
        return None
    words: Any = getattr(model, "get_input_embeddings", lambda: None)()
    for table in model.modules():
        if isinstance(table, nn.Embedding) and table is not words and 0 <= table.num_embeddings - longest <= 2:
            first = 0 if table.padding_idx is None else table.padding_idx + 1
            return min(longest, table.num_embeddings - first)
    return None


def _check_positions(asked: Own, model: nn.Module, length: int | None) -> None:
    """Raises own.TooLong if a row has more tokens than the model has positions: on shapes no index is out of range."""
    tokens, learned = asked.length(length), learned_positions(model)
    if learned is not None and tokens > learned:
        raise own.TooLong(
            f"the length is {tokens}, and {asked.name} has learned {learned} positions: take shorter rows, or raise "
            "max_position_embeddings"
        )


def _watch(seen: dict[str, Any], micro_batches: int, recorder: Recorder, made: Prepared) -> None:
    """Counts what exists before the step, and notes what each module's first forward leaves."""
    model, inputs, targets = made
    recorder.count([*model.buffers(), *own.tensors_in((inputs, targets))])
    seen["buffers and batch"] = recorder.live()["other"]
    entered: dict[str, int] = {}
    forwards: Counter[str] = Counter()

    def before(name: str, *_: Any) -> None:
        entered[name], seen["runs"] = recorder.live()["activations"], True
        # From the second step on, when all state exists; a step lays out its micro-batches one after the other.
        forwards[name] += 1
        if name == "root" and forwards[name] == micro_batches + 1:
            seen["allocators"] = Allocator(), Allocator(expandable=True)
            recorder.ledger.lay_out(seen["allocators"])

    def after(name: str, *_: Any) -> None:
        # Only of step 2's first forward: in step 1 what FSDP2 gathers is not known as a parameter before it is used,
        # and those of a checkpoint run within backward.
        if forwards["root"] > micro_batches:
            seen["kept"].setdefault(name, recorder.live()["activations"] - entered[name])

    for name, module in model.named_modules():
        module.register_forward_pre_hook(partial(before, name or "root"))
        module.register_forward_hook(partial(after, name or "root"))


def _terms(recording: RankRecording, fixed: int) -> dict[str, int]:
    """The bytes of the highest moment by `TERMS`; `fixed` are those of the model's buffers and the batch."""
    info = recording.info
    if info.state is None or info.peak is None:
        raise RuntimeError(f"{info.stage} made no second update in {STEPS} steps: its state is unknown")
    live = info.peak
    parameters, fixed = min(info.state["parameters"], live["parameters"]), min(fixed, live["other"])
    return {
        "parameters": parameters,
        "gathered": live["parameters"] - parameters,
        **{name: live[name] for name in ("gradients", "optimizer_state", "activations", "communication")},
        "buffers": fixed,
        "update": live["other"] - fixed,
    }


def _highest(recording: RankRecording) -> str:
    """The moment of the peak: the phase, the unit whose turn it was, and the operation."""
    last: list[Event] = [event for event in recording.events if event.step == STEPS]
    peaks = [(sum(event.live.values()), number) for number, event in enumerate(last) if event.op == "peak"]
    if not peaks:
        return "unknown"
    number = max(peaks)[1]
    event = last[number]
    unit = next(
        (e.unit for e in reversed(last[:number]) if e.unit and e.kind == "module" and e.phase == event.phase), None
    )
    return f"{event.phase}{f' of {unit}' if unit else ''}"


def row_of(cell: Cell, usable: float, first: str | None, *, several: bool) -> dict[str, Any]:
    """The cell's line in a table; `first` is what to change first."""
    # The state alone can show that something does not fit, but not that it does.
    fits = cell.needs <= usable
    return {
        "stage": cell.stage,
        **({"precision": cell.precision} if several else {}),
        "checkpointing": cell.checkpointing,
        "fits": fits if cell.recording is not None or not fits else None,
        **{name: cell.terms.get(name) for name in TERMS},
        "needs": cell.needs,
        "lacks": None if fits else int(cell.needs - usable),
        "highest in": cell.highest,
        "first": first,
        "step_seconds": cell.seconds,
    }


def effort(cell: Cell) -> float:
    """How late to try it."""
    return EFFORT[cell.stage] + AGAIN.get(cell.checkpointing, 1.0)


def in_words(cell: Cell) -> str:
    """Its stage, precision and checkpointing."""
    how = "without checkpointing" if cell.checkpointing == "none" else f"checkpointing {cell.checkpointing}"
    return f"{cell.stage} in {cell.precision} {how}"
