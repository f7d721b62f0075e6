"""simulate(): stages side by side at any size, run by the engine files themselves on a fake rank of N.

Rank 0 runs, watched by the same recorder. The others have equal shards and do the same in the same order, so they are
derived from rank 0 and the partition, and marked so; where shares are unequal, as those of whole matrices, each rank
runs. Bytes are counted, not estimated; seconds are a cost model's.
"""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from operator import attrgetter, itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from zerolab import catalog, models, theory
from zerolab.comparison import ADAMW, LEARNING_RATE, Comparison, Training, row_of
from zerolab.engines import ENGINES
from zerolab.engines.engine import LossFunction
from zerolab.models import Batch, ModelSource
from zerolab.names import check_count, check_known, check_type, stage_names
from zerolab.recording.events import Event, RankRecording
from zerolab.recording.recorder import Recorder
from zerolab.recording.recording import Recording
from zerolab.runtime.waiting import waiting
from zerolab.simulation import architectures
from zerolab.simulation.checkpointing import checkpoint_blocks
from zerolab.simulation.costs import Clock, Hardware, Meter, Work, check_alone
from zerolab.simulation.fake import SIMULATED, engine_of, timed, world
from zerolab.simulation.shapes import META
from zerolab.theory import muon, systems
from zerolab.theory.planner import check_number, check_size
from zerolab.theory.seconds import FITTED

STEPS = 2  # Adam makes its state in the first
Prepared = tuple[nn.Module, torch.Tensor, torch.Tensor]
SHOWN_RANKS = 8  # a recording of a thousand equal ranks would show nothing more
STAGES = (*theory.STAGES, *muon.PLACED)
UNEQUAL = ("muon-owners", "muon-rows")  # stages whose ranks own shares of different sizes


@dataclass(frozen=True, repr=False)
class Simulation(Comparison):
    """What `simulate` found: recordings, and rows like those of `compare`, but `losses` [] and `wire_bytes` None.

    `step_seconds` and the times in the recordings are a cost model's, whose assumptions are in `hardware`, and another
    than that of `theory.plan`. A recording holds rank 0, which ran, and up to seven ranks that are derived from it;
    `rows` cover all N. Of muon-owners and muon-rows the first eight ranks run, and `rows` cover those; the seconds are
    the slowest one's.
    """

    hardware: Hardware


