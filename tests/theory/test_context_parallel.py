"""What ranks send who divide a sequence or experts: the closed forms beside what four real ranks sent."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.nn.functional import scaled_dot_product_attention

from zerolab import Cluster, catalog
from zerolab.simulation.checkpointing import checkpoint_blocks
from zerolab.theory import parallel
from zerolab.theory.activations import CHECKPOINTING
from zerolab.theory.parallel import Run

RANKS, TOKENS = 4, 32
SHAPE = catalog.Architecture("a block", "llama", 128, 8, 1, TOKENS, 128, "a test", hidden=96, kv_heads=4)
SIZE = SHAPE.width // SHAPE.heads
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.05}


@pytest.fixture(scope="module", name="cluster")
def make_cluster():
    with Cluster(world_size=RANKS, device="cpu") as cluster:
        yield cluster


def sent(recording, rank=0):
    """Bytes that a rank sent."""
    events = [event for event in recording.rank(rank).events if event.kind == "collective" and event.parent is None]
    return sum(event.logical_bytes for event in events)


def one_row(dtype, *heads):
    """Queries, keys, values and the output's gradient of one row: whole, and this rank's part of the tokens."""
    torch.manual_seed(0)
    whole = [torch.randn(1, count, TOKENS, SIZE, dtype=dtype) for count in heads]
    return whole, [each.chunk(RANKS, dim=2)[dist.get_rank()].contiguous() for each in whole]


def how_far(found, whole):
    """The largest difference of output and gradients from those of one process."""
    *inputs, gradient = (each.float() for each in whole)
    inputs = [each.requires_grad_() for each in inputs]
    right = scaled_dot_product_attention(*inputs, enable_gqa=True)
    rights = [right, *torch.autograd.grad(right, inputs, gradient)]
    parts = [each.chunk(RANKS, dim=2)[dist.get_rank()] for each in rights]
    return max((one - other).abs().max().item() for one, other in zip(found, parts, strict=True))


def ring(dtype):
    """torch's own context parallelism, with its kernels for the CPU."""
    from torch.distributed.tensor.experimental._context_parallel import _attention as torchs

    forward, backward = (
        getattr(torch.ops.aten, f"_scaled_dot_product_flash_attention_for_cpu{name}") for name in ("", "_backward")
    )
    torchs._cp_options.enable_load_balance = False  # which needs a causal mask
    whole, (queries, keys, values, gradient) = one_row(dtype, 8, 8, 8, 8)
    inputs = dist.group.WORLD, 2

    def attention(queries, keys, values, is_causal):
        return forward(queries, keys, values, 0.0, is_causal)

    def gradients(**given):
        names = ("grad_out", "query", "key", "value", "out", "logsumexp")
        return backward(*(given[name] for name in names), 0.0, given["is_causal"])

    out, logsumexp = torchs._templated_ring_attention(*inputs, attention, queries, keys, values)
    found = torchs._templated_ring_attention_backward(
        *inputs, gradients, gradient, "grad_out", queries, keys, values, out, logsumexp, is_causal=False
    )
    return how_far([out, *found], whole)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_a_ring_gradients_of_keys_and_values_go_all_the_way_round_in_fp32(cluster, dtype):
    recording = cluster.record(ring, dtype)
    assert max(recording.results) < TOLERANCE[dtype]
    shape = catalog.Architecture("a block", "gpt", 128, 8, 1, TOKENS, 128, "a test")  # a key for each query
    run = Run(shape, RANKS, rows=1, length=TOKENS, word=dtype.itemsize, checkpointing="none")
    for rank in range(RANKS):
        assert sent(recording, rank) == parallel.context(run, RANKS).sent["context"]


def exchanged(part):
    """An all-to-all of the first dimension."""
    return all_to_all_single_autograd(part.contiguous(), None, None, dist.group.WORLD)


def heads_of(part):
    """From all heads of a part of the tokens [1, heads, tokens/N, size] to a part of the heads of all tokens."""
    return torch.cat(exchanged(part[0]).chunk(RANKS), dim=1)[None]


