"""torch's own systems behind the same step: they agree with our ddp, show what they hold, and refuse in words."""

import sys
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from functools import partial
from importlib.util import find_spec
from itertools import product

import pytest
import torch
import zoo
from awkward import batch, distance, loss_fn, make, my_rows, train_alone, train_sharded
from torch import nn

from zerolab import RankError
from zerolab.engines import ENGINES

pytestmark = pytest.mark.slow  # the ranks import FSDP first, which takes seconds
OPTIONS = {"torch-ddp": {"find_unused_parameters": True}, "torch-zero1": {"find_unused_parameters": True}}
STAGES = ["torch-ddp", "torch-zero1", "fsdp1", "fsdp2", "hsdp"]
VARIANTS = {
    "torch-ddp": {"find_unused_parameters": True, "gradient_as_bucket_view": True, "bucket_cap_mb": 0.001},
    "torch-zero1": {"find_unused_parameters": True, "parameters_as_bucket_view": True},
    "fsdp1": {"sharding_strategy": "SHARD_GRAD_OP", "backward_prefetch": "BACKWARD_POST"},
    "fsdp2": {"reshard_after_forward": False},
    "hsdp": {"reshard_after_forward": True},
}


def build(stage, *arguments, **keywords):
    """An engine over the awkward model, with the options that the system needs for it."""
    return ENGINES[stage](make(), *arguments, **{**OPTIONS.get(stage, {}), **keywords})


def sizes(stage):
    """Two ranks; for hsdp four, so that both its dimensions are more than one."""
    return 4 if stage == "hsdp" else 2


@pytest.fixture(scope="module")
def as_ddp(clusters):
    """What our ddp reaches in four steps of SGD."""
    return clusters(2).run(train_sharded, "ddp", torch.optim.SGD, steps=4, lr=0.1)[0]


@pytest.mark.parametrize("stage", STAGES)
def test_sgd_reaches_the_weights_of_ddp(clusters, as_ddp, stage):
    options = OPTIONS.get(stage, {})
    for state in clusters(sizes(stage)).run(train_sharded, stage, torch.optim.SGD, steps=4, lr=0.1, **options):
        assert distance(state, as_ddp) <= 1e-6


def test_the_traffic_of_hsdp_says_two_ranks_where_two_exchange(clusters):
    traffic = clusters(4).record(train_sharded, "hsdp", torch.optim.SGD, steps=1, lr=0.1).traffic()
    ranks = {row["op"]: row["ranks"] for row in traffic if "ranks" in row}
    assert ranks == {"all_gather": 2, "reduce_scatter": 2, "all_reduce": 2}


@pytest.mark.parametrize(
    ("stage", "options"), [*VARIANTS.items(), ("fsdp1", {"backward_prefetch": None}), ("fsdp2", {"offload": True})]
)
def test_an_option_of_speed_or_memory_does_not_change_what_is_learned(clusters, as_ddp, stage, options):
    for state in clusters(sizes(stage)).run(train_sharded, stage, torch.optim.SGD, steps=4, lr=0.1, **options):
        assert distance(state, as_ddp) <= 1e-6


def test_a_size_based_wrap_policy_makes_other_units_and_the_same_weights(clusters, as_ddp):
    def by_size():
        from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

        policy = partial(size_based_auto_wrap_policy, min_num_params=150)
        engine = build("fsdp1", torch.optim.SGD, lr=0.1, auto_wrap_policy=policy)
        for step in range(4):
            engine.training_step(*my_rows(step), loss_fn)
        flats = sum(type(module).__name__ == "FullyShardedDataParallel" for module in engine.model.modules())
        return flats, engine.state_dict()

    for flats, state in clusters(2).run(by_size):
        assert flats == 1 + 4  # a block has 189 parameters or more, a layer of it at most 104
        assert distance(state, as_ddp) <= 1e-6


def test_a_mixed_precision_policy_of_fsdp2_computes_in_bf16_over_fp32_shards(clusters):
    def mixed():
        from torch.distributed.fsdp import MixedPrecisionPolicy

        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        engine = build("fsdp2", torch.optim.SGD, lr=0.1, mp_policy=policy)
        seen = set()
        engine.module.norm.register_forward_hook(lambda _module, _inputs, output: seen.add(output.dtype))
        for step in range(3):
            engine.training_step(*my_rows(step), loss_fn)
        return seen, engine.state_dict()

    for seen, state in clusters(2).run(mixed):
        assert seen == {torch.bfloat16}
        assert {value.dtype for value in state.values()} == {torch.float32}
        assert distance(state, train_alone(torch.optim.SGD, steps=3, lr=0.1)) <= 2e-2


