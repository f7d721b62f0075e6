"""DeepSpeed behind the same step; one cluster for all stages, because its first engine takes seconds to start."""

import sys
from importlib.util import find_spec

import pytest
import torch
from awkward import batch, distance, loss_fn, make, my_rows, train_sharded
from torch import nn

from zerolab import Cluster, RankError
from zerolab.engines import ENGINES

STAGES = [f"deepspeed-{number}" for number in range(4)]
TOLERANCE = 1e-6  # in fp32 on gloo DeepSpeed adds up what torch adds up; measured 1.2e-7
pytestmark = [pytest.mark.deepspeed, pytest.mark.slow]


def train_and_look(stage):
    """Three steps of AdamW; what the engine showed of its state at the last update."""
    from zerolab.theory.systems import shown_at_updates

    engine = ENGINES[stage](make(), torch.optim.AdamW, lr=1e-3)
    with shown_at_updates(engine) as shown:
        for step in range(3):
            engine.training_step(*my_rows(step), loss_fn)
    return shown


def train_in_every_way(stage):
    """Weights after plain steps, after an accumulated and clipped one with its norm, and what another engine loads."""
    weights = train_sharded(stage, torch.optim.SGD, 4, lr=0.1)
    clipped = ENGINES[stage](make(), torch.optim.SGD, lr=0.5)
    with clipped.accumulate():
        clipped.training_step(*my_rows(10), loss_fn)
    tokens, targets = my_rows(11)
    clipped.backward(loss_fn(clipped.model(tokens), targets))
    norm = float(clipped.clip_grad_norm_(0.05))
    clipped.step()
    loaded = ENGINES[stage](make(), torch.optim.SGD, lr=0.1)
    loaded.load_state_dict(clipped.state_dict())
    copy = loaded.state_dict()
    for engine in (clipped, loaded):  # what was loaded is also what trains
        engine.optimizer.param_groups[0]["lr"] = 0.1
        engine.training_step(*my_rows(12), loss_fn)
    return weights, norm, clipped.state_dict(), loaded.state_dict(), copy


class Checkpointed(nn.Module):
    """Two layers, the first of which runs forward again in backward; says which linear each of its passes met."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.met = nn.Linear(4, 4), nn.Linear(4, 1), []

    def again(self, inputs):
        self.met.append(nn.functional.linear)
        return self.first(inputs)

    def forward(self, inputs):
        if inputs.shape[-1] != 4:
            raise ValueError("a learner's own mistake")
        return self.last(torch.utils.checkpoint.checkpoint(self.again, inputs, use_reentrant=False))


def meet_linears():
    """Which of torch's and DeepSpeed's linear stage 3 meets in forward and in backward, and which is there outside."""
    of_torch, outside = nn.functional.linear, []
    model = Checkpointed()
    engine = ENGINES["deepspeed-3"](model, torch.optim.SGD, lr=0.1)
    outside.append(nn.functional.linear)
    for batch_of_4 in (torch.ones(2, 4, requires_grad=True), torch.ones(2, 4)):
        loss = engine.model(batch_of_4).mean()
        outside.append(nn.functional.linear)
        engine.backward(loss)
        outside.append(nn.functional.linear)
        engine.step()
    with pytest.raises(ValueError, match="a learner's own mistake"):
        engine.model(torch.ones(2, 3))
    outside.append(nn.functional.linear)
    return [linear is of_torch for linear in outside], [linear.__name__ for linear in model.met]


def train_with_its_own_engine(number, precision):
    """Three steps of a loop of DeepSpeed's; what parameters took, by hand, as each layer's forward ended."""
    from zerolab.engines.deepspeed import import_deepspeed

    of_torch, taken = nn.functional.linear, []
    model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(4)))

    def look(*_):
        kept = [each for x in model.parameters() for each in (x, getattr(x, "ds_tensor", None)) if each is not None]
        storages = {each.untyped_storage()._cdata: each.untyped_storage().nbytes() for each in kept}
        taken.append(sum(storages.values()))

    for layer in model:
        layer.register_forward_hook(look)
    settings = {
        "train_micro_batch_size_per_gpu": 2,
        "bf16": {"enabled": precision == "bf16"},
        "zero_optimization": {"stage": number, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
    }
    engine, *_ = import_deepspeed("cpu").initialize(
        model=model, optimizer=torch.optim.AdamW(model.parameters()), config=settings, dist_init_required=False
    )
    for _ in range(3):
        engine.backward(engine(torch.ones(2, 64, dtype=next(model.parameters()).dtype)).square().mean())
        engine.step()
    nn.functional.linear = of_torch  # stage 3 has replaced it, for all that this process trains
    return taken


@pytest.fixture(scope="module")
def recordings(clusters, require):
    """Each stage's recording of `train_and_look`."""
    require(find_spec("deepspeed"), "DeepSpeed", 'pip install -c constraints.txt -e ".[deepspeed]"')
    return {stage: clusters(2).record(train_and_look, stage) for stage in STAGES}


