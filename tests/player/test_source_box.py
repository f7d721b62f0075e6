"""The source is as high as the window shows, not as high as the rows beside it."""

import pytest
from showing import made_up

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("view", ["all", "source"])
def test_the_source_beside_64_ranks_fits_the_window(show, view):
    tab = show(made_up(64, 4), f"#view={view}&events", width=1280, height=900, story=True)
    assert tab.locator(".zl-source").bounding_box()["height"] <= 0.7 * 900