@pytest.mark.parametrize("stage", STAGES)
def test_accumulated_and_clipped_gradients_give_the_weights_of_one_process(clusters, stage):
    def accumulate_and_clip():
        engine = build(stage, torch.optim.SGD, lr=0.5)
        with engine.accumulate():
            engine.training_step(*my_rows(10), loss_fn)
        tokens, targets = my_rows(11)
        engine.backward(loss_fn(engine.model(tokens), targets))
        norm = engine.clip_grad_norm_(0.05)
        engine.step()
        return float(norm), engine.state_dict()

    reference = make()
    for step in (10, 11):
        tokens, targets = batch(step)
        loss_fn(reference(tokens), targets).backward()
    norm = nn.utils.clip_grad_norm_(reference.parameters(), 0.05)
    torch.optim.SGD(reference.parameters(), lr=0.5).step()
    for measured, state in clusters(sizes(stage)).run(accumulate_and_clip):
        assert measured == pytest.approx(norm.item(), rel=1e-5)
        assert distance(state, reference.state_dict()) <= 1e-6


@pytest.mark.parametrize("stage", STAGES)
def test_a_state_dict_has_the_modules_own_keys_and_loads_into_another_engine(clusters, stage):
    def save_and_load():
        engine = build(stage, torch.optim.SGD, lr=0.1)
        engine.training_step(*my_rows(0), loss_fn)
        saved = engine.state_dict()
        other = build(stage, torch.optim.SGD, lr=0.1)
        other.load_state_dict(saved)
        loaded = other.state_dict()
        other.training_step(*my_rows(1), loss_fn)  # what was loaded is also what trains
        engine.training_step(*my_rows(1), loss_fn)
        return saved, loaded, distance(engine.state_dict(), other.state_dict())

    for saved, loaded, later in clusters(2).run(save_and_load):
        assert saved.keys() == make().state_dict().keys()
        assert distance(saved, loaded) == 0
        assert later == 0


def checkpointed():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    return nn.Sequential(*(checkpoint_wrapper(nn.Linear(4, 4)) for _ in range(2)))


def with_a_buffer_that_only_the_second_layer_saves():
    model, seen = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.zeros(3)
    model[0].register_buffer("seen", seen, persistent=False)
    model[1].register_buffer("seen", seen)
    return model


@pytest.mark.parametrize("make", [make, checkpointed, with_a_buffer_that_only_the_second_layer_saves])
@pytest.mark.parametrize("stage", ["fsdp2", "hsdp"])
def test_tied_wrapped_and_shared_tensors_load_as_they_do_into_the_plain_module(clusters, stage, make):
    def load():
        engine, plain = ENGINES[stage](make(), torch.optim.SGD, lr=0.1), make()
        state = {key: torch.full_like(old, number) for number, (key, old) in enumerate(plain.state_dict().items(), 1)}
        engine.load_state_dict(state)
        plain.load_state_dict(state)
        return engine.state_dict(), plain.state_dict()

    for loaded, expected in clusters(2).run(load):
        assert distance(loaded, expected) == 0


def test_gathering_a_state_dict_takes_little_more_than_the_whole_model(clusters):
    def gather():
        from zerolab.recording.recorder import Recorder

        engine = ENGINES["fsdp2"](nn.Sequential(*(nn.Linear(64, 64) for _ in range(8))), torch.optim.SGD, lr=0.1)
        with Recorder() as recorder:
            shard = recorder.ledger.host.total
            state = engine.state_dict()
        return (recorder.ledger.host.peak_total - shard) / sum(value.nbytes for value in state.values())

    for models in clusters(2).run(gather):
        assert 1 <= models < 1.5


@pytest.mark.parametrize(
    ("stage", "options"), [*((stage, {}) for stage in STAGES), *VARIANTS.items(), ("fsdp2", {"offload": True})]
)
def test_holdings_add_up_to_what_the_ledger_sees_at_the_update(clusters, stage, options):
    recordings = clusters(sizes(stage)).record(train_and_look, stage, options)
    for rank, shown in zip(recordings.ranks, recordings.results, strict=True):
        assert rank.info.stage == stage
        assert rank.state == {category: shown[category] for category in rank.state}


