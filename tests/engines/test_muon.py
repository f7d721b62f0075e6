"""Muon three ways: each ends where one process ends, and holds and sends what its closed form says, to the byte."""

import itertools
from functools import cache

import pytest
import torch
from on_cpus import CPU
from torch import nn

from zerolab import compare, models, simulate
from zerolab.engines import ENGINES, placement
from zerolab.engines.matrices import Together
from zerolab.engines.partition import partition
from zerolab.player.owners import held_by, owners
from zerolab.theory import muon

STAGES = list(muon.PLACED)
STEPS = 3
TOKENS = torch.zeros(2, 5, dtype=torch.int64)
MUON = {"lr": 0.02, "weight_decay": 0.1}
ADAMW = {"lr": 0.01, "weight_decay": 0.1}
# Newton-Schulz computes in bf16: where a sum in another order rounds to another bf16, an update moves by up to 1/256.
TOLERANCE = STEPS * MUON["lr"] / 256


class Blocks(nn.Module):
    """Three matrices in two blocks, one too few for 4 ranks; biases, a norm, and two matrices that are in no block."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 7)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(7, 13), nn.ReLU(), nn.Linear(13, 7)), nn.Linear(7, 7)])
        self.norm, self.head = nn.LayerNorm(7), nn.Linear(7, 11)

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.head(self.norm(hidden))


def make():
    torch.manual_seed(0)
    return Blocks()


def batch(step, rank=0, world_size=1):
    """This rank's rows of the 12 of a step."""
    tokens = torch.randint(0, 11, (12, 5), generator=torch.Generator().manual_seed(step)).chunk(world_size)[rank]
    return tokens, (tokens * 3 + 1) % 11


def is_matrix(name, parameter):
    return name.startswith("blocks.") and parameter.ndim == 2


def units():
    """The model as the closed forms take it."""
    found = []
    for layout in partition(make(), 1):
        shapes = [
            [slot.shape for slot in layout.slots if is_matrix(slot.name, torch.empty(slot.shape)) is kind]
            for kind in (True, False)
        ]
        found.append(muon.Unit(*shapes, is_root=layout.unit == "root"))
    return found


def train(stage, steps=STEPS, micro=1, clip=False, load=None, **options):
    """The whole model and the whole optimizer state with which this rank ends."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    engine = ENGINES[stage](make(), torch.optim.AdamW, muon=MUON, **ADAMW, **options)
    if load:
        engine.load_state_dict(load[0])
        engine.load_optimizer_state_dict(load[1])
    for step in range(steps):
        inputs, targets = batch(step, dist.get_rank(), dist.get_world_size())
        for _ in range(micro - 1):
            with engine.accumulate():
                engine.training_step(inputs, targets, models.loss)
        engine.backward(engine.scaler.scale(models.loss(engine.model(inputs), targets)))
        if clip:
            engine.scaler.unscale_(engine.optimizer)
            engine.clip_grad_norm_(0.1)
        if engine.scaler.is_enabled():
            engine.scaler.step(engine.optimizer)
            engine.scaler.update()
        else:
            engine.step()
    return engine.state_dict(), engine.optimizer_state_dict()


@cache
def alone():
    """The same in one process, by torch's optimizers."""
    torch.set_num_threads(1)
    model = make()
    matrices = [p for name, p in model.named_parameters() if is_matrix(name, p)]
    rest = [p for name, p in model.named_parameters() if not is_matrix(name, p)]
    optimizers = torch.optim.Muon(matrices, **MUON), torch.optim.AdamW(rest, **ADAMW)
    for step in range(STEPS):
        inputs, targets = batch(step)
        models.loss(model(inputs), targets).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return model.state_dict()


def distance(state, other):
    assert state.keys() == other.keys()
    return max((state[name] - other[name]).abs().max().item() for name in other)


def same(states, others):
    """Whether two ranks' results are equal, bit for bit, the optimizers' state too."""
    flat = [
        {**state, **{f"{n}/{k}": v for n, entries in its["state"].items() for k, v in entries.items()}}
        for state, its in (states, others)
    ]
    return flat[0].keys() == flat[1].keys() and all(torch.equal(flat[0][key], flat[1][key]) for key in flat[0])


