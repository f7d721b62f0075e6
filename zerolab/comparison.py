"""Stages side by side: the same training on the same ranks, what was measured next to what the formula says.

`compare` trains a model twice under each stage: once recorded, and once unrecorded for the seconds, which would
otherwise include the recorder's work. The named terms follow from the layout of the flats, never from what was
measured, so `state - formula - terms` is a real check: it must be zero on every rank.
"""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from zerolab import models, theory
from zerolab.engines import ENGINES
from zerolab.engines.adamw_8bit import AdamW8bit
from zerolab.engines.checks import check_options, check_prefetch, check_switches, check_values
from zerolab.engines.engine import LossFunction
from zerolab.engines.native import OWN_OPTIONS
from zerolab.engines.partition import partition
from zerolab.models import Batch, BatchSource, ModelSource
from zerolab.names import ROOT, check_known, stage_names
from zerolab.recording import memory
from zerolab.recording.events import count
from zerolab.recording.explain import flats_of
from zerolab.recording.recording import Recording
from zerolab.runtime.cluster import Cluster
from zerolab.runtime.waiting import waiting
from zerolab.tables import Table
from zerolab.theory import systems

LEARNING_RATE = 1e-3
ADAMW = {"fp32": torch.optim.AdamW, "8-bit": AdamW8bit}  # by what its moments lie in


