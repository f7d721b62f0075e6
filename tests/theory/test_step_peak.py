"""The measured peak is the predicted one, to the byte by category, at every phase of the step."""

import gc
from contextlib import ExitStack
from functools import cache, partial

import pytest
import torch
from step_activations import measure
from step_peak import TERMS, peaks
from torch import nn
from torch.utils.checkpoint import checkpoint

from zerolab import Cluster, models, theory
from zerolab.engines import ENGINES
from zerolab.engines.partition import partition
from zerolab.recording.events import CATEGORIES

WIDTH = 64
GROUPS = [(lambda _name, parameter: parameter.ndim < 2, {"weight_decay": 0.0})]

OPTIONS = [
    {},
    {"overlap": False},
    {"offload": True},
    {"precision": "bf16"},
    {"precision": "bf16", "offload": True},
    {"precision": "bf16", "reduce_dtype": torch.float32},
    {"reduce_dtype": torch.bfloat16},
    {"micro_batches": 3},
    {"micro_batches": 3, "precision": "bf16", "reduce_dtype": torch.float32},
    {"units": ["0", "1"]},
    {"units": [], "overlap": False},
    {"param_groups": GROUPS, "micro_batches": 2},
]
OF_ZERO3 = [
    {"prefetch": 0},
    {"prefetch": 2},
    {"release_after_forward": False},
    {"release_after_forward": False, "prefetch": 0, "param_groups": GROUPS},
    {"precision": "bf16", "micro_batches": 2, "overlap": False, "prefetch": 3},
]


def small_mlp(depth=4):
    """The benchmark MLP in small: blocks of the same shape, of a size that 2, 3 and 4 do not divide.

    Of four, each is once the first, the last, the one before another and the one after it, prefetched or not.
    """
    wide = 4 * WIDTH + 1
    blocks = (nn.Sequential(nn.Linear(WIDTH, wide), nn.GELU(), nn.Linear(wide, WIDTH)) for _ in range(depth))
    return nn.Sequential(*blocks)


def partly_frozen():
    """A whole frozen unit, and one in part."""
    model = small_mlp(6)
    model[2].requires_grad_(False)
    model[4][0].requires_grad_(False)
    return model