@pytest.mark.parametrize("stage", [*STAGES, "zero1", "zero3"])
def test_what_is_held_of_a_flat_is_told_without_the_others(clusters, stage):
    for parts, everything in clusters(sizes(stage)).run(look_by_flat, stage):
        # Another system's optimizer state, which only updates change, is told with all flats alone.
        expected = [part for part in everything if stage not in STAGES or part[0] != "optimizer_state"]
        assert len(parts) > 2
        assert len(everything) > len(expected) or stage not in STAGES
        assert {part for told in parts.values() for part in told} == set(expected)
        assert all({name for _, name, *_ in told} == {flat} for flat, told in parts.items())
        assert sum(map(len, parts.values())) == len(expected)


@pytest.mark.filterwarnings("ignore:.*requires_grad")
@pytest.mark.parametrize("stage", ["fsdp1", "fsdp2", "torch-ddp"])
def test_a_flat_is_told_of_though_frozen_parameters_come_first_in_its_unit(clusters, stage):
    for parts, everything in clusters(2).run(look_by_flat, stage, frozen=("blocks.0.0", "blocks.1.0")):
        for flat, told in parts.items():
            assert set(told) >= {part for part in everything if part[1] == flat and part[0] != "optimizer_state"}


def look_by_flat(stage, frozen=()):
    """What each flat's holdings are after a backward and a step, and those of all; a tensor by its storage."""

    def held(flats=None):
        return [(h.category, h.unit, h.span, h.tensor.untyped_storage()._cdata) for h in engine.holdings(flats)]

    engine = ENGINES[stage](make(frozen), torch.optim.AdamW, lr=1e-3, **OPTIONS.get(stage, {}))
    engine.training_step(*my_rows(0), loss_fn)
    return {flat.layout.name: held({flat.layout.name}) for flat in engine.flats}, held()


def train_and_look(stage, options=None):
    """Three steps of AdamW; what the engine showed of its state at the last update."""
    from zerolab.theory.systems import shown_at_updates

    engine = build(stage, torch.optim.AdamW, lr=1e-3, **(options or {}))
    with shown_at_updates(engine) as shown:
        for step in range(3):
            engine.training_step(*my_rows(step), loss_fn)
    return shown


@pytest.mark.parametrize("stage", ["fsdp1", "fsdp2"])
def test_a_unit_is_seen_whole_while_it_is_used_and_only_then(clusters, stage):
    recording = clusters(2).record(train_and_look, stage)
    whole = next(unit.numel for unit in recording.units if unit.name == "blocks.0")
    held = [
        sum(stop - start for start, stop in event.spans)
        for event in recording.ranks[0].events
        if (event.op, event.unit, event.category, event.step) == ("hold", "blocks.0", "parameters", 3)
    ]
    assert max(held) == whole
    assert held[-1] < 0.6 * whole
    gathers = [e for e in recording.ranks[0].events if e.step == 3 and (e.kind, e.op) == ("collective", "all_gather")]
    assert len(gathers) == 5 + 4  # every unit for forward; for backward all but the root, which stays


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("stage", ["fsdp1", "fsdp2"])
def test_mixed_precision_trains_over_fp32_masters(clusters, stage, precision):
    def training():
        engine = build(stage, torch.optim.SGD, lr=0.1, precision=precision)
        if precision == "fp16":  # from where these gradients fit into fp16, so that no step is skipped
            engine.scaler.load_state_dict({**engine.scaler.state_dict(), "scale": 2.0**10})
        for step in range(3):
            engine.training_step(*my_rows(step), loss_fn)
        return engine.state_dict()

    for state in clusters(2).run(training):
        assert {value.dtype for value in state.values()} == {torch.float32}
        assert distance(state, train_alone(torch.optim.SGD, steps=3, lr=0.1)) <= 2e-2


class Spoilt(torch.autograd.Function):
    """Passes its input on; the last number of the gradient overflows."""

    @staticmethod
    def forward(_, x):
        return x.clone()

    @staticmethod
    def backward(_, gradient):
        gradient = gradient.clone()
        gradient.view(-1)[-1] = float("inf")
        return gradient


