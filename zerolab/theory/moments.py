"""The moments of a step at which memory may peak: closed forms of bytes by part, for a model's shape. No torch.

Not everything is large at the same time: at the loss all activations exist and no gradients, at the update it is the
other way round. So the peak is the largest of a few sums, one for each of these moments:

* `loss`: everything that the forward kept, and the tensors of the size of the logits (`activations.at_the_loss`);
* `backward of blocks.31`, the same of blocks.30, and of the first two: what a checkpoint dropped is there again;
* `gradients of blocks.31`: they exist twice while they are copied into the flat, and zero3 has gathered the next block;
* `root`: its last gradient is computed while the first block's are still being sent; or all of its gradients exist
  twice, as above;
* `update`: fp32 copies of the gradients, and the temporaries of torch's AdamW, which on a GPU updates all at once;
  where moments have 8 bits, those of one flat in fp32.

A test keeps these sums within 3 % of a simulation, which executes the engines themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from zerolab.theory.activations import at_the_loss, kept_at_the_end, kept_by_a_block
from zerolab.theory.forms import BLOCK, FP32_BYTES, SCALE_BYTES, state_bytes
from zerolab.theory.job import Job
from zerolab.theory.schemes import reduces_in_fp32, scheme_bytes, updated_at_once

PARTS = ("parameters", "gradients", "optimizer_state", "buffers", "activations")
"""A moment's parts: the state that exists then, buffers (gathered units; the update's temporaries), activations."""


def moments(job: Job, stage: str) -> dict[str, dict[str, float]]:
    """Bytes of a rank by `PARTS` at each moment of a step, from the second step on.

    Raises ValueError for a stage that the scheme does not have, and as `theory.state_bytes` does.
    """
    return {name: dict.fromkeys(PARTS, 0.0) | parts for name, parts in _Step(job, stage).moments()}


def peak(job: Job, stage: str) -> tuple[str, dict[str, float]]:
    """The peak of a step: the name of its highest moment, and the bytes by `PARTS`."""
    found = moments(job, stage)
    highest = max(found, key=lambda name: sum(found[name].values()))
    return highest, found[highest]


def state_of(job: Job, stage: str) -> dict[str, int]:
    """Bytes of parameters, gradients and optimizer state of a GPU at the update (`schemes.scheme_bytes`).

    Norms, of which each rank of a tensor-parallel group has all, count as if they were divided too.
    """
    numel = job.shape.num_params // job.tensor
    held = scheme_bytes(job.scheme, stage, numel, job.shards, job.precision, moments=job.moments)
    if not job.offload:
        return held
    if job.scheme == "fsdp2":
        return dict.fromkeys(held, 0)
    if job.scheme in ("zerolab", "deepspeed"):  # the fp32 copy of the gradients is made where the update is
        held["gradients"] = state_bytes(stage, numel, job.shards, job.precision)["gradients"]
    return held | {"optimizer_state": 0}


class _Step:
    """The sizes that the moments are sums of, in bytes."""

    def __init__(self, job: Job, stage: str) -> None:
        shape, word, tensor = job.shape, job.word, job.tensor
        self.job, self.stage, self.depth = job, stage, shape.depth
        self.state: dict[str, float] = {**state_of(job, stage)}
        # Bytes of a gathered block, of the root and of all parameters, and of their gradients as autograd leaves them.
        self.block, self.root, self.whole = (
            word * count / tensor for count in (shape.block_params, shape.root_params, shape.num_params)
        )
        self.kept_of_a_gradient = self._kept_of_a_gradient()
        # What the micro-batches before have left, which this one's gradients are added to.
        self.before = self.whole * self.kept_of_a_gradient if job.micro_batches > 1 else 0
        # The output's gradient comes first, and is kept until the embedding's: both are in the root unit.
        self.waiting = word * shape.vocabulary * shape.width / tensor
        batch = job.rows, job.length // job.context, word
        keeps = partial(kept_by_a_block, shape, *batch, attention=job.attention, norms=job.norms, tensor=tensor)
        self.kept, self.inside = sum(keeps(checkpointing=job.checkpointing).values()), sum(keeps().values())
        in_place = job.scheme == "megatron"
        self.logits, self.returned = at_the_loss(shape, *batch, job.logits, tensor=tensor, in_place=in_place)
        self.end = kept_at_the_end(shape, *batch, norms=job.norms, tensor=tensor)
        # The gradient of a block's input; those in the MLP are wider, and two of them exist at once.
        self.through = word * shape.width * job.tokens
        if job.norms == "unfused" and job.checkpointing != "none" and word < FP32_BYTES:
            # The checkpoint has the block's input, the first norm a copy of it in fp32.
            self.inside += round(self.through)
        self.widest = self.through * 4 if shape.kind == "gpt" else self.through * 2 * shape.hidden / shape.width
        # What a second shard has of a block, and the keys and values of whole rows, which torch's ring gathers at once;
        # their gradients go round in fp32, received beside what is sent.
        self.second = self.block * tensor / job.gpus_per_node if job.sharding == "hpz" and stage == "zero3" else 0
        of_a_rank = 2 * (shape.kv_heads or shape.heads) / shape.heads * self.through / word
        self.ring = (word * job.context + 2 * FP32_BYTES) * of_a_rank if job.context > 1 else 0

    def moments(self) -> Iterator[tuple[str, dict[str, float]]]:
        """All moments by name, with their parts that are not zero."""
        last = self.depth - 1
        # A fused linear cross-entropy multiplies with the output's weight once more.
        gathered = self._gathered(0, root=self.job.logits == "fused") + self._second(self.depth)
        yield "loss", self._moment(self.depth * self.kept + self.end + self.logits, gathered, self.before)
        # Through backward, memory grows or shrinks evenly, so the highest block is one of the first or the last two.
        for number in sorted({last, max(last - 1, 0), min(1, last), 0}):
            gathered = self._gathered(1, root=True) + self._second(number)
            activations = number * self.kept + self.end + self.returned + self.through
            reduced = self.before or (last - number) * self.block * self.kept_of_a_gradient
            # Early in it all the block's activations exist, and the gradients of the one before are sent. At its end
            # its gradients exist as autograd left them and in the flat; and it is released, but the next is gathered.
            early, sent = activations + self.inside + self.widest + self.ring, self.block * (number < last)
            yield f"backward of blocks.{number}", self._moment(early, gathered, self.waiting + sent + reduced)
            gradients = self.waiting + 2 * self.block + reduced
            gathered = self._gathered(min(number, 1), root=True) + self._second(number)
            yield f"gradients of blocks.{number}", self._moment(activations, gathered, gradients)
        # Where the output is tied, the last gradient is the sum of two, which exist beside it.
        coming = self.root + 2 * self.waiting * (self.job.shape.kind == "gpt")
        # What is sent of the first block's gradients, but for the part that is kept, or lies in Megatron's buffer.
        sent = self.block * (1 - self.kept_of_a_gradient) * (self.job.scheme != "megatron")
        reduced = self.before or (self.whole - self.root) * self.kept_of_a_gradient
        gathered = self._gathered(0, root=True) + self._second(0)
        gradients = reduced + max(coming + sent, 2 * self.root)
        yield "root", self._moment(self.returned + self.through, gathered, gradients)
        yield "update", self.state | {"activations": self.returned, "buffers": self._temporaries() + self._second(0)}

    def _moment(self, activations: float, gathered: float, gradients: float) -> dict[str, float]:
        # Megatron's gradient buffer always exists, and autograd's gradients are added to it at once. In fp16 it is one
        # of fp16 numbers: their fp32 copy, which the state has, is there at the update alone.
        wide = FP32_BYTES / self.job.word if reduces_in_fp32(self.job.scheme, self.job.precision) else 1
        always = wide * self.whole if self.job.scheme == "megatron" else 0
        return self.state | {"gradients": always + gradients, "buffers": gathered, "activations": activations}

    def _gathered(self, blocks: int, *, root: bool = False) -> float:
        """Bytes of parameters that are gathered at the moment, besides those that the stage always has."""
        if self.job.scheme == "fsdp2":
            # The root stays gathered from forward to backward; a block is received in a buffer, and copied from there.
            return self.root + self.block + (blocks * self.block if self.stage == "zero3" else self.whole - self.root)
        return self.root * root + blocks * self.block if self.stage == "zero3" else 0

    def _second(self, blocks: int) -> float:
        """Bytes of the second shard of the first `blocks`, before their backward; DeepSpeed's stays, with the root."""
        always = self.depth + self.root / self.block
        return self.second * (blocks if self.job.scheme == "fsdp2" else always)

    def _kept_of_a_gradient(self) -> float:
        """The part of a gradient's bytes that stays until the update."""
        if self.job.scheme == "megatron":
            return 0
        if self.job.scheme == "fsdp2":
            return 0 if self.job.offload else FP32_BYTES / self.job.word / self.job.shards
        return 1 if self.stage in ("ddp", "zero1") else 1 / self.job.shards

    def _temporaries(self) -> float:
        """Of the update. One in main memory needs none, nor Megatron's Adam, nor torchao's kernel for 8 bits.

        But where moments have 8 bits, Megatron's unpacks those of all that a rank owns to fp32, at once.
        Source: NVIDIA/TransformerEngine, pytorch/optimizers/fused_adam.py (step).
        """
        if self.job.offload:
            return 0
        owners = 1 if self.stage == "ddp" else self.job.shards
        owned = round(self.whole / self.job.word / owners)
        if self.job.scheme == "megatron":
            return 2 * FP32_BYTES * owned if self.job.moments == "8-bit" else 0
        if self.job.moments == "fp32":
            return FP32_BYTES * updated_at_once(self.job.scheme, self.stage, owned)
        return self._unpacked() / owners if self.job.scheme == "zerolab" else 0

    def _unpacked(self) -> float:
        """What `engines.AdamW8bit` needs: it takes the root's flat and then each block's, with its moments in fp32.

        Of each number, 16 bytes while both moments are unpacked, beside the 8 of the flat before, which its loop still
        has; or 19 and three scales while they are packed.
        """
        root, block = self.root / self.job.word, self.block / self.job.word
        before = max(root, block) if self.depth > 1 else root
        unpacking = 4 * FP32_BYTES * block + 2 * FP32_BYTES * before
        packing = (4 * FP32_BYTES + 3 + 3 * SCALE_BYTES / BLOCK) * max(root, block)
        return max(unpacking, packing)
