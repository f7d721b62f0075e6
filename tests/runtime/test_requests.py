"""Groups of more ranks than this machine has processes for: torch's own fake group gives each rank's calls."""

import ast

import pytest
import warm

from zerolab.runtime import board
from zerolab.runtime.board import DONE, INSIDE, Position
from zerolab.runtime.faults import Standing
from zerolab.why import verdict

WORLD_SIZE = 80
RANKS = f"""import os
import torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from zerolab.runtime import board, counter
fd = os.memfd_create("board")
os.truncate(fd, board.size(1))
(page,) = board.pages(fd, 1)
counter.install(page)
for rank in range({WORLD_SIZE}):
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size={WORLD_SIZE})
    own = [dist.new_group(range(first, first + 8)) for first in range(0, {WORLD_SIZE}, 8)][rank // 8]
    counter.reset()
    for _ in range(3):
        dist.all_gather_into_tensor(torch.ones(8), torch.ones(1), group=own)
    dist.all_reduce(torch.ones(1))
    dist.all_reduce(torch.ones(1))
    print([tuple(call) for call in page.history()])
    dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def histories(tmp_path_factory):
    """What each rank calls that gathers three times in its group of eight, and then reduces twice with all."""
    script = tmp_path_factory.mktemp("ranks") / "ranks.py"
    script.write_text(RANKS)
    done = warm.launch([script], ranks=0)
    assert done.returncode == 0, done.stderr
    return [[Position(*call) for call in ast.literal_eval(line)] for line in done.stdout.splitlines()]


def hang(histories, absent, before):
    """What is said where a rank makes so many calls and no more, and the others wait for it where they need it."""
    calls, standings = {}, []
    for rank, whole in enumerate(histories):
        waits = before + 1 if rank // 8 == absent // 8 else max(before + 1, 4)  # of all, the fourth
        made = before if rank == absent else waits
        calls[rank] = [call._replace(state=DONE) for call in whole[:made]]
        if rank != absent:
            calls[rank][-1] = calls[rank][-1]._replace(state=INSIDE)
        standings.append(Standing(rank, "running", calls[rank][-1]))
    return verdict.of_hang(standings, calls, 60)


def test_each_group_has_numbers_of_its_own_however_high_its_ranks_are(histories):
    assert len(histories) == WORLD_SIZE
    for rank, history in enumerate(histories):
        first = rank // 8 * 8
        ranks = f"ranks {', '.join(map(str, range(first, first + 8)))}" if first + 7 <= 62 else "8 ranks"
        gathers = [f"all_gather_into_tensor #{number} of {ranks}" for number in range(3)]
        assert [call.label for call in history] == [*gathers, "all_reduce #0", "all_reduce #1"]
    assert len({history[0].members for history in histories}) == WORLD_SIZE // 8


@pytest.mark.parametrize("absent", [5, 60, 77])
def test_a_rank_that_does_not_come_to_a_collective_of_all_is_named(histories, absent):
    found = hang(histories, absent, before=4)
    assert found.ranks == (absent,)
    assert found.text.startswith(f"rank {absent} has not reached all_reduce #1: it is running, after all_reduce #0")


@pytest.mark.parametrize("absent", [5, 60, 77])
def test_a_rank_that_does_not_come_to_a_collective_of_its_group_is_named(histories, absent):
    found = hang(histories, absent, before=2)
    assert found.ranks == (absent,)
    group = "ranks 0, 1, 2, 3, 4, 5, 6, 7" if absent == 5 else "8 ranks"
    assert f"rank {absent} has not reached all_gather_into_tensor #2 of {group}: it is running" in found.text
    assert " are in " not in found.text, "nobody calls anything else"


def test_groups_whose_ranks_are_not_listed_are_told_apart_on_the_board():
    groups = [range(first, first + 8) for first in range(0, 4096, 8)] + [range(64), [0, 63], [63], [2, 9000]]
    found = [board.members(list(group)) for group in groups]
    assert len(set(found)) == len(groups)
    assert all((members < 0) == (max(group) > 62) for members, group in zip(found, groups, strict=True))
    assert board.members([65, 64]) == board.members([64, 65]), "in whatever order"


def test_a_group_whose_ranks_are_not_listed_is_read_from_a_page_as_it_was_written():
    page = board.Page(memoryview(bytearray(board.size(1))))
    position = Position(INSIDE, "all_gather", 3, 5, members=board.members(range(64, 72)))
    page.write(position)
    page.enter(position)
    assert (page.read(), page.history()) == (position, [position])
    assert (position.label, position.ranks) == ("all_gather #3 of 8 ranks", [])