class Biased(nn.Module):
    """A product, and a bias whose gradient may be spoilt: no other parameter has a part in that."""

    def __init__(self):
        super().__init__()
        self.product = nn.Linear(4, 6, bias=False)
        self.bias = nn.Parameter(torch.zeros(6))
        self.is_spoilt = False

    def forward(self, x):
        return self.product(x) + (Spoilt.apply(self.bias) if self.is_spoilt else self.bias)


@pytest.mark.parametrize("stage", ["fsdp1", "fsdp2", "hsdp"])
def test_in_fp16_an_overflow_in_the_shard_of_one_rank_skips_the_step_on_all(clusters, stage):
    def training():
        torch.manual_seed(0)
        engine = ENGINES[stage](Biased(), torch.optim.SGD, lr=0.1, precision="fp16")
        ends = []
        for step in range(3):
            engine.module.is_spoilt = step == 1 and engine.rank == 0
            engine.training_step(torch.ones(2, 4), None, lambda outputs, _: outputs.pow(2).mean())
            ends.append((engine.state_dict(), engine.scaler.get_scale()))
        return ends

    for (first, before), (second, after), (third, last) in clusters(sizes(stage)).run(training):
        assert (before, after, last) == (2.0**15, 2.0**14, 2.0**14)
        assert distance(second, first) == 0
        assert distance(third, second) > 0
        assert all(torch.isfinite(value).all() for value in third.values())


@pytest.mark.parametrize("stage", ["torch-ddp", "torch-zero1", "fsdp1", "fsdp2"])
def test_frozen_parameters_and_groups_are_left_as_they_should_be(clusters, stage):
    options = {"frozen": ("blocks.1", "blocks.2.0"), "lr": 0.1, "weight_decay": 0.5, **OPTIONS.get(stage, {})}
    groups = [(lambda _name, parameter: parameter.ndim < 2, {"weight_decay": 0.0})]
    start = make().state_dict()
    for state in clusters(2).run(train_sharded, stage, torch.optim.AdamW, 2, param_groups=groups, **options):
        moved = {name for name in start if not torch.equal(state[name], start[name])}
        assert "blocks.0.0.weight" in moved
        assert not any(name.startswith(("blocks.1", "blocks.2.0")) for name in moved)


@pytest.mark.parametrize(
    ("stage", "options", "message"),
    [
        ("torch-ddp", {"precision": "bf16"}, "torch-ddp has no bf16 with fp32 masters"),
        ("torch-zero1", {"precision": "fp16"}, "torch-zero1 has no fp16 with fp32 masters"),
        ("fsdp1", {"sharding_strategy": "HALF"}, "sharding_strategy is 'HALF': choose FULL_SHARD or SHARD_GRAD_OP"),
        ("fsdp1", {"backward_prefetch": "LATE"}, "backward_prefetch is 'LATE': choose BACKWARD_PRE"),
        ("fsdp2", {"momentun": 0.9}, "SGD does not take"),
        ("hsdp", {}, "hsdp needs two halves of equal size, and 3 ranks have none: take an even N"),
    ],
)
def test_wrong_use_gets_a_sentence(clusters, stage, options, message):
    world_size = 3 if stage == "hsdp" else 2
    with pytest.raises(RankError, match=message):
        clusters(world_size).run(build, stage, torch.optim.SGD, lr=0.1, **options)


def lists_as_blocks():
    return nn.ModuleList(nn.ModuleList([nn.Linear(4, 4), nn.LayerNorm(4)]) for _ in range(2))


def tied_across_units():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    return model


def with_a_part_in_two_units():
    model = nn.Sequential(*(nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4)) for _ in range(2)))
    model[1][1] = model[0][1]
    return model


def a_block_twice():
    return nn.Sequential(*[nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4))] * 2)


def tied_with_the_root():
    model = nn.ModuleDict({"blocks": nn.ModuleList([nn.Linear(4, 4)]), "head": nn.Linear(4, 4)})
    model["head"].weight = model["blocks"][0].weight
    return model


def with_a_parameter(tensor):
    model = nn.Sequential(nn.Linear(4, 4))
    model.register_parameter("odd", nn.Parameter(tensor))
    return model


def with_a_row_that_is_a_parameter():
    model = nn.Sequential(nn.Linear(4, 4))
    model.register_parameter("row", nn.Parameter(model[0].weight.detach()[1]))
    return model


def two_dtypes_in_a_unit():
    model = nn.Sequential(nn.Linear(4, 4))
    model[0].register_parameter("odd", nn.Parameter(torch.ones(2).double()))
    return model


