"""Which stages fit a model onto GPUs, what they cost, and the settings that do it: arithmetic only, no torch.

Bytes are the closed forms of `zerolab.theory`, one unit's buffers, and activations: of GPT's blocks by Korthikanti et
al. 2022, arXiv 2205.05198, equation 1 without the attention matrix, which fused attention never stores: 34 s b h bytes
a block in 16 bit; of Llama's counted in the same way; and the logits (their section 4.3). Seconds are
those of `zerolab.seconds`, fitted to published runs: how good the kernels are is the one thing here that nobody can
compute, and how far the seconds depend on it, `Plan.sensitivity` says. GB is 1e9 bytes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from zerolab import catalog, seconds
from zerolab.names import unknown
from zerolab.published_runs import published_utilisation
from zerolab.tables import Table, Value

DEEPSPEED = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3}
RESHARD = {"zero2": False, "zero3": True}  # FSDP2 has no ZeRO-1, and replicates only through DDP
WHOLE_UNITS = {"ddp": 1, "zero1": 1, "zero2": 3, "zero3": 5}
"""How many units' worth of buffers a stage needs at once: a gradient laid end to end; from stage 2 on the next one that
collects, and what the exchange receives into; in stage 3 two gathered units on top."""

LOGITS = 4
"""How many numbers there are at the loss for each token and word of the vocabulary: the logits, the logarithms of their
softmax, and the gradients of both. In a small model that is most of the activations; simulated steps have as many."""

LEAST = 1e6  # bytes, or bytes a second, below which a number was meant in other units
PARTS = ("parameters", "gradients", "optimizer_state", "unit_buffers", "activations")
"""What a GPU's bytes are made of here; the first three are the state."""


class Plan(Table):
    """What `plan` found: a table with one row a stage, and what follows from it.

    `title` says what was asked, `memory` is that of a GPU in bytes, `parts` has the bytes of each stage by `PARTS`,
    `steps` its seconds by what they go to, `setting` what those were worked out for, `shape` the model.
    """

    def __init__(
        self,
        rows: Sequence[dict[str, Value]],
        title: str,
        *,
        precision: str,
        batch: int,
        memory: float,
        parts: dict[str, dict[str, float]],
        shape: catalog.Architecture,
        setting: seconds.Setting,
        steps: dict[str, seconds.Step],
    ) -> None:
        super().__init__(rows, title, times=True)
        self.precision, self.batch, self.memory, self.parts = precision, batch, memory, parts
        self.shape, self.setting, self.steps = shape, setting, steps

    @property
    def fitting(self) -> list[str]:
        """The stages that fit; of several, one that shards less is simpler and sends no more."""
        return [str(row["stage"]) for row in self if row["fits"]]

    @property
    def answer(self) -> str:
        """One sentence: which stages fit, or the number that is missing."""
        if self.fitting:
            lacking = [f"{row['stage']} lacks {row['missing GB']:.1f} GB" for row in self if not row["fits"]]
            return f"Fits: {', '.join(self.fitting)}." + (f" {', '.join(lacking)}." if lacking else "")
        # The last stage divides the most, so what it lacks is what must be found.
        row = self[-1]
        return (
            f"No: even {row['stage']} needs {row['needs GB']:.1f} GB of {self.memory / 1e9:g} GB on each GPU, "
            f"{row['missing GB']:.1f} GB are missing. {self._remedy}"
        )

    @property
    def _remedy(self) -> str:
        """More GPUs divide the state, and nothing else."""
        undivided = sum(float(self[-1][part] or 0) for part in ("unit buffers GB", "activations GB"))
        if undivided > self.memory / 1e9:
            return (
                f"More GPUs would not help: unit buffers and activations alone take {undivided:.1f} GB. Take larger "
                "GPUs or fewer rows, or checkpoint the activations."
            )
        return "Take more GPUs, larger ones, or fewer rows."

    @property
    def sensitivity(self) -> str:
        """Two sentences: where the seconds of the first stage that fits go, and what they owe to the kernels."""
        stage = self.fitting[0] if self.fitting else str(self[-1]["stage"])
        step, setting = self.steps[stage], self.setting
        reached = seconds.quoted_flops(self.shape) * setting.batch * self.shape.context / step.total / setting.rate
        low, high = published_utilisation(setting.gpu)
        fused = seconds.step(self.shape, stage, replace(setting, kernels="compiled", utilisation=None)).total
        waits = step.waiting + step.straggling
        return (
            f"A step of {stage} takes {step.total:.3g} s: it computes for {step.computing:.3g} s, updates for "
            f"{step.updating:.2g} s, and waits for {waits:.2g} s of the {step.sending:.3g} s that it sends. It reaches "
            f"{reached:.0%} of the GPU's dense rate, as it is quoted; published runs on this chip reach {low:.0%} to "
            f"{high:.0%}. Compiled it would take {fused:.3g} s."
        )

    def settings(self, stage: str | None = None) -> dict[str, Any]:
        """The same in other systems, as the function `settings` gives it; None takes the first stage that fits.

        Raises ValueError if none fits.
        """
        if stage is None and not self.fitting:
            raise ValueError(self.answer)
        return settings(stage or self.fitting[0], self.precision, self.batch)


