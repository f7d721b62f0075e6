"""What torch's caching allocator reserves, worked by hand from its source, and of a simulated step of FSDP2."""

import random
from itertools import pairwise

import pytest

from zerolab.theory.allocator import MIB, Allocator


@pytest.mark.parametrize(
    ("nbytes", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (1 * MIB, 1 * MIB, 2 * MIB),
        (1 * MIB + 1, 1 * MIB + 512, 20 * MIB),
        (9 * MIB, 9 * MIB, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),
    ],
)
def test_a_block_is_rounded_up_and_lies_in_a_segment_of_its_kind(nbytes, allocated, reserved):
    """From 10 MiB on it has a segment of its own; of that, a rest of 1 MiB or less is not cut off."""
    allocator = Allocator()
    allocator.allocate(nbytes)
    assert (allocator.allocated, allocator.reserved) == (allocated, reserved)


def test_small_blocks_share_a_segment_and_so_do_blocks_below_10_mib():
    allocator = Allocator()
    for _ in range(4096):
        allocator.allocate(512)
    assert allocator.reserved == 2 * MIB
    for _ in range(2):
        allocator.allocate(9 * MIB)
    assert allocator.reserved == 22 * MIB
    allocator.allocate(3 * MIB)  # two are left
    assert allocator.reserved == 42 * MIB


def test_a_freed_block_is_used_again_the_smallest_that_fits_and_merges_with_its_neighbours():
    allocator = Allocator()
    blocks = [allocator.allocate(5 * MIB) for _ in range(4)]
    for block in blocks[1:3]:
        allocator.free(block)
    again = allocator.allocate(9 * MIB)  # fits only into both
    assert (again.start, allocator.reserved) == (5 * MIB, 20 * MIB)
    large = [allocator.allocate(size * MIB) for size in (40, 30)]
    for block in large:
        allocator.free(block)
    assert allocator.allocate(30 * MIB).segment == large[1].segment
    assert allocator.reserved == 90 * MIB


def test_two_holes_do_not_make_room_for_one_large_tensor():
    allocator = Allocator()
    for block in [allocator.allocate(40 * MIB), allocator.allocate(40 * MIB)]:
        allocator.free(block)
    allocator.allocate(80 * MIB)
    assert (allocator.allocated, allocator.reserved) == (80 * MIB, 160 * MIB)


def test_an_expandable_segment_grows_by_what_its_free_end_lacks():
    allocator = Allocator(expandable=True)
    kept, freed = allocator.allocate(40 * MIB), allocator.allocate(40 * MIB)
    allocator.free(freed)
    assert allocator.allocate(80 * MIB).start == kept.size
    assert (allocator.allocated, allocator.reserved) == (120 * MIB, 120 * MIB)
    allocator.allocate(MIB + 1)
    assert allocator.reserved == 140 * MIB


def test_the_end_that_can_grow_counts_as_larger_than_any_hole():
    """`get_free_block` measures it by what it can become, so a larger hole is taken first."""
    allocator = Allocator(expandable=True)
    hole, _ = allocator.allocate(20 * MIB), allocator.allocate(4 * MIB)
    allocator.free(hole)
    assert allocator.allocate(10 * MIB).start == 0  # the end has 16, which is closer to 10 than the hole's 20
    allocator.allocate(36 * MIB)
    assert allocator.reserved == 60 * MIB


def test_a_block_never_goes_to_another_stream():
    allocator = Allocator()
    allocator.free(allocator.allocate(40 * MIB, "gathers"))
    allocator.allocate(40 * MIB)
    assert (allocator.peak_allocated, allocator.peak_reserved) == (40 * MIB, 80 * MIB)


@pytest.mark.parametrize("expandable", [False, True])
def test_whatever_is_allocated_and_freed_no_two_blocks_overlap_and_in_the_end_all_is_one_hole(expandable):
    dice, allocator, live = random.Random(0), Allocator(expandable=expandable), []
    for _ in range(2000):
        if live and dice.random() < 0.5:
            allocator.free(live.pop(dice.randrange(len(live))))
        else:
            live.append(allocator.allocate(int(2 ** dice.uniform(0, 26)), dice.choice("ab")))
            places = sorted((block.segment, block.start, block.start + block.size) for block in live)
            assert all(one[0] != other[0] or one[2] <= other[1] for one, other in pairwise(places))
        assert allocator.allocated == sum(block.size for block in live) <= allocator.reserved
    for block in live:
        allocator.free(block)
    holes = [size for free in allocator._free.values() for size, _, _ in free]
    assert allocator.allocated == 0
    assert len(holes) == len(allocator._ends)
    assert sum(holes) == allocator.reserved
