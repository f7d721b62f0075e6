"""The picture of the player that a stored notebook carries."""

import io

import pytest
from PIL import Image
from stills import moment, still

pytestmark = pytest.mark.browser


@pytest.mark.usefixtures("chromium")
@pytest.mark.parametrize("small", [False, True])
def test_a_still_is_a_small_picture_of_fixed_width(recording, small):
    png = still(recording, small=small)
    assert len(png) <= (30_000 if small else 60_000)
    with Image.open(io.BytesIO(png)) as picture:
        assert picture.width == 960


def test_a_still_shows_a_moment_that_is_found_by_its_meaning(recording):
    from showing import in_order

    event = in_order(recording)[moment(recording)]
    assert (event.rank, event.step, event.phase, event.op) == (0, 2, "reduce", "reduce_scatter")