def tokens_of(part):
    """The way back."""
    return exchanged(torch.cat(part[0].chunk(RANKS, dim=1)))[None]


def ulysses():
    """Heads in place of tokens, attention over whole rows, and back."""
    whole, (*inputs, gradient) = one_row(torch.float32, 8, 4, 4, 8)
    inputs = [each.requires_grad_() for each in inputs]
    out = tokens_of(scaled_dot_product_attention(*map(heads_of, inputs), enable_gqa=True))
    return how_far([out.detach(), *torch.autograd.grad(out, inputs, gradient)], whole)


@pytest.mark.slow
def test_with_ulysses_parts_of_the_tokens_become_heads_and_their_gradients_come_back(cluster):
    recording = cluster.record(ulysses)
    assert max(recording.results) < TOLERANCE[torch.float32]
    run = Run(SHAPE, RANKS, rows=1, length=TOKENS, word=4, checkpointing="none")
    for rank in range(RANKS):
        assert sent(recording, rank) == parallel.context(run, RANKS, "ulysses").sent["context"]


class Experts(nn.Module):
    """Tokens go to their experts and come back, and count as much as the router says."""

    def __init__(self):
        super().__init__()
        self.router, self.expert = nn.Linear(SHAPE.width, 1), nn.Linear(SHAPE.width, SHAPE.width)

    def forward(self, tokens):
        return tokens + self.router(tokens).sigmoid() * exchanged(self.expert(exchanged(tokens)))


class Ulysses(nn.Module):
    """Attention of one row whose heads are divided while it computes."""

    def __init__(self):
        super().__init__()
        self.matrices = nn.ModuleList(nn.Linear(SHAPE.width, SHAPE.width, bias=False) for _ in range(4))

    def forward(self, tokens):
        *inputs, out = self.matrices
        divided = (heads_of(matrix(tokens).view(1, -1, SHAPE.heads, SIZE).transpose(1, 2)) for matrix in inputs)
        return tokens + out(tokens_of(scaled_dot_product_attention(*divided)).transpose(1, 2).reshape(tokens.shape))


def a_step(module, tokens, checkpointing):
    """Forward and backward of one such block."""
    model = nn.ModuleDict({"block": module()})
    checkpoint_blocks(model, checkpointing, ["block"])
    model["block"](torch.randn(tokens, SHAPE.width, requires_grad=True)).sum().backward()


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", CHECKPOINTING)
def test_tokens_go_to_their_experts_and_back_and_so_do_gradients_and_both_again_where_they_are_repeated(
    cluster, checkpointing
):
    run = Run(SHAPE, RANKS, rows=1, length=TOKENS, word=4, checkpointing=checkpointing)
    assert sent(cluster.record(a_step, Experts, TOKENS, checkpointing)) == parallel.experts(run, RANKS)


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", CHECKPOINTING)
def test_what_ulysses_exchanges_is_repeated_with_the_forward_even_where_attentions_result_is_kept(
    cluster, checkpointing
):
    run = Run(replace(SHAPE, kv_heads=8), RANKS, rows=1, length=TOKENS, word=4, checkpointing=checkpointing)
    found = sent(cluster.record(a_step, Ulysses, TOKENS // RANKS, checkpointing))
    assert found == parallel.context(run, RANKS, "ulysses").sent["context"]


def test_ulysses_sends_less_the_more_ranks_there_are_and_a_ring_does_not():
    run = Run(SHAPE, RANKS, rows=1, length=TOKENS)
    two, four = (parallel.context(run, ranks, "ulysses").sent["context"] for ranks in (2, 4))
    assert four == two * (3 / 16) / (1 / 4)
    keys_values = 2 * 2 * TOKENS * SHAPE.width / 2  # of bytes; half as many heads as queries have
    for ranks in (2, 4):
        passes = 3 * (ranks - 1) / ranks + 2  # two forwards and one backward, and gradients in fp32
        assert parallel.context(run, ranks).sent["context"] == passes * keys_values
    assert parallel.context(run, 1).sent["context"] == 0
