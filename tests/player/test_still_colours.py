"""A still keeps the colours by which its legends are read."""

import io

import numpy as np
import pytest
from PIL import Image
from stills import still

pytestmark = pytest.mark.browser
# Of the timeline, where the widest areas are; two of them are closer to each other than letters' edges are.
COMPUTING = {"forward": "aeb4bd", "backward": "7d8591", "update": "454c58"}
MEMORY = {"activations": "b5c4b1", "parameters": "6d4f3b"}


@pytest.mark.usefixtures("chromium")
def test_in_a_small_still_what_the_legends_name_has_its_own_colour(recording):
    with Image.open(io.BytesIO(still(recording, small=True))) as picture:
        pixels = np.asarray(picture.convert("RGB"))
    for name, colour in (COMPUTING | MEMORY).items():
        count = np.all(pixels == list(bytes.fromhex(colour)), axis=-1).sum()
        assert count > 30, f"{name} has another colour"
