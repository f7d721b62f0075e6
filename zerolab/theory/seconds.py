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

All `Constants` were fitted together to one half of the runs in tests/published_runs.csv (tests/bench/fit_seconds.py).
docs/published-runs.md shows both halves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log2

from zerolab.catalog import Architecture, Gpu, Link, link
from zerolab.names import check_count, check_fraction, check_known
from zerolab.theory.nccl import Group
from zerolab.theory.parallel import AGAIN, RING_AGAIN
from zerolab.theory.schemes import stages_of


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
PUBLISHED_UTILISATION = {"a100": (0.292, 0.672), "h100": (0.299, 0.486)}
"""The lowest and the highest utilisation of the published runs on a chip, leaving out one that would be above 1."""
KERNELS = {"eager": "eager", "compiled": "fused", "tuned": "fused"}
HOST_BYTES_PER_SECOND = 32e9
"""Between a GPU and main memory, one way: PCI Express 4.0 with 16 lanes (A100's datasheet: 64 GB/s both ways)."""
UPDATE_BYTES = 40  # per parameter, all in fp32: 16 read and 12 written; to clip, 8 more are read and 4 written
LOGIT_WORDS = 4  # of 16 bits, for each logit: the logit and its gradient in fp32, moved as often as kept bytes
RECOMPUTED = {"none": 0.0, "selective": 0.5, "block": 1.0}
"""Part of a block's forward that backward recomputes; selective: every other block or matrix multiplication."""
WORD = {"fp32": 4, "bf16": 2, "fp16": 2}
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


@dataclass(frozen=True)
class Setting:
    """What a step runs on, and how.

    Raises ValueError for an unknown name, a precision that the GPU does not have, a count below 1, or a utilisation
    outside (0, 1].
    """

    gpu: Gpu  # each rank's
    world_size: int
    network: Link  # between nodes
    gpus_per_node: int = 8
    rows: int = 1  # sequences a rank takes at once, a micro-batch
    micro_batches: int = 1  # in a step
    precision: str = "bf16"  # what it computes in: "bf16", "fp16" or "fp32"
    checkpointing: str = "none"  # or "selective" or "block" (every block)
    kernels: str = "eager"  # or "compiled" or "tuned"
    gradient_bytes: int | None = None  # of a gradient as it is sent; None takes the precision's
    hybrid: bool = False  # sharded within a node, and replicated across nodes
    second_shard: bool = False  # sharded over all ranks, with a second shard in the node for backward (hpZ)
    tensor: int = 1  # ranks of a node that divide each matrix; the rows are theirs together
    context: int = 1  # ranks that divide each sequence, times those that divide each matrix
    offload: bool = False  # the optimizer's state lies in main memory
    scheme: str = "zerolab"  # or "megatron" or "fsdp2", which decides what goes to and fro
    utilisation: float | None = None  # part of the dense rate that a whole step reaches, as quoted; None computes it
    link: Link | None = None  # within a node; None takes the GPU's
    constants: Constants = FITTED

    def __post_init__(self) -> None:
        check_known("kernels", self.kernels, KERNELS)
        check_known("checkpointing", self.checkpointing, RECOMPUTED)
        check_known("precision", self.precision, WORD)
        stages_of(self.scheme)
        self.gpu.rate(self.precision)
        check_count("world size", self.world_size)
        check_count("number of GPUs in a node", self.gpus_per_node)
        check_count("number of rows", self.rows)
        check_count("number of micro-batches", self.micro_batches)
        check_count("number of ranks that divide each matrix (tensor)", self.tensor)
        check_count("number of ranks that divide each sequence (context)", self.context)
        if self.utilisation is not None:
            check_fraction("utilisation", self.utilisation)

    @property
    def rate(self) -> float:
        """Dense operations a second, as in the datasheet."""
        return self.gpu.rate(self.precision)


def step(shape: Architecture, stage: str, setting: Setting) -> Step:
    """How long a step of AdamW takes under a stage; rows are as long as the shape's context. Source: see the module."""
    block, again = block_seconds(shape, setting), RECOMPUTED[setting.checkpointing]
    forward, backward = block, (2 + again) * block + attention_seconds(shape, setting) / 2
    exchanging, exchanging_back = exchange_seconds(shape, setting)
    apart = forward + exchanging, backward + exchanging_back
    sending, exposed = _communication(shape, stage, setting, *apart)
    exchanged, unhidden = _exchanged(shape, setting)
    sending, exposed = sending + exchanged, exposed + unhidden
    if setting.utilisation is not None:  # as quoted, it includes everything that is recomputed, moved and waited for
        computing = setting.micro_batches * quoted_flops(shape) * _tokens(shape, setting)
        computing /= setting.rate * setting.utilisation
        return Step(computing, 0.0, sending, max(sending - computing, 0.0), 0.0)
    computing = setting.micro_batches * (shape.depth * (forward + backward) + 3 * head_seconds(shape, setting))
    waiting = exposed + setting.constants.contention * min(sending - unhidden, computing)
    updating = _updating(shape, stage, setting)
    straggling = setting.constants.straggling * log2(_nodes(setting)) * (computing + waiting + updating)
    return Step(computing, updating, sending, waiting, straggling)


