"""The source beside many ranks is as high as the window shows, not as high as their rows."""

import pytest
from showing import made_up

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("view", ["all", "source"])
def test_the_source_beside_64_ranks_fits_the_window(show, view):
    tab = show(made_up(64, 4), f"#view={view}&events", width=1280, height=900, story=True)
    rows, source = (tab.locator(f".zl-{name}").bounding_box()["height"] for name in ("ownership", "source"))
    assert source <= 0.7 * 900
    assert rows > source, "the rows are higher: there is something to scroll"
