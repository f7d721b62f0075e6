"""The drawing of a flat shows every number in its owner's colour, and its text says what each rank owns."""

import re
from collections import Counter

import pytest
from torch import nn

from zerolab.figures import FlatPicture
from zerolab.player.strip import RANK_COLOURS

TWO = nn.Sequential(nn.Linear(6, 4, bias=False), nn.Linear(4, 5, bias=False))


def test_a_shard_is_cut_within_a_matrix_and_the_last_has_padding():
    assert repr(FlatPicture(TWO, 3)) == (
        "a flat of 44 numbers on 3 ranks: rank 0 owns 15 of 0.weight; rank 1 owns 9 of 0.weight and 6 of 1.weight; "
        "rank 2 owns 14 of 1.weight and 1 of padding"
    )


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
def test_each_number_is_drawn_twice_in_its_owners_colour_and_padding_once(world_size):
    picture = FlatPicture(TWO, world_size)
    drawn = Counter(re.findall(r'fill="(#\w+)" stroke="#fff"', picture.svg()))
    owned = [min(44, last) - first for first, last in map(picture.layout.span, range(world_size))]
    assert drawn == {RANK_COLOURS[rank]: 2 * count for rank, count in enumerate(owned)}
    assert picture.svg().count("stroke-dasharray") == picture.layout.padded - 44
    assert picture._repr_mimebundle_()["image/svg+xml"] == picture.svg()


def test_a_vector_is_a_row_and_a_kernel_has_its_other_dimensions_across():
    assert "bias: 1 x 3" in FlatPicture(nn.Linear(2, 3), 2).svg()
    assert "weight: 3 x 8" in FlatPicture(nn.Conv2d(2, 3, 2, bias=False), 2).svg()


def test_what_does_not_fit_into_the_picture_is_refused():
    with pytest.raises(ValueError, match=r"room for one flat of 200 numbers, and this model has 1 of 1,600"):
        FlatPicture(nn.Linear(40, 40, bias=False), 4)
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    with pytest.raises(ValueError, match="this model has 2 of 12"):
        FlatPicture(mixed, 2)