def _updating(shape: Architecture, stage: str, setting: Setting) -> float:
    """Seconds of the update of what a rank owns, or of its way to main memory and back."""
    owned = shape.num_params / setting.tensor / (1 if stage == "ddp" else _sharding(setting))
    if setting.offload:
        return _copied_bytes(stage, setting) * owned / HOST_BYTES_PER_SECOND
    return UPDATE_BYTES * owned / setting.gpu.memory_bytes_per_second


def _copied_bytes(stage: str, setting: Setting) -> int:
    """Bytes between a GPU and main memory in a step, for each parameter that a rank owns.

    Gradients go there and parameters come back, once, as they are computed with. FSDP2 has its fp32 shards there: in
    each micro-batch a gather copies them first and casts them afterwards, but for a second shard, which stays on the
    GPU, and a reduction sends gradients back in fp32. Source: torch 2.13, distributed/fsdp/_fully_shard,
    _fsdp_param.py (`all_gather_inputs`) and _fsdp_collectives.py (`foreach_reduce`).
    """
    if setting.scheme != "fsdp2":
        return 2 * WORD[setting.precision]
    gathers = 2 if stage == "zero3" and not setting.second_shard else 1
    return setting.micro_batches * (gathers + 1) * WORD["fp32"]


def _sharding(setting: Setting) -> int:
    """The number of ranks over which the model is sharded."""
    ranks = min(setting.world_size, setting.gpus_per_node) if setting.hybrid else setting.world_size
    return ranks // setting.tensor


def quoted_flops(shape: Architecture) -> float:
    """Operations per token of forward and backward, as quoted utilisations count: 6 per matrix parameter + 12 L d s.

    Source: torchtitan, utils.py, get_num_flop_per_token; mosaicml/llm-foundry, scripts/train/benchmarking/README.md.
    Neither recomputation nor the causal mask counts.
    """
    attention = QUOTED_OPERATIONS * shape.depth * shape.width * shape.context
    return 6 * matrix_params(shape) + attention


def matrix_params(shape: Architecture) -> int:
    """Parameters of matrix multiplications: the blocks' and the output's; embeddings and positions are looked up."""
    # A tied output is stored once, as the embedding, but it is multiplied too.
    return shape.depth * shape.block_params + shape.vocabulary * shape.width


def _tokens(shape: Architecture, setting: Setting) -> float:
    """Tokens whose work is one rank's: a part of each, where ranks divide every matrix; a part of them, of rows."""
    return setting.rows * shape.context / setting.tensor / setting.context


def matrix_part(gpu: Gpu, constants: Constants = FITTED) -> float:
    """The part of a card's dense rate that large matrix multiplications reach."""
    return float(getattr(constants, chip(gpu)))


def chip(gpu: Gpu) -> str:
    """The chip whose constants hold for a card: "a100" or "h100"."""
    return CHIPS.get(gpu.name, "h100")


def block_seconds(shape: Architecture, setting: Setting) -> float:
    """Seconds of one block's forward."""
    tokens, rate = _tokens(shape, setting), setting.rate * matrix_part(setting.gpu, setting.constants)
    multiplied = 2 * shape.block_params * tokens / rate
    # Forward moves a third of what a step moves.
    return multiplied + attention_seconds(shape, setting) + _moved(_kept(shape), shape, setting) / 3


def attention_seconds(shape: Architecture, setting: Setting) -> float:
    """Seconds of one attention's forward: half the quoted operations, due to the mask; backward takes 2.5 times it."""
    flops = QUOTED_OPERATIONS / 6 * shape.width * shape.context * _tokens(shape, setting)
    return flops / (setting.rate * ATTENTION_PART[chip(setting.gpu)])


def head_seconds(shape: Architecture, setting: Setting) -> float:
    """Seconds of forward of the output matrix and the loss."""
    flops = 2 * shape.width * shape.vocabulary * _tokens(shape, setting)
    return (
        flops / (setting.rate * matrix_part(setting.gpu, setting.constants))
        + _moved(LOGIT_WORDS / 2 * shape.vocabulary, shape, setting) / 3
    )


def _moved(numbers: float, shape: Architecture, setting: Setting) -> float:
    """Seconds to move `numbers` per token as often as the kernels do."""
    nbytes = WORD[setting.precision] * numbers * _tokens(shape, setting)
    times = float(getattr(setting.constants, KERNELS[setting.kernels]))
    return times * nbytes / setting.gpu.memory_bytes_per_second


def _kept(shape: Architecture) -> float:
    """Numbers per token that a block keeps for backward, attention and norms fused (arXiv 2205.05198, equation 1)."""
    return 17 * shape.width if shape.kind == "gpt" else 8 * shape.width + 4 * shape.hidden


