"""The moments of a step at which memory may peak: closed forms of bytes by part, for a model's shape. No torch.

Not everything is large at the same time: at the loss all activations exist and no gradients, at the update it is the
other way round. So the peak is the largest of a few sums, one for each of these moments:

* `forward of blocks.0` and of the last, under FSDP2 alone, which copies a block out of a buffer and has that before;
  with it, what the block computes, also what a checkpoint drops;
* `loss`: everything that the forward kept, and the tensors of the size of the logits (`activations.at_the_loss`);
* `output`: the gradients of the logits, of the output's weight, and of its input;
* `backward of blocks.31`, the same of blocks.30, and of the first two: what a checkpoint dropped is there again, and
  the MLP's first gradients come, while those of the block before are sent; or FSDP2 copies the block out of its buffer;
* `attention of blocks.31`: what its kernel was given, and the gradients of that; zero3 has gathered the next block, and
  the gradients of the block before are still sent;
* `gradients of blocks.31`: all exist, while those of the block before are still sent; or twice, copied into the flat;
  or FSDP2 has released the block, and sends them from another tensor, beside what has come back and its fp32 copy;
* `root`: its last gradient is computed while the first block's are still being sent; or all of its gradients exist
  twice, as above;
* `update`: fp32 copies of the gradients, and the temporaries of torch's AdamW, which on a GPU updates all at once;
  where moments have 8 bits, those of one flat in fp32.

Tests keep these sums within 3 % of a simulation, which executes the engines themselves; docs/planner.md names what they
leave out.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from zerolab.theory.activations import at_the_loss, kept_at_the_end, kept_by_a_block
from zerolab.theory.forms import BLOCK, FP32_BYTES, SCALE_BYTES, state_bytes
from zerolab.theory.job import Job
from zerolab.theory.schemes import LIVE, reduces_in_fp32, scheme_bytes, updated_at_once

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


def _total(parts: dict[str, float]) -> float:
    return sum(parts.values())


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
    if (job.scheme, stage) == ("deepspeed", "zero3"):
        held["gradients"] = 0
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
        # FSDP2 copies a unit out of the buffer that it was gathered in; one rank alone has none.
        self.is_copied = job.scheme == "fsdp2" and job.shards > 1
        # It has what nodes have added up until backward ends, beside the gradient where that is another tensor: in
        # fp32, in main memory, or of the micro-batches before.
        between_nodes = job.scheme == "fsdp2" and job.sharding == "hybrid" and job.nodes > 1
        is_another = job.offload or word < FP32_BYTES or job.micro_batches > 1
        self.added_up = (between_nodes and is_another) / job.shards
        # What the micro-batches before have left, which this one's gradients are added to; DeepSpeed's ZeRO-3 allocates
        # that once and for all (runtime/zero/stage3.py, grad_partitions_flat_buffer).
        stays = job.micro_batches > 1 or (job.scheme, stage) == ("deepspeed", "zero3")
        self.before = self.whole * self.kept_of_a_gradient if stays else 0
        # Whether to each as it comes; else those of a unit come beside, and wait for its last.
        is_added = self.before > 0 and job.scheme != "fsdp2" and self.kept_of_a_gradient == 1
        self.adds_at_once = job.scheme == "megatron" or is_added
        self.comes = 0 if self.adds_at_once else self.block
        # The output's gradient comes first, and is kept until the embedding's: both are in the root unit, a GPT's as
        # one.
        self.is_gpt = shape.kind == "gpt"
        self.table = word * shape.vocabulary * shape.width / tensor
        self.waiting = self.table if self.is_gpt or not self.adds_at_once else 0
        # What a second shard has of a block.
        self.second = self.block * tensor / job.gpus_per_node if job.sharding == "hpz" and stage == "zero3" else 0
        batch = job.rows, job.length // job.context, word
        keeps = partial(kept_by_a_block, shape, *batch, attention=job.attention, norms=job.norms, tensor=tensor)
        self.kept = sum(keeps(checkpointing=job.checkpointing).values())
        in_place = job.scheme == "megatron"
        self.logits, self.returned = at_the_loss(shape, *batch, job.logits, tensor=tensor, in_place=in_place)
        self.of_logits = word * shape.vocabulary * job.rows * job.length / job.context / tensor
        self.end = kept_at_the_end(shape, *batch, norms=job.norms, tensor=tensor)
        self._size_forward()
        self._size_backward(keeps())

    def _size_forward(self) -> None:
        """The most that the forward of a block has: what it keeps, and what goes as soon as it is used."""
        job, shape = self.job, self.job.shape
        # The gradient of a block's input; an activation of that size. A GPT's MLP has four of them at its widest.
        self.through = job.word * shape.width * job.tokens
        hidden = 4 * self.through if self.is_gpt else self.through * shape.hidden / shape.width
        # The MLP's result and the sum with it; or that after attention, its norm, and what the MLP has computed so far.
        dropped = {
            "none": 2 * self.through,
            "selective": 3 * self.through + hidden if self.is_gpt else self.through + 3 * hidden,
            "block": 2 * self.through + hidden * (2 if self.is_gpt else 3),
        }
        self.forward = self.kept + dropped[job.checkpointing]

    def _size_backward(self, kept: dict[str, int]) -> None:
        """Sizes within the backward of a block, of which `kept` is what it computes with."""
        job, shape, word = self.job, self.job.shape, self.job.word
        # Tensor-parallel ranks multiply whole rows, and gradients come so, too.
        rows, hidden = self.through * job.tensor, self.through * shape.hidden / shape.width
        received = rows * (job.tensor > 1)
        # In the MLP they are wider, and a Llama's has two at once.
        widest = 4 * self.through + received if self.is_gpt else hidden + max(hidden, received)
        self.mlp = sum(kept.values()) + widest
        # Attention's input twice, what the kernel took and gave, and the gradients of that; of a matrix all three. In a
        # ring also the keys and values of whole rows, which torch's gathers at once; their gradients go round in fp32,
        # received beside what is sent.
        shared = (shape.kv_heads or shape.heads) / shape.heads
        ring = (word * job.context + 2 * FP32_BYTES) * 2 * shared * self.through / word if job.context > 1 else 0
        self.attention = 9 * self.through + rows + 3 * kept.get("attention_matrix", 0) + ring
        # At the end the input twice, and the gradients of queries, keys and values, or of what they were made of.
        self.inputs = 4 * self.through + 2 * rows if self.is_gpt else 2 * self.through + 3 * rows
        # The gradients of the MLP's last matrix, which come first, and of the attention's, which come last.
        square = word * shape.width**2 / job.tensor
        self.first = square * (4 if self.is_gpt else shape.hidden / shape.width)
        if self.adds_at_once and not self.is_gpt and job.scheme != "megatron":
            self.mlp -= min(hidden, self.first)  # it is added and gone before the hidden layer's second gradient comes
        self.last = min(self.comes, square * (1 + 2 * shared))
        # An unfused norm's backward has six such tensors in fp32; the first has a copy of the block's input, which a
        # checkpoint has, too.
        self.norm = 0.0
        if job.norms == "unfused":
            self.inputs = self.norm = 6 * FP32_BYTES / word * self.through
            self.attention = max(self.attention, self.norm + (6 + FP32_BYTES / word) * self.through)
            self.mlp += self.through * (job.checkpointing != "none" and word < FP32_BYTES)
        # A selective checkpoint has every second matrix's result; a Llama's last one no backward takes.
        self.idle = self.through if job.checkpointing == "selective" and not self.is_gpt else 0

    def moments(self) -> Iterator[tuple[str, dict[str, float]]]:
        """All moments by name, with their parts that are not zero."""
        last = self.depth - 1
        if self.is_copied:
            for number, before in {0: self.root, last: self.block if last else self.root}.items():
                # The block before, or the root, is in its buffer until this one is copied, which then has all it keeps.
                more = max((before, self.through), (0, self.forward), key=sum)
                gathered = self._gathered(number) + self.block + more[0]
                yield f"forward of blocks.{number}", self._moment(number * self.kept + more[1], gathered, self.before)
        kept: float = self.depth * self.kept + self.end
        second = self._second(self.depth)
        # A fused linear cross-entropy multiplies with the output's weight once more.
        gathered = self._gathered(last, 0, root=self.job.logits == "fused") + second
        yield "loss", self._moment(kept + self.logits, gathered, self.before)
        if self.job.logits != "fused":
            gathered = self._gathered(last, int(self.is_copied)) + second
            kept = max(kept + self.of_logits + self.through, self.depth * self.kept + self.norm)
            yield "output", self._moment(kept + self.returned, gathered, self.before + self.table)
        # Through backward, memory grows or shrinks evenly, so the highest block is one of the first or the last two.
        for number in sorted({last, max(last - 1, 0), min(1, last), 0}):
            yield from self._of_block(number)
        # Where the output is tied, the last gradient is the sum of two, which exist beside it.
        coming = (self.table if self.adds_at_once else self.root) + 2 * self.table * self.is_gpt
        twice = 0 if self.job.scheme == "megatron" else self.root + self.root * (not self.adds_at_once)
        if self.job.scheme == "fsdp2":  # the root is released, and sent from another tensor; what comes back is cast
            cast = (self.job.word < FP32_BYTES) / self.job.shards
            twice = self.table * self.is_copied + self.root * (cast + self.kept_of_a_gradient)
        blocks = self.whole - self.root
        reduced = blocks * self.added_up + (self.before or blocks * self.kept_of_a_gradient)
        gathered = self._gathered(-1, 0) + self._second(0)
        gradients = reduced + max(coming + self._sent(), twice)
        yield "root", self._moment(self.returned + self.through, gathered, gradients)
        yield "update", self.state | {"activations": self.returned, "buffers": self._temporaries() + self._second(0)}

    def _of_block(self, number: int) -> Iterator[tuple[str, dict[str, float]]]:
        """The moments of a block's backward."""
        is_fsdp2, others = self.job.scheme == "fsdp2", self.depth - 1 - number
        activations = number * self.kept + self.returned + self.through + self.idle
        blocks = others * self.block
        reduced = self.waiting + blocks * self.added_up + (self.before or blocks * self.kept_of_a_gradient)
        sent = self._sent() * (others > 0)
        early = int(number > 0 and (self.is_copied or not is_fsdp2))  # blocks that are gathered before their turn
        alone, both = (self._gathered(number, blocks) + self._second(number) for blocks in (1, 1 + early))
        computed = self._moment(activations + self.mlp, both if is_fsdp2 else alone, reduced + self.first + sent)
        # Before that it is copied out of the buffer that it was gathered in.
        if self.is_copied and self.stage == "zero3":
            kept, copied = (number + 1) * self.kept + self.returned + self.through, self._gathered(number, 2)
            before = self._moment(kept, copied + self._second(number + 1), reduced + sent)
            computed = max(computed, before, key=_total)
        yield f"backward of blocks.{number}", computed
        # FSDP2 and our engines wait for what is sent when the next is complete; DeepSpeed has waited by now.
        sent *= self.job.scheme in ("zerolab", "fsdp2")
        yield (
            f"attention of blocks.{number}",
            self._moment(activations + self.attention, both, reduced + sent + self.comes - self.last),
        )
        arrived = (activations + self.inputs, reduced + sent + self.comes)
        if self.stage != "zero3" and not is_fsdp2:
            laid_out = self.block * (self.job.scheme != "megatron")
            if self.before and others and not self.adds_at_once:
                laid_out += self.block * self.kept_of_a_gradient  # the mean of the block before, which is added
            arrived = max(arrived, (activations, reduced + self.comes + laid_out), key=sum)
        gradients = self._moment(arrived[0], both, arrived[1])
        if is_fsdp2:  # it is released, and sent from another tensor, beside its last gradient; what comes back is cast
            cast = self.block * (1 + FP32_BYTES / self.job.word * (self.job.word < FP32_BYTES)) / self.job.shards
            going = self.block + cast + self.first * (self.is_copied and not self.is_gpt)
            left = self._gathered(number - 1, early) + self._second(number)
            gradients = max(gradients, self._moment(activations, left, reduced + going), key=_total)
        yield f"gradients of blocks.{number}", gradients

    def _sent(self) -> float:
        """Bytes of a block's gradients while they are sent, beside what is kept, or lies in Megatron's buffer."""
        if self.job.scheme == "megatron":
            return 0
        # FSDP2 keeps another tensor; so does who adds to those of earlier micro-batches.
        beside = self.job.scheme == "fsdp2" or (self.before > 0 and not self.adds_at_once)
        return self.block * (1 if beside else 1 - self.kept_of_a_gradient)

    def _moment(self, activations: float, gathered: float, gradients: float) -> dict[str, float]:
        # Megatron's gradient buffer always exists, and autograd's gradients are added to it at once. In fp16 it is one
        # of fp16 numbers: their fp32 copy, which the state has, is there at the update alone.
        wide = FP32_BYTES / self.job.word if reduces_in_fp32(self.job.scheme, self.job.precision) else 1
        always = wide * self.whole if self.job.scheme == "megatron" else 0
        return self.state | {"gradients": always + gradients, "buffers": gathered, "activations": activations}

    def _gathered(self, number: int, blocks: int = 1, *, root: bool = True) -> float:
        """Bytes of parameters that are gathered in the backward of a block, besides those that the stage always has.

        That are so many `blocks` and the root, which FSDP2 always has; of its stage 2 all that have theirs yet to come.
        """
        is_fsdp2 = self.job.scheme == "fsdp2"
        if not is_fsdp2 and self.stage != "zero3":
            return 0
        found = self.root * (root or is_fsdp2) + self.block * (blocks if self.stage == "zero3" else number + 1)
        if self.job.scheme != "deepspeed":
            return found
        # It keeps whole what it needs again soon, and fetches early what is yet to come, up to as many. One rank alone
        # has no copies.
        live = min(self.root + (number + 1) * self.block, self.job.word * LIVE)
        return max(found, live) * (self.job.shards > 1)

    def _second(self, blocks: int) -> float:
        """Bytes of the second shard of the first `blocks`, before their backward; DeepSpeed's stays, with the root."""
        always = self.depth + self.root / self.block
        return self.second * (blocks if self.job.scheme == "fsdp2" else always)

    def _kept_of_a_gradient(self) -> float:
        """The part of a gradient's bytes that stays until the update."""
        if self.job.scheme == "megatron":
            return 0
        if self.job.offload and (self.job.scheme, self.stage) == ("deepspeed", "zero3"):
            return 0  # as under FSDP2, they lie in main memory
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
