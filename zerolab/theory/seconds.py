"""How long a step takes, in closed form: computing, moving, sending, and waiting for what is sent.

* Matrices: two operations per parameter and token in forward, four in backward, and forward's two again where
  activations are recomputed, at the part of the card's dense rate that large matrices reach. Embeddings are looked up.
* Attention: 12 L d s operations per token, as quoted utilisations count them (PaLM, arXiv 2204.02311, appendix B). A
  causal kernel does half of them plus a sixth, as its backward begins with its forward (arXiv 2205.14135).
* Everything else is bound by memory: the bytes that a block keeps for backward, times how often the kernels move them.
* The update reads parameters, gradients and both moments, writes all but the gradients, and clips: `UPDATE_BYTES`.
* Collectives are NCCL's (`zerolab.theory.nccl`). Those of a block run while another block computes, and slow it down.
  A step waits for whatever outlasts that, for the first gather, and for the last reduction.
* Ranks that divide each matrix (tensor parallelism, arXiv 1909.08053) exchange activations twice in a block's forward
  and twice in its backward, with most of forward's again where it is repeated, and nothing hides that.
* With the optimizer in main memory, gradients go there and parameters come back, under FSDP2 in fp32 and for each
  gather. All of that is waited for, though computing may hide some of FSDP2's; the CPU's own time does not count.

All `Constants` were fitted together to every other run of each source in tests/published_runs.csv, by
tests/bench/fit_seconds.py. docs/published-runs.md shows these runs and those held out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log2

from zerolab.catalog import Architecture, Gpu, Link, link
from zerolab.theory.forms import FP32_BYTES
from zerolab.theory.job import Job
from zerolab.theory.nccl import Group
from zerolab.theory.parallel import AGAIN, RING_AGAIN
from zerolab.theory.schemes import reduces_in_fp32


@dataclass(frozen=True)
class Constants:
    """What was fitted: the quality of cards, kernels and networks, which cannot be computed."""

    a100: float = 0.85  # part of the dense rate that matrix multiplications reach on the chip; bounded by 0.85
    h100: float = 0.75
    eager: float = 22.0  # how often a step moves a kept byte with separate operations, norms and attention fused
    fused: float = 6.3  # the same with torch.compile, or with kernels written by hand
    contention: float = 0.36  # part of the sending time by which simultaneous computing is slowed
    straggling: float = 0.0045  # part of a step spent waiting for the slowest node, for each doubling of the nodes


FITTED = Constants()
CHIPS = {"a100": "a100", "a100-40gb": "a100", "a800": "a100"}
"""The chip of a card; all others count as H100: H200 has the same chip, and no run on V100 or B200 was fitted."""
ATTENTION_PART = {"a100": 0.61, "h100": 0.35}
"""Part of the dense rate that attention's kernel reaches, not fitted: FlashAttention-2's on A100 is 50 to 73 %, on H100
35 % (Dao 2023, arXiv 2307.08691, abstract; Shah et al. 2024, arXiv 2407.08608, abstract)."""
PUBLISHED_UTILISATION = {"a100": (0.292, 0.672), "h100": (0.266, 0.486)}
"""The lowest and the highest utilisation of the published runs on a chip, leaving out one that would be above 1."""
HOST_BYTES_PER_SECOND = 32e9
"""Between a GPU and main memory, one way: PCI Express 4.0 with 16 lanes (A100's datasheet: 64 GB/s both ways)."""
UPDATE_BYTES = 40  # per parameter, all in fp32: 16 read and 12 written; to clip, 8 more are read and 4 written
LOGIT_WORDS = 4  # of 16 bits, for each logit: the logit and its gradient in fp32, moved as often as kept bytes
RECOMPUTED = {"none": 0.0, "selective": 0.5, "block": 1.0}
"""Part of a block's forward that backward recomputes; selective: every other block or matrix multiplication."""
QUOTED_OPERATIONS = 12  # of attention per token, times layers, width and length; the causal mask does not count


@dataclass(frozen=True)
class Step:
    """Seconds of one step, by what they are spent on; `total` is less than their sum where sending is hidden."""

    computing: float  # arithmetic and memory traffic of forward and backward
    updating: float  # the optimizer's update
    sending: float  # all collectives, one after the other
    waiting: float  # the part of sending that is not hidden by computing, or slows it
    straggling: float  # waiting for the slowest node

    @property
    def total(self) -> float:
        """The whole step."""
        return self.computing + self.updating + self.waiting + self.straggling


def step(job: Job, stage: str) -> Step:
    """How long a step of AdamW takes under a stage. Source: see the module."""
    if stage == "ddp":  # which divides nothing
        job = replace(job, sharding="full")
    forward, attention, head = block_seconds(job), attention_seconds(job), head_seconds(job)
    backward = (2 + RECOMPUTED[job.checkpointing]) * forward + attention / 2
    exchanging, exchanging_back = exchange_seconds(job)
    sending, exposed = _communication(job, stage, forward + exchanging, backward + exchanging_back)
    # What goes round is hidden by the attention of what has arrived; that of backward takes 2.5 times as long.
    rings, (ring, ring_back) = 1 + RING_AGAIN[job.checkpointing], ring_seconds(job)
    late = rings * max(0.0, ring - attention) + max(0.0, ring_back - 2.5 * attention)
    blocks = job.micro_batches * job.shape.depth
    sending += blocks * (exchanging + exchanging_back + rings * ring + ring_back)
    unhidden = blocks * (exchanging + exchanging_back + late)
    exposed += unhidden
    if job.utilisation is not None:  # as quoted, it includes everything that is recomputed, moved and waited for
        computing = job.micro_batches * quoted_flops(job.shape, job.length) * job.tokens / job.rate / job.utilisation
        return Step(computing, 0.0, sending, max(sending - computing, 0.0), 0.0)
    computing = blocks * (forward + backward) + 3 * job.micro_batches * head
    waiting = exposed + FITTED.contention * min(sending - unhidden, computing)
    updating = _updating(job, stage)
    straggling = FITTED.straggling * log2(job.nodes) * (computing + waiting + updating)
    return Step(computing, updating, sending, waiting, straggling)


def _updating(job: Job, stage: str) -> float:
    """Seconds of the update of what a rank owns, or of its way to main memory and back."""
    owned = job.shape.num_params / job.tensor / (1 if stage == "ddp" else job.shards)
    if job.offload:
        return _copied_bytes(job, stage) * owned / HOST_BYTES_PER_SECOND
    return UPDATE_BYTES * owned / job.gpu.memory_bytes_per_second


def _copied_bytes(job: Job, stage: str) -> int:
    """Bytes between a GPU and main memory in a step, for each parameter that a rank owns.

    Gradients go there and parameters come back, once, as they are computed with. FSDP2 has its fp32 shards there: in
    each micro-batch a gather copies them first and casts them afterwards, but for a second shard, which stays on the
    GPU, and a reduction sends gradients back in fp32. Source: torch 2.13, distributed/fsdp/_fully_shard,
    _fsdp_param.py (`all_gather_inputs`) and _fsdp_collectives.py (`foreach_reduce`).
    """
    if job.scheme != "fsdp2":
        return 2 * job.word
    gathers = 2 if stage == "zero3" and job.sharding != "hpz" else 1
    return job.micro_batches * (gathers + 1) * FP32_BYTES


def quoted_flops(shape: Architecture, length: int) -> float:
    """Operations per token of forward and backward, as quoted utilisations count: 6 per matrix parameter + 12 L d s.

    Source: torchtitan, utils.py, get_num_flop_per_token; mosaicml/llm-foundry, scripts/train/benchmarking/README.md.
    Neither recomputation nor the causal mask counts.
    """
    return 6 * matrix_params(shape) + QUOTED_OPERATIONS * shape.depth * shape.width * length


def matrix_params(shape: Architecture) -> int:
    """Parameters of matrix multiplications: the blocks' and the output's; embeddings and positions are looked up."""
    # A tied output is stored once, as the embedding, but it is multiplied too.
    return shape.depth * shape.block_params + shape.vocabulary * shape.width


def matrix_part(gpu: Gpu) -> float:
    """The part of a card's dense rate that large matrix multiplications reach."""
    return float(getattr(FITTED, chip(gpu)))


def chip(gpu: Gpu) -> str:
    """The chip whose constants hold for a card: "a100" or "h100"."""
    return CHIPS.get(gpu.name, "h100")


def block_seconds(job: Job) -> float:
    """Seconds of one block's forward."""
    # Numbers per token that a block keeps for backward, attention and norms fused (arXiv 2205.05198, equation 1).
    kept = 17 * job.shape.width if job.shape.kind == "gpt" else 8 * job.shape.width + 4 * job.shape.hidden
    return _multiplied(job.shape.block_params, job) + attention_seconds(job) + _moved(kept, job)


def attention_seconds(job: Job) -> float:
    """Seconds of one attention's forward: half the quoted operations, due to the mask; backward takes 2.5 times it."""
    flops = QUOTED_OPERATIONS / 6 * job.shape.width * job.length * job.tokens
    return flops / (job.rate * ATTENTION_PART[chip(job.gpu)])


def head_seconds(job: Job) -> float:
    """Seconds of forward of the output matrix and the loss."""
    shape = job.shape
    return _multiplied(shape.width * shape.vocabulary, job) + _moved(LOGIT_WORDS / 2 * shape.vocabulary, job)


def _multiplied(numel: int, job: Job) -> float:
    """Seconds of forward of matrices with so many parameters."""
    return 2 * numel * job.tokens / (job.rate * matrix_part(job.gpu))


def _moved(numbers: float, job: Job) -> float:
    """Seconds in which forward moves `numbers` per token: a third as often as the kernels do in a step."""
    times = FITTED.eager if job.kernels == "eager" else FITTED.fused
    return times * job.word * numbers * job.tokens / job.gpu.memory_bytes_per_second / 3


def _communication(job: Job, stage: str, forward: float, backward: float) -> tuple[float, float]:
    """Seconds of all collectives of a step, and the part of them that no computing hides."""
    depth, (block, root) = job.shape.depth, (job.shape.block_params, job.shape.root_params)
    gather, reduce = gather_seconds(block, job), reduce_seconds(stage, block, job)
    first, last = gather_seconds(root, job), reduce_seconds(stage, root, job)
    if stage == "zero3":
        # Each unit is gathered while the one before it computes, twice, and reduced while the next one does.
        near = replace(job, sharding="hybrid") if job.sharding == "hpz" else job  # whose backward gathers in the node
        again, root_again = gather_seconds(block, near), gather_seconds(root, near)
        late = max(0.0, gather - forward) + max(0.0, again + reduce - backward)
        sending = depth * (gather + again + reduce) + first + root_again + last
        exposed = depth * late + first + last + max(0.0, first - forward)
        return job.micro_batches * sending, job.micro_batches * exposed
    if stage == "ddp":  # an all-reduce does both halves
        gather = first = 0.0
    # Only the last micro-batch is reduced; in zero2 each one is, as there is no room to accumulate whole gradients.
    reductions = job.micro_batches if stage == "zero2" else 1
    late = depth * (reductions * max(0.0, reduce - backward) + max(0.0, gather - forward))
    return depth * (reductions * reduce + gather) + reductions * last + first, late + reductions * last + first


def exchange_seconds(job: Job) -> tuple[float, float]:
    """Seconds of the activations that tensor-parallel ranks exchange in a block's forward, and in its backward.

    Each has two all-reduces, in halves, as reduce-scatters and all-gathers; a backward that repeats the forward has all
    of that one's again but its last reduce-scatter. Source: as `parallel.tensor`.
    """
    group = _group(job, job.tensor, 1)
    nbytes = job.word * job.tokens * job.tensor * job.shape.width
    gather, reduce = group.seconds("all_gather", nbytes), group.seconds("reduce_scatter", nbytes)
    once = 2 * (gather + reduce)
    return once, once + AGAIN[job.checkpointing] * (2 * gather + reduce)


def ring_seconds(job: Job) -> tuple[float, float]:
    """Seconds of a block's keys and values in a ring: in forward, and in backward with their gradients in fp32.

    Source: as `parallel.context`; gradients go a hop further than a gather.
    """
    ranks, shape = job.context, job.shape
    numel = 2 * job.tokens * ranks * shape.width * (shape.kv_heads or shape.heads) / shape.heads
    group = _group(job, ranks, -(-ranks * job.tensor // job.gpus_per_node))
    forward = group.seconds("all_gather", job.word * numel)
    return forward, forward + group.seconds("all_gather", FP32_BYTES * numel * ranks / max(ranks - 1, 1))


def gather_seconds(numel: int, job: Job) -> float:
    """Seconds of a gather of `numel` parameters, of which each tensor-parallel rank has a part."""
    return _sharing(job).seconds("all_gather", job.word * numel / job.tensor)


def reduce_seconds(stage: str, numel: int, job: Job) -> float:
    """Seconds of the reduction of `numel` gradients under a stage."""
    sent = FP32_BYTES if reduces_in_fp32(job.scheme, job.precision) else job.word
    nbytes = (job.gradient_bytes or sent) * numel / job.tensor
    seconds = _sharing(job).seconds("all_reduce" if stage == "ddp" else "reduce_scatter", nbytes)
    if job.sharding == "hybrid" and job.nodes > 1:
        seconds += _group(job, job.nodes, job.nodes).seconds("all_reduce", nbytes / job.shards)
    return seconds


def _sharing(job: Job) -> Group:
    """The ranks over which parameters are sharded."""
    return _group(job, job.shards, -(-job.shards * job.tensor // job.gpus_per_node))


def _group(job: Job, ranks: int, nodes: int) -> Group:
    """So many ranks of the job; a bandwidth that was given holds wherever they are."""
    if job.bandwidth is not None:
        ring = Link("given", job.bandwidth, 0.0, "the caller")
        return Group(ranks, nodes, ring, ring)
    # Nodes are filled one after the other, so the last has the fewest; of a group across nodes each has one.
    fewest = max(1, ranks - (nodes - 1) * (job.gpus_per_node // job.tensor))
    return Group(ranks, nodes, link(job.gpu.link), job.network, fewest=fewest)