@pytest.mark.parametrize(
    ("stages", "make", "message"),
    [
        (["fsdp1", "fsdp2", "hsdp"], lists_as_blocks, "cannot gather '0', a ModuleList without forward: name what"),
        (["fsdp1", "fsdp2"], lambda: with_a_parameter(torch.tensor(1.0)), "cannot take 'odd', which has no dimension"),
        (["fsdp1"], lambda: with_a_parameter(torch.ones(2) + 0j), "cannot take 'odd', which is torch.complex64: train"),
        (["fsdp2"], lambda: with_a_parameter(torch.ones(3, 2).t()), "cannot take 'odd', which is not contiguous"),
        (["fsdp1", "fsdp2", "hsdp"], tied_across_units, "cannot keep '1.weight' tied, which '0' and '1' both use"),
        (["fsdp1", "fsdp2", "hsdp"], with_a_part_in_two_units, "cannot keep '1.1.weight' tied, which '0' and '1' both"),
        (["fsdp1"], a_block_twice, r"cannot wrap '0', which is '1', too: keep it in the root by units=\[\], or train"),
        (["fsdp1", "fsdp2"], tied_with_the_root, "cannot keep 'head.weight' tied, which 'blocks.0' and 'root' both"),
        (
            ["fsdp2", "hsdp"],
            two_dtypes_in_a_unit,
            "trains one dtype in a unit, and '0' has torch.float32 and torch.float64: convert one with",
        ),
        (
            ["torch-zero1"],
            lambda: with_a_parameter(torch.ones(2).double()),
            "the model has torch.float32 and torch.float64",
        ),
    ],
)
def test_a_model_that_a_system_cannot_take_is_refused_by_name(clusters, stages, make, message):
    for stage in stages:
        with pytest.raises(RankError, match=f"{stage}.* {message}"):
            clusters(2).run(lambda stage=stage: ENGINES[stage](make(), torch.optim.SGD, lr=0.1))


@pytest.mark.parametrize(("stage", "units"), [("fsdp2", None), ("fsdp1", [])])
def test_a_block_that_is_in_several_places_is_trained_as_one(clusters, stage, units):
    def train():
        engine = ENGINES[stage](a_block_twice(), torch.optim.SGD, units=units, lr=0.1)
        engine.training_step(torch.ones(2, 4), torch.zeros(2, 4), nn.functional.mse_loss)
        return engine.state_dict()

    for state in clusters(2).run(train):
        assert torch.equal(state["0.1.weight"], state["1.1.weight"])


class SecondName(nn.Module):
    """Hugging Face's models have such names: the blocks can be had from the model itself, too."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(*(nn.Linear(4, 4) for _ in range(2)))
        self.blocks = self.body

    def forward(self, x):
        return self.body(x)


def test_a_list_of_blocks_with_a_second_name_is_one_place(clusters):
    def train():
        engine = ENGINES["fsdp1"](SecondName(), torch.optim.SGD, units=["body.0", "body.1"], lr=0.1)
        start = engine.state_dict()
        engine.training_step(torch.ones(2, 4), torch.zeros(2, 4), nn.functional.mse_loss)
        return start, engine.state_dict()

    for start, end in clusters(2).run(train):
        alone = SecondName()
        alone.load_state_dict(start)
        optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
        nn.functional.mse_loss(alone(torch.ones(2, 4)), torch.zeros(2, 4)).backward()
        optimizer.step()
        assert distance(end, alone.state_dict()) <= 1e-6


@pytest.mark.parametrize("stage", ["fsdp1", "fsdp2"])
def test_a_parameter_that_is_a_row_of_another_is_refused(clusters, stage):
    with pytest.raises(RankError, match=r"'row' and '0.weight' share memory but are two parameters: tie them as one"):
        clusters(2).run(lambda: ENGINES[stage](with_a_row_that_is_a_parameter(), torch.optim.SGD, lr=0.1))


@pytest.mark.skipif(torch.cuda.is_available(), reason="with an accelerator FSDP1 can offload")
def test_fsdp1_says_that_its_offload_needs_an_accelerator(clusters):
    with pytest.raises(RankError, match="FSDP1's CPUOffload pins memory for an accelerator, and there is none"):
        clusters(2).run(build, "fsdp1", torch.optim.SGD, lr=0.1, offload=True)


def test_engines_come_in_the_order_of_the_lessons_and_are_imported_when_asked_for():
    import subprocess

    code = (
        "import sys; from zerolab.engines import ENGINES; print(*ENGINES); print('fsdp2' in ENGINES, len(ENGINES));"
        "print([name for name in sys.modules if name.startswith(('zerolab.engines.fsdp', 'deepspeed'))])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert out[0] == (
        "ddp zero1 zero2 zero3 zero3-8bit torch-ddp torch-zero1 fsdp1 fsdp2 hsdp "
        "deepspeed-0 deepspeed-1 deepspeed-2 deepspeed-3 muon-replicated muon-owners muon-rows"
    )
    assert out[1:] == ["True 17", "[]"]


def test_the_table_of_engines_cannot_be_written_and_tells_its_names_without_importing_them(monkeypatch):
    monkeypatch.setattr("zerolab.engines.import_module", None)
    assert isinstance(ENGINES, Mapping)
    assert "deepspeed-3" in ENGINES
    assert "mine" not in ENGINES
    assert len(ENGINES) == len(list(ENGINES.keys()))
    with pytest.raises(TypeError, match="does not support item assignment"):
        ENGINES["mine"] = nn.Module


def small():
    """A model whose first layer is the root's where `units` is ["2"]."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))


