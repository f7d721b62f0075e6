"""Other systems train with our options and keep checkpoints in our format: as ddp does, and each other's files."""

from importlib.util import find_spec

import pytest
import torch
import torch.distributed as dist
from awkward import batch, distance, loss_fn, make, shard_of

from zerolab import RankError
from zerolab.engines import ENGINES
from zerolab.engines.optimizer_state import Owned, scatter

pytestmark = pytest.mark.slow  # the ranks import FSDP or DeepSpeed first, which takes seconds
TORCH = ["torch-ddp", "torch-zero1", "fsdp1", "fsdp2", "hsdp"]
DEEPSPEED = [f"deepspeed-{number}" for number in range(4)]
STAGES = [*TORCH, *(pytest.param(stage, marks=pytest.mark.deepspeed) for stage in DEEPSPEED)]
UNUSED = {"torch-ddp": {"find_unused_parameters": True}, "torch-zero1": {"find_unused_parameters": True}}
FROZEN = ("blocks.1", "blocks.2.0")
NO_DECAY = (lambda _name, parameter: parameter.ndim < 2, {"weight_decay": 0.0})


@pytest.fixture(autouse=True)
def has_its_system(request, require):
    """Skips a stage of DeepSpeed where that is not installed."""
    if "deepspeed" in str(request.node.callspec.params if hasattr(request.node, "callspec") else ""):
        require(find_spec("deepspeed"), "DeepSpeed", 'pip install -c constraints.txt -e ".[deepspeed]"')


def sizes(stage):
    """The world sizes at which a run is saved, and goes on."""
    return (4, 2) if stage == "hsdp" else (3, 2) if stage.startswith("deepspeed") else (4, 1)


def build(stage, optimizer_cls, **options):
    """An engine over the awkward model with frozen parts and two parameter groups."""
    keywords = {"param_groups": [NO_DECAY], "weight_decay": 0.1, **UNUSED.get(stage, {}), **options}
    return ENGINES[stage](make(FROZEN), optimizer_cls, **keywords)


def train(stage, steps, optimizer_cls=torch.optim.AdamW, path=None, resume=None, **options):
    """Steps of two micro-batches with clipping and a schedule, from `resume`, saved to `path`: weights and state."""
    import torch.distributed as dist

    engine = build(stage, optimizer_cls, **options)
    schedule = torch.optim.lr_scheduler.StepLR(engine.optimizer, step_size=1, gamma=0.5) if resume is None else None
    if resume:
        engine.load(resume)
    for step in steps:
        for micro in range(2):
            tokens, targets = (
                shard_of(tensor, dist.get_rank(), dist.get_world_size()) for tensor in batch(10 * step + micro)
            )
            if micro == 0:
                with engine.accumulate():
                    engine.training_step(tokens, targets, loss_fn)
        engine.backward(loss_fn(engine.model(tokens), targets))
        engine.clip_grad_norm_(0.5)
        engine.step()
        if schedule:
            schedule.step()
    if path:
        engine.save(path)
    return engine.state_dict(), engine.optimizer_state_dict()


def far(state, reference):
    """The largest difference of two optimizer states; their names, keys and shapes must be the same."""
    assert state["state"].keys() == reference["state"].keys()
    most = 0.0
    for name, entries in reference["state"].items():
        theirs = state["state"][name]
        # What never had a gradient has no state; in a system that updates it together with others it has zeros.
        assert theirs.keys() == entries.keys() or not any(theirs[key].any() for key in theirs.keys() - {"step"})
        for key, value in entries.items():
            mine = theirs[key]
            assert mine.shape == value.shape, (name, key)
            most = max(most, (mine - value).abs().max().item())
    for mine, group in zip(state["param_groups"], reference["param_groups"], strict=True):
        assert sorted(mine["params"]) == sorted(group["params"])
        assert {"lr", "weight_decay"} <= mine.keys()
        assert (mine["lr"], mine["weight_decay"]) == (group["lr"], group["weight_decay"])
    return most


@pytest.fixture(scope="module")
def as_ddp(clusters):
    """What our ddp has after 2 and after 4 steps of AdamW, and after 3 steps of SGD with momentum."""
    ddp = clusters(2)
    sgd = ddp.run(train, "ddp", range(3), torch.optim.SGD, lr=0.1, momentum=0.9)[0]
    return ddp.run(train, "ddp", range(2), lr=0.01)[0], sgd


@pytest.mark.parametrize("stage", STAGES)
def test_accumulation_clipping_groups_a_schedule_and_frozen_parameters_agree_with_ddp(clusters, as_ddp, stage):
    _, (weights, state) = as_ddp
    options = {"lr": 0.1, "momentum": 0.9}
    for mine, optimizer in clusters(sizes(stage)[0]).run(train, stage, range(3), torch.optim.SGD, **options):
        assert distance(mine, weights) <= 1e-6
        assert far(optimizer, state) <= 1e-6


@pytest.mark.parametrize("stage", STAGES)
def test_a_saved_run_goes_on_on_other_numbers_of_ranks_and_in_our_own_engines(clusters, as_ddp, tmp_path, stage):
    path, ours = str(tmp_path / "theirs"), str(tmp_path / "ours")
    (weights, state), _ = as_ddp
    many, few = sizes(stage)
    for mine, optimizer in clusters(many).run(train, stage, range(2), path=path, lr=0.01):
        assert distance(mine, weights) <= 1e-5
        assert far(optimizer, state) <= 1e-5
    clusters(2).run(train, "zero3", range(2), path=ours, lr=0.01)
    ends, _ = clusters(2).run(train, "zero2", range(2, 4), resume=path)[0]  # ours goes on with their file
    for resumed in (path, ours):  # and they with their own, and with ours
        for mine, _ in clusters(few).run(train, stage, range(2, 4), resume=resumed):
            assert distance(mine, ends) <= 1e-5
    assert distance(ends, weights) > 1e-3


