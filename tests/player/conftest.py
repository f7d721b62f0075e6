"""A real recording and a real browser for the tests of the player."""

import weakref

import pytest
from headless import chromium as start_chromium
from showing import DRAWN
from tabs import Complaints, Tabs

from zerolab import Cluster
from zerolab.player import page


@pytest.fixture(scope="session")
def train():
    """A function for the ranks: two steps of a named model under a stage, with what is `frozen` by its beginning."""

    # Within the fixture: ranks would look for a function of this file in whichever conftest they find first.
    def train(stage, model="gpt-tiny", frozen="none", **options):
        import torch
        import torch.distributed as dist

        from zerolab import models
        from zerolab.engines import ENGINES

        built = models.build(model)
        for name, parameter in built.named_parameters():
            parameter.requires_grad_(not name.startswith(frozen))
        engine = ENGINES[stage](built, torch.optim.AdamW, lr=1e-3, **options)
        for inputs, targets in models.batches(model, dist.get_world_size(), dist.get_rank(), 2):
            engine.training_step(inputs, targets, models.loss)

    return train


@pytest.fixture(scope="session")
def recordings(train):
    """A real run of two steps on four ranks, by stage."""
    with Cluster(world_size=4, device="cpu") as cluster:
        return {stage: cluster.record(train, stage) for stage in ("zero3", "zero2", "zero1", "ddp", "fsdp2")}


@pytest.fixture(scope="session")
def recording(recordings):
    return recordings["zero3"]


@pytest.fixture(scope="package")
def browser(chromium):
    """One headless browser for all tests of the player."""
    with start_chromium(chromium) as browser:
        yield browser


@pytest.fixture(scope="package")
def tabs(browser):
    return Tabs(browser)


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """`written(recording)` is the file of its page; most tests show one of a few recordings."""
    folder, known = tmp_path_factory.mktemp("pages"), {}

    def file(recording):
        seen, path = known.get(id(recording), (lambda: None, None))
        if seen() is not recording:
            path = folder / f"{len(list(folder.iterdir()))}.html"
            path.write_text(page(recording), encoding="utf-8")
            known[id(recording)] = weakref.ref(recording), path
        return path

    return file


SETTLED = f"document.fonts.ready.then(() => {DRAWN})"


@pytest.fixture
def show(tabs, written, tmp_path):
    """`show(recording or html, hash, width, height, scheme)` gives the page; whatever it complained of fails.

    All panes, event by event; with `story` as it opens by itself.
    """
    complaints, shown = Complaints(), []

    def opened(what, address="", width=1280, height=800, scheme="light", *, story=False, motion="no-preference"):
        tab = tabs.take(width, height, scheme, motion)
        shown.append(tab)
        complaints.listen(tab.on)
        if not story:
            address = f"{address or '#'}&view=all&events"
        if isinstance(what, str):
            file = tmp_path / f"{len(shown)}.html"
            file.write_text(what, encoding="utf-8")
        else:
            file = written(what)
        tab.goto(file.as_uri() + address)
        tab.evaluate(SETTLED)  # places are read next, and a click must find there what was read
        return tab

    yield opened
    for tab in shown:
        complaints.listen(tab.remove_listener)
        tabs.give_back(tab)
    assert complaints == []
