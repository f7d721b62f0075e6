"""Shift-Tab on any engine shows every argument with its default and its meaning."""

from importlib.util import find_spec
from inspect import Parameter, signature

import pytest
import torch
from torch import nn

from zerolab.engines import ENGINES, Engine


@pytest.fixture(scope="module")
def inspector(require):
    """What answers Shift-Tab in a notebook, which a box of GPUs may not have."""
    require(find_spec("IPython"), "IPython", "pip install 'zerolab[lab]'")
    from IPython.core.oinspect import Inspector

    return Inspector(theme_name="nocolor")


@pytest.mark.parametrize("stage", ENGINES)
def test_every_argument_is_in_the_signature_with_its_default_and_in_the_docstring_with_its_meaning(stage, inspector):
    taken = signature(ENGINES[stage]).parameters
    assert list(taken)[:2] == ["model", "optimizer_cls"]
    for name, parameter in list(taken.items())[2:]:
        if parameter.kind is Parameter.VAR_KEYWORD:
            assert name == "optimizer_keywords"
        else:
            assert parameter.kind is Parameter.KEYWORD_ONLY
            assert parameter.default is not Parameter.empty
    shown = inspector.info(ENGINES[stage])["docstring"]
    _, arguments = shown.split("\nArgs:\n")
    explained = [line.split(":")[0].strip(" *") for line in arguments.splitlines() if line[:4].strip() == "" and line]
    assert [name for name in explained if name in taken] == list(taken)


@pytest.mark.parametrize("stage", ENGINES)
def test_what_is_explained_is_taken(stage):
    arguments = ENGINES[stage].__doc__.split("\nArgs:\n")[1].split("\n\n")[0]
    explained = [line.split(":")[0].strip(" *") for line in arguments.splitlines() if not line.startswith(" " * 8)]
    assert explained == list(signature(ENGINES[stage]).parameters)


def test_an_engine_of_ones_own_is_explained_too():
    class Mine(Engine):
        """Mine.

        Args:
            model: which one, in my words.
            every: how many steps lie between two.

        Raises:
            ValueError: never.
        """

        def __init__(self, model, optimizer_cls, *, every=2, **optimizer_keywords):
            super().__init__(model, optimizer_cls, **optimizer_keywords)

    said = Mine.__doc__.splitlines()
    assert said[:4] == ["Mine.", "", "Args:", "    model: which one, in my words."]
    assert said[5:] == [
        "    every: how many steps lie between two.",
        "    **optimizer_keywords: for the optimizer, such as `lr=1e-3`.",
        "",
        "Raises:",
        "    ValueError: never.",
    ]

    class Silent(Engine):
        pass

    assert Silent.__doc__.startswith("Args:\n    model: the module")


def test_what_an_engine_of_ones_own_passes_on_is_in_its_signature_with_its_own_options_before_the_optimizers():
    class Often(Engine):
        """Often.

        Args:
            every: how many steps lie between two.
        """

        def __init__(self, *arguments, every=2, **others):
            super().__init__(*arguments, **others)

    base, own = signature(Engine).parameters, signature(Often).parameters
    assert list(own) == [*list(base)[:-1], "every", "optimizer_keywords"]
    assert own["precision"] == base["precision"]

    class OftenQuietly(Often):
        def __init__(self, *arguments, quiet=True, **others):
            super().__init__(*arguments, **others)

    assert list(signature(OftenQuietly).parameters)[-3:] == ["every", "quiet", "optimizer_keywords"]
    assert "every: how many steps" in OftenQuietly.__doc__


def calls_the_engine(stage):
    torch.manual_seed(0)
    engine = ENGINES[stage](nn.Linear(4, 4), torch.optim.SGD, lr=0.1)
    losses = []
    for _ in range(2):
        loss = engine(torch.full((2, 4), 1.0 + engine.rank)).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("stage", ["zero3", "fsdp2"])
def test_a_loop_that_calls_the_engine_as_deepspeeds_users_do_trains(clusters, stage):
    for first, second in clusters(2).run(calls_the_engine, stage):
        assert second < first


@pytest.mark.parametrize("stage", ["zero3", "fsdp2"])
def test_an_engine_that_was_made_shows_how_it_is_called_and_its_class_how_one_is_made(clusters, stage):
    def shown():
        engine = ENGINES[stage](nn.Linear(4, 4), torch.optim.SGD, lr=0.1)
        return [str(signature(each)) for each in (engine, engine.__call__, type(engine))]

    for made, called, kind in clusters(2).run(shown):
        assert made == called == "(*inputs: Any, **keywords: Any) -> Any"
        assert kind == str(signature(ENGINES[stage]))


@pytest.mark.parametrize("stage", ["zero3", "fsdp2"])
def test_its_forward_is_drawn_at_the_line_that_calls_the_engine(clusters, stage):
    recording = clusters(2).record(calls_the_engine, stage)
    forwards = [event.source for event in recording.events if event.kind == "module" and event.op == "forward"]
    lines = {recording.sources[source.id].text.splitlines()[source.line - 1].strip() for source in forwards}
    assert lines == {"loss = engine(torch.full((2, 4), 1.0 + engine.rank)).square().mean()"}
