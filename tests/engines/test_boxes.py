"""Which boxes of a tensor lie in a stretch of its elements."""

import itertools
import math

import pytest
import torch

from zerolab.engines.boxes import Elements, boxes


def test_a_piece_of_a_matrix_is_the_rest_of_a_row_whole_rows_and_the_beginning_of_a_row():
    assert list(boxes((5, 4), 2, 15)) == [((0, 2), (1, 2)), ((1, 0), (2, 4)), ((3, 0), (1, 3))]


@pytest.mark.parametrize(("start", "stop", "number"), [(4, 12, 1), (5, 7, 1), (0, 20, 1), (2, 8, 2), (6, 6, 0)])
def test_there_are_no_more_boxes_than_needed(start, stop, number):
    assert len(list(boxes((5, 4), start, stop))) == number


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 3, 4), (1, 1, 5), (3, 1, 2, 2), (0, 4), (4, 0)])
def test_the_boxes_of_every_stretch_have_its_elements_in_order(shape):
    whole = torch.arange(math.prod(shape)).view(shape)
    for start, stop in itertools.combinations_with_replacement(range(whole.numel() + 1), 2):
        cut = [
            whole[tuple(map(slice, at, map(sum, zip(at, sizes, strict=True))))]
            for at, sizes in boxes(shape, start, stop)
        ]
        assert torch.cat([torch.empty(0), *(box.flatten() for box in cut)]).tolist() == list(range(start, stop))


def test_what_is_written_into_a_box_lands_in_the_piece():
    piece = Elements(torch.Size((3, 4)), 2, torch.zeros(8))
    piece.at((1, 0)).fill_(1)
    assert piece.values.tolist() == [0, 0, 1, 1, 1, 1, 0, 0]
    with pytest.raises(KeyError, match=r"no box of this piece begins at \(0, 0\)"):
        piece.at((0, 0))