def plan(
    model: str,
    gpus: int,
    memory: float | None = None,
    bandwidth: float | None = None,
    precision: str = "bf16",
    *,
    batch: int = 1,
    gpu: str = "h100",
    kernels: str = "eager",
    network: str = "infiniband-ndr",
    gpus_per_node: int = 8,
    utilisation: float | None = None,
) -> Plan:
    """One row a stage: bytes a GPU by part, whether they fit, seconds a step, and what is missing where they do not.

    Args:
        model: a name of the catalog.
        gpus: how many, one rank each.
        memory: bytes of one GPU (80 GB is 80e9, 80 GiB is 80 * 2**30); None takes the catalog's.
        bandwidth: bytes a second that a ring carries, wherever the GPUs are; None takes the GPU's link and the network.
        precision: "fp32" or "bf16".
        batch: rows a GPU, each as long as the model's context.
        gpu: a name of the catalog, for its rate and what is not given.
        kernels: "eager" (torch's operations one by one), "compiled" or "tuned" (written by hand).
        network: a name of the catalog, between nodes.
        gpus_per_node: how many the GPU's own link joins.
        utilisation: the part of that rate which a whole step reaches, as it is quoted; None works it out.

    Raises ValueError for an unknown name, a count below 1, a memory or bandwidth that is not positive, or a utilisation
    outside (0, 1].
    """
    # `theory` hands this function on, so it can be imported only once it is asked for.
    from zerolab import theory

    shape, device = catalog.architecture(model), catalog.gpu(gpu)
    memory = device.memory_bytes if memory is None else memory
    _check(memory, bandwidth, batch, utilisation)
    ring = None if bandwidth is None else catalog.Link("given", bandwidth, 0.0, "the caller")
    setting = seconds.Setting(
        device,
        gpus,
        ring or catalog.link(network),
        gpus_per_node,
        batch,
        precision=precision,
        kernels=kernels,
        utilisation=utilisation,
        link=ring,
    )
    steps = {stage: seconds.step(shape, stage, setting) for stage in theory.STAGES}
    every = {stage: bytes_by_part(stage, shape, gpus, precision, batch) for stage in theory.STAGES}
    rows: list[dict[str, Value]] = []
    for stage, parts in every.items():
        # A sum of maxima, on purpose: a plan that promises too little memory is worse than one that promises too much.
        # `theory.peak` has the real maximum, for who has the model at hand.
        need = sum(parts.values())
        fits = need <= memory
        rows.append(
            {
                "stage": stage,
                "fits": fits,
                "state GB": sum(parts[name] for name in PARTS[:3]) / 1e9,
                "unit buffers GB": parts["unit_buffers"] / 1e9,
                "activations GB": parts["activations"] / 1e9,
                "needs GB": need / 1e9,
                "missing GB": None if fits else (need - memory) / 1e9,
                "compute_seconds": steps[stage].computing + steps[stage].updating,
                "communication_seconds": steps[stage].sending,
                "step_seconds": steps[stage].total,
            }
        )
    # The figures that a reader may have changed, so that two plans beside each other can be told apart.
    title = f"{model} on {gpus} {gpu}, {precision}, {memory / 1e9:g} GB each"
    return Plan(
        rows,
        title,
        precision=precision,
        batch=batch,
        memory=memory,
        parts=every,
        shape=shape,
        setting=setting,
        steps=steps,
    )