@dataclass(frozen=True)
class Comparison:
    """What `compare` found: `rows` (plain values, one dict per stage) and the recordings by stage.

    Keys of a row: stage, world_size, num_params, precision, losses (means over ranks), state, peak and formula (bytes
    by category), terms (bytes by name), traffic (logical_bytes, formula_bytes and wire_bytes per step), step_seconds,
    and ranks, each with its own rank, state, peak and terms. Top-level bytes are rank 0's. On GPUs also device,
    host_state and host_peak (the part of the state that lies in main memory, and the peak there), and card (the bytes
    on the card by name).

    `step_seconds` is the median of the slowest rank's steps without the first, in the unrecorded training; `seconds`
    has those steps one by one, by stage. Stages whose ranges overlap have not been shown to differ: with few steps, or
    on a busy box, a median may lie anywhere in its range.
    """

    rows: list[dict[str, Any]]
    recordings: dict[str, Recording]
    seconds: dict[str, list[float]] = field(default_factory=dict, kw_only=True)

    def table(self, *, times: bool = False, exact: bool = False) -> Table:
        """Bytes per rank at the optimizer's update, measured and by formula; `unexplained` must be 0.

        Args:
            times: also show the seconds of a step, with the fastest and the slowest.
            exact: show exact bytes instead of MB.
        """
        row = self.rows[0]
        title = (
            f"{row['num_params']:,} parameters on {count(row['world_size'], 'rank')}, {row['precision']}: bytes a rank"
        )
        if times and self.seconds:
            steps = len(next(iter(self.seconds.values())))
            title += f"\nseconds: the median of {count(steps, 'step')}; stages whose ranges overlap may be alike"
        rows = [memory.summary(row) | memory.seconds_range(self.seconds.get(row["stage"])) for row in self.rows]
        if any("device" in row for row in self.rows):  # each line is followed by one for each device
            pairs = zip(self.rows, rows, strict=True)
            rows = [{"stage": row["stage"]} | line for row, both in pairs for line in memory.states(row, both)]
        return Table(rows, title, times=times, sizes=() if exact else memory.sizes(rows))

    def memory(self, *, exact: bool = False) -> Table:
        """Bytes of rank 0 at the peak of the last step, by stage; on GPUs device by device, to all that a card holds.

        Args:
            exact: show exact bytes instead of MB.
        """
        rows = [{"stage": row["stage"]} | line for row in self.rows for line in memory.peaks(row)]
        return Table(rows, "bytes of rank 0 at the peak of a step", sizes=() if exact else memory.sizes(rows))

    def play(self, *stages: str) -> Any:
        """Plays the recording of one stage, or of two side by side; by default those of the first two.

        Raises ValueError for a stage that was not run, or for more than two.
        """
        for stage in stages:
            check_known("stage of this comparison", stage, self.recordings)
        if len(stages) > 2:
            raise ValueError(f"{', '.join(stages)} are {len(stages)} stages: the player shows one or two")
        first, *other = (self.recordings[stage] for stage in stages or list(self.recordings)[:2])
        return first.play(*other)

    def strip(self) -> Any:
        """The stages at one glance: what each rank holds and sends, on one scale; a click on a stage moves the shards.

        `strip().save("stages.svg")` writes it for slides. Raises ValueError as `Recording.state`.
        """
        from zerolab.player.strip import Strip

        return Strip(self.recordings)

    def save(self, path: str | os.PathLike[str]) -> list[Path]:
        """Writes the recordings and returns their paths: one to `path`, several beside it as `run-zero3.json`.

        Raises ValueError as `Recording.save`.
        """
        place, several = Path(path), len(self.recordings) > 1
        paths = {stage: place.with_stem(f"{place.stem}-{stage}") if several else place for stage in self.recordings}
        for stage, recording in self.recordings.items():
            recording.save(paths[stage])
        return list(paths.values())

    def __repr__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def compare(  # noqa: PLR0917  (in the order in which they are usually given)
    stages: str | Sequence[str] = theory.STAGES,
    world_size: int = 4,
    model: ModelSource = "gpt-10m",
    batches: BatchSource | Sequence[Batch] | None = None,
    steps: int = 5,
    precision: str = "fp32",
    device: str = "auto",
    progress: Callable[[str], None] | None = None,
    options: Mapping[str, Any] | None = None,
    loss_fn: LossFunction = models.loss,
    moments: str = "fp32",
) -> Comparison:
    """Trains `model` under each stage on real ranks with AdamW, and puts measurement and formula side by side.

    Args:
        stages: names, as a sequence or joined by commas: ddp, zero1, zero2, zero3, or another system's: torch-ddp,
            torch-zero1, fsdp1, fsdp2, hsdp, deepspeed-0 to deepspeed-3; or zero3-8bit, zero3 with gathers in 8 bits; or
            with Muon for the matrices of the units, and AdamW for the rest: muon-replicated, muon-owners, muon-rows.
        world_size: number of ranks N, at least 1.
        model: a name of `models.RECIPES`, or a function without arguments that returns a module.
        batches: None for the named model's own; or a list of (inputs, targets), one per step, whose rows are divided
            among the ranks; or a function of (world_size, rank, steps) that returns one rank's batches. Inputs and
            targets may be tuples or mappings of tensors; inputs in a mapping become the model's keywords.
        steps: training steps, at least 2: Adam makes its state in the first, so state is measured from the second on.
        precision: "fp32", or "bf16" or "fp16" (mixed precision with fp32 master weights).
        device: where the ranks compute: "auto", "cpu" or "cuda".
        progress: called with a sentence as each stage begins.
        options: more keywords for every stage's engine, such as {"overlap": False}; zero3 also takes prefetch and
            release_after_forward.
        loss_fn: a function of the model's outputs and the targets that returns a scalar, as `training_step` takes it.
            By default cross-entropy for targets of whole numbers, and squared error for others (`models.loss`).
        moments: "fp32" as AdamW keeps them, or "8-bit" (`AdamW8bit`), which our own stages and zero3-8bit take.

    Raises:
        ValueError: an unknown stage, model, precision or device, too few ranks, steps or batches.
        TypeError: `model` is neither a name nor a function that returns a module, or `loss_fn` is not a function.
        ImportError: DeepSpeed is not installed.
        RankError: a rank failed; the message has its traceback.
    """
    chosen, train_one = _prepared(stages, world_size, model, batches, steps, precision, options, loss_fn, moments)
    recordings, rows, seconds = {}, [], {}
    for number, stage in enumerate(chosen, start=1):
        now = f"{stage}: {steps} steps on {world_size} ranks, twice ({number} of {len(chosen)})"
        if progress is not None:
            progress(now)
        # Fresh ranks for each: what FSDP1 and DeepSpeed leave in memory would count in the next stage's peak.
        with waiting(now), Cluster(world_size=world_size, device=device) as cluster:
            # The cluster's device, not the caller's: "auto" has been resolved, once for all ranks.
            training = partial(train_one, stage, device=cluster.device)
            recordings[stage] = cluster.record(partial(training, looked_into=stage in systems.FORMS))
            # Without the first step, which makes Adam's state and warms caches; of the slowest rank: all wait for it.
            seconds[stage] = max((run.seconds[1:] for run in cluster.run(training)), key=median)
            rows.append(row_of(recordings[stage], precision, median(seconds[stage])))
    return Comparison(rows, recordings, seconds=seconds)


