"""What each further way to divide adds to ZeRO: what a rank holds and sends in a step, in closed form. No torch.

ZeRO divides what is stored, among ranks that each take whole sequences. The others divide the work as well. Written
with Ψ parameters, N ranks, G of them in a node, L blocks, A bytes of activations of the rows, and X of one tensor
[rows, length, width]; a pass of S bytes among n ranks sends S(n - 1)/n. Sources:

* HSDP: Zhao et al. 2023, arXiv 2304.11277, section 3.2. hpZ: Wang et al. 2023, "ZeRO++", arXiv 2306.10209.
* Tensor parallel: Shoeybi et al. 2019, "Megatron-LM", arXiv 1909.08053, section 3; with the sequence divided outside of
  its matrices, which sends the same: Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.2.
* Pipeline: Narayanan et al. 2021, arXiv 2104.04473, section 2.2.
* Context parallel: Liu et al. 2023, "Ring Attention", arXiv 2310.01889, section 3; Jacobs et al. 2023, "DeepSpeed
  Ulysses", arXiv 2309.14509, section 3.
* What checkpointing repeats: torch 2.13, utils/checkpoint.py, whose repeated forward ends with the last tensor that
  backward needs (`set_checkpoint_early_stop`).
* Experts: Lepikhin et al. 2020, "GShard", arXiv 2006.16668, section 3; Fedus et al. 2021, "Switch Transformers", arXiv
  2101.03961, section 2.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from zerolab.catalog import Architecture
from zerolab.names import check_count, check_divides, check_known
from zerolab.tables import Table, Value
from zerolab.theory.activations import CHECKPOINTING, kept_by_a_block
from zerolab.theory.forms import FP32_BYTES

AGAIN = {"none": 0, "selective": 1, "block": 1}
"""How often backward repeats a block's exchanges: "selective" keeps products of matrices, not what was received."""
RING_AGAIN = {"none": 0, "selective": 0, "block": 1}
"""The same of a ring, which is inside of attention: "selective" keeps attention's result."""


class Bytes(NamedTuple):
    """What one rank holds and sends: model state, activations kept for backward, and a step's bytes by who exchanges.

    `sent` has "all" for what goes among all ranks that share the model's parts, wherever they are, "node" for what
    stays within a node, "nodes" for what each rank sends to its equals in other nodes, "stages" for a pipeline's
    activations and "context" for those of who divides a sequence.
    """

    state: float
    activations: float
    sent: dict[str, float]


@dataclass(frozen=True)
class Run:
    """What is trained on what.

    Attributes:
        shape: the model.
        world_size: ranks.
        rows: sequences that a rank takes at once, or that the ranks take together who divide them.
        length: tokens per sequence.
        node: ranks in a node.
        word: bytes of a number that is gathered, reduced or exchanged.
        state: bytes per parameter of parameters, gradients and optimizer state together.
        checkpointing: one of `activations.CHECKPOINTING`.

    Raises ValueError for another, or a count below 1.
    """

    shape: Architecture
    world_size: int
    rows: int = 1
    length: int = 2048
    node: int = 8
    word: int = 2
    state: int = 16
    checkpointing: str = "block"

    def __post_init__(self) -> None:
        check_known("checkpointing", self.checkpointing, CHECKPOINTING)
        for name in ("world_size", "rows", "length", "node", "word", "state"):
            check_count(f"value of {name}", getattr(self, name))

    @property
    def held(self) -> float:
        """Bytes of the whole model's state."""
        return float(self.state * self.shape.num_params)

    @property
    def model(self) -> float:
        """Bytes of the whole model as it is gathered."""
        return float(self.word * self.shape.num_params)

    @property
    def hidden(self) -> float:
        """X: bytes of one activation [rows, length, width]."""
        return float(self.word * self.rows * self.length * self.shape.width)

    @property
    def again(self) -> int:
        """How often backward repeats what a block exchanges in its forward, but in a ring."""
        return AGAIN[self.checkpointing]

    def activations(self, tensor: int = 1) -> float:
        """A: what all blocks keep for their backward."""
        batch = self.rows, self.length, self.word
        kept = kept_by_a_block(self.shape, *batch, checkpointing=self.checkpointing, tensor=tensor)
        return float(self.shape.depth * sum(kept.values()))