def fail(module, *_):
    """A hook that fails the forward of a module."""
    raise ArithmeticError(type(module).__name__)


@pytest.mark.parametrize("stage", ["fsdp1", "fsdp2", "hsdp"])
def test_no_old_weights_are_kept_of_an_evaluation_between_backward_and_step_whether_it_ends_or_raises(clusters, stage):
    def train(evaluates, fails=False):
        model = small()
        engine = ENGINES[stage](model, torch.optim.SGD, units=["2"], lr=0.5)
        for _ in range(3):
            engine.backward(engine.model(torch.ones(2, 4)).square().mean())
            hook = model[1].register_forward_hook(fail) if fails else nullcontext()
            with hook, suppress(ArithmeticError), torch.no_grad():
                if evaluates:
                    engine.model(torch.ones(2, 4))
            engine.clip_grad_norm_(0.5)  # for which the root's gradients must be found, too
            engine.step()
        return engine.state_dict()

    plain, *others = (clusters(2).run(train, *how)[0] for how in [(False,), (True,), (True, True)])
    assert all(torch.equal(plain[name], other[name]) for other in others for name in plain)


@pytest.mark.parametrize("stage", ["fsdp1", "fsdp2", "hsdp"])
def test_a_batch_whose_forward_fails_may_be_left_out(clusters, stage):
    def train(fails):
        model = small()
        engine = ENGINES[stage](model, torch.optim.SGD, units=["2"], lr=0.5)
        for _ in range(2):
            if fails:
                with model[1].register_forward_hook(fail), suppress(ArithmeticError):
                    engine.model(torch.ones(2, 4))
            with engine.accumulate():
                engine.backward(engine.model(torch.ones(2, 4)).square().mean())
            engine.backward(engine.model(torch.ones(2, 4)).square().mean())
            engine.step()
        return engine.state_dict()

    plain, failed = clusters(2).run(train, False)[0], clusters(2).run(train, True)[0]
    assert all(torch.equal(plain[name], failed[name]) for name in plain)


class Failing(torch.autograd.Function):
    """Passes its input on, and has no gradient."""

    @staticmethod
    def forward(_, x):
        return x.clone()

    @staticmethod
    def backward(*_):
        raise ArithmeticError("no gradient")


@pytest.mark.parametrize("stage", ["fsdp1", "fsdp2", "hsdp"])
def test_after_a_backward_that_failed_no_step_is_taken_with_what_it_left(clusters, stage):
    def train(drops):
        model = small()
        engine = ENGINES[stage](model, torch.optim.SGD, units=["2"], lr=0.5)
        with engine.accumulate():
            engine.backward(engine.model(torch.ones(2, 4)).square().mean())
        with model[1].register_forward_hook(lambda _module, _inputs, out: Failing.apply(out)):
            outputs = engine.model(torch.ones(2, 4))
        with suppress(ArithmeticError):
            outputs.square().mean().backward()
        if drops:
            engine.zero_grad()
        engine.backward(engine.model(torch.ones(2, 4)).square().mean())
        engine.step()
        return engine.state_dict()

    with pytest.raises(RankError, match="a backward has failed, and FSDP"):
        clusters(2).run(train, False)
    if stage != "fsdp1":
        model = small()
        model(torch.ones(2, 4)).square().mean().backward()
        torch.optim.SGD(model.parameters(), lr=0.5).step()
        assert distance(clusters(2).run(train, True)[0], model.state_dict()) <= 1e-6