def record(
    stage: str,
    world_size: int = 4,
    model: ModelSource = "gpt-tiny",
    steps: int = 3,
    *,
    batches: BatchSource | Sequence[Batch] | None = None,
    precision: str = "fp32",
    device: str = "auto",
    options: Mapping[str, Any] | None = None,
    loss_fn: LossFunction = models.loss,
    moments: str = "fp32",
    times_only: bool = False,
    fingerprints: str | os.PathLike[str] | None = None,
) -> Recording:
    """Trains `model` under one stage, by its name, on real ranks with AdamW, and returns the recording.

    With `times_only` it has no bytes of memory, and the run is hardly slower for being recorded
    (`Cluster.record_times`). With a file's name for `fingerprints` it is saved there, with fingerprints beside it
    (`Cluster.record_fingerprints`). All other arguments but `stage` are those of `compare`, and so are the errors;
    ValueError, too, where both are asked for.
    """
    if times_only and fingerprints:
        raise ValueError("times_only and fingerprints exclude one another: fingerprints look at every number")
    (chosen,), training = _prepared([stage], world_size, model, batches, steps, precision, options, loss_fn, moments)
    with waiting(f"{chosen}: recording {steps} steps on {world_size} ranks"), Cluster(world_size, device) as cluster:
        recorded: Callable[..., Recording] = cluster.record_times if times_only else cluster.record
        if fingerprints:
            recorded = partial(cluster.record_fingerprints, fingerprints)
        return recorded(training, chosen, device=cluster.device)


@dataclass(frozen=True)
class Training:
    """One rank's part of a training: the loss and the seconds of each step, and what `systems.shown` found."""

    losses: list[float]
    seconds: list[float]
    shown: dict[str, int]


def train(
    stage: str,
    model: ModelSource,
    feed: BatchSource,
    steps: int,
    *,
    device: str,
    precision: str = "fp32",
    looked_into: bool = False,
    options: Mapping[str, Any] | None = None,
    loss_fn: LossFunction = models.loss,
    moments: str = "fp32",
) -> Training:
    """Runs on a rank: trains `model` under `stage` on this rank's batches. No collectives but the engine's.

    `looked_into`: at each update, note the state that the engine shows, for a system with a layout of its own.
    """
    # The caller's options last: they may even change the learning rate.
    keywords = {"lr": LEARNING_RATE, "precision": precision, **(options or {})}
    engine = ENGINES[stage](models.module_of(model).to(device), ADAMW[moments], **keywords)
    losses, seconds, world_size, rank = [], [], dist.get_world_size(), dist.get_rank()
    # No closed form says what another system keeps, so it is read when the state is complete.
    with systems.shown_at_updates(engine if looked_into else None) as shown:
        for inputs, targets in islice(feed(world_size, rank, steps), steps):
            start = perf_counter()
            loss = engine.training_step(*models.to_device((inputs, targets), device), loss_fn)
            losses.append(loss.item())  # waits for the device, so it belongs to the step's seconds
            seconds.append(perf_counter() - start)
    if len(losses) < steps:
        call = f"batches(world_size={world_size}, rank={rank}, steps={steps})"
        raise ValueError(f"{call} gave {len(losses)} batches: give one per step")
    return Training(losses, seconds, shown)