@pytest.mark.parametrize("stage", ["fsdp1", "fsdp2", "zero3"])
def test_steps_are_counted_by_a_rank_that_has_elements_of_the_parameter(clusters, stage):
    """Adagrad begins to count before the first step, under FSDP1 also where a rank has nothing of a parameter."""

    def counted():
        engine = build(stage, torch.optim.Adagrad, lr=0.01)
        for number in range(2):
            engine.training_step(*(shard_of(tensor, dist.get_rank(), 3) for tensor in batch(number)), loss_fn)
        return {name: float(entries["step"]) for name, entries in engine.optimizer_state_dict()["state"].items()}

    for steps in clusters(3).run(counted):
        assert {name for name, count in steps.items() if count != 2} <= {"unused"}  # of which FSDP1 brings zeros


@pytest.mark.parametrize("stage", STAGES)
def test_a_checkpoint_of_another_run_is_refused_and_nothing_is_changed(clusters, stage):
    def refuse():
        engine = build(stage, torch.optim.AdamW, lr=0.01)
        before = engine.state_dict()
        saved = engine.optimizer_state_dict()
        sentences = []
        wrong_names = {**saved, "state": {"other": {}}}
        wrong_groups = {**saved, "param_groups": [dict(group, params=["norm.bias"]) for group in saved["param_groups"]]}
        for state in ({}, wrong_names, wrong_groups):
            with pytest.raises(ValueError, match=r".") as caught:
                engine.load_optimizer_state_dict(state)
            sentences.append(str(caught.value))
        return sentences, distance(before, engine.state_dict())

    for sentences, moved in clusters(2).run(refuse):
        assert "has no 'state' and 'param_groups'" in sentences[0]
        assert "is trained in only one of engine and state" in sentences[1]
        assert "make the engine with the same optimizers and param_groups" in sentences[2]
        assert moved == 0


@pytest.mark.parametrize("stage", STAGES)
def test_a_dict_of_inputs_becomes_keywords_and_a_tuple_one_argument(clusters, stage):
    def losses():
        class Adding(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))

            def forward(self, pair=None, *, first=None, second=None):
                first, second = (first, second) if pair is None else pair
                return self.layers(first + second)

        torch.manual_seed(0)
        engine = ENGINES[stage](Adding(), torch.optim.SGD, lr=0.0)
        one, two = torch.ones(2, 3), torch.arange(6.0).view(2, 3)
        return [
            engine.training_step(inputs, None, lambda outputs, _: outputs.mean()).item()
            for inputs in ({"first": one, "second": two}, (one, two), [one, two])
        ]

    for first, *others in clusters(2).run(losses):
        assert others == [first, first]


@pytest.mark.parametrize(
    ("stage", "options", "sentence"),
    [
        ("torch-ddp", {"overlap": False}, "torch-ddp cannot take overlap=False: leave it out"),
        ("torch-zero1", {"offload": True}, "torch-zero1 cannot take offload=True: leave it out"),
        ("fsdp1", {"prefetch": 2}, "fsdp1 cannot take prefetch=2: use backward_prefetch="),
        ("fsdp2", {"release_after_forward": False}, "fsdp2 cannot take .*: use reshard_after_forward="),
        ("fsdp2", {"reduce_dtype": torch.float32}, r"fsdp2 cannot take .*: use mp_policy=MixedPrecisionPolicy\("),
        ("fsdp2", {"replicate": lambda name, _: "norm" in name}, "fsdp2 cannot take replicate=.*: leave it out"),
        ("hsdp", {"overlap": False}, "hsdp cannot take overlap=False: leave it out"),
        ("torch-ddp", {"param_groups": [{"params": []}]}, "pass pairs of"),
    ],
)
def test_an_option_of_our_engines_that_a_system_lacks_is_refused_with_its_own_name_for_it(
    clusters, stage, options, sentence
):
    with pytest.raises(RankError, match=sentence):
        clusters(2).run(build, stage, torch.optim.SGD, lr=0.1, **options)


def test_a_rank_of_padding_alone_gets_zeros_of_its_own_shape_where_a_group_lacks_a_key():
    state = {
        "with_amsgrad": {"step": torch.tensor(1.0), "exp_avg": torch.ones(4), "max_exp_avg_sq": torch.ones(4)},
        "without": {"step": torch.tensor(1.0), "exp_avg": torch.ones(2)},
    }
    shapes = {name: entries["exp_avg"].shape for name, entries in state.items()}
    padding, loaded = torch.zeros(3), {}
    scatter([Owned(padding, [])], loaded, state, shapes, {})
    zeros = torch.zeros(3)
    expected = {"step": torch.tensor(1.0), "exp_avg": zeros, "max_exp_avg_sq": zeros}
    torch.testing.assert_close(loaded, {padding: expected}, rtol=0, atol=0)


@pytest.mark.deepspeed
def test_deepspeed_names_its_own_options(clusters):
    with pytest.raises(RankError, match=r"deepspeed-2 cannot take overlap=True: use zero_optimization="):
        clusters(2).run(build, "deepspeed-2", torch.optim.SGD, lr=0.1, overlap=True)
