"""Every published size comes out of the real modules, and every figure of hardware has its source."""

import re
from dataclasses import replace

import pytest
import torch
from torch import nn

from zerolab import catalog, theory
from zerolab.engines.partition import partition
from zerolab.simulation import architectures
from zerolab.simulation.fit import fit
from zerolab.simulation.run import simulate

SIZES = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "llama-30b": 32_528_943_616,
    "llama-65b": 65_285_660_672,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "gpt3-175b": 174_604_259_328,
    "7b": 7_000_000_000,
    "7.5b": 7_500_000_000,
    "128b": 128_000_000_000,
    "1t": 1_000_000_000_000,
}


def test_every_model_of_the_catalog_is_counted_here():
    assert set(SIZES) == set(catalog.ARCHITECTURES)


@pytest.mark.parametrize(("name", "size"), SIZES.items())
def test_the_built_module_has_exactly_the_published_number_of_parameters(name, size):
    architecture = catalog.architecture(name)
    with torch.device("meta"):
        flats = partition(architectures.build(architecture), 1)
    assert sum(flat.numel for flat in flats) == architecture.num_params == size
    assert len(flats) == architecture.depth + 1
    assert flats[0].numel == architecture.root_params
    assert {flat.numel for flat in flats[1:]} == {architecture.block_params}


def hidden_units(width, multiple=256, factor=1.0):
    """As Llama's released code makes them (llama/model.py, FeedForward): of 4 width, two thirds, rounded up."""
    hidden = int(factor * int(2 * 4 * width / 3))
    return -(-hidden // multiple) * multiple


def test_llamas_hidden_units_are_those_that_its_released_code_makes_of_the_width():
    llamas = [shape for shape in catalog.ARCHITECTURES.values() if shape.kind == "llama"]
    assert len(llamas) == 10
    options = {
        "llama-70b": (4096, 1.3),
        "llama3-8b": (1024, 1.3),
        "llama3-70b": (4096, 1.3),
        "llama3-405b": (4096, 1.2),
    }
    for shape in llamas:
        assert shape.hidden == hidden_units(shape.width, *options.get(shape.name, ())), shape.name


def test_the_shapes_are_those_of_the_released_files():
    """n_layers, n_heads, dim: params.json of Llama's weights; n_layer, n_head, n_embd: from_pretrained of nanoGPT."""
    released = {
        "gpt2": (12, 12, 768),
        "gpt2-medium": (24, 16, 1024),
        "gpt2-large": (36, 20, 1280),
        "gpt2-xl": (48, 25, 1600),
        "llama-7b": (32, 32, 4096),
        "llama-13b": (40, 40, 5120),
        "llama-30b": (60, 52, 6656),
        "llama-65b": (80, 64, 8192),
        "llama-70b": (80, 64, 8192),
        "llama3-8b": (32, 32, 4096),
        "llama3-70b": (80, 64, 8192),
        "llama3-405b": (126, 128, 16384),
    }
    for name, shape in released.items():
        architecture = catalog.architecture(name)
        assert (architecture.depth, architecture.heads, architecture.width) == shape, name
    for name in ("llama-70b", "llama3-8b", "llama3-70b", "llama3-405b"):
        assert catalog.architecture(name).kv_heads == 8
    assert catalog.architecture("llama3-8b").vocabulary == 128_256


def test_a_round_number_is_reached_by_a_small_filler_with_a_name():
    for name in ("7b", "7.5b", "128b", "1t"):
        architecture = catalog.architecture(name)
        assert 0 < architecture.filler < architecture.num_params / 300
        with torch.device("meta"):
            assert dict(architectures.build(architecture).named_parameters())["filler"].numel() == architecture.filler


def test_a_small_llama_of_the_same_code_learns_causally():
    shape = catalog.Architecture("tiny", "llama", 32, 4, 2, 16, 11, "a test", hidden=48, kv_heads=2)
    torch.manual_seed(0)
    model = architectures.build(shape)
    tokens = torch.randint(11, (2, 8))
    changed = tokens.clone()
    changed[:, 5:] = 0
    assert torch.equal(model(tokens)[:, :5], model(changed)[:, :5])
    assert sum(p.numel() for p in model.parameters()) == shape.num_params


def test_an_unknown_name_gets_the_nearest_ones():
    with pytest.raises(ValueError, match=r"unknown model 'lama_7B': did you mean 'llama-7b'"):
        catalog.architecture("lama_7B")
    with pytest.raises(ValueError, match=r"unknown GPU 'h10': .* did you mean 'h100'"):
        catalog.gpu("h10")
    with pytest.raises(ValueError, match="unknown link 'nvlink'"):
        catalog.link("nvlink")


def test_a_v100_has_no_bf16_and_whoever_asks_for_it_is_told_what_it_has():
    says = "v100 has no bf16: take fp16 or fp32"
    asking = (
        lambda: catalog.gpu("v100").rate("bf16"),
        lambda: theory.plan("gpt2", 8, gpu="v100"),
        lambda: simulate(world_size=2, model="mlp-odd", gpu="v100", precision="bf16"),
        lambda: fit(lambda: nn.Linear(2, 2), 2, inputs=torch.ones(2, 2), gpu="v100", stages="ddp"),
    )
    for ask in asking:
        with pytest.raises(ValueError, match=says):
            ask()
    assert catalog.gpu("v100").rate("fp16") == 125e12
    assert theory.plan("gpt2", 8, gpu="v100", precision="fp16").settings()["deepspeed"]["fp16"]["enabled"]
    others = [gpu for gpu in catalog.GPUS.values() if gpu.name != "v100"]
    assert all(gpu.rate("bf16") == gpu.rate("fp16") > gpu.rate("fp32") for gpu in others)


def of_ones_own(kind="llama", width=4096, heads=32, **more):
    """A shape as one writes it oneself: Llama 2 7B's, if nothing else is said."""
    return catalog.Architecture("mine", kind, width, heads, 32, 4096, 32000, "me", **more)


def test_a_llama_without_heads_of_keys_and_values_has_as_many_as_of_queries():
    shape = of_ones_own(hidden=11008)
    assert shape.kv_heads == 32
    assert shape.num_params == catalog.architecture("llama2-7b").num_params == 6_738_415_616
    small = replace(shape, width=32, heads=4, kv_heads=0, depth=1, vocabulary=11, hidden=48)
    built = architectures.build(small)
    assert built(torch.randint(11, (2, 8))).shape == (2, 8, 11)
    assert sum(parameter.numel() for parameter in built.parameters()) == small.num_params


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"kind": "moe"}, "unknown kind of model 'moe': choose one of gpt, llama"),
        ({"kind": "Llama", "hidden": 11008}, "unknown kind of model 'Llama': .* did you mean 'llama'"),
        ({}, "the hidden of mine is 0: it must be a whole number, 1 or more"),
        ({"hidden": 11008, "kv_heads": 5}, "kv_heads is 5, which does not divide 32 heads"),
        ({"filler": -100_000}, "the filler of mine is -100000"),
        ({"hidden": 11008, "heads": 33}, "heads is 33, which does not divide 4096 numbers of a token"),
        ({"kind": "gpt", "width": 0}, "the width of mine is 0"),
    ],
)
def test_a_shape_that_no_model_has_is_refused_where_it_is_made(given, says):
    with pytest.raises(ValueError, match=says):
        of_ones_own(**given)


