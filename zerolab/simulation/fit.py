"""fit(): the memory of your own model before it runs, under each stage and checkpointing, executed on shapes.

Each row is a simulated training step: the engines' code, or torch's own FSDP2, runs your model on tensors without
memory, and the recorder counts. Activations are therefore those of your model and batch, not of a formula. CUDA's
context, which a GPU also needs, is subtracted from its memory; NCCL's buffers are not counted, and gaps in
torch's allocator only in `Fit.reserved`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from zerolab import catalog, theory
from zerolab.catalog import Gpu
from zerolab.engines.engine import LossFunction
from zerolab.names import check_count, check_known, check_type, stage_names
from zerolab.simulation import losses, own
from zerolab.simulation.checkpointing import Checkpointing
from zerolab.simulation.costs import Hardware, check_alone
from zerolab.simulation.found import Fit
from zerolab.simulation.needs import (
    STAGES,
    Cell,
    Question,
    check_options,
    has_nodes,
    learned_positions,
    name_of,
    options_of,
)
from zerolab.theory.activations import CHECKPOINTING
from zerolab.theory.planner import usable


def fit(
    model: own.Source | str,
    world_size: int = 8,
    *,
    inputs: Any = None,
    targets: Any = None,
    loss_fn: LossFunction | None = None,
    rows: int | None = None,
    length: int | None = None,
    stages: str | Sequence[str] | None = None,
    precision: str | Sequence[str] = "bf16",
    checkpointing: Checkpointing | Sequence[Checkpointing] = CHECKPOINTING,
    units: type | str | list[str] | None = None,
    micro_batches: int = 1,
    sync_each_batch: bool = False,
    gpu: str = "h100",
    memory: float | None = None,
    network: str = "infiniband-ndr",
    gpus_per_node: int = 8,
    hardware: Hardware | None = None,
    options: Mapping[str, Any] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Fit:
    """Says what your own model needs of each GPU before it runs, under every stage and checkpointing.

    Two steps of AdamW run, by the code that would really train it, on shapes: no memory, download or GPU is needed.

    Args:
        model: a function that makes it, a module, "train.py:make_model", or a Hugging Face configuration's path.
        world_size: number of GPUs, one rank each.
        inputs: one rank's batch, a tensor or a mapping of keywords, as shapes; None: int64 tokens [rows, length].
        targets: what `loss_fn` compares the outputs with.
        loss_fn: of outputs and targets, a scalar; None: the model's own, cross-entropy of tokens, or squared error.
        rows: sequences per rank, the first dimension of the batch; None takes that of `inputs`, or 1.
        length: tokens per sequence, if any; None takes that of `inputs`, or the model's positions, at most 2048.
        stages: of ddp, zero1, zero2, zero3, fsdp2, hsdp; None takes all that have the options, hsdp with several nodes.
        precision: "fp32", "bf16" or "fp16"; several joined by commas, or a sequence.
        checkpointing: "none", "selective" or "block" (see `theory.plan`), what `create_selective_checkpoint_contexts`
            takes, a mapping from names of blocks to these, or a list of such.
        units: the blocks, which travel as one: a class or its name, or names of modules; None finds them.
        micro_batches: how many add up to a step.
        sync_each_batch: whether fsdp2 and hsdp reduce each one's gradients, as in `theory.plan`; no other stage asks.
        gpu: a name of `catalog.GPUS`.
        memory: bytes of one GPU, in place of the catalog's, CUDA's own included (80 GB is 80e9).
        network: a name of `catalog.LINKS`, between nodes; for the seconds.
        gpus_per_node: the ranks that hsdp shards among, each node being a replica; and for the seconds.
        hardware: a `simulation.costs.Hardware` in place of gpu, network and gpus_per_node; `on_gpu=False` is CPUs.
        options: of the engines, such as {"reshard_after_forward": False}, but not `offload` (see `Fit.offload`).
        progress: called with a sentence as each row begins.

    Raises ValueError for a name, count, file, length or model that cannot be used; TypeError for another type, or a
    function that needs arguments; ImportError without transformers; RuntimeError where the forward fails.
    """
    hardware, options = _hardware(hardware, gpu=gpu, network=network, gpus_per_node=gpus_per_node), options or {}
    cases = _cases(_stages(stages, options, world_size, hardware), precision, checkpointing, hardware.gpu)
    asked, room = own.own(model, inputs, targets), usable(hardware.gpu.memory_bytes if memory is None else memory)
    loss_fn = loss_fn or partial(losses.loss, of_tokens=asked.length(length) > 0)
    counted = micro_batches, options, _sync(sync_each_batch)
    question = _with_shapes(Question(asked, [], world_size, rows, length, hardware, room, loss_fn, *counted), units)
    return Fit(question, *_answers(question, cases, progress, all_stages=stages is None))


def _hardware(given: Hardware | None, *, gpu: str, network: str, gpus_per_node: int) -> Hardware:
    if given is None:
        return Hardware(catalog.gpu(gpu), catalog.link(network), check_count("gpus_per_node", gpus_per_node))
    check_alone(given, fit, gpu=gpu, network=network, gpus_per_node=gpus_per_node)
    return given


def _sync(given: bool) -> bool:
    check_known("sync_each_batch", given, (False, True))  # "no" would be true
    return given


def _with_shapes(question: Question, units: type | str | list[str] | None) -> Question:
    """The same with what only the model itself says: its blocks, and how many positions it has learned."""
    shapes = question.model()
    asked = replace(question.own, longest=learned_positions(shapes) or question.own.longest)
    return replace(question, own=asked, units=own.blocks_of(shapes, units))


def _cases(
    stages: list[str], precision: str | Sequence[str], checkpointing: Any, device: Gpu
) -> list[tuple[str, str, Any]]:
    """Each stage with each precision and checkpointing. Raises ValueError for one that is unknown, or named twice."""
    precisions = stage_names(precision, theory.BYTES_PER_PARAMETER, "precision")
    for each in precisions:
        check_known("precision", each, theory.BYTES_PER_PARAMETER)
        device.rate(each)
    policies = checkpointing if isinstance(checkpointing, (list, tuple)) else [checkpointing]
    stage_names([name_of(policy) for policy in policies], CHECKPOINTING, "checkpointing")  # rows go by these names
    return [(stage, each, policy) for each in precisions for stage in stages for policy in policies]


def _answers(
    question: Question, cases: list[tuple[str, str, Any]], progress: Callable[[str], None] | None, *, all_stages: bool
) -> tuple[list[Cell], list[str]]:
    """A cell for each case, and what was left out: what a stage cannot train, if you did not ask for that stage."""
    cells, refused = [], None
    notes = [] if question.own.note is None else [question.own.note]
    for number, (stage, each, policy) in enumerate(cases):
        if progress is not None:
            progress(f"{stage}, {each}, checkpointing {name_of(policy)} ({number + 1} of {len(cases)})")
        try:
            cells.append(question.cell(stage, each, policy))
        except ValueError as error:
            if not all_stages:
                raise
            refused = error
            notes.append(f"{stage} in {each} is left out: {error}")
        except RuntimeError as error:
            if not all_stages or not cells:  # with no other way does the model run either
                raise
            notes.append(f"{stage} in {each} with checkpointing {name_of(policy)} is left out: {error}")
    if refused is not None and not cells:
        raise refused
    return cells, list(dict.fromkeys(notes))


def _stages(
    stages: str | Sequence[str] | None, options: Mapping[str, Any], world_size: int, hardware: Hardware
) -> list[str]:
    """The stages that were named, or all that have the options; hsdp with several nodes alone."""
    nodes = has_nodes(check_count("world size", world_size), hardware.gpus_per_node)
    check_type("options", options, Mapping, "a mapping of the engines' options to their values")
    if stages is None:
        possible = [stage for stage in STAGES if stage != "hsdp" or nodes]
        having = [stage for stage in possible if set(options) <= {*options_of(stage)}]
        if not having:
            check_options("option", options, sorted({option for stage in STAGES for option in options_of(stage)}))
            raise ValueError(f"no stage has all of {', '.join(options)}: give fewer options")
        return having
    chosen = stage_names(stages, STAGES)
    for stage in chosen:
        check_known("stage", stage, STAGES)
        check_options(f"option of {stage}", options, options_of(stage))
    return chosen