@pytest.fixture(scope="module")
def recorded(clusters):
    """A recording of each way, by its name and the number of ranks."""
    return cache(lambda stage, world_size: clusters(world_size).record(train, stage))


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_each_way_ends_where_one_process_ends_and_owners_end_bit_for_bit_where_every_rank_updates(recorded, world_size):
    assert distance(alone(), make().state_dict()) > 100 * TOLERANCE  # something was learned
    for stage in STAGES:
        for state, _ in recorded(stage, world_size).results:
            assert distance(state, alone()) <= TOLERANCE
    for whole, owned in zip(*(recorded(stage, world_size).results for stage in STAGES[:2]), strict=True):
        assert same(whole, owned)
    if world_size == 1:
        assert distance(recorded("muon-owners", 1).results[0][0], alone()) == 0


def sent(rank, step=STEPS):
    """Bytes that a rank has sent in a step."""
    return sum(
        event.logical_bytes
        for event in rank.events
        if event.kind == "collective" and event.parent is None and event.step == step
    )


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("stage", STAGES)
def test_each_rank_holds_and_sends_what_the_closed_form_says_to_the_byte(recorded, stage, world_size):
    for rank in recorded(stage, world_size).ranks:
        assert rank.state == muon.state_bytes(stage, units(), world_size, rank.rank)
        assert sent(rank) == muon.traffic_bytes(stage, units(), world_size, rank.rank)


@pytest.mark.parametrize("form", [muon.state_bytes, muon.traffic_bytes])
@pytest.mark.parametrize("stage", STAGES)
def test_ranks_that_do_not_exist_have_no_closed_form(stage, form):
    for rank in (-1, 4, 7, 0.5):
        with pytest.raises(ValueError, match=f"rank is {rank}, and 4 ranks are 0 to 3: choose one of them"):
            form(stage, units(), 4, rank)
    with pytest.raises(ValueError, match="the world size is 0"):
        form(stage, units(), 0)
    with pytest.raises(ValueError, match="the world size is 0"):
        muon.owners_of(units(), 0)


@pytest.mark.slow
def test_eight_ranks_that_are_simulated_hold_and_send_it_too():
    found = simulate(STAGES, 8, make, batches=[(TOKENS, TOKENS)], hardware=CPU)
    for stage, recording in found.recordings.items():
        assert len(recording.ranks) == 8
        for rank in recording.ranks:
            assert rank.info.derived is (stage == "muon-replicated" and rank.rank > 0)
            assert rank.state == muon.state_bytes(stage, units(), 8, rank.rank)
            assert sent(rank, 2) == muon.traffic_bytes(stage, units(), 8, rank.rank)
    assert {row["unexplained"] for row in found.table()} == {0}
    slowest = max(rank.events[-1].t_end for rank in found.recordings["muon-owners"].ranks)
    assert 0 < found.rows[1]["step_seconds"] * 1e9 <= slowest


@pytest.mark.slow
def test_compare_has_muons_own_formula_and_a_simulation_finds_the_same():
    real = compare(STAGES, 2, make, [batch(step) for step in range(2)], 2, device="cpu")
    rows = {row["stage"]: row for row in real.rows}
    count, matrices = real.rows[0]["num_params"], 91 + 91 + 49
    assert rows["muon-replicated"]["formula"]["optimizer_state"] == 8 * count - 4 * matrices
    for category in ("parameters", "gradients", "optimizer_state"):
        assert rows["muon-replicated"]["terms"][f"more_{category}"] == 0
        for stage in STAGES[1:]:  # what one rank has too much of another has too little of, but for rounded halves
            more = [rank["terms"][f"more_{category}"] for rank in rows[stage]["ranks"]]
            assert sum(more) in range(-8, 9), (stage, category)
    assert max(rank["terms"]["more_gradients"] for rank in rows["muon-owners"]["ranks"]) > 0
    assert {(row["unexplained"], row["stage"]) for row in real.table()} == {(0, stage) for stage in STAGES}
    for stage, row in rows.items():
        assert row["ranks"][0]["terms"]["not_shown"] == row["ranks"][1]["terms"]["not_shown"] == 0
        assert real.recordings[stage].info.formula == row["formula"]
        assert row["traffic"]["logical_bytes"] == pytest.approx(row["traffic"]["formula_bytes"], rel=0.1), stage
    fake = simulate(STAGES, 2, make, batches=[batch(0, 0, 2)], hardware=CPU)
    for measured, simulated in zip(real.rows, fake.rows, strict=True):
        for key in ("stage", "num_params", "state", "formula", "terms"):
            assert measured[key] == simulated[key], key
        assert measured["traffic"]["logical_bytes"] == simulated["traffic"]["logical_bytes"]
        pairs = zip(measured["ranks"], simulated["ranks"], strict=True)
        assert all(one["state"] == other["state"] for one, other in pairs)


