"""fit(): the memory of your own model before it runs, under each stage and checkpointing, executed on shapes.

Each row is a simulated training step: the engines' code, or torch's own FSDP2, runs your model on tensors without
memory, and the recorder counts. Activations are therefore those of your model and batch, not of a formula. CUDA's
context, which a GPU also needs, is subtracted from its memory; NCCL's buffers are not counted, and gaps in
torch's allocator only in `Fit.reserved`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from zerolab import catalog, theory
from zerolab.engines.engine import LossFunction
from zerolab.names import check_count, check_known, stage_names
from zerolab.simulation import own
from zerolab.simulation.checkpointing import Checkpointing
from zerolab.simulation.costs import Hardware
from zerolab.simulation.found import Fit
from zerolab.simulation.needs import STAGES, Cell, Question, check_options, has_nodes, name_of, options_of
from zerolab.theory.activations import CHECKPOINTING
from zerolab.theory.planner import LEAST


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
    units: str | list[str] | None = None,
    micro_batches: int = 1,
    gpu: str = "h100",
    memory: float | None = None,
    network: str = "infiniband-ndr",
    gpus_per_node: int = 8,
    options: Mapping[str, Any] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Fit:
    """Says what your own model needs of each GPU before it runs, under every stage and checkpointing.

    The model is built and trained for two steps of AdamW on shapes, by the code that would really train it; no weight
    takes memory, nothing is downloaded, and no GPU is needed.

    Args:
        model: a function that makes the model, a module, "train.py:make_model", or the path of a Hugging Face
            configuration.
        world_size: number of GPUs, one rank each.
        inputs: one rank's batch as the model takes it: a tensor, or a mapping, whose tensors become keywords. Only
            shapes count. None stands for int64 tokens [rows, length].
        targets: what `loss_fn` compares the outputs with.
        loss_fn: a function of outputs and targets that returns a scalar. None takes the loss that the model returns,
            cross-entropy for logits of tokens, or squared error.
        rows: sequences per rank, the first dimension of the batch; None takes that of `inputs`, or 1.
        length: tokens per sequence, if there are any; None takes that of `inputs`, or the configuration's, at most
            2048.
        stages: of ddp, zero1, zero2, zero3, fsdp2, hsdp; None takes all, hsdp where there are several nodes.
        precision: "fp32", "bf16" or "fp16"; several joined by commas, or a sequence.
        checkpointing: "none", "selective" or "block" (see `theory.plan`), a policy as torch's
            `create_selective_checkpoint_contexts` takes it, a mapping from names of blocks to these, or a list of such.
        units: the blocks, which travel as one: a class by its name, or names of modules; None finds them.
        micro_batches: how many add up to a step.
        gpu: a name of `catalog.GPUS`.
        memory: bytes of one GPU, in place of the catalog's, CUDA's own included (80 GB is 80e9).
        network: a name of `catalog.LINKS`, between nodes; for the seconds.
        gpus_per_node: the ranks that hsdp shards among, each node being a replica; and for the seconds.
        options: of the engines, such as {"reshard_after_forward": False}, but not `offload`: see `Fit.offload`. Of all
            stages those that do not have one are left out.
        progress: called with a sentence as each row begins.

    Raises:
        ValueError: an unknown name (with the nearest), one given twice, a precision that the GPU does not have, a file,
            function or configuration that cannot be used, a model that cannot be built without values, counts below 1,
            a length of rows that have no tokens.
        TypeError: a function that needs arguments, or does not return a module.
        ImportError: a configuration, and transformers is not installed.
        RuntimeError: the model's forward fails with this batch.
    """
    device = catalog.gpu(gpu)
    world_size, gpus_per_node = check_count("world size", world_size), check_count("gpus_per_node", gpus_per_node)
    precisions = stage_names(precision, theory.BYTES_PER_PARAMETER, "precision")
    for each in precisions:
        theory.state_bytes("ddp", 1, 1, each)  # only to refuse unknown names
        device.rate(each)
    policies: list[Any] = list(checkpointing) if isinstance(checkpointing, (list, tuple)) else [checkpointing]
    stage_names([name_of(policy) for policy in policies], CHECKPOINTING, "checkpointing")  # rows go by these names
    several = has_nodes(world_size, gpus_per_node)
    chosen = _stages(stages, [stage for stage in STAGES if several or stage != "hsdp"], options or {})
    asked = own.own(model, inputs, targets)
    question = Question(
        asked,
        [],
        world_size,
        None if rows is None else check_count("number of rows", rows),
        None if length is None else check_count("length", length),
        Hardware(device, catalog.link(network), gpus_per_node),
        _usable(device.memory_bytes if memory is None else memory),
        loss_fn or partial(own.loss, of_tokens=asked.length(length) > 0),
        check_count("number of micro-batches", micro_batches),
        options or {},
    )
    question = question.but(units=own.blocks_of(question.model(), units))
    cases = [(stage, each, policy) for each in precisions for stage in chosen for policy in policies]
    return Fit(question, *_answers(question, cases, progress, all_stages=stages is None))


def _answers(
    question: Question, cases: list[tuple[str, str, Any]], progress: Callable[[str], None] | None, *, all_stages: bool
) -> tuple[list[Cell], list[str]]:
    """A cell for each case, and what was left out: cases that a stage refuses, if you did not ask for that stage."""
    cells, notes, refused = [], [], None
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
    if refused is not None and not cells:
        raise refused
    return cells, list(dict.fromkeys(notes))


def _usable(memory: float) -> float:
    """What CUDA leaves of a GPU's memory. Raises ValueError for bytes that no GPU has."""
    if not memory >= LEAST:
        raise ValueError(f"the memory is {memory!r}: it is in bytes, at least a million (80 GB is 80e9)")
    if not memory > catalog.CONTEXT_BYTES:
        raise ValueError(
            f"the memory is {memory / 1e9:.3g} GB, and CUDA itself takes {catalog.CONTEXT_BYTES / 1e9:.3g} GB of it: "
            "give all that the GPU has"
        )
    return memory - catalog.CONTEXT_BYTES


def _stages(stages: str | Sequence[str] | None, possible: list[str], options: Mapping[str, Any]) -> list[str]:
    """The stages that were named, or of all that are possible those that have the options."""
    if stages is not None:
        chosen = stage_names(stages, STAGES)
        for stage in chosen:
            check_known("stage", stage, STAGES)
            check_options(f"option of {stage}", options, options_of(stage))
        return chosen
    chosen = [stage for stage in possible if set(options) <= {*options_of(stage)}]
    if not chosen:
        known = sorted({option for stage in STAGES for option in options_of(stage)})
        check_options("option", options, known)
        raise ValueError(f"no stage has all of {', '.join(options)}: give fewer options")
    return chosen