def _nodes(setting: Setting) -> int:
    return -(-setting.world_size // setting.gpus_per_node)


def _communication(
    shape: Architecture, stage: str, setting: Setting, forward: float, backward: float
) -> tuple[float, float]:
    """Seconds of all collectives of a step, and the part of them that no computing hides."""
    gather, reduce = gather_seconds(shape.block_params, setting), reduce_seconds(stage, shape.block_params, setting)
    first, last = gather_seconds(shape.root_params, setting), reduce_seconds(stage, shape.root_params, setting)
    if stage == "zero3":
        # Each unit is gathered while the one before it computes, twice, and reduced while the next one does.
        near = replace(setting, hybrid=setting.hybrid or setting.second_shard)  # hpZ's backward gathers within the node
        again, root_again = gather_seconds(shape.block_params, near), gather_seconds(shape.root_params, near)
        late = max(0.0, gather - forward) + max(0.0, again + reduce - backward)
        sending = shape.depth * (gather + again + reduce) + first + root_again + last
        exposed = shape.depth * late + first + last + max(0.0, first - forward)
        return setting.micro_batches * sending, setting.micro_batches * exposed
    if stage == "ddp":  # an all-reduce does both halves
        gather = first = 0.0
    # Only the last micro-batch is reduced; in zero2 each one is, as there is no room to accumulate whole gradients.
    reductions = setting.micro_batches if stage == "zero2" else 1
    late = shape.depth * (reductions * max(0.0, reduce - backward) + max(0.0, gather - forward))
    return shape.depth * (reductions * reduce + gather) + reductions * last + first, late + reductions * last + first


def exchange_seconds(shape: Architecture, setting: Setting) -> tuple[float, float]:
    """Seconds of the activations that tensor-parallel ranks exchange in a block's forward, and in its backward.

    Each has two all-reduces, in halves, as reduce-scatters and all-gathers; a backward that repeats the forward has all
    of that one's again but its last reduce-scatter. Source: as `parallel.tensor`.
    """
    group = Group(setting.tensor, 1, _link(setting), setting.network)
    nbytes = WORD[setting.precision] * _tokens(shape, setting) * setting.tensor * shape.width
    gather, reduce = group.seconds("all_gather", nbytes), group.seconds("reduce_scatter", nbytes)
    once = 2 * (gather + reduce)
    return once, once + AGAIN[setting.checkpointing] * (2 * gather + reduce)


def _exchanged(shape: Architecture, setting: Setting) -> tuple[float, float]:
    """Seconds of a step's exchanges of activations, and those that no computing hides: matrices' all, a ring's some."""
    again, attention = RING_AGAIN[setting.checkpointing], attention_seconds(shape, setting)
    ring, ring_back = ring_seconds(shape, setting)
    matrices = sum(exchange_seconds(shape, setting))
    # What goes round is hidden by the attention of what has arrived; that of backward takes 2.5 times as long.
    late = (1 + again) * max(0.0, ring - attention) + max(0.0, ring_back - 2.5 * attention)
    times = setting.micro_batches * shape.depth
    return times * (matrices + (1 + again) * ring + ring_back), times * (matrices + late)


def ring_seconds(shape: Architecture, setting: Setting) -> tuple[float, float]:
    """Seconds of a block's keys and values in a ring: in forward, and in backward with their gradients in fp32.

    Source: as `parallel.context`; gradients go a hop further than a gather.
    """
    ranks, heads = setting.context, shape.kv_heads or shape.heads
    numel = 2 * setting.rows * shape.context * shape.width * heads / shape.heads / setting.tensor
    group = Group(ranks, -(-ranks * setting.tensor // setting.gpus_per_node), _link(setting), setting.network)
    forward = group.seconds("all_gather", WORD[setting.precision] * numel)
    return forward, forward + group.seconds("all_gather", WORD["fp32"] * numel * ranks / max(ranks - 1, 1))


def gather_seconds(numel: int, setting: Setting) -> float:
    """Seconds of a gather of `numel` parameters, of which each tensor-parallel rank has a part."""
    return _within(setting).seconds("all_gather", WORD[setting.precision] * numel / setting.tensor)


def reduce_seconds(stage: str, numel: int, setting: Setting) -> float:
    """Seconds of the reduction of `numel` gradients under a stage."""
    nbytes = (setting.gradient_bytes or WORD[setting.precision]) * numel / setting.tensor
    seconds = _within(setting).seconds("all_reduce" if stage == "ddp" else "reduce_scatter", nbytes)
    if setting.hybrid and _nodes(setting) > 1:
        across = Group(_nodes(setting), _nodes(setting), _link(setting), setting.network)
        seconds += across.seconds("all_reduce", nbytes / _sharding(setting))
    return seconds


def _link(setting: Setting) -> Link:
    return setting.link or link(setting.gpu.link)


def _within(setting: Setting) -> Group:
    """The ranks over which parameters are sharded."""
    ranks = _sharding(setting)
    return Group(ranks, -(-ranks * setting.tensor // setting.gpus_per_node), _link(setting), setting.network)
