"""What a block keeps is what the recorder sees, to the byte."""

import json
from dataclasses import replace
from functools import partial
from itertools import accumulate

import pytest
import torch
from on_cpus import CPU

from zerolab import catalog, simulate
from zerolab.simulation import architectures
from zerolab.theory.activations import ATTENTION, CHECKPOINTING, NORMS, at_the_loss, kept_by_a_block

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


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_hugging_faces_norms_keep_four_more_bytes_for_each_number_as_the_closed_form_says(precision, monkeypatch):
    """A copy of the input in fp32, which in fp32 is the input itself, and the result before it is weighted."""
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    monkeypatch.setattr(torch.nn, "RMSNorm", LlamaRMSNorm)
    fused, unfused = (kept_by_a_block(LLAMA, 2, 100, WORD[precision], norms=norms) for norms in NORMS)
    assert unfused["norms"] - fused["norms"] == 2 * 4 * LLAMA.width * 200
    assert seen(LLAMA, 2, 100, precision) == sum(unfused.values())


@pytest.mark.parametrize("name", ["llama2-7b", "llama2-13b", "llama3-8b", "llama3-70b"])
def test_with_them_a_published_block_keeps_a_fifth_more(name):
    shape = catalog.architecture(name)
    fused, unfused = (sum(kept_by_a_block(shape, 1, 4096, 2, norms=norms).values()) for norms in NORMS)
    assert unfused / fused == pytest.approx(1.2, abs=0.02)


@pytest.mark.parametrize(("precision", "more"), [("bf16", 6), ("fp32", 4)])
def test_torchs_own_norms_on_the_cpu_keep_their_result_in_fp32(precision, more):
    difference = seen(LLAMA, 2, 100, precision, hardware=CPU) - seen(LLAMA, 2, 100, precision)
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


@pytest.mark.parametrize("wrong", [{"checkpointing": "full"}, {"attention": "flash"}, {"norms": "python"}])
def test_what_a_block_cannot_keep_is_told(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=f"unknown {name} '{value}': choose one of"):
        kept_by_a_block(GPT, 1, 10, 2, **wrong)
    with pytest.raises(ValueError, match=r"norms is 'unfused', and .+ has layer norms: choose norms='fused'"):
        kept_by_a_block(GPT, 1, 10, 2, norms="unfused")
    with pytest.raises(ValueError, match="unknown logits 'fp16': choose one of own, fp32, flash, fused"):
        at_the_loss(GPT, 1, 10, 2, "fp16")


def test_the_logits_are_there_four_times_or_twice():
    assert at_the_loss(GPT, 1, 10, 2) == (4 * 2 * 1000, 2 * 1000)
    assert at_the_loss(GPT, 1, 10, 2, "fp32") == (4 * 4 * 1000, 4 * 1000)
    assert at_the_loss(GPT, 1, 10, 2, "flash") == (2 * 2 * 1000, 2 * 1000)


def test_megatrons_loss_has_them_once_as_they_are_and_once_in_fp32_and_leaves_none():
    for logits in ("own", "fp32", "flash"):
        assert at_the_loss(GPT, 1, 10, 2, logits, in_place=True) == ((2 + 4) * 1000, 0)
    assert at_the_loss(GPT, 1, 10, 4, in_place=True) == (4 * 1000, 0)  # what is fp32 already is not copied


def fused_linear_cross_entropy(inputs, weight, chunk):
    """What allocates in linkedin/Liger-Kernel, ops/fused_linear_cross_entropy.py; its own kernel works in place."""
    of_inputs, of_weight = torch.zeros_like(inputs), torch.zeros_like(weight)
    for start in range(0, len(inputs), chunk):
        part = inputs[start : start + chunk]
        logits = part @ weight.t()
        of_inputs[start : start + chunk] = logits @ weight
        of_weight += torch.mm(logits.t(), part).float()
    return of_inputs, of_weight


@pytest.mark.parametrize(("vocabulary", "tokens", "chunk"), [(1000, 512, 32), (5000, 300, 4), (100, 7, 4), (50, 7, 7)])
def test_a_fused_linear_cross_entropy_holds_a_chunk_of_the_logits_and_the_gradients(
    tmp_path, vocabulary, tokens, chunk
):
    shape = replace(GPT, vocabulary=vocabulary)
    tensors = torch.zeros(tokens, shape.width), torch.zeros(vocabulary, shape.width)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        kept = fused_linear_cross_entropy(*tensors, chunk)
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    changes = sorted((event["ts"], event["args"]["Bytes"]) for event in events if event["name"] == "[memory]")
    held = accumulate(nbytes for _, nbytes in changes)
    assert at_the_loss(shape, 1, tokens, 4, "fused") == (max(held), 0)
    assert [tensor.shape for tensor in kept] == [tensor.shape for tensor in tensors]


def test_in_16_bits_what_a_chunk_adds_to_the_weights_gradient_is_there_in_fp32_as_well():
    weight, inputs, logits = 50_257 * 768, 16_384 * 768, 256 * 50_257
    large = replace(GPT, width=768, vocabulary=50_257)
    assert at_the_loss(large, 16, 1024, 2, "fused")[0] == (2 + 2 + 4) * weight + 2 * (inputs + logits)
    assert at_the_loss(large, 16, 1024, 2, "fused")[0] < at_the_loss(large, 16, 1024, 2)[0] / 10
