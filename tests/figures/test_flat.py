"""The drawing of a flat shows every number in its owner's colour, and its text says what each rank owns."""

import re
from collections import Counter

import pytest
import torch
from torch import nn

from zerolab.figures import FlatPicture, ShardPicture, flat
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


def test_on_a_page_a_drawing_takes_ink_and_paper_from_it_and_in_a_stored_notebook_it_is_on_white(monkeypatch):
    picture = FlatPicture(TWO, 3)
    monkeypatch.delenv("ZEROLAB_STATIC", raising=False)
    shown = picture._repr_mimebundle_()["text/html"]
    assert "fill: currentColor" in shown
    assert picture.svg() in shown
    monkeypatch.setenv("ZEROLAB_STATIC", "1")
    assert set(picture._repr_mimebundle_()) == {"text/plain", "image/svg+xml"}


def test_a_vector_is_a_row_and_a_kernel_has_its_other_dimensions_across():
    assert "bias: 1 x 3" in FlatPicture(nn.Linear(2, 3), 2).svg()
    assert "weight: 3 x 8" in FlatPicture(nn.Conv2d(2, 3, 2, bias=False), 2).svg()


def test_what_does_not_fit_into_the_picture_is_refused():
    with pytest.raises(ValueError, match=r"room for one flat of 200 numbers, and this model has 1 of 1,600"):
        FlatPicture(nn.Linear(40, 40, bias=False), 4)
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    with pytest.raises(ValueError, match="this model has 2 of 12"):
        FlatPicture(mixed, 2)


class Unit(nn.Module):
    """Two matrices with a vector between them, 12 + 3 + 8 numbers."""

    def __init__(self):
        super().__init__()
        self.first = nn.Parameter(torch.zeros(3, 4))
        self.vector = nn.Parameter(torch.zeros(3))
        self.second = nn.Parameter(torch.zeros(4, 2))


def areas(picture):
    """Numbers of each rank's boxes in the drawing, the legend's apart."""
    found = Counter()
    for width, height, colour in re.findall(r'width="([\d.]+)" height="([\d.]+)" fill="(#\w+)"', picture.svg()):
        if (width, height) != ("14", "14") and colour in RANK_COLOURS:
            found[RANK_COLOURS.index(colour)] += round(float(width) * float(height) * flat.DENSE**2)
    return found


def test_shards_of_a_flat_end_within_a_row_and_those_by_rows_do_not():
    by_flat = ShardPicture(Unit(), [((0, 6),), ((6, 12),), ((12, 18),), ((18, 24),)])
    assert areas(by_flat) == {0: 6, 1: 6, 2: 3, 3: 5}
    assert "rank 3 owns 5 in 1 piece" in repr(by_flat)
    by_rows = ShardPicture(Unit(), [((0, 8), (12, 14), (15, 19)), ((8, 12), (14, 15), (19, 23))])
    assert areas(by_rows) == {0: 12, 1: 8}
    assert repr(by_rows).startswith("3 parameters of 23 numbers: rank 0 owns 14 in 3 pieces; rank 1 owns 9 in 3")
    assert by_rows._repr_mimebundle_()["image/svg+xml"] == by_rows.svg()


def test_spans_of_another_module_are_refused():
    with pytest.raises(ValueError, match="rank 1 owns numbers up to 60, and the unit has 23"):
        ShardPicture(Unit(), [((0, 20),), ((30, 60),)])


def test_in_a_drawing_a_name_that_turns_text_around_is_escaped():
    turned = nn.Sequential()
    turned.add_module("a\u202eb\x1b", nn.Linear(6, 4, bias=False))
    picture = FlatPicture(turned, 2)
    assert "a\\u202eb\\x1b.weight: 4 x 6" in picture.svg()
    assert re.sub(r"[\n]", "", picture.svg()).isprintable()