def simulate(
    stages: str | Sequence[str] = theory.STAGES,
    world_size: int = 4,
    model: ModelSource = "7b",
    *,
    batches: Sequence[Batch] | None = None,
    precision: str = "fp32",
    moments: str = "fp32",
    rows: int | None = None,
    length: int | None = None,
    checkpointing: str = "none",
    gpu: str = "h100",
    network: str = "infiniband-ndr",
    bandwidth: float | None = None,
    gpus_per_node: int = 8,
    utilisation: float | None = None,
    hardware: Hardware | None = None,
    progress: Callable[[str], None] | None = None,
) -> Simulation:
    """Runs two training steps of AdamW under each stage on a fake rank 0 of `world_size`.

    Args:
        stages: any of ddp, zero1, zero2, zero3, or with Muon for the matrices of the units muon-replicated,
            muon-owners, muon-rows; a sequence, or joined by commas. `compare` runs other systems, on real ranks.
        world_size: number of ranks N, at least 1.
        model: a name of `catalog.ARCHITECTURES` or `models.RECIPES`, or a function that returns a module.
        batches: for a model of your own, a list whose first (inputs, targets) is one rank's batch.
        precision: "fp32", "bf16" or "fp16".
        moments: "fp32" as AdamW keeps them, or "8-bit" (`AdamW8bit`), which ddp, zero1, zero2 and zero3 take.
        rows: sequences per rank, for the catalog's models; None takes 1.
        length: tokens per sequence, for those too; None takes the model's full context. A Llama may be given more.
        checkpointing: what backward recomputes of each block: "none", "block" for all of it, or "selective" for all
            but attention and every second matrix multiplication.
        gpu: a name of `catalog.GPUS`; its memory is no limit here.
        network: a name of `catalog.LINKS`, between nodes.
        bandwidth: bytes per second that a GPU sends to other nodes (50 GB/s is 50e9); None takes the network's.
        gpus_per_node: ranks that the GPU's own link connects.
        utilisation: part of the GPU's dense rate that matrix multiplications reach; None as fitted (`seconds.FITTED`).
        hardware: all of these in one object, in place of the five arguments before it.
        progress: called with a sentence as each stage begins.

    Raises ValueError for an unknown name, a precision that the GPU does not have, a count below 1, a bandwidth below a
    million, a utilisation outside (0, 1] or a batch that the model does not take; RuntimeError where a model's
    control flow depends on values, an engine reads released memory, or this process is in a process group.
    """
    world_size = check_count("world size", world_size)
    chosen = _checked(stages, precision, moments)
    _check_batch(model, batches, rows, length)
    named = {"gpu": gpu, "network": network, "bandwidth": bandwidth, "gpus_per_node": gpus_per_node}
    hardware = _hardware(hardware, **named, utilisation=utilisation)
    hardware.gpu.rate(precision)  # refused here, before anything is executed
    prepare = partial(_prepare, model, batches, rows, length, checkpointing)
    recordings = {}
    for number, stage in enumerate(chosen, start=1):
        ranks = range(min(world_size, SHOWN_RANKS) if stage in UNEQUAL else 1)
        who = f"ranks 0 to {ranks[-1]}" if ranks[-1] else "rank 0"
        with executing(f"{stage}: two steps of {who} of {world_size} ({number} of {len(chosen)})", progress):
            run = partial(execute, stage, world_size, prepare, precision, hardware, moments=moments)
            recordings[stage] = _merge([run(rank=rank) for rank in ranks])
    return Simulation([_row(each, precision) for each in recordings.values()], recordings, hardware)


@contextmanager
def executing(text: str, progress: Callable[[str], None] | None = None) -> Iterator[None]:
    """Says what is executed, and makes Python's garbage collector skip the objects that exist.

    Otherwise each collection would traverse torch's half a million objects and the events of earlier stages: half of a
    small simulation's time. Cycles among new objects are freed at the end, so none goes in a later recording's middle.
    """
    if progress is not None:
        progress(text)
    gc.freeze()
    try:
        with waiting(text):
            yield
            gc.collect()
    finally:
        gc.unfreeze()


def _checked(stages: str | Sequence[str], precision: str, moments: str) -> list[str]:
    chosen = stage_names(stages, STAGES)
    for stage in chosen:
        if stage in ENGINES and stage not in STAGES:
            also = "; for a model of your own fit simulates it" if stage in SIMULATED else ""
            raise ValueError(f"{stage} is not one of {', '.join(STAGES)}: use compare, on real ranks{also}")
        check_known("stage", stage, STAGES)
        systems.check_moments(stage, precision, moments, STAGES)
    return chosen


def _check_batch(model: ModelSource, batches: Sequence[Batch] | None, rows: int | None, length: int | None) -> None:
    """Refuses what would be ignored: rows and length are of the catalog's models, batches of your own."""
    if length is not None:
        check_number("length", length)
    of_catalog = isinstance(model, str) and model not in models.RECIPES
    if not of_catalog and not rows is length is None:
        own = f"{model!r} has a batch of its own" if isinstance(model, str) else "batches= says what a rank gets"
        raise ValueError(f"rows and length are for the models of the catalog, and {own}: leave them out")
    check_type("batches", batches, Sequence | None, "a list of (inputs, targets), of which the first is taken")
    if isinstance(model, str) and batches is not None:
        raise ValueError(f"batches are for a function of your own: leave them out, or pass one in place of {model!r}")


def _hardware(given: Hardware | None, **named: Any) -> Hardware:
    if given is None:
        return _of_names(**named)
    check_alone(given, simulate, **named)
    return given