@pytest.fixture(scope="module")
def trained(clusters, require):
    """Each stage's results of `train_in_every_way`, rank by rank."""
    require(find_spec("deepspeed"), "DeepSpeed", 'pip install -c constraints.txt -e ".[deepspeed]"')
    return {stage: clusters(2).run(train_in_every_way, stage) for stage in STAGES}


@pytest.fixture(scope="module")
def as_ddp(clusters):
    """What our ddp reaches in four steps of SGD."""
    return clusters(2).run(train_sharded, "ddp", torch.optim.SGD, steps=4, lr=0.1)[0]


@pytest.mark.parametrize("stage", STAGES)
def test_sgd_reaches_the_weights_of_ddp(trained, as_ddp, stage):
    for weights, *_ in trained[stage]:
        assert distance(weights, as_ddp) <= TOLERANCE


@pytest.mark.parametrize("stage", STAGES)
def test_accumulated_and_clipped_gradients_give_the_weights_of_one_process(trained, stage):
    reference = make()
    for step in (10, 11):
        tokens, targets = batch(step)
        loss_fn(reference(tokens), targets).backward()
    norm = nn.utils.clip_grad_norm_(reference.parameters(), 0.05)
    torch.optim.SGD(reference.parameters(), lr=0.5).step()
    for _, measured, clipped_on, loaded_on, copy in trained[stage]:
        assert measured == pytest.approx(norm.item(), rel=1e-5)
        assert distance(copy, reference.state_dict()) <= TOLERANCE
        assert distance(loaded_on, clipped_on) == 0


@pytest.mark.parametrize("stage", STAGES)
def test_holdings_add_up_to_what_the_ledger_sees_at_the_update(recordings, stage):
    recording = recordings[stage]
    for rank, shown in zip(recording.ranks, recording.results, strict=True):
        assert rank.state == {category: shown[category] for category in rank.state}


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_loop_of_deepspeeds_own_is_explained_to_the_byte(clusters, trained, number, precision):
    numel, width = 4 * 64 * 64, {"fp32": 4, "bf16": 2}[precision]
    recording = clusters(2).record(train_with_its_own_engine, number, precision)
    for rank, taken in zip(recording.ranks, recording.results, strict=True):
        assert rank.state == {
            "parameters": width * numel // (2 if number == 3 else 1),
            "gradients": 4 * numel // 2,  # those of the masters, which are fp32
            "optimizer_state": 12 * numel // 2 + rank.info.step_counters,
        }
        assert rank.info.masters == 4 * numel // 2
        ends = [e.live for e in rank.events if e.op == "forward" and e.unit != "root"]
        assert [live["parameters"] for live in ends] == taken
        assert max(live["activations"] for live in ends) < numel, "a few rows of 64"
        table = recording.explain(rank=rank.rank)
        assert f"nearest to zero{max(number, 2)}" in table.title, "stage 1 drops what is not its own before the update"
        found = {row["term"]: row["difference"] for row in table if row["difference"]}
        assert found == ({} if precision == "bf16" else dict.fromkeys(["masters", "state"], 4 * numel // 2))


def test_all_bytes_go_through_torch_where_the_recorder_sees_them(recordings):
    for stage, recording in recordings.items():
        collectives = {e.op for e in recording.ranks[0].events if e.kind == "collective" and e.step}
        assert collectives & {"all_reduce", "reduce_scatter"}, stage
        assert ("all_gather" in collectives) == (stage != "deepspeed-0")


def test_stage_3_computes_with_its_own_linear_and_leaves_torchs_to_everybody_else_on_the_rank(clusters, trained):
    for outside, within in clusters(2).run(meet_linears):
        assert outside == [True] * 6  # a bf16 product of DeepSpeed's rounds in another way
        assert within == ["zero3_linear_wrap"] * 4  # forward and backward of two steps


def test_torchs_compiler_is_loaded_when_deepspeeds_muon_is_first_called_and_not_before(trained):
    def call():
        from deepspeed.runtime.zero.muon.original_muon import zeropower_via_newtonschulz5

        before = "torch._inductor.compile_fx" in sys.modules
        torch.compiler.set_stance("force_eager")  # else it would be compiled for a minute
        whole = zeropower_via_newtonschulz5(torch.eye(3), 5)
        torch.compiler.set_stance("default")
        return before, "torch._inductor.compile_fx" in sys.modules, whole.shape

    with Cluster(1, device="cpu") as cluster:
        cluster.run(train_and_look, "deepspeed-1")
        assert cluster.run(call) == [(False, True, (3, 3))]


@pytest.mark.parametrize("stage", STAGES)
def test_a_model_with_an_odd_number_of_parameters_trains(clusters, trained, stage):
    def train():
        engine = ENGINES[stage](torch.nn.Linear(2, 1), torch.optim.SGD, lr=0.1)
        return float(engine.training_step(torch.ones(3, 2), torch.zeros(3, 1), torch.nn.functional.mse_loss))

    assert all(loss >= 0 for loss in clusters(2).run(train))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.tensor(1.0), "cannot take 'odd', which has no dimension"),
        (lambda: torch.ones(3, 2).t(), "cannot take 'odd', which is not contiguous"),
        (lambda: torch.ones(2).double(), "trains one dtype, and the model has torch.float32 and torch.float64"),
    ],
)
def test_a_parameter_that_deepspeed_cannot_take_is_refused_by_name(clusters, trained, make, message):
    def build(stage):
        model = torch.nn.Sequential(torch.nn.Linear(4, 4))
        model.register_parameter("odd", torch.nn.Parameter(make()))
        ENGINES[stage](model, torch.optim.SGD, lr=0.1)

    for stage in STAGES:
        with pytest.raises(RankError, match=f"{stage} {message}"):
            clusters(2).run(build, stage)


