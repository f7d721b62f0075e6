"""The picture of the player that a stored notebook carries."""

import pytest
from PIL import Image

from zerolab.player.picture import moment, still

pytestmark = pytest.mark.browser


def test_a_still_is_a_small_picture_of_fixed_width(recording, chromium, tmp_path):
    path = still(recording, tmp_path / "still.png", chromium=str(chromium))
    assert path.stat().st_size <= 60_000
    with Image.open(path) as picture:
        assert picture.width == 960


def test_a_still_shows_a_moment_that_is_found_by_its_meaning(recording):
    from showing import in_order

    event = in_order(recording)[moment(recording)]
    assert (event.rank, event.step, event.phase, event.op) == (0, 2, "reduce", "reduce_scatter")