def one_pass(nbytes: float, ranks: float) -> float:
    """What each of `ranks` sends where all of `nbytes` are gathered or reduce-scattered among them."""
    return nbytes * (ranks - 1) / ranks


def zero3(run: Run) -> Bytes:
    """ZeRO-3 over all ranks: state 16Ψ/N, three passes of the model; A is not divided."""
    return Bytes(run.held / run.world_size, run.activations(), {"all": 3 * one_pass(run.model, run.world_size)})


def hsdp(run: Run) -> Bytes:
    """Sharded within a node, replicated across nodes: 16Ψ/G; only an all-reduce of Ψ/G leaves the node."""
    node, nodes = _node(run), run.world_size // _node(run)
    sent = {"node": 3 * one_pass(run.model, node), "nodes": 2 * one_pass(run.model / node, nodes)}
    return Bytes(run.held / node, run.activations(), sent)


def hpz(run: Run) -> Bytes:
    """ZeRO-3 that keeps a second shard in the node from forward to backward, whose gather then stays in the node."""
    node = _node(run)
    sent = {"all": 2 * one_pass(run.model, run.world_size), "node": one_pass(run.model, node)}
    return Bytes(run.held / run.world_size + run.model / node, run.activations(), sent)


def tensor(run: Run, ranks: int) -> Bytes:
    """`ranks` of a node divide each matrix and the sequence outside of them; ZeRO-3 over ranks with the same part.

    The state stays 16Ψ/N. Activations are divided, but for the outputs of norms. A block exchanges X twice in its
    forward and twice in its backward, each time there and back: two passes, of one of X each. Where backward repeats
    the forward, three of its four passes are sent again: both gathers, and the first reduction. The last one gives the
    block's output, which backward does not need. Both "selective" and "block" repeat them.
    """
    check_divides("tensor", ranks, min(run.world_size, run.node), "ranks of a node")
    check_divides("tensor", ranks, run.shape.kv_heads or run.shape.heads, "heads")
    exchanged = (8 + 3 * run.again) * run.shape.depth * one_pass(run.hidden, ranks)
    others = run.world_size // ranks
    sent = {"all": 3 * one_pass(run.model / ranks, others), "node": exchanged}
    return Bytes(run.held / run.world_size, run.activations(ranks), sent)


def pipeline(run: Run, stages: int, micro_batches: int, stage: str = "zero1") -> Bytes:
    """The first of `stages` of L/P blocks each, under 1F1B; `rows` are those of a micro-batch.

    It keeps the activations of as many micro-batches as there are stages. Of the model's ends, which only the first
    and last stages have, each counts as if it had a Pth. ZeRO within a stage sums up whole gradients over the
    micro-batches, and "zero1" sends two passes of its part. "zero3", as torch's FSDP2 does it, gathers the part for
    every micro-batch's forward and once for all backwards, in which it stays whole, and reduces once.
    """
    check_known("stage within a pipeline", stage, ("zero1", "zero3"))
    check_divides("stages", stages, run.world_size, "ranks")
    check_count("number of micro-batches", micro_batches)
    if stages > run.shape.depth:
        raise ValueError(
            f"stages is {stages}, and {run.shape.name} has {run.shape.depth} blocks: give each at least one"
        )
    others, part = run.world_size // stages, run.model / stages
    passes = 2 if stage == "zero1" else micro_batches + 2
    whole = 2 * part  # parameters and gradients, which in "zero3" are there beside the shards
    state = whole + (run.held / stages - (whole if stage == "zero1" else 0)) / others
    in_flight = min(stages, micro_batches)
    # Its last activations go on, and as many bytes of their gradients come back, which the next stage, if any, sends.
    sent = {"all": passes * one_pass(part, others), "stages": micro_batches * run.hidden if stages > 1 else 0.0}
    return Bytes(state, in_flight * run.activations() / stages, sent)


