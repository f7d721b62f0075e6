"""Models of one's own: configurations, and what a model raises."""

import json

import pytest
import torch
from own_models import tied_gpt
from torch import nn

from zerolab import fit, models
from zerolab.simulation import own

SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}


def of_transformers(folder, **config):
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("has_file", [True, False])
def test_rows_are_no_longer_than_the_positions_that_a_model_has_learned(tmp_path, has_file):
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 48, "vocab_size": 100}
    path = of_transformers(tmp_path, model_type="gpt2", architectures=["GPT2LMHeadModel"], **sizes)
    model = path if has_file else GPT2LMHeadModel(GPT2Config(**sizes))
    asked = {"stages": "ddp", "checkpointing": "none"}
    assert fit(model, 2, length=8, **asked).most("length") == 48
    with pytest.raises(ValueError, match=r"the length is 49, and \w+ has learned 48 positions: take shorter rows"):
        fit(model, 2, length=49, **asked)


@pytest.mark.slow
def test_a_row_of_roberta_has_no_token_at_the_positions_up_to_its_paddings(tmp_path):
    from transformers import RobertaConfig, RobertaForMaskedLM

    sizes = {"max_position_embeddings": 50, "vocab_size": 100, "pad_token_id": 1, **SMALL}
    model = RobertaForMaskedLM(RobertaConfig(**sizes))
    model(torch.full((1, 48), 5))
    with pytest.raises(RuntimeError, match="out of bounds"):
        model(torch.full((1, 49), 5))
    path = of_transformers(tmp_path, model_type="roberta", architectures=["RobertaForMaskedLM"], **sizes)
    for source in (path, model):
        found = fit(source, 2, stages="ddp", checkpointing="none")
        assert found.question.own.length(None) == found.most("length") == 48


@pytest.mark.slow
def test_no_part_of_a_configuration_keeps_a_cache(tmp_path):
    text = {"model_type": "llama", "vocab_size": 100, **SMALL}
    seen = {"model_type": "clip_vision_model", "image_size": 16, "patch_size": 8, **SMALL}
    config = {"architectures": ["LlavaForConditionalGeneration"], "text_config": text, "vision_config": seen}
    path = of_transformers(tmp_path, model_type="llava", **config)
    found = fit(path, 2, length=512, stages="ddp")
    none, selective, block = (found.cell("ddp", how).terms["activations"] for how in ("none", "selective", "block"))
    assert none > selective > block


@pytest.mark.slow
def test_what_of_a_configuration_is_left_out_is_said(tmp_path):
    path = of_transformers(
        tmp_path, model_type="llama", vocab_size=100, quantization_config={"load_in_4bit": True}, **SMALL
    )
    (note,) = fit(path, 2, length=8, stages="ddp", checkpointing="none").notes
    assert note.startswith("quantization_config is left out")


@pytest.mark.slow
def test_a_model_that_reads_and_writes_needs_the_name_of_its_class(tmp_path):
    with pytest.raises(ValueError, match=r"no causal language model for 't5': name the class in config.json"):
        fit(of_transformers(tmp_path, model_type="t5"), 2)


