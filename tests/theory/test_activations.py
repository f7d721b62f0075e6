"""What a block keeps is what the recorder sees, to the byte."""

from functools import partial

import pytest
import torch

from zerolab import catalog, simulate
from zerolab.simulation import architectures
from zerolab.simulation.costs import Hardware
from zerolab.theory.activations import ATTENTION, CHECKPOINTING, at_the_loss, kept_by_a_block

LLAMA = catalog.Architecture("tiny", "llama", 64, 4, 3, 128, 100, "a test", hidden=96, kv_heads=2)
GPT = catalog.Architecture("tiny", "gpt", 64, 4, 3, 128, 100, "a test")
WORD = {"fp32": 4, "bf16": 2}


def seen(shape, rows, length, precision, **options):
    """Bytes of activations that come with a block's forward."""
    tokens = torch.zeros(rows, length, dtype=torch.int64)
    build = partial(architectures.build, shape)
    recording = simulate("ddp", 1, build, batches=[(tokens, tokens)], precision=precision, **options).recordings["ddp"]
    forwards = [e for e in recording.rank(0).events if e.op == "forward" and e.unit.startswith("blocks")]
    return forwards[-1].live["activations"] - forwards[-2].live["activations"]


@pytest.mark.parametrize("checkpointing", CHECKPOINTING)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("shape", [GPT, LLAMA], ids=["gpt", "llama"])
def test_a_block_keeps_what_the_closed_form_says_to_the_byte(shape, precision, checkpointing):
    terms = kept_by_a_block(shape, 2, 100, WORD[precision], checkpointing=checkpointing)
    assert seen(shape, 2, 100, precision, checkpointing=checkpointing) == sum(terms.values())


def test_published_blocks_keep_it_too():
    for name in ("gpt2-xl", "llama3-8b"):
        shape = catalog.architecture(name)
        assert seen(shape, 1, 256, "bf16") == sum(kept_by_a_block(shape, 1, 256, 2).values())


@pytest.mark.parametrize(("precision", "more"), [("bf16", 6), ("fp32", 4)])
def test_norms_that_are_written_out_keep_more_in_each_of_them(precision, more):
    """As torch's own is on the CPU, Hugging Face's everywhere: of a token's numbers a copy in fp32, and a result."""
    cpu = Hardware(catalog.gpu("h100"), catalog.link("infiniband-ndr"), on_gpu=False)
    difference = seen(LLAMA, 2, 100, precision, hardware=cpu) - seen(LLAMA, 2, 100, precision)
    assert difference == 2 * more * LLAMA.width * 200


def test_attention_in_steps_keeps_its_matrix():
    """Of a small model on real tensors: what autograd saves, each storage once."""
    saved = {}
    for attention in ATTENTION:
        shapes = {}

        def keep(tensor, shapes=shapes):
            shapes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        queries, keys, values = (torch.ones(2, 4, 32, 16, requires_grad=True) for _ in "qkv")
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            if attention == "fused":
                torch.nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
            else:
                ((queries @ keys.transpose(2, 3)).softmax(dim=-1) @ values).sum()
        saved[attention] = sum(shapes.values())
    fused, matrix = (kept_by_a_block(GPT, 2, 32, 4, attention=attention) for attention in ATTENTION)
    # Fused it keeps its result, which the output matrix is given anyway, and a number a row.
    result, a_row = 4 * 64 * 64, 4 * 4 * 64
    assert fused["attention"] - matrix["attention"] == a_row
    assert saved["math"] - (saved["fused"] - result - a_row) == matrix["attention_matrix"]


@pytest.mark.parametrize("wrong", [{"checkpointing": "full"}, {"attention": "flash"}])
def test_what_a_block_cannot_keep_is_told(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=f"unknown {name} '{value}': choose one of"):
        kept_by_a_block(GPT, 1, 10, 2, **wrong)
    with pytest.raises(ValueError, match="unknown logits 'fp16': choose one of own, fp32, fused"):
        at_the_loss(GPT, 1, 10, 2, "fp16")


def test_the_logits_are_there_four_times_or_twice():
    assert at_the_loss(GPT, 1, 10, 2) == (4 * 2 * 1000, 2 * 1000)
    assert at_the_loss(GPT, 1, 10, 2, "fp32") == (4 * 4 * 1000, 4 * 1000)
    assert at_the_loss(GPT, 1, 10, 2, "fused") == (2 * 2 * 1000, 2 * 1000)


def test_megatrons_loss_has_them_once_as_they_are_and_once_in_fp32_and_leaves_none():
    for logits in ("own", "fp32"):
        assert at_the_loss(GPT, 1, 10, 2, logits, in_place=True) == ((2 + 4) * 1000, 0)
    assert at_the_loss(GPT, 1, 10, 4, in_place=True) == (4 * 1000, 0)  # what is fp32 already is not copied