def test_owners_share_the_momentum_and_the_work_that_every_rank_repeats(recorded):
    everywhere, shared = (
        [rank.state["optimizer_state"] for rank in recorded(stage, 3).ranks]
        for stage in ("muon-replicated", "muon-owners")
    )
    momentum = 4 * (91 + 91 + 49)
    assert len(set(everywhere)) == 1
    assert sum(shared) - sum(everywhere) // 3 in range(-momentum, momentum)  # the momentum once, not three times
    by_unit = [placement.imbalance([91, 91], placement.balanced([91, 91], 3), 3), placement.imbalance([49], [0], 3)]
    assert by_unit == [1.5, 3.0]
    assert placement.imbalance([91, 91, 49], placement.balanced([91, 91, 49], 3), 3) == 91 * 3 / 231


def test_over_the_whole_model_matrices_are_divided_more_evenly_than_unit_by_unit():
    model = models.build("gpt-10m")
    sizes = [
        [slot.shape.numel() for slot in layout.slots if len(slot.shape) == 2] for layout in partition(model, 8)[1:]
    ]
    together = [size for unit in sizes for size in unit]
    by_unit = [placement.balanced(unit, 8) for unit in sizes]
    assert placement.imbalance(together, [owner for unit in by_unit for owner in unit], 8) == pytest.approx(8 / 3)
    assert placement.imbalance(together, placement.balanced(together, 8), 8) == pytest.approx(10 / 9)


OPTIONS = {
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "offload": {"offload": True},
    "micro-batches": {"micro": 2},  # of the same rows: owners add up means, the others their own gradients
    "replicated": {"replicate": lambda _, parameter: parameter.shape == (7, 7)},
    "all that is a matrix": {"matrices": lambda _, parameter: parameter.ndim == 2},
    "no overlap": {"overlap": False},
}


def compared():
    """The options with which the two ways differ in some bit, and how far clipping brings them apart."""
    ways = STAGES[:2]
    differing = [name for name, its in OPTIONS.items() if not same(*(train(way, **its) for way in ways))]
    return differing, distance(*(train(way, clip=True)[0] for way in ways))


@pytest.mark.slow
def test_owners_end_bit_for_bit_where_every_rank_updates_with_every_option(clusters):
    for differing, apart in clusters(3).run(compared):
        assert differing == []
        assert apart <= TOLERANCE  # the norm of shards is added up in another order than that of whole gradients


def resumed(stage, saved):
    return train(stage, steps=1, load=saved)


@pytest.mark.parametrize("stage", STAGES)
def test_a_run_goes_on_in_another_way_and_on_another_number_of_ranks(recorded, clusters, stage):
    saved = recorded(stage, 3).results[0]
    expected = clusters(2).run(resumed, "muon-replicated", saved)[0]
    for other in STAGES:
        for found in clusters(2).run(resumed, other, saved):
            assert distance(found[0], expected[0]) <= TOLERANCE


def test_the_player_has_each_matrix_in_the_colour_of_its_owner(recorded):
    recording = recorded("muon-owners", 3)
    held = held_by(event for rank in recording.ranks for event in rank.events)
    drawn = {unit.name: owners(recording, unit, held) for unit in recording.units if unit.name.endswith("matrices")}
    # 91 elements to rank 0, 91 to rank 1, 49 to rank 2, who owns all there is of its unit.
    assert drawn == {"blocks.0 matrices": [[[0, 91, 0], [91, 182, 1]]], "blocks.1 matrices": [[[0, 49, 2]]]}


def refusal(stage, make=make, **options):
    try:
        ENGINES[stage](make(), torch.optim.AdamW, **ADAMW, **options)
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "taken"


