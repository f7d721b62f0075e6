"""The drawing of owners has a box for each matrix, in its rank's colour and as long as the matrix is large."""

import re
from collections import Counter

import pytest

from zerolab.engines.placement import balanced
from zerolab.figures import OwnersPicture
from zerolab.player.strip import RANK_COLOURS

SIZES = [192, 64, 256, 256]


def test_the_boxes_of_a_rank_are_as_long_as_what_it_owns_and_its_text_says_how_uneven_that_is():
    picture = OwnersPicture(SIZES, balanced(SIZES, 3), 3)
    lengths = Counter()
    for width, colour in re.findall(r'width="([\d.]+)" height="18" fill="(#\w+)"', picture.svg()):
        lengths[colour] += float(width)
    assert lengths == pytest.approx({RANK_COLOURS[rank]: 520 for rank in range(3)}, rel=1e-4)
    assert repr(picture) == (
        "4 matrices of 768 elements on 3 ranks: the fullest owns 256, 1.00 times the mean, and 0 own nothing"
    )
    assert picture._repr_mimebundle_()["image/svg+xml"] == picture.svg()


def test_ranks_without_a_matrix_have_a_row_and_no_box():
    picture = OwnersPicture(SIZES, balanced(SIZES, 8), 8)
    assert picture.svg().count('height="18"') == 4
    assert "rank 7" in picture.svg()
    assert "and 4 own nothing" in repr(picture)


def test_an_owner_that_is_no_rank_is_refused():
    with pytest.raises(ValueError, match=r"4 matrices have owners \[0, 1, 2, 3\] on 3 ranks"):
        OwnersPicture(SIZES, [0, 1, 2, 3], 3)