def test_a_link_without_bandwidth_is_refused_with_both_units():
    for bandwidth in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"bandwidth of test is .*above 0 \(50 GB/s is 50e9, 50 GiB/s"):
            catalog.Link("test", bandwidth, 0.0, "a test")
    with pytest.raises(ValueError, match=r"takes -1\.0 seconds"):
        catalog.Link("test", 1e9, -1.0, "a test")


# What `nvidia-smi` prints, in MiB, the ceiling; "80 GB" on a box is 80 GiB less a little, and torch gives less again.
SOLD_AS = {"v100": 32_768, "a100-40gb": 40_960, "a100": 81_920, "h100": 81_559, "h200": 143_771, "b200": 183_359}


@pytest.mark.parametrize(("name", "mebibytes"), SOLD_AS.items())
def test_a_gpus_memory_is_what_torch_gives_and_not_what_the_box_says(name, mebibytes):
    memory = catalog.gpu(name).memory_bytes
    assert 0.96 < memory / (mebibytes * 2**20) < 1
    assert catalog.gpu("a100-40gb").memory_bytes == pytest.approx(42_298_834_944, rel=1e-3)  # total_memory, to the byte


def test_every_figure_has_a_source_and_every_gpu_a_link():
    for entry in [*catalog.ARCHITECTURES.values(), *catalog.GPUS.values(), *catalog.LINKS.values()]:
        assert re.search(r"\w{3}", entry.source), entry.name
    assert all(gpu.link in catalog.LINKS for gpu in catalog.GPUS.values())
    assert list(catalog.GPUS) == ["v100", "a100-40gb", "a100", "a800", "h100", "h100-96gb", "h200", "b200"]
