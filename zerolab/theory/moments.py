"""The moments of a step at which memory may peak: closed forms of bytes by part, for a model's shape. No torch.

Not everything is large at the same time: at the loss all activations exist and no gradients, at the update it is the
other way round. So the peak is the largest of a few sums, one for each of these moments:

* `loss`: everything that the forward kept, and four tensors of the size of the logits;
* `backward of blocks.31`, and of the first block: what a checkpoint dropped has been computed again;
* `gradients of blocks.31`: they exist twice while they are copied into the flat, and zero3 has gathered the next block;
* `root`: the root's gradients are copied into their flat, all other gradients being where the stage keeps them;
* `update`: fp32 copies of the gradients, and the temporaries of torch's AdamW, which on a GPU updates all at once.

A test keeps these sums within 3 % of a simulation, which executes the engines themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from zerolab.catalog import Architecture
from zerolab.names import check_known
from zerolab.theory.activations import ATTENTION, CHECKPOINTING, LOGITS, at_the_loss, kept_at_the_end, kept_by_a_block
from zerolab.theory.forms import FP32_BYTES
from zerolab.theory.schemes import scheme_bytes, stages_of

PARTS = ("parameters", "gradients", "optimizer_state", "buffers", "activations")
"""A moment's parts: the state that exists then, buffers (gathered units; the update's temporaries), activations."""


@dataclass(frozen=True)
class Job:
    """What one rank of `world_size` trains, and how; `activations` and `schemes` have the names of the options.

    Raises ValueError for a name that they do not have.
    """

    shape: Architecture
    world_size: int
    precision: str
    rows: int
    length: int
    checkpointing: str = "none"
    scheme: str = "zerolab"
    attention: str = "fused"
    logits: str = "own"

    def __post_init__(self) -> None:
        for name, known in (("checkpointing", CHECKPOINTING), ("attention", ATTENTION), ("logits", LOGITS)):
            check_known(name, getattr(self, name), known)
        stages_of(self.scheme)

    @property
    def word(self) -> int:
        """Bytes of a number in the precision of the computation."""
        return 4 if self.precision == "fp32" else 2

    @property
    def batch(self) -> tuple[int, int, int]:
        """Rows, length and word, as the functions of `activations` take them."""
        return self.rows, self.length, self.word


def moments(job: Job, stage: str) -> dict[str, dict[str, float]]:
    """Bytes of a rank by `PARTS` at each moment of a step, from the second step on.

    Raises ValueError for a stage that the scheme does not have, and as `theory.state_bytes` does.
    """
    return {name: dict.fromkeys(PARTS, 0.0) | parts for name, parts in _Step(job, stage).moments()}


def peak(job: Job, stage: str) -> tuple[str, dict[str, float]]:
    """The name of the highest moment of a step, and its bytes by `PARTS`."""
    found = moments(job, stage)
    highest = max(found, key=lambda name: sum(found[name].values()))
    return highest, found[highest]


class _Step:
    """The sizes that the moments are sums of, in bytes."""

    def __init__(self, job: Job, stage: str) -> None:
        shape, word = job.shape, job.word
        self.job, self.stage, self.depth = job, stage, shape.depth
        self.state = scheme_bytes(job.scheme, stage, shape.num_params, job.world_size, job.precision)
        # Bytes of a gathered block, of the root and of all parameters, and of their gradients as autograd leaves them.
        self.block, self.root, self.whole = (
            word * count for count in (shape.block_params, shape.root_params, shape.num_params)
        )
        # The output's gradient comes first, and is kept until the embedding's: both are in the root unit.
        self.waiting = word * shape.vocabulary * shape.width
        self.kept = sum(
            kept_by_a_block(shape, *job.batch, checkpointing=job.checkpointing, attention=job.attention).values()
        )
        self.inside = sum(kept_by_a_block(shape, *job.batch, attention=job.attention).values())
        self.logits, self.returned = at_the_loss(shape, *job.batch, job.logits)
        self.end = kept_at_the_end(shape, *job.batch)
        # The gradient of a block's input; those in the MLP are wider, and two of them exist at once.
        self.through = word * shape.width * job.rows * job.length
        self.widest = self.through * 4 if shape.kind == "gpt" else self.through * 2 * shape.hidden / shape.width

    def moments(self) -> Iterator[tuple[str, dict[str, float]]]:
        """All moments by name, with their parts that are not zero."""
        last = self.depth - 1
        yield "loss", self._moment(self.depth * self.kept + self.end + self.logits, self._gathered(0), 0)
        # Through backward, memory grows or shrinks evenly, so the highest block is the first or one of the last two.
        for number in sorted({last, max(last - 1, 0), 0}):
            yield f"backward of blocks.{number}", self._within(number)
            yield f"gradients of blocks.{number}", self._done(number)
        yield "root", self._moment(self.returned + self.through, self._gathered(0, root=True), self._root_gradients())
        yield "update", self._update()

    def _moment(self, activations: float, gathered: float, gradients: float) -> dict[str, float]:
        held: dict[str, float] = {name: self.state[name] for name in ("parameters", "optimizer_state")}
        # Megatron's gradient buffer always exists, and autograd's gradients are added to it at once.
        always = self.state["gradients"] if self.job.scheme == "megatron" else 0
        return held | {"gradients": always + gradients, "buffers": gathered, "activations": activations}

    def _within(self, number: int) -> dict[str, float]:
        """Early in the backward of a block: all its activations exist, and the gradients of the one before are sent."""
        activations = number * self.kept + self.inside + self.end + self.returned + self.through + self.widest
        travelling = self.block if number < self.depth - 1 else 0
        gradients = self.waiting + travelling + self._reduced(number)
        return self._moment(activations, self._gathered(1, root=True), gradients)

    def _done(self, number: int) -> dict[str, float]:
        """At its end: its gradients exist as autograd left them and in the flat, or the next block is gathered."""
        activations = number * self.kept + self.end + self.returned + self.through
        gradients = self.waiting + 2 * self.block + self._reduced(number)
        return self._moment(activations, self._gathered(1, root=True), gradients)

    def _gathered(self, blocks: int, *, root: bool = False) -> float:
        """Bytes of parameters that are gathered at the moment, besides those that the stage always has."""
        if self.job.scheme == "fsdp2":
            # The root stays gathered from forward to backward; a block is received in a buffer, and copied from there.
            return self.root + self.block + (blocks * self.block if self.stage == "zero3" else self.whole - self.root)
        return self.root * root + blocks * self.block if self.stage == "zero3" else 0

    def _reduced(self, number: int) -> float:
        """Bytes of the gradients of the blocks after `number`, as the stage keeps them."""
        return (self.depth - 1 - number) * self.block * self._kept_of_a_gradient()

    def _root_gradients(self) -> float:
        """The root's, as autograd left them and in the flat, and all others."""
        # A tied output has a gradient of its own, which is then added to the embedding's.
        tied = self.waiting if self.job.shape.kind == "gpt" else 0
        return (self.whole - self.root) * self._kept_of_a_gradient() + 2 * self.root + tied

    def _kept_of_a_gradient(self) -> float:
        """The part of a gradient's bytes that stays until the update."""
        if self.job.scheme == "megatron":
            return 0
        if self.job.scheme == "fsdp2":
            return FP32_BYTES / self.job.word / self.job.world_size
        return 1 if self.stage in ("ddp", "zero1") else 1 / self.job.world_size

    def _update(self) -> dict[str, float]:
        owned = self.job.shape.num_params / (1 if self.stage == "ddp" else self.job.world_size)
        # Megatron's and DeepSpeed's own Adam needs none.
        temporaries = 0 if self.job.scheme == "megatron" else FP32_BYTES * owned
        held: dict[str, float] = dict(self.state)
        return held | {"activations": self.returned, "buffers": temporaries}