class Particular(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        if width != 4:
            raise AssertionError(f"a width of {width}")
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        if len(x) == 1:
            raise ValueError("one row is too few")
        return self.layer(x) / (1 / len(x))


def test_whatever_a_model_raises_is_told_with_what_it_was_given():
    for rows, said in ((1, r"ValueError \(one row is too few\)"), (0, "ZeroDivisionError")):
        with pytest.raises(RuntimeError, match=rf"failed on shapes with {said}.* was given float32 \[{rows}, 4\]"):
            fit(Particular, 2, inputs=torch.zeros(rows, 4))
    with pytest.raises(ValueError, match=r"cannot be built on the meta device.*\(a width of 5\)"):
        fit(lambda: Particular(5), 2, inputs=torch.zeros(2, 4))


class Branching(nn.Module):
    def __init__(self, dtypes, *, branches):
        super().__init__()
        self.first, self.last = (nn.Linear(8, 8, dtype=dtype) for dtype in dtypes)  # padded, as over NCCL
        self.branches = branches

    def forward(self, x):
        hidden = self.first(x.to(self.first.weight.dtype)).to(self.last.weight.dtype)
        return self.last(hidden if not self.branches or hidden.sum() > 0 else -hidden)


def both_ways(*dtypes, precision="fp32"):
    """What is found of a model that needs values, and of the same model that does not."""
    asked = {"inputs": torch.zeros(2, 8), "checkpointing": "none", "precision": precision}
    return [fit(lambda way=way: Branching(dtypes, branches=way), 2, **asked) for way in (True, False)]


@pytest.mark.parametrize(
    ("dtypes", "precision"),
    [
        ((torch.float64, torch.float32), "fp32"),
        ((torch.bfloat16, torch.bfloat16), "fp32"),
        ((torch.float32, torch.float32), "bf16"),
    ],
)
def test_the_state_alone_is_what_it_is_with_the_activations(dtypes, precision):
    alone, executed = both_ways(*dtypes, precision=precision)
    for one, other in zip(alone.cells, executed.cells, strict=True):
        assert one.recording is None
        assert one.terms == {name: pytest.approx(other.state[name], abs=16) for name in one.terms}  # Adam counts steps


def test_a_stage_that_refuses_is_left_out_with_its_reason_where_others_train():
    _, found = both_ways(torch.float64, torch.float32)
    assert [cell.stage for cell in found.cells] == ["ddp", "zero1", "zero2", "zero3"]
    assert "fsdp2 in fp32 is left out: fsdp2 trains one dtype in a unit" in found.notes[0]


class Unsteady(nn.Linear):
    """Recomputed, it does not keep what its first forward kept."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x).tanh() if self.calls % 2 else super().forward(x)


def test_a_checkpointing_that_fails_is_left_out_with_its_reason_where_another_trains():
    found = fit(
        lambda: nn.Sequential(Unsteady(8, 8), Unsteady(8, 8)),
        2,
        inputs=torch.zeros(2, 8),
        precision="fp32",
        checkpointing=["none", "block"],
    )
    assert {cell.checkpointing for cell in found.cells} == {"none"}
    assert "ddp in fp32 with checkpointing block is left out: a step of <lambda> failed" in found.notes[0]


def test_of_an_embedding_with_sparse_gradients_the_state_is_told_and_why_no_more():
    found = fit(lambda: nn.Embedding(8, 4, sparse=True), 2, length=4, stages="ddp", checkpointing="none")
    assert found.cells[0].terms["parameters"] == 2 * 8 * 4
    assert (
        "sparse_coo cannot be simulated: its bytes depend on values; make embeddings with sparse=False" in found.answer
    )


def test_a_compiled_model_needs_what_it_needs_uncompiled():
    asked = {"inputs": torch.zeros(2, 4), "stages": "ddp,fsdp2", "checkpointing": "none"}
    compiled, plain = (fit(model, 2, **asked) for model in (torch.compile(Particular()), Particular()))
    assert [cell.terms for cell in compiled.cells] == [cell.terms for cell in plain.cells]


def test_blocks_are_named_by_their_class_itself_too_as_fsdps_policies_take_it():
    model = tied_gpt()
    assert own.blocks_of(model, models.Attention) == own.blocks_of(model, "Attention") != []


def test_memory_in_words_is_refused():
    with pytest.raises(TypeError, match="memory is '80GB': pass a number"):
        fit(tied_gpt, 4, memory="80GB")


@pytest.mark.parametrize("text", ["4,8", "4X8", "4x8x", "(4, 8)"])
def test_what_is_no_shape_and_can_be_no_function_is_not_looked_for_as_one(text):
    with pytest.raises(ValueError, match="is no shape: write the batch as 4x512:int64 or 8x3x224x224"):
        own.inputs_of(text, "train.py:make_model")
