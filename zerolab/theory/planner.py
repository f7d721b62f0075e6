"""Which stages fit a model onto GPUs, what they cost, and the settings for them: arithmetic only, no torch.

Bytes are those at the peak of a step (`moments`): state, gathered units, and what the blocks keep for backward, in one
of the schemes of mixed precision (`schemes`). A GPU has the catalog's bytes, less what CUDA takes. Seconds are those of
`seconds`, fitted to published runs: the quality of kernels cannot be computed, and `Plan.sensitivity` says how much the
seconds depend on it. GB is 1e9 bytes.
"""

from __future__ import annotations

from dataclasses import replace
from numbers import Real
from typing import Any

from zerolab import catalog
from zerolab.catalog import Architecture
from zerolab.moved import renamed
from zerolab.tables import Table, Value
from zerolab.theory import remedies, seconds
from zerolab.theory.configs import settings
from zerolab.theory.job import NETWORK, Job
from zerolab.theory.moments import peak, state_of
from zerolab.theory.schemes import stages_of

LEAST = 1e6  # bytes, or bytes per second: a smaller number was meant in another unit


class Plan(Table):
    """What `plan` found: a table with one row per stage, and what follows from it.

    `title` says what was asked; `memory` is a GPU's memory in bytes, and `usable` what CUDA leaves of it; `parts` has
    each stage's bytes at its peak, by `moments.PARTS`, and `steps` its seconds, by what they are spent on; `job` is
    what both were computed for.
    """

    def __init__(self, job: Job, memory: float) -> None:
        self.job, self.memory, self.usable = job, memory, usable(memory)
        highest = {stage: peak(job, stage) for stage in stages_of(job.scheme)}
        self.parts = {stage: parts for stage, (_, parts) in highest.items()}
        self.steps = {stage: seconds.step(job, stage) for stage in highest}
        rows = [self._row(stage, moment) for stage, (moment, _) in highest.items()]
        # With every option that is not the default, so that plans can be told apart.
        usual = Job(job.shape, job.world_size, job.precision, 1, job.shape.context, gpu=job.gpu)
        title = f"{job.shape.name} on {job.world_size} {job.gpu.name}, {job.precision}, {memory / 1e9:.4g} GB each"
        changed = remedies.difference(usual, job)
        super().__init__(rows, f"{title}, {changed}" if changed else title, times=True)

    def _row(self, stage: str, moment: str) -> dict[str, Value]:
        parts, step = self.parts[stage], self.steps[stage]
        need = sum(parts.values())
        return {
            "stage": stage,
            "fits": need <= self.usable,
            "state GB": sum(state_of(self.job, stage).values()) / 1e9,
            "highest at": moment,
            "buffers GB": parts["buffers"] / 1e9,
            "activations GB": parts["activations"] / 1e9,
            "needs GB": need / 1e9,
            "missing GB": None if need <= self.usable else (need - self.usable) / 1e9,
            "compute_seconds": step.computing + step.updating,
            "communication_seconds": step.sending,
            "step_seconds": step.total,
        }

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
        # Of equal ones the last. Usually that shards the most; but a second shard may be more than zero2 keeps, and on
        # one GPU whatever is gathered comes on top.
        row = min(self.rows[::-1], key=lambda row: float(row["needs GB"] or 0))
        return (
            f"No: even {row['stage']} needs {row['needs GB']:.1f} GB of the {self.usable / 1e9:.1f} GB that CUDA "
            f"leaves of each GPU, {row['missing GB']:.1f} GB are missing. {self._remedy(str(row['stage']))}"
        )

    @property
    def remedies(self) -> Table:
        """What to change first if the stage that shards the most does not fit: what each saves, and costs in time."""
        rows = remedies.table(self.job, self.usable, str(self[-1]["stage"]))
        times = "" if self.job.utilisation is None else "; times without the quoted utilisation"
        return Table(rows, f"what to try, under {self[-1]['stage']}{times}")

    def _remedy(self, least: str) -> str:
        """The first of what people try that helps the stage that shards the most."""
        stage = str(self[-1]["stage"])
        it = "it" if least == stage else stage
        tried = {}
        for job in remedies.ladder(self.job, self.usable, stage):
            tried[job] = need = remedies.needs(job, stage)
            if need <= self.usable:
                return f"With {remedies.difference(self.job, job)} {it} needs {need / 1e9:.1f} GB, and fits."
        best = min(tried, key=tried.__getitem__)
        return (
            f"Nothing that is tried here helps, on up to {job.world_size:,} GPUs: with "
            f"{remedies.difference(self.job, best)} {it} needs {tried[best] / 1e9:.1f} GB. Take larger GPUs or shorter "
            "rows."
        )

    @property
    def sensitivity(self) -> str:
        """What the first stage that fits spends its seconds on, and how much they depend on the kernels."""
        stage = self.fitting[0] if self.fitting else str(self[-1]["stage"])
        job, step = self.job, self.steps[stage]
        flops = seconds.quoted_flops(job.shape, job.length) * job.tokens * job.micro_batches
        reached = flops / step.total / job.rate
        chip = seconds.chip(job.gpu)
        low, high = seconds.PUBLISHED_UTILISATION[chip]
        waits = "sends nothing"
        if job.world_size > 1:
            waits = (
                f"waits for {step.waiting + step.straggling:.2g} s: for the {step.sending:.3g} s that it sends, where "
                "no computing hides them, and for the slowest rank"
            )
        compiled = ""
        if job.utilisation is None:  # a quoted one is not known of what has been changed
            compiled = f" Compiled it would take {seconds.step(replace(job, kernels='compiled'), stage).total:.3g} s."
        return (
            f"A step of {stage} takes {step.total:.3g} s: it computes for {step.computing:.3g} s, updates for "
            f"{step.updating:.2g} s, and {waits}. It reaches {reached:.0%} of the GPU's dense rate, as it is quoted; "
            f"published runs on {chip.upper()} reach {low:.0%} to {high:.0%}.{compiled}"
        )

    def settings(self, stage: str | None = None) -> dict[str, Any]:
        """The plan for other systems, as the function `settings` returns it; None takes the first stage that fits.

        Raises ValueError if none fits.
        """
        if stage is None and not self.fitting:
            raise ValueError(self.answer)
        job, shards = self.job, self.job.shards * self.job.tensor
        same = ("rows", "checkpointing", "offload", "tensor", "context", "micro_batches", "moments", "logits")
        return settings(
            stage or self.fitting[0],
            job.precision,
            **{name: getattr(job, name) for name in same},
            mesh=(job.world_size // shards, shards) if shards < job.world_size else None,
            second_shard=job.gpus_per_node if job.sharding == "hpz" else None,
        )


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
    norms: str = "fused",
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
    """One row per stage: a GPU's bytes at the peak, when that is (docs/planner.md lists the moments), and seconds.

    Args:
        model: a name of the catalog, or a shape of your own.
        world_size: number of GPUs, one rank each.
        memory: bytes of a GPU (80 GB is 80e9, 80 GiB 80 * 2**30), CUDA's own included; None takes the catalog's.
        bandwidth: bytes per second of a ring, wherever the GPUs are; None takes the GPU's link and the network.
        precision: "fp32", "bf16" or "fp16".
        rows: sequences per rank; of `tensor` times `context` ranks together.
        length: tokens per sequence; None takes the model's context.
        checkpointing: what backward recomputes of each block: "none", "selective" (all but attention and every second
            matrix multiplication; not Megatron's) or "block" (all of it).
        scheme: how mixed precision keeps a parameter: "zerolab" (20 bytes), "deepspeed" (20; zero3 updates at most
            1e9 at a time), "megatron" (18, in fp16 20) or "fsdp2" (16); only its stages are planned.
        attention: "fused", or "math", which stores its matrix; bytes alone change: seconds are those of "fused".
        norms: a Llama's, "fused", or "unfused" as Hugging Face writes them; bytes alone change, as above.
        logits: at the loss, in the model's precision ("own"), returned in fp32 ("fp32"; two bytes less if the loss
            casts them), with one kernel ("flash", flash-attn's; Megatron's own takes the place of these three), or not
            stored, by a fused linear cross-entropy ("fused", Liger's); bytes alone change, as above.
        gpu: a name of the catalog, for its rate, and for its memory and link if they are not given.
        kernels: "eager" (torch's operations one by one), "compiled" or "tuned" (written by hand).
        network: a name of the catalog, between nodes.
        gpus_per_node: how many GPUs the GPU's own link connects.
        utilisation: part of the GPU's rate that a whole step reaches, as quoted in papers; None computes it.
        moments: Adam's, "fp32", or "8-bit" with a scale for each block of 256.
        offload: its state lies in main memory and is updated there; the CPU's time for that is not counted.
        sharding: among all ranks ("full"), a node's ("hybrid", HSDP), or all and for backward a node's ("hpz", ZeRO++).
        tensor: GPUs of a node that divide each matrix, or the sequence; ZeRO divides among ranks with the same part.
        context: GPUs that divide each sequence, in a ring (context parallelism); the state is divided as without.
        micro_batches: how many, of `rows` each, add up to a step; FSDP2 reduces the gradients of each.

    Raises ValueError for an unknown name, a number out of range or what does not go together, TypeError for no number.
    """
    return Plan(*_asked(**locals()))


def _asked(
    model: str | Architecture, memory: float | None, length: int | None, gpu: str, network: str, **options: Any
) -> tuple[Job, float]:
    """The job of `plan`'s arguments, which have the names of its fields, and the memory of a GPU."""
    if not isinstance(model, str | Architecture):
        raise TypeError(f"the model is {model!r:.60}: give a name of the catalog, such as '7b', or a shape")
    bandwidth, utilisation = options["bandwidth"], options["utilisation"]
    for name, value in {"utilisation": utilisation, "length": length}.items():
        if value is not None:
            check_number(name, value)
    if bandwidth is not None:
        check_size("bandwidth", bandwidth, "bytes a second", "50 GB/s is 50e9")
        options["bandwidth"] = float(bandwidth)
        network = NETWORK  # whichever: nothing is sent over it
    shape, device = catalog.architecture(model) if isinstance(model, str) else model, catalog.gpu(gpu)
    length = shape.context if length is None else length
    job = Job(shape, length=length, gpu=device, network=catalog.link(network), **options)
    return job, device.memory_bytes if memory is None else memory


def usable(memory: float) -> float:
    """What CUDA leaves of a GPU's memory. Raises ValueError for bytes that no GPU has."""
    check_size("memory", memory, "bytes", "80 GB is 80e9, 80 GiB is 80 * 2**30")
    if not memory > catalog.CONTEXT_BYTES:
        raise ValueError(
            f"the memory is {memory / 1e9:.3g} GB, and CUDA itself takes {catalog.CONTEXT_BYTES / 1e9:.3g} GB of it: "
            "give all that the GPU has"
        )
    return float(memory) - catalog.CONTEXT_BYTES  # NumPy's would compare to NumPy's bools


def check_number(name: str, value: object) -> None:
    """Raises TypeError for "80GB", and for what is no number either."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} is {value!r}: pass a number")


def check_size(name: str, value: float, unit: str, example: str) -> None:
    """Raises ValueError for less than a million: who writes 80 means gigabytes, and would be told of 8e-08 GB."""
    check_number(name, value)
    if not value >= LEAST:
        raise ValueError(f"the {name} is {value!r}: it is in {unit}, at least a million ({example})")