def test_fsdp1_saves_weights_that_were_given_other_memory(clusters):
    def train():
        model = small()
        engine = ENGINES["fsdp1"](model, torch.optim.SGD, units=["2"], lr=0.5)
        engine.training_step(torch.ones(2, 4), torch.ones(2, 2), nn.functional.mse_loss)
        for parameter in engine.model.parameters():
            parameter.data = parameter.data.clamp(-0.1, 0.1)
        return engine.state_dict()

    assert max(float(value.abs().max()) for value in clusters(2).run(train)[0].values()) <= 0.1 + 1e-6


@pytest.mark.parametrize("stage", ["fsdp2", "hsdp"])
def test_a_gradient_with_a_graph_that_does_not_lead_through_the_model_is_taken(clusters, stage):
    def train(stage):
        torch.manual_seed(0)
        engine = ENGINES[stage](nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), torch.optim.SGD, lr=0.5)
        out = engine.model(torch.ones(2, 4))
        (slope,) = torch.autograd.grad(out.square().mean(), out, create_graph=True)
        engine.backward(out.square().mean() + slope.square().sum())
        engine.step()
        return engine.state_dict()

    theirs, plain = clusters(4).run(train, stage)[0], clusters(4).run(train, "ddp")[0]
    assert all(distance({"it": theirs[name]}, {"it": plain[name]}) <= 1e-6 for name in plain)


def forward_and_backward_in_turn(engine, loss):
    with engine.accumulate():
        engine.backward(loss(0))
    engine.backward(loss(1))


def both_forwards_first(engine, loss):
    first, last = loss(0), loss(1)
    with engine.accumulate():
        engine.backward(first)
    engine.backward(last)


def last_forward_within_accumulate(engine, loss):
    with engine.accumulate():
        engine.backward(loss(0))
        last = loss(1)
    engine.backward(last)


def forward_before_accumulate(engine, loss):
    first = loss(0)
    with engine.accumulate():
        engine.backward(first)
    engine.backward(loss(1))


def one_backward_of_the_sum(engine, loss):
    engine.backward(loss(0) + loss(1))


def no_accumulate(engine, loss):
    engine.backward(loss(0))
    engine.backward(loss(1))


def a_forward_that_nobody_uses(engine, loss):
    loss(0)
    forward_and_backward_in_turn(engine, loss)


ORDERS = (
    forward_and_backward_in_turn, both_forwards_first, last_forward_within_accumulate, forward_before_accumulate,
    one_backward_of_the_sum, no_accumulate, a_forward_that_nobody_uses,
)  # fmt: skip
NOT_IN_TURN = {"both_forwards_first": "no forward of engine.model since the last backward()"}
NOT_DDPS = {**NOT_IN_TURN, "last_forward_within_accumulate": "the forward ran within engine.accumulate()"}
NOT_TWICE = {"no_accumulate": "a second backward() before step()"}
REFUSED = {
    "torch-ddp": NOT_DDPS, "torch-zero1": NOT_DDPS, "fsdp1": NOT_IN_TURN, "fsdp2": {}, "hsdp": {},
    "deepspeed-0": {}, "deepspeed-1": NOT_TWICE, "deepspeed-2": NOT_TWICE, "deepspeed-3": NOT_IN_TURN,
}  # fmt: skip


def micro_batch(rank, index):
    return torch.linspace(-1, 1 + rank, 8).view(2, 4) * (1 + index)


def train_without_a_batch(stage, drops):
    """The weights after two steps, before each of which gradients are dropped; or what that was refused with."""
    engine = ENGINES[stage](small(), torch.optim.SGD, lr=0.5)
    for _ in range(2):
        if drops is not None:
            with engine.accumulate():
                engine.backward(engine.model(micro_batch(engine.rank, 2)).square().mean())
            engine.backward(engine.model(micro_batch(engine.rank, 3)).square().mean())
            try:
                (engine if drops == "engine" else engine.optimizer).zero_grad()
            except RuntimeError as refused:
                return str(refused)
            assert engine.clip_grad_norm_(1e9) == 0
        engine.backward(engine.model(micro_batch(engine.rank, 0)).square().mean())
        engine.step()
    return engine.state_dict()