def _prepared(  # noqa: PLR0917  (as `compare` has them)
    stages: str | Sequence[str],
    world_size: int,
    model: ModelSource,
    batches: BatchSource | Sequence[Batch] | None,
    steps: int,
    precision: str,
    options: Mapping[str, Any] | None,
    loss_fn: LossFunction,
    moments: str,
) -> tuple[list[str], Callable[..., Training]]:
    """The stages, and what trains one of them on a rank's device; refuses wrong use before any rank starts."""
    if not isinstance(options, Mapping | None):
        raise TypeError(f"options is {options!r}: pass a mapping of names to values, such as {{'lr': {LEARNING_RATE}}}")
    chosen, given = stage_names(stages, ENGINES), options or {}
    for stage in chosen:
        systems.check_moments(stage, precision, moments, ENGINES)
        systems.check(stage, world_size, precision)
        for option in given:
            check_known(f"option of {stage}", option, _options_of(stage))
    check_switches(**{name: given[name] for name in ("overlap", "offload", "release_after_forward") if name in given})
    check_prefetch(given.get("prefetch", 0))
    if not callable(loss_fn):
        raise TypeError(f"loss_fn is {loss_fn!r}: pass a function of the model's output and the targets")
    others = (given.get(name) for name in ("reduce_dtype", "replicate"))
    check_options(ADAMW[moments], given.get("units"), given.get("param_groups", ()), *others)
    check_values(ADAMW[moments], given)
    cut = {name: given[name] for name in ("units", "param_groups", "replicate") if name in given}
    partition(models.module_of(model), world_size, **cut)  # as the engines will
    feed = models.feed(model, batches, world_size, steps)
    choice: dict[str, Any] = {"precision": precision, "options": options, "loss_fn": loss_fn, "moments": moments}
    return chosen, partial(train, model=model, feed=feed, steps=steps, **choice)


def _options_of(stage: str) -> list[str]:
    """The keywords of a stage's engine and of its optimizer; those of our engines are refused by others in words."""
    its, adamws = (inspect.signature(taker).parameters for taker in (ENGINES[stage], torch.optim.AdamW))
    unfit = ("model", "optimizer_cls", "optimizer_keywords", "params", "precision")  # the last is `compare`'s own
    return [name for name in dict.fromkeys([*its, *OWN_OPTIONS, *adamws]) if name not in unfit]


def row_of(recording: Recording, precision: str, step_seconds: float) -> dict[str, Any]:
    """One stage's row; `Comparison` says what its keys mean."""
    ranks = recording.ranks
    stage, world_size, trainings = str(recording.info.stage), recording.world_size, recording.results or []
    flats = flats_of(recording)
    num_params, muon = sum(flat.numel for flat in flats), {"matrices": recording.info.matrices}
    root = sum(flat.numel for flat in flats if flat.name.split()[0] == ROOT)
    if any(rank.info.state is None for rank in ranks):
        raise RuntimeError(
            f"{stage} has made fewer than two updates in {recording.info.steps} steps, because gradients overflowed in "
            f"{precision}: take more steps, in which the scale of the loss comes down"
        )
    if stage in systems.FORMS and stage not in systems.IN_FLATS:
        terms = [
            systems.terms(stage, flats, world_size, precision, state=rank.state, showed=training.shown, **muon)
            for rank, training in zip(ranks, trainings, strict=True)
        ]
    else:  # shards are equal on all ranks, and so are the terms, unless a parameter is not used
        form = systems.FORMS.get(stage, stage)
        terms = [theory.terms(form, flats, world_size, precision, **rank.info.for_terms) for rank in ranks]
    return {
        "stage": stage,
        **memory.of_row(ranks[0].info),
        "world_size": world_size,
        "num_params": num_params,
        "precision": precision,
        "losses": [fmean(step) for step in zip(*(training.losses for training in trainings), strict=True)],
        "state": recording.state,
        "peak": recording.peak,
        "formula": systems.state_bytes(stage, num_params, world_size, precision, moments=ranks[0].info.moments, **muon),
        "terms": terms[0],
        "traffic": {
            "logical_bytes": recording.sent,
            "formula_bytes": systems.traffic_bytes(stage, num_params, world_size, precision, root=root, **muon),
            "wire_bytes": ranks[0].info.wire_bytes[-1],
        },
        "step_seconds": step_seconds,
        "ranks": [
            {"rank": rank.rank, "state": rank.state, "peak": rank.info.peak, "terms": its}
            for rank, its in zip(ranks, terms, strict=True)
        ],
    }
