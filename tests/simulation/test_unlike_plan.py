"""What docs/planner.md says of the rows that FSDP2 fills up is what `fit` would note."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from zerolab import catalog
from zerolab.simulation.architectures import build
from zerolab.simulation.unlike_plan import unlike_plan

PAGE = Path(__file__).resolve().parents[2] / "docs" / "planner.md"


@pytest.mark.parametrize(
    ("name", "ranks", "percent"), [("gpt2-xl", 256, 5), ("gpt2-xl", 512, 14), ("llama3-8b", 2048, 3)]
)
def test_what_is_filled_up_of_the_pages_models_is_what_it_says(name, ranks, percent):
    with torch.device("meta"):
        model = build(catalog.architecture(name))
    question = SimpleNamespace(micro_batches=1, model=lambda: model, shards=lambda _: ranks)
    (note,) = unlike_plan(question, ["fsdp2"])
    assert f"to a multiple of {ranks}: {percent}% more than the model has" in note
    assert f"{percent} % on {ranks:,}" in PAGE.read_text("utf-8")