REFUSALS = [
    (
        "muon-owners",
        {"muon": {"lr": 0.0}},
        "ValueError: Muon's lr is 0.0, by which it scales: give a finite number above",
    ),
    ("muon-rows", {"muon": {"eps": float("inf")}}, "ValueError: Muon's eps is inf, by which it scales"),
    ("muon-owners", {"muon": {"betas": 0.9}}, "TypeError: Muon does not take 'betas': choose among lr,"),
    (
        "muon-owners",
        {"room": 90},
        "ValueError: 'blocks.0.0.weight' has 91 elements, and a rank has room for 90: give it",
    ),
    ("muon-owners", {"room": 100}, "ValueError: a rank would own 140 elements of matrices, and has room for 100"),
    ("muon-replicated", {"matrices": lambda *_: 0}, "ValueError: Blocks has no matrix within a unit: name some by"),
    ("muon-rows", {"units": []}, "ValueError: Blocks has no matrix within a unit"),
    ("muon-owners", {"matrices": lambda *_: 1}, "ValueError: 'blocks.0.0.bias' has the shape (13,), and Muon updates"),
]


def refusals():
    sentences = [refusal(stage, **options) for stage, options, _ in REFUSALS]
    try:
        ENGINES["zero1"](make(), torch.optim.Muon)
    except ValueError as error:
        sentences.append(str(error))
    return sentences


def test_wrong_use_is_refused_with_a_sentence_that_has_the_remedy(clusters):
    *sentences, flat = clusters(2).run(refusals)[0]
    for (stage, _, wanted), found in zip(REFUSALS, sentences, strict=True):
        assert found.startswith(wanted), (stage, found)
    assert flat.startswith("Muon cannot run on shards, because it orthogonalises each whole matrix")
    assert 'ENGINES["muon-owners"]' in flat


def swapped_states():
    """What is said where a state of one is loaded into the other."""
    made = {stage: ENGINES[stage](make(), torch.optim.AdamW, **ADAMW) for stage in ("zero2", "muon-owners")}
    for engine in made.values():
        engine.training_step(*batch(0, 0, 1), models.loss)
    states, said = {stage: engine.optimizer_state_dict() for stage, engine in made.items()}, {}
    for stage, other in itertools.permutations(made):
        try:
            made[stage].load_optimizer_state_dict(states[other])
        except ValueError as error:
            said[stage] = str(error)
    return said


def test_a_state_of_an_engine_without_muon_or_with_it_is_refused_in_the_other(clusters):
    for said in clusters(2).run(swapped_states):
        assert said["zero2"].endswith("which AdamW does not know: load a state of the same optimizer")
        assert said["muon-owners"].endswith(
            "make the engine with the same optimizers and param_groups, in the same order"
        )


def test_newton_schulz_costs_what_its_three_multiplications_cost():
    assert muon.newton_schulz_flops((4, 6), iterations=1) == 2 * 4 * 6 * 4 + 2 * 4 * 4 * 4 + 2 * 4 * 4 * 6
    assert muon.newton_schulz_flops((6, 4)) == muon.newton_schulz_flops((4, 6))


def test_both_optimizers_have_one_state_and_follow_one_schedule():
    matrix, bias = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2))
    both = Together([torch.optim.Muon([matrix], lr=1.0), torch.optim.AdamW([bias], lr=0.1)])
    schedule = torch.optim.lr_scheduler.StepLR(both, 1, 0.5)
    matrix.grad, bias.grad = torch.eye(2), torch.ones(2)
    both.step()
    schedule.step()
    assert {id(key): sorted(entries) for key, entries in both.state.items()} == {
        id(matrix): ["momentum_buffer"],
        id(bias): ["exp_avg", "exp_avg_sq", "step"],
    }
    assert [part.param_groups[0]["lr"] for part in both.parts] == [0.5, 0.05]
    assert both.name == "Muon and AdamW"


def test_both_optimizers_go_on_by_the_settings_that_were_loaded_into_them_together():
    matrix, bias = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2))
    both = Together([torch.optim.Muon([matrix], lr=1.0), torch.optim.AdamW([bias], lr=0.1)])
    both.load_state_dict(both.state_dict())
    for group in both.param_groups:
        group["lr"] = 0.0
    matrix.grad, bias.grad = torch.eye(2), torch.ones(2)
    both.step()
    assert torch.equal(matrix, torch.ones(2, 2))
    assert torch.equal(bias, torch.ones(2))


@pytest.mark.parametrize("stage", STAGES)
def test_a_model_of_matrices_alone_trains(clusters, stage):
    def train(stage):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
        engine = ENGINES[stage](model, torch.optim.AdamW, lr=1e-3)
        before = engine.state_dict()
        engine.training_step(torch.ones(2, 4), torch.zeros(2, 4), models.loss)
        return before, engine.state_dict()

    for before, after in clusters(2).run(train, stage):
        assert not any(torch.equal(after[name], value) for name, value in before.items())
