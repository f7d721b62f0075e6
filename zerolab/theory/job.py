"""A training as the planner sees it: the model, how it is trained, and on what. Checked here, and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass, field

from zerolab import catalog
from zerolab.catalog import Architecture, Gpu, Link
from zerolab.names import check_count, check_divides, check_fraction, check_known
from zerolab.theory.activations import ATTENTION, CHECKPOINTING, LOGITS, NORMS, check_norms
from zerolab.theory.forms import BYTES_PER_PARAMETER, MOMENTS
from zerolab.theory.schemes import STAGES

KERNELS = ("eager", "compiled", "tuned")
"""torch's operations one by one; torch.compile's; or written by hand."""
SHARDING = ("full", "hybrid", "hpz")
"""Over which ranks ZeRO divides: all of them; those of a node, so that every node has the whole model (HSDP); or all of
them, while stage 3 keeps a second shard in the node, from which backward gathers (ZeRO++'s hpZ)."""
NETWORK = "infiniband-ndr"

OPTIONS = {
    "precision": BYTES_PER_PARAMETER,
    "checkpointing": CHECKPOINTING,
    "scheme": STAGES,
    "attention": ATTENTION,
    "norms": NORMS,
    "logits": LOGITS,
    "moments": MOMENTS,
    "offload": (False, True),  # "no" would count as True
    "sharding": SHARDING,
    "kernels": KERNELS,
}
_COUNTS = {
    "world_size": "world size",
    "rows": "number of rows",
    "tensor": "number of ranks that divide each matrix (tensor)",
    "context": "number of ranks that divide each sequence (context)",
    "gpus_per_node": "number of GPUs in a node",
    "micro_batches": "number of micro-batches",
}
_NOT_MEGATRONS = {
    "checkpointing": (
        "selective",
        "its own repeats core attention alone, which saves nothing where that is fused: choose 'none' or 'block'",
    ),
    "norms": ("unfused", "its own are one kernel each: choose 'fused'"),
    "logits": ("fused", "its own loss stores them, and overwrites them: choose 'own'"),
}


def check_options(**given: object) -> None:
    """Raises ValueError for a name that is none of the option's, which `OPTIONS` has."""
    for option, name in given.items():
        check_known(option, name, OPTIONS[option])


@dataclass(frozen=True)
class Job:
    """What one rank of `world_size` trains, and how; `plan` explains each option.

    `tensor` ranks of a node divide each matrix, `context` times as many each sequence; the rows are theirs together.
    `offload`: the optimizer's state lies in main memory, and is updated there; of the scheme fsdp2 all shards do
    (torch's `CPUOffloadPolicy`). Of several `micro_batches` all but the first find the gradients of those before.
    `gradient_bytes` are those of a gradient as it is sent; None takes what the scheme sends.

    Raises ValueError for an unknown name, what the scheme or the GPU does not have, a count below 1, a utilisation
    outside (0, 1], rows that the model does not take, or ranks that cannot be grouped so.
    """

    shape: Architecture
    world_size: int
    precision: str
    rows: int
    length: int
    checkpointing: str = "none"
    scheme: str = "zerolab"
    attention: str = "fused"
    norms: str = "fused"
    logits: str = "own"
    moments: str = "fp32"
    offload: bool = False
    sharding: str = "full"
    tensor: int = 1
    context: int = 1
    gpus_per_node: int = 8
    micro_batches: int = 1
    gpu: Gpu = field(default=catalog.GPUS["h100"], hash=False)  # its rates are a dictionary
    kernels: str = "eager"
    utilisation: float | None = None
    network: Link = catalog.LINKS[NETWORK]
    bandwidth: float | None = None
    gradient_bytes: int | None = None

    def __post_init__(self) -> None:
        check_options(**{option: getattr(self, option) for option in OPTIONS})
        for option, (name, why) in _NOT_MEGATRONS.items():
            if self.scheme == "megatron" and getattr(self, option) == name:
                raise ValueError(f"{option} is {name!r}, which Megatron does not have: {why}")
        check_norms(self.shape, self.norms)
        self.gpu.rate(self.precision)
        for name, words in _COUNTS.items():  # 8.0 is a count, but in a title it is 8
            object.__setattr__(self, name, check_count(words, getattr(self, name)))
        object.__setattr__(self, "length", self.shape.checked_length(self.rows, self.length))
        if self.utilisation is not None:
            check_fraction("utilisation", self.utilisation)
            object.__setattr__(self, "utilisation", float(self.utilisation))  # a table holds no number of NumPy's
        # Tensor parallelism has to come out even, and must not leave the node.
        heads, in_a_node = self.shape.kv_heads or self.shape.heads, min(self.world_size, self.gpus_per_node)
        for what, count in (("GPUs", self.world_size), ("GPUs of a node", in_a_node), ("heads", heads)):
            check_divides("tensor", self.tensor, count, what)
        check_divides("context", self.context, self.world_size // self.tensor, "GPUs that have the same part")
        check_divides("context", self.context, self.length, "tokens of a row")
        if self.context > 1 and self.attention == "math":
            raise ValueError("attention is 'math', and where ranks share a row it is fused: choose attention='fused'")
        if self.sharding != "full" and self.world_size > self.gpus_per_node:
            check_divides("the number of GPUs in a node", self.gpus_per_node, self.world_size, "GPUs")
        elif self.sharding == "hpz":
            raise ValueError(
                f"hpz keeps a second shard in each node, and {self.world_size} GPUs are one node: "
                "choose sharding='full'"
            )

    @property
    def shards(self) -> int:
        """Ranks among which ZeRO divides what it divides."""
        ranks = min(self.world_size, self.gpus_per_node) if self.sharding == "hybrid" else self.world_size
        return ranks // self.tensor

    @property
    def nodes(self) -> int:
        """Nodes, of which the last need not be full."""
        return -(-self.world_size // self.gpus_per_node)

    @property
    def word(self) -> int:
        """Bytes of a number in the precision of the computation."""
        return BYTES_PER_PARAMETER[self.precision]["parameters"]

    @property
    def tokens(self) -> float:
        """Tokens of a micro-batch whose work is one rank's: a part of each, where ranks divide matrices, or of rows."""
        return self.rows * self.length / self.tensor / self.context

    @property
    def rate(self) -> float:
        """Dense operations a second, as in the datasheet."""
        return self.gpu.rate(self.precision)
