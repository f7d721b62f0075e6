"""What only gloo's threads still refer to has ended before the ledger adds up."""

import weakref

import pytest
import torch
import torch.distributed as dist

from zerolab.recording.aliases import Releases, with_aliases


def gather():
    """Gloo keeps views of what it gathers into, not the tensor itself."""
    whole = torch.empty(4000)
    return whole, lambda given: dist.all_gather_into_tensor(given, torch.ones(2000), async_op=True)


def scatter():
    whole = torch.ones(4000)
    return whole, lambda given: dist.reduce_scatter_tensor(torch.empty(2000), given, async_op=True)


def reduce():
    whole = torch.ones(4000)
    return whole, lambda given: dist.all_reduce(given, async_op=True)


def exchange():
    whole = torch.ones(4000)
    return whole, lambda given: dist.all_to_all_single(torch.empty(4000), given, async_op=True)


def late(collective, times):
    """How often a buffer that the rank has dropped was still there when the ledger would have added up."""
    found, releases = 0, Releases()
    for _ in range(times):
        whole, start = collective()
        ended, aliases = [], []
        reference = weakref.ref(whole.untyped_storage(), ended.append)
        work = start(with_aliases(whole, aliases))
        work.wait()
        releases.add(work, aliases)
        del whole, start, work
        releases.wait()
        found += not ended
        del reference
    return found


@pytest.mark.parametrize("collective", [gather, scatter, reduce, exchange])
def test_a_buffer_that_was_dropped_is_free_however_late_gloo_lets_go_of_it(cluster, collective):
    assert cluster.run(late, collective, 300) == [0, 0]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0),
        torch.arange(24).view(4, 6)[1:3, ::2],
        torch.arange(6.0).to(torch.bfloat16)[2:],
        torch.ones(3, dtype=torch.complex64),
        torch.tensor([True, False]),
        torch.tensor(5.0),
        torch.empty(0),
    ],
    ids=lambda tensor: f"{tensor.dtype} {list(tensor.shape)}",
)
def test_an_alias_is_the_same_memory_in_the_same_shape(tensor):
    aliases = []
    alias = with_aliases(tensor, aliases)
    assert torch.equal(alias, tensor)
    assert (alias.stride(), alias.data_ptr()) == (tensor.stride(), tensor.data_ptr())
    if tensor.numel():
        alias.zero_()
        assert not tensor.any()
        del alias
        aliases[0].get(timeout=1)
