"""Which stages fit a model onto GPUs, what they cost, and the settings for them: arithmetic only, no torch.

Bytes are those at the peak of a step (`moments`): state, gathered units, and what the blocks keep for backward, in one
of three schemes of mixed precision (`schemes`). A GPU has the catalog's bytes, less what CUDA takes. Seconds are those
of `seconds`, fitted to published runs: the quality of kernels cannot be computed, and `Plan.sensitivity` says how much
the seconds depend on it. GB is 1e9 bytes.
"""

from __future__ import annotations

from dataclasses import replace
from numbers import Real
from typing import Any

from zerolab import catalog
from zerolab.catalog import Architecture
from zerolab.moved import renamed
from zerolab.tables import Table, Value
from zerolab.theory import remedies, schemes, seconds
from zerolab.theory.configs import settings
from zerolab.theory.forms import FP32_BYTES
from zerolab.theory.moments import Job, peak, state_of

LEAST = 1e6  # bytes, or bytes per second: a smaller number was meant in another unit
NETWORK = "infiniband-ndr"


class Plan(Table):
    """What `plan` found: a table with one row per stage, and what follows from it.

    `title` says what was asked; `memory` is a GPU's memory in bytes, and `usable` what CUDA leaves of it; `parts` has
    each stage's bytes at its peak, by `moments.PARTS`, and `steps` its seconds, by what they are spent on; `job` and
    `setting` are what both were computed for.
    """

    def __init__(self, job: Job, setting: seconds.Setting, memory: float) -> None:
        self.job, self.setting, self.memory, self.usable = job, setting, memory, memory - catalog.CONTEXT_BYTES
        shape, stages = replace(job.shape, context=job.length), schemes.stages_of(job.scheme)
        self.steps = {stage: seconds.step(shape, stage, setting) for stage in stages}
        highest = {stage: peak(job, stage) for stage in stages}
        self.parts = {stage: parts for stage, (_, parts) in highest.items()}
        rows = [_row(job, stage, highest[stage], self.usable, self.steps[stage]) for stage in stages]
        super().__init__(rows, _title(job, setting, memory), times=True)

    @property
    def fitting(self) -> list[str]:
        """The stages that fit, starting with those that shard the least: they are simpler, and send no more."""
        return [str(row["stage"]) for row in self if row["fits"]]

    @property
    def answer(self) -> str:
        """One sentence: which stages fit, or what is missing and what would help."""
        if self.fitting:
            lacking = [f"{row['stage']} lacks {row['missing GB']:.1f} GB" for row in self if not row["fits"]]
            return f"Fits: {', '.join(self.fitting)}." + (f" {', '.join(lacking)}." if lacking else "")
        row = self._least
        return (
            f"No: even {row['stage']} needs {row['needs GB']:.1f} GB of the {self.usable / 1e9:.1f} GB that CUDA "
            f"leaves of each GPU, {row['missing GB']:.1f} GB are missing. {self._remedy}"
        )

    @property
    def _least(self) -> dict[str, Value]:
        """The stage that needs least, of equal ones the last."""
        # Usually that which shards the most; but a second shard may be more than zero2 keeps, and on one GPU whatever
        # is gathered comes on top.
        return min(self.rows[::-1], key=lambda row: float(row["needs GB"] or 0))

    @property
    def remedies(self) -> Table:
        """What to change first if the stage that shards the most does not fit: what each saves, and costs in time."""
        rows = remedies.table(self.job, self.setting, self.usable, str(self[-1]["stage"]))
        times = "" if self.setting.utilisation is None else "; times without the quoted utilisation"
        return Table(rows, f"what to try, under {self[-1]['stage']}{times}")

    @property
    def _remedy(self) -> str:
        """The first of what people try that helps the stage that shards the most."""
        stage = str(self[-1]["stage"])
        it = "it" if self._least["stage"] == stage else stage
        for job in remedies.ladder(self.job, self.usable, stage):
            if (need := remedies.needs(job, stage)) <= self.usable:
                return f"With {remedies.difference(self.job, job)} {it} needs {need / 1e9:.1f} GB, and fits."
        return (
            f"More GPUs would not help: with {remedies.difference(self.job, job)} {it} needs {need / 1e9:.1f} GB. Take "
            "larger ones or shorter rows."
        )

    @property
    def sensitivity(self) -> str:
        """What the first stage that fits spends its seconds on, and how much they depend on the kernels."""
        stage = self.fitting[0] if self.fitting else str(self[-1]["stage"])
        step, setting = self.steps[stage], self.setting
        shape = replace(self.job.shape, context=self.job.length)
        tokens = setting.micro_batches * setting.rows * shape.context / setting.tensor / setting.context
        reached = seconds.quoted_flops(shape) * tokens / step.total / setting.rate
        low, high = seconds.PUBLISHED_UTILISATION[seconds.chip(setting.gpu)]
        fused = seconds.step(shape, stage, replace(setting, kernels="compiled", utilisation=None)).total
        waits = step.waiting + step.straggling
        return (
            f"A step of {stage} takes {step.total:.3g} s: it computes for {step.computing:.3g} s, updates for "
            f"{step.updating:.2g} s, and waits for {waits:.2g} s: for the {step.sending:.3g} s that it sends, where no "
            f"computing hides them, and for the slowest rank. It reaches "
            f"{reached:.0%} of the GPU's dense rate, as it is quoted; published runs on this chip reach {low:.0%} to "
            f"{high:.0%}. Compiled it would take {fused:.3g} s."
        )

    def settings(self, stage: str | None = None) -> dict[str, Any]:
        """The plan for other systems, as the function `settings` returns it; None takes the first stage that fits.

        Raises ValueError if none fits.
        """
        if stage is None and not self.fitting:
            raise ValueError(self.answer)
        job, chosen = self.job, stage or self.fitting[0]
        shards = job.shards * job.tensor
        mesh = (job.world_size // shards, shards) if shards < job.world_size else None
        more: dict[str, Any] = {"offload": job.offload, "mesh": mesh, "tensor": job.tensor}
        more |= {"context": job.context, "second_shard": job.gpus_per_node if job.sharding == "hpz" else None}
        more |= {"moments": job.moments, "logits": job.logits, "micro_batches": job.micro_batches}
        return settings(chosen, job.precision, job.rows, job.checkpointing, **more)


@renamed(gpus="world_size", batch="rows")
def plan(
    model: str | Architecture,
    world_size: int,
    memory: float | None = None,
    bandwidth: float | None = None,
    precision: str = "bf16",
    *,
    rows: int = 1,
    length: int | None = None,
    checkpointing: str = "none",
    scheme: str = "zerolab",
    attention: str = "fused",
    logits: str = "own",
    gpu: str = "h100",
    kernels: str = "eager",
    network: str = NETWORK,
    gpus_per_node: int = 8,
    utilisation: float | None = None,
    moments: str = "fp32",
    offload: bool = False,
    sharding: str = "full",
    tensor: int = 1,
    context: int = 1,
    micro_batches: int = 1,
) -> Plan:
    """One row per stage: bytes per GPU at the peak, whether they fit, what is missing if they do not, and seconds.

    Args:
        model: a name of the catalog, or a shape of your own.
        world_size: number of GPUs, one rank each.
        memory: bytes of one GPU (80 GB is 80e9, 80 GiB is 80 * 2**30), CUDA's own included; None takes the catalog's.
        bandwidth: bytes per second of a ring, wherever the GPUs are; None takes the GPU's link and the network.
        precision: "fp32", "bf16" or "fp16".
        rows: sequences per rank; of `tensor` times `context` ranks together.
        length: tokens per sequence; None takes the model's context.
        checkpointing: what backward recomputes of each block: "none", "selective" (all but attention and every second
            matrix multiplication) or "block" (all of it).
        scheme: how mixed precision keeps a parameter: "zerolab" (20 bytes, as DeepSpeed), "megatron" (18, in fp16 20)
            or "fsdp2" (16); only the stages of the scheme are planned.
        attention: "fused", or "math", which stores its matrix; of bytes alone, for seconds are those of "fused".
        logits: the loss is computed in the model's precision ("own"), in fp32 ("fp32", as Hugging Face and torchtitan
            do), or by one kernel ("fused"); of bytes alone, for seconds are those of "fp32".
        gpu: a name of the catalog, for its rate, and for its memory and link if they are not given.
        kernels: "eager" (torch's operations one by one), "compiled" or "tuned" (written by hand).
        network: a name of the catalog, between nodes.
        gpus_per_node: how many GPUs the GPU's own link connects.
        utilisation: the part of the GPU's rate that a whole step reaches, as quoted in papers; None computes it.
        moments: Adam's, "fp32", or "8-bit" with a scale for each block of 256.
        offload: its state lies in main memory and is updated there; the CPU's time for that is not counted.
        sharding: "full", over all ranks; "hybrid", over those of a node, every node having the whole (HSDP); or "hpz",
            over all, zero3 keeping a second shard in the node, from which backward gathers (ZeRO++).
        tensor: how many GPUs of a node divide each matrix, and the sequence outside of them (tensor and sequence
            parallelism); ZeRO divides what each of them has among all others that have the same part.
        context: how many GPUs divide each sequence, in a ring (context parallelism); the state is divided as without.
        micro_batches: how many, of `rows` each, add up to a step.

    Raises:
        ValueError: an unknown name, a count below 1, bytes below a million, memory that CUDA takes whole, a utilisation
            outside (0, 1], GPUs or heads that `tensor` does not divide, GPUs or tokens that `context` does not divide,
            or nodes that are not full.
        TypeError: a model that is neither a name nor a shape, or a number that is none.
    """
    if not isinstance(model, str | Architecture):
        raise TypeError(f"the model is {model!r:.60}: give a name of the catalog, such as '7b', or a shape")
    _check_numbers(memory=memory, bandwidth=bandwidth, utilisation=utilisation, length=length)
    shape, device = catalog.architecture(model) if isinstance(model, str) else model, catalog.gpu(gpu)
    memory = device.memory_bytes if memory is None else memory
    _check_sizes(memory, bandwidth)
    ring = None if bandwidth is None else catalog.Link("given", bandwidth, 0.0, "the caller")
    between = ring or catalog.link(network)
    same: dict[str, Any] = {"rows": rows, "precision": precision, "checkpointing": checkpointing, "tensor": tensor}
    same |= {"context": context, "gpus_per_node": gpus_per_node, "offload": offload, "micro_batches": micro_batches}
    own: dict[str, Any] = {"kernels": kernels, "utilisation": utilisation, "link": ring, "scheme": scheme}
    own |= {"hybrid": sharding == "hybrid", "second_shard": sharding == "hpz"}
    if schemes.reduces_in_fp32(scheme, precision):
        own["gradient_bytes"] = FP32_BYTES
    setting = seconds.Setting(device, world_size, between, **same, **own)
    length = shape.checked_length(rows, length)
    others: dict[str, Any] = {
        "scheme": scheme,
        "attention": attention,
        "logits": logits,
        "moments": moments,
        "sharding": sharding,
    }
    return Plan(Job(shape, world_size, length=length, **others, **same), setting, memory)


def _row(
    job: Job, stage: str, highest: tuple[str, dict[str, float]], usable: float, step: seconds.Step
) -> dict[str, Value]:
    moment, parts = highest
    need = sum(parts.values())
    return {
        "stage": stage,
        "fits": need <= usable,
        "state GB": sum(state_of(job, stage).values()) / 1e9,
        "highest at": moment,
        "buffers GB": parts["buffers"] / 1e9,
        "activations GB": parts["activations"] / 1e9,
        "needs GB": need / 1e9,
        "missing GB": None if need <= usable else (need - usable) / 1e9,
        "compute_seconds": step.computing + step.updating,
        "communication_seconds": step.sending,
        "step_seconds": step.total,
    }


def _title(job: Job, setting: seconds.Setting, memory: float) -> str:
    """What was asked, with every option that is not the default, so that plans can be told apart."""
    changed = remedies.difference(Job(job.shape, job.world_size, job.precision, 1, job.shape.context), job)
    given = {"kernels": repr(setting.kernels), "utilisation": repr(setting.utilisation)}
    if setting.link is None:
        given["network"] = repr(setting.network.name)
    else:
        given["bandwidth"] = f"{setting.link.bytes_per_second / 1e9:g}e9"
    usual = {"kernels": "'eager'", "utilisation": "None", "network": repr(NETWORK)}
    told = [changed, *(f"{name}={value}" for name, value in given.items() if value != usual.get(name))]
    title = f"{job.shape.name} on {job.world_size} {setting.gpu.name}, {job.precision}, {memory / 1e9:.4g} GB each"
    return ", ".join(filter(None, [title, *told]))


def _check_numbers(**given: Any) -> None:
    """Raises TypeError for what is no number."""
    for name, value in given.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, Real)):
            raise TypeError(f"{name} is {value!r}: pass a number")


def _check_sizes(memory: float, bandwidth: float | None) -> None:
    """Refuses what no GPU has; names and counts are checked where they are used."""
    sizes = (
        ("memory", memory, "bytes", "80 GB is 80e9, 80 GiB is 80 * 2**30"),
        ("bandwidth", bandwidth, "bytes a second", "50 GB/s is 50e9"),
    )
    # Whoever writes 80 means gigabytes; the answer would be about a GPU of 8e-08 GB.
    for name, value, unit, example in sizes:
        if value is not None and not value >= LEAST:
            raise ValueError(f"the {name} is {value!r}: it is in {unit}, at least a million ({example})")
    if memory <= catalog.CONTEXT_BYTES:
        taken = f"{catalog.CONTEXT_BYTES:,.0f}"
        raise ValueError(
            f"the memory is {memory!r} bytes, and CUDA takes {taken} of a GPU's: give those of a larger one"
        )
