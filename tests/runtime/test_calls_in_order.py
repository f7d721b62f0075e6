"""What ranks have called is compared on pages that they share; here one process writes for all of them."""

import os

import pytest

from zerolab.runtime import board
from zerolab.runtime.board import INSIDE, KEPT, Position
from zerolab.runtime.order import Order


@pytest.fixture
def call():
    """Has one of three ranks call a collective."""
    fd = os.memfd_create("board")
    os.truncate(fd, board.size(3))
    pages = board.pages(fd, 3)
    orders = [Order(pages[rank], {other: pages[other] for other in range(3) if other != rank}) for rank in range(3)]

    def calls(rank, name, number, **more):
        position = Position(INSIDE, name, number, **more)
        pages[rank].enter(position)
        orders[rank].check(position)

    return calls


def test_ranks_may_be_apart_and_in_several_groups_as_long_as_each_group_has_one_order(call):
    for number in range(3 * KEPT):
        call(0, "all_reduce", number, numel=4)
        call(1, "all_reduce", number, numel=4)
        call(1, "barrier", number, members=0b110)
        if number % 7 == 0:
            for late in range(max(number - 6, 0), number + 1):
                call(2, "barrier", late, members=0b110)
                call(2, "all_reduce", late, numel=4)


@pytest.mark.parametrize(
    "other",
    [("broadcast", {"numel": 4}), ("all_reduce", {"numel": 5}), ("all_reduce", {"numel": 4, "travels": "b"})],
)
def test_whoever_comes_second_says_who_differs_in_what(call, other):
    name, more = other
    call(2, "all_reduce", 0, numel=4, travels="a")
    with pytest.raises(RuntimeError, match=r"rank 2 asks for all_reduce #0 with 'a' \(4 el.*, and rank 1 for "):
        call(1, name, 0, **more)


def test_lists_may_have_entries_of_a_size_each_but_not_what_an_engine_gathers(call):
    call(0, "all_gather", 0, numel=4)
    call(1, "all_gather", 0, numel=5)
    call(0, "all_gather", 1, numel=4, travels="a")
    with pytest.raises(RuntimeError, match=r"rank 0 asks for .*\(4 el.*, and rank 1 for .*\(5 el"):
        call(1, "all_gather", 1, numel=5, travels="a")


def test_torchs_functions_of_several_names_may_be_one_collective_of_which_each_tells_its_own_size(call):
    call(0, "all_gather", 0, numel=4, itemsize=4)  # native code's, or of lists
    call(1, "all_gather_into_tensor", 0, numel=4, itemsize=4)
    call(2, "all_gather_single", 0, numel=4, itemsize=4)
    call(0, "all_gather_single", 1, numel=4)
    with pytest.raises(RuntimeError, match=r"rank 0 asks for .*\(4 el.*, and rank 1 for .*\(5 el"):
        call(1, "all_gather_single", 1, numel=5)


@pytest.mark.parametrize(("name", "numel"), [("reduce_scatter_single", 5), ("reduce_scatter", 4)])
def test_a_name_of_another_collective_or_another_size_under_another_name_is_refused(call, name, numel):
    call(0, "reduce_scatter_tensor", 0, numel=4)
    with pytest.raises(RuntimeError, match=rf"{name} #0 \({numel} el"):
        call(1, name, 0, numel=numel)


def test_what_another_rank_calls_while_its_earlier_calls_are_read_is_compared_next_time(monkeypatch):
    fd = os.memfd_create("board")
    os.truncate(fd, board.size(2))
    ours, theirs = board.pages(fd, 2)
    order, history = Order(ours, {1: theirs}), theirs.history

    def overtaken(begin):
        read = history(begin)
        monkeypatch.undo()
        theirs.enter(Position(INSIDE, "all_reduce", 0, numel=4))
        theirs.enter(Position(INSIDE, "all_reduce", 1, numel=5))
        return read

    monkeypatch.setattr(theirs, "history", overtaken)
    for number in range(2):
        position = Position(INSIDE, "all_reduce", number, numel=4)
        ours.enter(position)
        if number == 0:
            order.check(position)
    with pytest.raises(RuntimeError, match=r"rank 1 asks for all_reduce #1 \(5 el.*, and rank 0 for "):
        order.check(position)