class Partly(nn.Module):
    """Blocks that use all of their parameters but two: no rank has all of any flat to update."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(small_mlp(3))
        for block in self.blocks:
            block.first, block.last = nn.Parameter(torch.ones(999)), nn.Parameter(torch.ones(77))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class InOrder(nn.Module):
    """The blocks of the small MLP in an order of its own, after a root unit; with checkpointing if asked for."""

    def __init__(self, order, *, checkpointed=False):
        super().__init__()
        self.first, self.blocks = nn.Linear(WIDTH, WIDTH), nn.ModuleList(small_mlp(6))
        self.order, self.checkpointed = order, checkpointed

    def forward(self, x):
        x = self.first(x)
        for number in self.order:
            block = self.blocks[number]
            # Nothing is drawn, so no state of the generator is kept.
            again = partial(checkpoint, block, use_reentrant=False, preserve_rng_state=False)
            x = again(x) if self.checkpointed else block(x)
        return x


MODELS = {
    "small MLP": small_mlp,
    "frozen": partly_frozen,
    "recomputed": partial(InOrder, range(6), checkpointed=True),
    "used twice": partial(InOrder, (0, 1, 2, 1, 3, 4, 5)),
    "not used": partial(InOrder, (0, 1, 3, 4, 5)),
    "used in part": Partly,
}


def build(name):
    return MODELS[name]() if name in MODELS else models.build(name)


def batch(name):
    if name in MODELS:
        return torch.ones(8, WIDTH), torch.ones(8, WIDTH)
    rows = 2 if name == "gpt-10m" else None  # its size is in its parameters; more rows only take longer
    return tuple(part.clone() for part in models.batches(name, 1, 0, 1, rows=rows)[0])


def train(name, stage, micro_batches=1, steps=2, **options):
    inputs, targets = batch(name)
    engine = ENGINES[stage](build(name), torch.optim.AdamW, lr=1e-3, **options)
    for _ in range(steps):
        with engine.accumulate():
            for _ in range(micro_batches - 1):
                engine.training_step(inputs, targets, models.loss)
        engine.training_step(inputs, targets, models.loss)


def measured_peaks(name, cases):
    """On a rank: of every case the bytes by category at the highest moment, of the whole step and of each phase."""
    from zerolab.recording.recorder import Recorder

    batch(name)  # what is loaded with the first batch and kept belongs to no case
    torch.set_num_threads(1)  # no more than one is needed, and a single rank would take all
    gc.collect()
    gc.freeze()  # each recording looks at all objects: let it be at those of its own case
    found = []
    for stage, options in cases:
        with Recorder() as recorder:
            train(name, stage, **options)
        info = recorder.finish().info
        found.append({"whole step": info.peak, **info.peaks})
    return found


@cache
def series_of(name, units, precision):
    return measure(build(name), *batch(name), models.loss, units=units, precision=precision)


def predicted_peaks(name, world_size, stage, options, rank):
    """The same, predicted in this process."""
    options = dict(options)
    model, units, groups = build(name), options.pop("units", None), options.pop("param_groups", ())
    series = series_of(name, None if units is None else tuple(units), options.get("precision", "fp32"))
    flats = partition(model, world_size, units, groups)
    nbytes = sum(part.numel() * part.element_size() for part in batch(name))
    found = {}
    for phase, terms in peaks(stage, flats, world_size, series, nbytes, rank=rank, **options).items():
        found[phase] = dict.fromkeys(CATEGORIES, 0)
        for term, size in terms.items():
            found[phase][TERMS[term]] += size
    return found


def every_case():
    """Each own engine with each of its options."""
    return [(stage, options) for stage in theory.STAGES for options in OPTIONS + OF_ZERO3 * (stage == "zero3")]


def assert_predicted(cluster, name, cases):
    measured = cluster.run(measured_peaks, name, cases)
    for number, (stage, options) in enumerate(cases):
        for rank, found in enumerate(measured):
            predicted = predicted_peaks(name, cluster.world_size, stage, options, rank)
            assert found[number] == predicted, f"{name}, {stage} {options}, rank {rank}"


@pytest.fixture(scope="module")
def clusters():
    """Clusters by number of ranks, kept for the file."""
    with ExitStack() as kept:
        yield cache(lambda world_size: kept.enter_context(Cluster(world_size=world_size, device="cpu")))


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_every_engine_with_every_option_peaks_as_predicted_at_every_phase(clusters, world_size):
    assert_predicted(clusters(world_size), "small MLP", every_case())


@pytest.mark.slow
@pytest.mark.parametrize("name", [*list(MODELS)[1:], "gpt-tiny"])
def test_a_model_with_awkward_units_peaks_as_predicted_at_every_phase(clusters, name):
    options = [{}, {"precision": "bf16"}, {"micro_batches": 2}]
    cases = [(stage, each) for stage in theory.STAGES for each in options + [{"prefetch": 2}] * (stage == "zero3")]
    assert_predicted(clusters(3), name, cases)


@pytest.mark.slow
def test_ten_million_parameters_of_a_gpt_peak_as_predicted_at_every_phase(clusters):
    assert_predicted(clusters(2), "gpt-10m", [(stage, {}) for stage in theory.STAGES])


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_the_benchmark_mlp_peaks_as_predicted_at_every_phase(clusters, world_size):
    assert_predicted(clusters(world_size), "mlp-bench", [(stage, {}) for stage in theory.STAGES])


def test_the_series_leaves_the_model_as_it_was():
    model = small_mlp()
    series = measure(model, *batch("small MLP"), models.loss)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())
    kinds = [mark.kind for mark in series]
    assert kinds.count("use") == kinds.count("done") == kinds.count("back") == 4
    assert (kinds.count("grad"), kinds.count("gave"), kinds[-1]) == (16, 3, "end")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
