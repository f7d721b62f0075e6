"""A still keeps the colours by which its legends are read."""

import io

import numpy as np
import pytest
from PIL import Image
from stills import APART, COLOURS, in_few_colours, still


def in_two_halves(one, other):
    """A screenshot of two colours, and the colours of what it was written as."""
    pixels = np.zeros((40, 40, 3), dtype=np.uint8)
    pixels[:, :20], pixels[:, 20:] = (tuple(bytes.fromhex(colour)) for colour in (one, other))
    shot = io.BytesIO()
    Image.fromarray(pixels).save(shot, "PNG")
    return shot.getvalue(), pixels


def test_two_colours_of_a_legend_stay_apart_however_close_they_are():
    shot, pixels = in_two_halves("aeb4bd", "b5c4b1")  # the forward of the timeline, and activations
    with Image.open(io.BytesIO(in_few_colours(shot, ["#aeb4bd", "#b5c4b1"], COLOURS, APART))) as picture:
        assert np.array_equal(np.asarray(picture.convert("RGB")), pixels)
    with Image.open(io.BytesIO(in_few_colours(shot, [], COLOURS, APART))) as picture:
        assert len(np.unique(np.asarray(picture.convert("RGB")).reshape(-1, 3), axis=0)) == 1


@pytest.mark.browser
@pytest.mark.usefixtures("chromium")
@pytest.mark.parametrize("small", [False, True])
def test_in_a_still_the_categories_of_memory_have_their_own_colours(recording, small):
    with Image.open(io.BytesIO(still(recording, small=small))) as picture:
        pixels = np.asarray(picture.convert("RGB"))
    for name, colour in {"activations": "b5c4b1", "parameters": "6d4f3b", "optimizer state": "dfcebb"}.items():
        assert np.all(pixels == list(bytes.fromhex(colour)), axis=-1).sum() > 30, name