@pytest.mark.parametrize("stage", [stage for stage, orders in REFUSED.items() if orders is not NOT_TWICE])
def test_what_backwards_have_brought_can_be_dropped(clusters, require, stage):
    if stage.startswith("deepspeed"):
        require(find_spec("deepspeed"), "DeepSpeed", "pip install 'zerolab[deepspeed]'")
    ranks = clusters(sizes(stage))
    plain, *others = (ranks.run(train_without_a_batch, stage, drops)[0] for drops in (None, "engine", "optimizer"))
    assert all(torch.equal(plain[name], other[name]) for other in others for name in plain)


def train_a_unit_that_is_frozen_in_part(drops):
    """Under FSDP1; a micro-batch has brought gradients, which are not reduced yet, before they are dropped."""
    model = small()
    model[0].bias.requires_grad_(False)
    engine = ENGINES["fsdp1"](model, torch.optim.SGD, lr=0.5)
    if drops:
        with engine.accumulate():
            engine.backward(engine.model(micro_batch(engine.rank, 2)).square().mean())
        engine.zero_grad()
        assert not [holding for holding in engine.holdings() if holding.category == "gradients"]
    engine.backward(engine.model(micro_batch(engine.rank, 0)).square().mean())
    engine.step()
    return engine.state_dict()


def test_fsdp1_drops_what_is_not_reduced_yet_of_a_unit_that_is_frozen_in_part(clusters):
    plain, other = (clusters(2).run(train_a_unit_that_is_frozen_in_part, drops)[0] for drops in (False, True))
    assert all(torch.equal(plain[name], other[name]) for name in plain)


@pytest.mark.parametrize("stage", [stage for stage, orders in REFUSED.items() if orders is NOT_TWICE])
def test_where_it_cannot_that_is_refused(clusters, require, stage):
    require(find_spec("deepspeed"), "DeepSpeed", "pip install 'zerolab[deepspeed]'")
    for refused in clusters(2).run(train_without_a_batch, stage, "engine"):
        assert refused.startswith(f"{stage} has no call that drops gradients: call step(), or skip the batch before")


def train_in_every_order(stage):
    """For each order its weights after two steps, or what it was refused with."""
    reached = {}
    for order in ORDERS:
        engine = ENGINES[stage](small(), torch.optim.SGD, lr=0.5)

        def loss(index, engine=engine):
            return engine.model(micro_batch(engine.rank, index)).square().mean() / 2

        try:
            for _ in range(2):
                order(engine, loss)
                engine.step()
            reached[order.__name__] = engine.state_dict()
        except RuntimeError as refused:
            reached[order.__name__] = str(refused)
    return reached


@pytest.mark.parametrize("stage", REFUSED)
def test_each_order_of_forwards_and_backwards_trains_as_one_process_does_or_is_refused(clusters, require, stage):
    if stage.startswith("deepspeed"):
        require(find_spec("deepspeed"), "DeepSpeed", "pip install 'zerolab[deepspeed]'")
    alone = small()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.5)
    ranks = sizes(stage)
    for _ in range(2):
        optimizer.zero_grad()
        for rank, index in product(range(ranks), range(2)):
            (alone(micro_batch(rank, index)).square().mean() / 2 / ranks).backward()
        optimizer.step()
    for reached in clusters(ranks).run(train_in_every_order, stage):
        assert {name for name, state in reached.items() if isinstance(state, str)} == set(REFUSED[stage])
        for name, state in reached.items():
            if name in REFUSED[stage]:
                assert REFUSED[stage][name] in state
            else:
                assert distance(state, alone.state_dict()) <= 1e-6, name


def test_ranks_that_run_different_units_train_otherwise_than_one_process_without_a_word(clusters):
    """As docs/what-can-go-wrong.md says of torch's FSDP; should torch compare them one day, that page is to say so."""
    how, stages = ("whole units unused, another one on each rank", torch.optim.SGD, 3), ["zero2", "fsdp1", "fsdp2"]
    alone = zoo.train_alone(*how, 2, lr=0.05)[0]
    for ends in clusters(2).run(lambda: zoo.train_on_ranks(*how, stages, lr=0.05)):
        assert zoo.distance(ends["zero2"], alone) < 1e-6
        assert min(zoo.distance(ends[stage], alone) for stage in ("fsdp1", "fsdp2")) > 0.01