def clip_and_train_in_fp16(stage, is_supported):
    """The norm of a gradient that is clipped, and the weights after; DeepSpeed asks the processor for fast fp16."""
    from zerolab.engines.deepspeed import import_deepspeed

    accelerator = import_deepspeed("cpu").accelerator.get_accelerator()
    accelerator.is_fp16_supported = lambda: is_supported
    engine = ENGINES[stage](make(), torch.optim.SGD, lr=0.5, precision="fp16")
    tokens, targets = my_rows(0)
    # Divided, so that from the first scale on no gradient of this model overflows.
    engine.backward(engine.scaler.scale(loss_fn(engine.model(tokens), targets) / 64))
    engine.scaler.unscale_(engine.optimizer)
    norm = float(engine.clip_grad_norm_(0.01))
    if engine.scaler.is_enabled():
        engine.scaler.step(engine.optimizer)
    else:
        engine.step()
    return norm, engine.state_dict()


@pytest.mark.parametrize("stage", STAGES[1:])
def test_in_fp16_it_scales_by_itself_and_clips_the_gradients_themselves(clusters, trained, stage):
    ((norm, weights), *_) = clusters(2).run(clip_and_train_in_fp16, "zero1", is_supported=True)
    for measured, state in clusters(2).run(clip_and_train_in_fp16, stage, is_supported=True):
        assert measured == pytest.approx(norm, rel=1e-3)
        assert distance(state, weights) <= 1e-3


def test_fp16_is_refused_in_a_sentence_where_deepspeed_has_none(clusters, trained):
    with pytest.raises(RankError, match="deepspeed-2 has no fp16 on this processor"):
        clusters(2).run(clip_and_train_in_fp16, "deepspeed-2", is_supported=False)


def test_without_the_package_it_is_one_sentence_with_the_remedy(monkeypatch):
    from zerolab.engines.deepspeed import import_deepspeed

    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(
        ImportError, match=r'DeepSpeed is not installed: pip install -c constraints.txt -e "\.\[deepspeed\]"'
    ):
        import_deepspeed()


def test_compare_says_so_before_any_rank_starts(monkeypatch):
    from zerolab import compare
    from zerolab.theory import systems

    monkeypatch.setattr(systems, "find_spec", lambda _: None)
    with pytest.raises(ImportError, match="DeepSpeed is not installed"):
        compare(["deepspeed-2"], world_size=2, model="mlp-odd", steps=2, device="cpu")