def _of_names(
    *, gpu: str, network: str, bandwidth: float | None, gpus_per_node: int, utilisation: float | None
) -> Hardware:
    link = catalog.link(network)
    if bandwidth is not None:
        check_size("bandwidth", bandwidth, "bytes a second", "50 GB/s is 50e9")
        link = replace(link, bytes_per_second=bandwidth)
    if utilisation is not None:
        check_number("utilisation", utilisation)
    return Hardware(catalog.gpu(gpu), link, gpus_per_node, utilisation)


def _prepare(
    model: ModelSource, batches: Sequence[Batch] | None, rows: int | None, length: int | None, checkpointing: str
) -> Prepared:
    """The module and one rank's batch, all of them shapes; called where new tensors have no memory."""
    if isinstance(model, str) and model in models.RECIPES:
        with torch.utils._python_dispatch._disable_current_modes():  # noqa: SLF001  (the text is real)
            batch = models.batches(model, 1, 0, 1)[0]
        built = models.build(model)
    elif isinstance(model, str):
        architecture = catalog.architecture(model)
        rows = 1 if rows is None else check_count("number of rows", rows)
        tokens = torch.zeros(rows, architecture.checked_length(rows, length), dtype=torch.int64)
        built, batch = architectures.build(architecture), (tokens, torch.zeros_like(tokens))
    else:
        models.check_source(model)
        if not batches:
            raise ValueError(
                "the model is a function of your own: pass batches=, a list of (inputs, targets) of one rank"
            )
        models.check_pairs(batches)
        built, batch = _without_memory(model()), batches[0]
    checkpoint_blocks(built, checkpointing)
    inputs, targets = tree_map_only(torch.Tensor, lambda t: t.detach().to(META).requires_grad_(t.requires_grad), batch)
    return built, inputs, targets


