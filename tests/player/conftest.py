"""A real recording and a real browser for the tests of the player."""

import pytest

from zerolab import Cluster
from zerolab.player import page


@pytest.fixture(scope="session")
def recordings():
    """A real run of two steps on four ranks, by stage."""

    # Within the fixture: ranks would look for a function of this file in whichever conftest they find first.
    def train(stage, steps):
        import torch
        import torch.distributed as dist

        from zerolab import models
        from zerolab.engines import ENGINES

        engine = ENGINES[stage](models.build("gpt-tiny"), torch.optim.AdamW, lr=1e-3)
        for inputs, targets in models.batches("gpt-tiny", dist.get_world_size(), dist.get_rank(), steps):
            engine.training_step(inputs, targets, models.loss)

    with Cluster(world_size=4, device="cpu") as cluster:
        return {stage: cluster.record(train, stage, 2) for stage in ("zero3", "zero2", "zero1", "ddp", "fsdp2")}


@pytest.fixture(scope="session")
def recording(recordings):
    return recordings["zero3"]


SETTLED = (
    "document.fonts.ready.then(() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done))))"
)


@pytest.fixture
def show(browser, tmp_path):
    """`show(recording or html, hash, width, height, scheme)` gives the page; whatever it complained of fails.

    All panes, event by event; with `story` as it opens by itself.
    """
    complaints, pages = [], []

    def opened(what, address="", width=1280, height=800, scheme="light", *, story=False, motion="no-preference"):
        size = {"width": width, "height": height}
        tab = browser.new_page(viewport=size, color_scheme=scheme, reduced_motion=motion)
        if not story:
            address = f"{address or '#'}&view=all&events"
        # What only a verbose console shows is advice about speed, not a complaint.
        tab.on(
            "console",
            lambda message: message.type == "verbose" or complaints.append(f"{message.type}: {message.text}"),
        )
        tab.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        tab.on("request", lambda request: request.url.startswith("file:") or complaints.append(request.url))
        file = tmp_path / f"{len(pages)}.html"
        file.write_text(what if isinstance(what, str) else page(what), encoding="utf-8")
        tab.goto(file.as_uri() + address)
        pages.append(tab)
        tab.evaluate(SETTLED)  # places are read next, and a click must find there what was read
        return tab

    yield opened
    for tab in pages:
        tab.close()
    assert complaints == []
