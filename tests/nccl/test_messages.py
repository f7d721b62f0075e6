"""Messages between two ranks: over NCCL the first one waits for the other rank, an asynchronous one, too."""

import re

import pytest
import torch
import torch.distributed as dist

from zerolab import CollectiveHang

pytestmark = pytest.mark.slow


def neighbours():
    """The ranks to the right and to the left on a ring, and what goes from one to the next."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    return (rank + 1) % world_size, (rank - 1) % world_size, torch.full((4,), float(rank)), torch.empty(4)


def hand_on():
    right, left, mine, received = neighbours()
    sending = dist.isend(mine, right)  # the send
    receiving = dist.irecv(received, left)
    for work in (sending, receiving):
        work.wait()
    return received.tolist()


def hand_on_in_one_batch():
    right, left, mine, received = neighbours()
    messages = [dist.P2POp(dist.isend, mine, right), dist.P2POp(dist.irecv, received, left)]
    for work in dist.batch_isend_irecv(messages):
        work.wait()
    return received.tolist()


def test_a_ring_of_two_comes_round(ranks):
    assert ranks.run(hand_on) == [[1.0] * 4, [0.0] * 4]


def test_a_ring_of_three_whose_ranks_all_send_first_is_named_by_rank_and_line(three):
    with pytest.raises(CollectiveHang, match=r"^rank \d has waited in isend") as caught:
        three.run(hand_on)
    for rank in range(3):
        row = rf"^  {rank}  .*waiting in isend .*test_messages.py, line \d+: sending = dist.isend\(mine, right\)"
        assert re.search(row, str(caught.value), re.MULTILINE), str(caught.value)
        sentence = f"rank {rank} waits in isend for rank {(rank + 1) % 3}, which is waiting in isend for rank"
        assert any(sentence in each for each in caught.value.mismatches), caught.value.mismatches


def test_a_ring_of_three_in_one_batch_comes_round(three):
    assert three.run(hand_on_in_one_batch) == [[float((rank - 1) % 3)] * 4 for rank in range(3)]
