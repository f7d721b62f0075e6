"""The measured peak is the predicted one, to the byte, at every phase of the step; and explain says it term by term."""

import gc
from functools import cache, partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from zerolab import Cluster, models, theory
from zerolab.engines import ENGINES
from zerolab.engines.partition import partition
from zerolab.recording.events import CATEGORIES
from zerolab.recording.explain import PEAK_TERMS
from zerolab.series import measure

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
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
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
        meta = recorder.finish().meta
        found.append({"whole step": meta["peak"], **meta["peaks"]})
    gc.unfreeze()
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
    peaks = {}
    for phase, terms in theory.peaks(stage, flats, world_size, series, nbytes, rank=rank, **options).items():
        peaks[phase] = dict.fromkeys(CATEGORIES, 0)
        for term, size in terms.items():
            peaks[phase][PEAK_TERMS[term][0]] += size
    return peaks


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
    kept = {}

    def give(world_size):
        if world_size not in kept:
            kept[world_size] = Cluster(world_size=world_size, device="cpu")
        return kept[world_size]

    yield give
    for cluster in kept.values():
        cluster.close()


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


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_explain_finds_no_difference_on_the_benchmark_mlp(clusters, world_size):
    model = build("mlp-bench")
    series, flats = measure(model, *batch("mlp-bench"), models.loss), partition(model, world_size)
    for stage in theory.STAGES:
        recording = clusters(world_size).record(train, "mlp-bench", stage)
        for phase, predicted in theory.peaks(stage, flats, world_size, series, batch_bytes=2 * 8 * 512 * 4).items():
            for rank in range(world_size):
                table = recording.explain(rank, peak=predicted, phase=phase)
                differences = [row["difference"] for row in table if "difference" in row]
                assert len(differences) >= 4
                assert not any(differences), f"{stage}\n{table}"


def test_a_wrong_prediction_shows_in_the_column_of_differences(clusters):
    recording = clusters(2).record(train, "small MLP", "zero2")
    model = small_mlp()
    series = measure(model, *batch("small MLP"), models.loss)
    right = theory.peak("zero2", partition(model, 2), 2, series, 2 * 8 * WIDTH * 4)
    table = recording.explain(peak=right | {"receive_buffers": right["receive_buffers"] - 100})
    rows = {row["term"]: row.get("difference") for row in table}
    assert rows["peak: receive_buffers"] == rows["peak"] == 100
    assert rows["peak: activations"] == rows["state"] == 0


def test_the_series_leaves_the_model_as_it_was():
    model = small_mlp()
    series = measure(model, *batch("small MLP"), models.loss)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())
    kinds = [mark.kind for mark in series]
    assert kinds.count("use") == kinds.count("done") == kinds.count("back") == 4
    assert (kinds.count("grad"), kinds.count("gave"), kinds[-1]) == (16, 3, "end")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("stage", "options", "says"),
    [
        ("zero4", {}, "unknown stage 'zero4': the peak is predicted for ddp, zero1, zero2, zero3"),
        ("zero3", {"precision": "fp8"}, "precision is 'fp8': choose fp32 or bf16"),
        ("zero2", {"prefetch": 0}, "zero2 has neither release_after_forward nor prefetch"),
        ("zero3", {"micro_batches": 0}, "micro_batches is 0 and prefetch 1: take at least 1"),
        ("zero3", {"prefetch": 0.5}, "micro_batches is 1 and prefetch 0.5: take at least 1 and at least 0, both whole"),
        ("zero3", {"precision": "bf16"}, "has 256 bytes in the series, and 128 in this precision"),
        ("zero3", {"world_size": 4}, "the flats are not those of 4 ranks"),
        ("zero3", {"series": ()}, "the series is empty"),
        ("zero3", {"flats": partition(small_mlp(), 2, ["0"])}, "the series has the unit '1', the flats have 0, root"),
        ("zero3", {"flats": partition(small_mlp()[:2], 2)}, "the series has the unit '2', the flats have 0, 1"),
    ],
)
def test_what_cannot_be_predicted_is_refused_in_a_sentence(stage, options, says):
    model = small_mlp()
    asked = {"flats": partition(model, 2), "world_size": 2, "series": None} | options
    if asked["series"] is None:
        asked["series"] = measure(model, *batch("small MLP"), models.loss)
    with pytest.raises(ValueError, match=says):
        theory.peak(stage, **asked)


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({"optimizer": torch.optim.SGD}, "the peak is predicted for Adam and AdamW, and this run updated with SGD"),
        ({"steps": 1}, "no state after 1 step: Adam makes its moments in the first"),
    ],
)
def test_a_run_that_no_prediction_speaks_of_is_refused_in_a_sentence(clusters, keywords, says):
    def run(optimizer=torch.optim.AdamW, steps=2):
        engine = ENGINES["zero2"](small_mlp(), optimizer, lr=0.1)
        for _ in range(steps):
            engine.training_step(*batch("small MLP"), models.loss)

    recording = clusters(2).record(run, **keywords)
    with pytest.raises(ValueError, match=says):
        recording.explain(peak={"parameters": 1})


def test_a_phase_that_the_run_did_not_have_is_refused_in_a_sentence(clusters):
    recording = clusters(2).record(train, "small MLP", "ddp")
    with pytest.raises(ValueError, match="no peak of phase 'gather': choose one of whole step, forward, backward, red"):
        recording.explain(peak={"parameters": 1}, phase="gather")