def bubble(stages: int, micro_batches: int, chunks: int = 1) -> float:
    """The time that a pipeline's stages stand idle, as a part of the time they compute: (P - 1)/M, over `chunks`."""
    for name, count in {"stages": stages, "micro-batches": micro_batches, "chunks": chunks}.items():
        check_count(f"number of {name}", count)
    return (stages - 1) / (micro_batches * chunks)


def context(run: Run, ranks: int, way: str = "ring") -> Bytes:
    """`ranks` divide each sequence; ZeRO-3 over all ranks, who all have different tokens.

    In a "ring" keys and values go round in forward, and again in backward; their gradients follow in fp32, and go one
    hop further, to where they belong (torch, distributed/tensor/experimental/_context_parallel/_attention.py).
    With "ulysses" queries, keys, values and outputs change, by all-to-alls, from parts of the sequence to heads,
    and so do their gradients; each rank needs a head of its own. Checkpointing repeats a ring only where it is "block",
    as attention's result is kept else, and these all-to-alls, which are around attention, in any case.
    """
    check_known("way of context parallelism", way, ("ring", "ulysses"))
    check_divides("context", ranks, run.world_size, "ranks")
    heads = run.shape.kv_heads or run.shape.heads
    keys_values = 2 * run.hidden * heads / run.shape.heads
    if way == "ring":
        gradients = FP32_BYTES / run.word * keys_values if ranks > 1 else 0
        exchanged = (2 + RING_AGAIN[run.checkpointing]) * one_pass(keys_values, ranks) + gradients
    else:
        check_divides("context", ranks, heads, "heads of keys and values")
        exchanged = (2 + run.again) * one_pass((2 * run.hidden + keys_values) / ranks, ranks)
    whole = zero3(run)
    return Bytes(whole.state, whole.activations / ranks, whole.sent | {"context": run.shape.depth * exchanged})


def experts(run: Run, ranks: int, top: int = 1) -> float:
    """Bytes that a rank sends in a block whose experts are divided among `ranks`: two all-to-alls there, two back.

    Each of its tokens goes to `top` experts, of which (n - 1)/n are elsewhere if all are used alike, and comes back;
    in backward gradients do the same. Checkpointing repeats both all-to-alls of forward: what comes back is multiplied
    by the router's weight, whose gradient needs it (Switch, equation 2). What a rank holds of the experts is a part of
    them, 16Ψ/n of those blocks.
    """
    check_divides("experts", ranks, run.world_size, "ranks")
    check_count("number of experts of a token (top)", top)
    return 2 * (2 + run.again) * one_pass(top * run.hidden, ranks)


def ways(run: Run) -> Table:
    """One rank under each way, in GB: what it holds of the state and of activations, and what it sends in a step.

    As many ranks as a node has divide matrices, blocks or the sequence; a pipeline has as many micro-batches of `rows`.
    Without those ways that so many ranks cannot go, such as eight that would divide twelve heads.
    """
    ranks = _node(run)
    known: dict[str, Callable[[Run], Bytes]] = {
        "ZeRO-3": zero3,
        "HSDP": hsdp,
        "hpZ": hpz,
        f"ZeRO-3 x TP {ranks}": partial(tensor, ranks=ranks),
        f"ZeRO-1 x PP {ranks}": partial(pipeline, stages=ranks, micro_batches=ranks),
        f"ZeRO-3 x CP {ranks}": partial(context, ranks=ranks),
    }
    rows: list[dict[str, Value]] = []
    for name, form in known.items():
        with suppress(ValueError):
            way = form(run)
            sent = {f"to {whom}": nbytes / 1e9 for whom, nbytes in way.sent.items()}
            rows.append({"way": name, "state": way.state / 1e9, "activations": way.activations / 1e9, **sent})
    on = f"{run.world_size} rank{'s' * (run.world_size > 1)}"
    return Table(rows, f"{run.shape.name} on {on}, {run.rows} x {run.length:,} tokens; GB of one rank")


def _node(run: Run) -> int:
    node = min(run.node, run.world_size)
    check_divides("node", node, run.world_size, "ranks")
    return node