def _check(memory: float, bandwidth: float | None, batch: int, utilisation: float | None) -> None:
    """Refuses what no GPU has; names and counts are refused where they are looked up."""
    sizes = (
        ("memory", memory, "bytes", "80 GB is 80e9, 80 GiB is 80 * 2**30"),
        ("bandwidth", bandwidth, "bytes a second", "50 GB/s is 50e9"),
    )
    # Who writes 80 means gigabytes: it would be answered with a GPU of 8e-08 GB.
    for name, value, unit, example in sizes:
        if value is not None and not value >= LEAST:
            raise ValueError(f"the {name} is {value!r}: it is in {unit}, at least a million ({example})")
    if not batch >= 1 or batch % 1:
        raise ValueError(f"the batch is {batch!r}: it is a whole number of rows, 1 or more")
    if utilisation is not None and not 0 < utilisation <= 1:
        raise ValueError(f"the utilisation is {utilisation!r}: it is a part of the GPU's rate, above 0 and at most 1")


def bytes_by_part(stage: str, shape: catalog.Architecture, gpus: int, precision: str, batch: int) -> dict[str, float]:
    """Bytes of one GPU by `PARTS`. In bf16 the fp32 copy of the gradients that an update reads counts as gradients."""
    from zerolab import theory

    parts: dict[str, float] = dict(theory.state_bytes(stage, shape.num_params, gpus, precision))
    # Buffers and activations have the type in which the model computes.
    word = theory.BYTES_PER_PARAMETER[precision]["parameters"]
    if precision == "bf16":
        parts["gradients"] += theory.FP32_BYTES * shape.num_params / (1 if stage == "ddp" else gpus)
    # Embeddings and output are the root unit, in a small model the largest.
    parts["unit_buffers"] = word * max(shape.block_params, shape.root_params) * WHOLE_UNITS[stage]
    # Activations are of the precision, and no stage divides them.
    numbers = shape.depth * _kept_by_a_block(shape) + LOGITS * shape.vocabulary
    parts["activations"] = word * numbers * shape.context * batch
    return parts


def _kept_by_a_block(shape: catalog.Architecture) -> int:
    """Numbers a token that a block's forward keeps for its backward, attention and norms fused."""
    if shape.kind == "gpt":
        return 17 * shape.width  # 34 bytes in 16 bit
    # Each norm's input and result, queries, keys, values (copied where heads share them) and what attention made of
    # them; in the gated MLP what its three matrices and the product between them were given.
    return 8 * shape.width + 4 * shape.hidden


def settings(stage: str, precision: str = "bf16", batch: int = 1) -> dict[str, Any]:
    """The same stage in other systems, to paste.

    Returns:
        "fsdp2": lines of Python that shard a `model` whose blocks are in `blocks`, or None where FSDP2 has no such
        stage; "deepspeed": its configuration, to pass to `deepspeed.initialize(config=...)` or to save as JSON.

    Raises ValueError for a stage that is none.
    """
    if stage not in DEEPSPEED:
        raise ValueError(unknown("stage", stage, DEEPSPEED))
    # DeepSpeed refuses a configuration without a batch size, and takes fp32 for granted only if bf16 is off.
    deepspeed: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": batch,
        "zero_optimization": {"stage": DEEPSPEED[stage]},
        "bf16": {"enabled": precision == "bf16"},
    }
    return {"fsdp2": _fsdp2(stage, precision) if stage in RESHARD else None, "deepspeed": deepspeed}


def _fsdp2(stage: str, precision: str) -> str:
    # Shards stay fp32, so the optimizer updates masters; what is gathered and computed with is bf16.
    policy = "MixedPrecisionPolicy(param_dtype=torch.bfloat16)" if precision == "bf16" else "MixedPrecisionPolicy()"
    return f"""import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

options = {{"reshard_after_forward": {RESHARD[stage]}, "mp_policy": {policy}}}
for block in blocks:
    fully_shard(block, **options)
fully_shard(model, **options)
"""


def as_json(configuration: dict[str, Any]) -> str:
    """DeepSpeed's configuration as the text of its file."""
    # Indented, because it is to be read before it is used.
    return json.dumps(configuration, indent=2)