def _without_memory(module: Any) -> nn.Module:
    """The module itself. Raises ValueError if a tensor in it was made elsewhere, TypeError for anything else."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"the function returned a {type(module).__name__}, not a torch.nn.Module: return the model")
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if tensor.device != META and tensor.numel() > 1:
            raise ValueError(
                f"{name!r} has values already, and memory: build the whole module within the function that you pass"
            )
    # A number from `torch.tensor` has a value here, and engines lay parameters into flats that have none.
    numbers = [parameter for parameter in module.parameters() if parameter.device != META]
    shapes = {each: nn.Parameter(torch.empty_like(each, device=META), each.requires_grad) for each in numbers}
    for part in module.modules():
        for name, parameter in [*part.named_parameters(recurse=False, remove_duplicate=False)]:
            if parameter in shapes:
                setattr(part, name, shapes[parameter])
    return module


class Executed(NamedTuple):
    """One rank of a stage: what it recorded, what its last step costs, and what `systems.shown` found."""

    recording: RankRecording
    costs: dict[str, Any]
    shown: dict[str, int]


def execute(
    stage: str,
    world_size: int,
    prepare: Callable[[], Prepared],
    precision: str,
    hardware: Hardware,
    *,
    rank: int = 0,
    moments: str = "fp32",
    loss_fn: LossFunction = models.loss,
    options: Mapping[str, Any] = MappingProxyType({}),
    micro_batches: int = 1,
    sync_each_batch: bool = False,
    begun: Callable[[Recorder, Prepared], object] = lambda *_: None,
) -> Executed:
    """One stage on one rank.

    `options` are the engine's; a step adds up `micro_batches` gradients, of which FSDP2 reduces each with
    `sync_each_batch`; `begun` is called with the recorder and with what `prepare` made, before the engine is made.
    """
    clock = Clock(FITTED.contention)
    meter = Meter(clock, hardware, precision)
    with world(world_size, rank, on_gpu=hardware.on_gpu) as shapes:
        # The model is built before the recorder starts: real ranks, too, are recorded from the engine on.
        model, inputs, targets = made = prepare()
        with timed(shapes, meter), Recorder(clock=clock.now, simulated=True) as recorder:
            begun(recorder, made)
            kind = engine_of(stage, hardware.gpus_per_node)
            engine = kind(model, ADAMW[moments], lr=LEARNING_RATE, precision=precision, **options)
            shapes.engine = engine
            with systems.shown_at_updates(engine if stage in muon.PLACED else None) as shown:
                for _ in range(STEPS):  # the last one is reported
                    started, waited, meter.work = clock.computed, clock.waited, Work()
                    for _ in range(micro_batches - 1):
                        with engine.accumulate():
                            if sync_each_batch and stage in SIMULATED:  # as a loop without `accumulate` does
                                engine.model.set_requires_gradient_sync(True)
                            engine.training_step(inputs, targets, loss_fn)
                    engine.training_step(inputs, targets, loss_fn)
        executed = recorder.finish()  # within the world, which knows the rank and N
    costs = {"assumptions": hardware.describe(), "seconds": clock.computed - started}
    costs |= {"blocked_seconds": clock.waited - waited, **asdict(meter.work)}
    return Executed(replace(executed, info=replace(executed.info, device=hardware.gpu.name)), costs, shown)


def _merge(executed: Sequence[Executed]) -> Recording:
    """The recording of the ranks that ran; of a single one also those of the next ranks, derived from it."""
    one = Recording.merge([each.recording for each in executed])  # derived ranks share its clock
    shown = min(one.world_size, SHOWN_RANKS)
    ranks = one.ranks if len(executed) > 1 else [derive(one.ranks[0], rank) for rank in range(shown)]
    results = [Training([], [], each.shown) for each in executed] * (len(ranks) // len(executed))
    costs = max((each.costs for each in executed), key=itemgetter("seconds"))
    info = replace(one.info, costs=costs)
    return Recording(ranks, world_size=one.world_size, info=info, units=one.units, sources=one.sources, results=results)


def derive(executed: RankRecording, rank: int) -> RankRecording:
    """What `rank` would have recorded, derived from rank 0: the same, with its own shards in place of rank 0's."""
    if rank == executed.rank:
        return executed
    shards = {unit.name: unit.padded // executed.world_size for unit in executed.units}
    events = [_derived(event, rank, shards) for event in executed.events]
    if events:
        text = f"rank {rank} did not run: it is derived from rank {executed.rank} and the partition"
        events[0] = replace(events[0], text="; ".join(filter(None, [events[0].text, text])))
    return replace(executed, rank=rank, events=tuple(events), info=replace(executed.info, derived=True))


_NAMES = [field.name for field in fields(Event)]
_values_of = attrgetter(*_NAMES)
_RANK, _SPANS = _NAMES.index("rank"), _NAMES.index("spans")


def _derived(event: Event, rank: int, shards: dict[str, int]) -> Event:
    """The event as `rank` would have it. Not by `dataclasses.replace`, which takes three times as long."""
    values = list(_values_of(event))
    values[_RANK] = rank
    # Only what is exactly rank 0's shard moves; whole units and activations are the same on every rank.
    shard = shards.get(event.unit or "")
    if shard and event.spans == ((0, shard),):  # with one rank there is none to derive
        values[_SPANS] = ((rank * shard, (rank + 1) * shard),)
    return Event(*values)


def _row(recording: Recording, precision: str) -> dict[str, Any]:
    """One stage's row, as `compare` has it."""
    costs: Any = recording.info.costs
    row = row_of(recording, precision, costs["seconds"])
    row["traffic"]["wire_bytes"] = None
    if recording.info.stage in UNEQUAL:
        return row | {"ranks": [rank | {"derived": False} for rank in row["ranks"]]}
    # Shards are padded to the same length, so every rank holds and sends the same number of bytes.
    ranks = [row["ranks"][0] | {"rank": rank, "derived": rank > 0} for rank in range(recording.world_size)]
    return row | {"ranks": ranks}
