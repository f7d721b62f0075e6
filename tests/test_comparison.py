"""Stages side by side: the same losses, and bytes that are the formula plus its named terms, on every rank."""

import threading
from collections.abc import Callable, Iterator
from itertools import count
from statistics import median
from typing import Any

import pytest
import torch
from torch import nn

from zerolab import RankError, Recording, models, simulate, theory
from zerolab.comparison import Comparison, compare, record
from zerolab.tables import show_bytes

BATCHES = [(torch.randn(6, 4, generator=torch.Generator().manual_seed(step)), torch.arange(6) % 3) for step in range(3)]


def half_frozen() -> nn.Module:
    """An odd classifier whose first layer is frozen."""
    model = nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 7), nn.Tanh(), nn.Linear(7, 3))
    model[0].requires_grad_(False)
    return model


def train_half_frozen(world_size: int) -> Comparison:
    return compare(world_size=world_size, model=half_frozen, batches=BATCHES, steps=3, device="cpu")


class Wide(nn.Module):
    """Trains fp32 and fp64 parameters, and has frozen ones in fp16 and of whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.head = nn.Linear(4, 3).double()
        self.small = nn.Parameter(torch.ones(5, dtype=torch.float16), requires_grad=False)
        self.numbers = nn.Parameter(torch.arange(7), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x.to(self.head.weight.dtype)) * self.small.sum()


def train_wide(precision: str, options: dict[str, Any]) -> Comparison:
    return compare(
        world_size=2, model=Wide, batches=BATCHES, steps=2, precision=precision, device="cpu", options=options
    )


CASES = {
    "gpt-tiny on 4": lambda: compare(world_size=4, model="gpt-tiny", steps=3, device="cpu"),
    "mlp-odd on 3": lambda: compare(world_size=3, model="mlp-odd", steps=3, device="cpu"),
    "half frozen on 2": lambda: train_half_frozen(2),
    "half frozen on 1": lambda: train_half_frozen(1),
    "mlp-odd on 4 in bf16": lambda: compare(world_size=4, model="mlp-odd", steps=3, precision="bf16", device="cpu"),
    "mlp-odd on 3 in fp16": lambda: compare(world_size=3, model="mlp-odd", steps=3, precision="fp16", device="cpu"),
}


@pytest.fixture(scope="module", params=CASES)
def comparison(request: pytest.FixtureRequest) -> Iterator[Comparison]:
    return CASES[request.param]()


def test_all_stages_have_the_same_losses_and_they_fall(comparison: Comparison) -> None:
    losses = [row["losses"] for row in comparison.rows]
    assert [row["stage"] for row in comparison.rows] == list(theory.STAGES)
    for others in losses[1:]:
        assert others == pytest.approx(losses[0], abs=1e-5, rel=0)
    assert len(losses[0]) == 3
    assert losses[0][-1] < losses[0][0]


def test_state_is_formula_plus_terms_to_the_byte_on_every_rank(comparison: Comparison) -> None:
    for row in comparison.rows:
        assert [rank["rank"] for rank in row["ranks"]] == list(range(row["world_size"]))
        for rank in row["ranks"]:
            assert total(rank["state"]) - total(row["formula"]) == total(rank["terms"]), (row["stage"], rank)
        assert row["state"] == row["ranks"][0]["state"]
        assert row["terms"] == row["ranks"][0]["terms"]


def test_the_peak_holds_the_state(comparison: Comparison) -> None:
    for row in comparison.rows:
        for rank in row["ranks"]:
            assert total(rank["peak"]) >= total(rank["state"])


def test_logical_traffic_is_the_formula_up_to_padding(comparison: Comparison) -> None:
    for row in comparison.rows:
        flats, passes = 8, theory.PASSES[row["stage"]]  # at most N - 1 elements of padding a flat, 4 bytes each
        padding = passes * flats * 4 * row["world_size"]
        frozen = 4 * 35 * passes if row["terms"]["frozen"] else 0  # what is frozen is never reduced
        assert -frozen <= row["traffic"]["logical_bytes"] - row["traffic"]["formula_bytes"] <= padding


def test_a_table_shows_nothing_unexplained_and_no_seconds(comparison: Comparison) -> None:
    table = comparison.table()
    assert [row["unexplained"] for row in table] == [0] * len(theory.STAGES)
    assert "seconds" not in str(table)
    assert repr(comparison) == str(table)
    assert all(row["step_seconds"] > 0 for row in comparison.rows)


def test_bytes_have_units_and_are_there_exactly_too(comparison: Comparison) -> None:
    row = comparison.rows[0]
    state = total(row["state"])
    assert f" {show_bytes(state)} " in str(comparison.table())
    assert f" {state:,} " in str(comparison.table(exact=True))
    assert comparison.table()[0]["state"] == state
    assert max(map(len, str(comparison.table()).splitlines())) <= 130


def test_seconds_come_with_their_range_and_say_what_they_are(comparison: Comparison) -> None:
    for row, shown in zip(comparison.rows, comparison.table(), strict=True):
        seconds = comparison.seconds[row["stage"]]
        assert len(seconds) == 2, "of three steps the first makes Adam's state"
        assert row["step_seconds"] == median(seconds)
        assert (shown["fastest_seconds"], shown["slowest_seconds"]) == (min(seconds), max(seconds))
    assert "the median of 2 steps; stages whose ranges overlap may be alike" in str(comparison.table(times=True))


def test_recordings_come_by_stage(comparison: Comparison) -> None:
    assert list(comparison.recordings) == list(theory.STAGES)
    assert comparison.recordings["zero3"].world_size == comparison.rows[0]["world_size"]


@pytest.mark.slow
def test_gpt_10m_on_four_ranks_sends_what_the_algorithm_must_and_no_more() -> None:
    rows = compare(world_size=4, model="gpt-10m", steps=2, device="cpu").rows
    for row in rows:
        assert row["losses"] == pytest.approx(rows[0]["losses"], abs=1e-5, rel=0)
        assert row["traffic"]["wire_bytes"] <= 1.02 * row["traffic"]["logical_bytes"]
        assert row["traffic"]["logical_bytes"] == pytest.approx(row["traffic"]["formula_bytes"], rel=0.02)
        for rank in row["ranks"]:
            assert total(rank["state"]) - total(row["formula"]) == total(rank["terms"])


def test_frozen_parameters_are_named_as_what_the_formula_counts_too_much() -> None:
    (row,) = compare(["zero1"], world_size=2, model=half_frozen, batches=BATCHES, steps=2, device="cpu").rows
    assert row["num_params"] == 35 + 56 + 24
    assert row["terms"]["frozen"] == -(4 * 35 + 8 * 35 // 2)


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "offload"), [("fp32", False), ("fp32", True), ("bf16", False)])
def test_parameters_that_are_not_fp32_have_a_term_of_their_own(precision: str, offload: bool) -> None:
    for row in train_wide(precision, {"offload": offload}).rows:
        assert row["terms"]["other_dtypes"] > 0  # the head is twice as wide
        for rank in row["ranks"]:
            assert total(rank["state"]) - total(row["formula"]) == total(rank["terms"]), (row["stage"], rank)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "options"),
    [
        ("fp32", {"amsgrad": True}),
        ("fp32", {"reduce_dtype": torch.bfloat16, "offload": True}),
        ("bf16", {"reduce_dtype": torch.float32, "amsgrad": True}),
    ],
)
def test_what_an_option_adds_to_moments_or_gradients_has_a_term_of_its_own(precision: str, options: Any) -> None:
    for row in train_wide(precision, options).rows:
        named = {"amsgrad", "reduce_dtype"} & options.keys()
        assert named <= {name for name, size in row["terms"].items() if size}
        for rank in row["ranks"]:
            assert total(rank["state"]) - total(row["formula"]) == total(rank["terms"]), (row["stage"], rank)


@pytest.mark.slow
def test_units_and_groups_of_ones_own_change_the_padding_and_leave_nothing_unexplained() -> None:
    options = {"units": ["2"], "param_groups": [(lambda _, parameter: parameter.ndim < 2, {"weight_decay": 0.0})]}
    compared = compare(world_size=3, model=half_frozen, batches=BATCHES, steps=2, device="cpu", options=options)
    assert [row["unexplained"] for row in compared.table()] == [0] * len(theory.STAGES)


class TwoInputs(nn.Module):
    """A model of one's own: named inputs, and an output that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        for block in self.blocks:
            x = block(x).tanh()
        return {"answer": x * weight}


@pytest.mark.slow
def test_a_model_of_ones_own_is_compared_with_its_own_loss_and_batches() -> None:
    def loss_fn(outputs: dict[str, torch.Tensor], targets: torch.Tensor) -> torch.Tensor:
        return (outputs["answer"] - targets).abs().mean()

    batches = [({"x": inputs, "weight": torch.full((6, 1), 2.0)}, inputs.cos()) for inputs, _ in BATCHES]
    compared = compare("ddp,zero3,fsdp2", 2, TwoInputs, batches, 3, device="cpu", loss_fn=loss_fn)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        first = loss_fn(TwoInputs()(**batches[0][0]), batches[0][1]).item()
    for row in compared.rows:
        assert row["losses"][0] == pytest.approx(first, abs=1e-6)
        assert row["losses"] == pytest.approx(compared.rows[0]["losses"], abs=1e-5)
    assert [row["unexplained"] for row in compared.table()] == [0, 0, 0]


def test_record_is_the_same_training_alone() -> None:
    recording = record("zero2", world_size=2, model="mlp-odd", steps=2, device="cpu", moments="8-bit")
    assert recording.rank(0).info.moments == "8-bit"
    assert recording.info.stage == "zero2"
    assert recording.num_params == 343
    assert len(recording.results) == 2


def test_record_takes_a_model_batches_and_options_as_compare_does() -> None:
    inputs = torch.randn(4, 6)
    batches = [(inputs, inputs[:, :5].sin())] * 2
    recording = record(
        "zero3",
        2,
        models.mlp_odd,
        2,
        batches=batches,
        precision="bf16",
        device="cpu",
        options={"release_after_forward": False},
        loss_fn=lambda outputs, targets: (outputs.float() - targets).abs().mean(),
    )
    assert recording.info.precision == "bf16"
    gathers = [e for e in recording.ranks[0].events if e.kind == "collective" and e.op == "all_gather" and e.step == 2]
    assert len(gathers) == 3, "each unit once: it stays whole from forward to backward"
    with pytest.raises(TypeError, match="loss_fn is 3"):
        record("zero3", 2, loss_fn=3)  # type: ignore[arg-type]


def overflowing() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))


@pytest.mark.slow
def test_steps_that_fp16_skips_are_steps_and_the_state_is_that_of_the_last_update() -> None:
    def steep(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return 40 * nn.functional.mse_loss(outputs, targets.to(outputs.dtype))

    rows = torch.ones(4, 4)
    keywords: dict[str, Any] = {"precision": "fp16", "device": "cpu", "loss_fn": steep}
    compared = compare("zero2,fsdp2", 2, overflowing, [(rows, -rows)] * 8, 8, **keywords)
    assert [row["unexplained"] for row in compared.table()] == [0, 0]
    for recording in compared.recordings.values():
        updates = [event.step for event in recording.ranks[0].events if (event.kind, event.op) == ("optimizer", "step")]
        assert recording.info.steps == 8
        assert 1 not in updates
        assert updates[-1] == 8
    with pytest.raises(RuntimeError, match="zero2 has made fewer than two updates in 3 steps, because gradients over"):
        compare("zero2", 2, overflowing, [(rows, -rows)] * 3, 3, **keywords)


def test_recordings_are_saved_beside_each_other_and_played_by_the_name_of_the_stage(tmp_path) -> None:
    simulation = simulate("ddp,zero3", 2, "mlp-odd")
    written = simulation.save(tmp_path / "run.json")
    assert [path.name for path in written] == ["run-ddp.json", "run-zero3.json"]
    assert [Recording.load(path).info.stage for path in written] == ["ddp", "zero3"]
    assert repr(simulation.play("zero3")).startswith("player: zero3 on 2 ranks, simulated")
    both = simulation.play()
    assert (both._recording, both._other) == (simulation.recordings["ddp"], simulation.recordings["zero3"])
    with pytest.raises(ValueError, match=r"unknown stage of this comparison 'zero1': choose one of ddp, zero3"):
        simulation.play("zero1")
    with pytest.raises(ValueError, match="are 3 stages: the player shows one or two"):
        simulation.play("ddp", "zero3", "ddp")
    (alone,) = simulate("ddp", 2, "mlp-odd").save(tmp_path / "alone.json")
    assert alone == tmp_path / "alone.json"


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"world_size": 0}, "world size is 0"),
        ({"stages": ["zero7"]}, "unknown stage 'zero7'"),
        ({"stages": []}, "no stages were named"),
        ({"model": "resnet"}, "unknown model 'resnet'"),
        ({"model": nn.Linear(2, 2)}, "model is a Linear: pass a model's name, or a function that returns a module"),
        ({"model": nn.Identity}, "Identity has no parameters"),
        ({"model": lambda: None}, "not a torch.nn.Module"),
        ({"model": half_frozen}, "pass batches="),
        ({"model": half_frozen, "batches": BATCHES, "steps": 4}, "there are 3 batches for 4 steps"),
        ({"model": half_frozen, "batches": BATCHES, "steps": 3}, "batch 0 has 6 rows for 4 ranks"),
        ({"model": half_frozen, "batches": [torch.ones(6, 4)] * 5}, "batch 0 is a Tensor: pass pairs"),
        ({"model": half_frozen, "batches": [({"input": 1}, 2)] * 5}, "the inputs of batch 0 are a dict"),
        ({"model": "mlp-odd", "loss_fn": "mse"}, "loss_fn is 'mse': pass a function"),
        ({"stages": None}, "stages is None: pass names"),
        ({"steps": 1}, "steps is 1: take at least 2"),
        ({"steps": 2.5}, "steps is 2.5: take at least 2, whole ones"),
        ({"steps": "3"}, "steps is '3': take at least 2, whole ones"),
        ({"model": half_frozen, "batches": iter(BATCHES)}, "batches is a list_iterator, which has no length: pass a"),
        ({"model": half_frozen, "batches": (batch for batch in BATCHES)}, "batches is a generator, which has no leng"),
        ({"options": ["lr"]}, r"options is \['lr'\]: pass a mapping of names to values, such as {'lr': 0.001}"),
        ({"options": {"lr": float("nan")}}, "AdamW refuses {'lr': nan}: Invalid learning rate: nan"),
        ({"options": {"betas": (0.9, 1.5)}}, r"AdamW refuses {'betas': \(0.9, 1.5\)}: Invalid beta parameter"),
        ({"options": {"units": 3}}, "units is 3: pass a list of module names"),
        ({"precision": "fp8"}, "unknown precision 'fp8': choose one of fp32, bf16"),
        ({"device": "tpu", "model": "mlp-odd"}, "tpu"),
    ],
)
def test_bad_input_gets_a_sentence_before_any_rank_starts(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        compare(**keywords)


def test_a_function_that_gives_other_numbers_of_batches_trains_the_steps_that_were_asked_for() -> None:
    def endless(world_size: int, rank: int, steps: int) -> Iterator[Any]:
        return (BATCHES[step % 3] for step in count())

    given: dict[str, Any] = {"world_size": 1, "model": half_frozen, "device": "cpu"}
    assert record("zero1", steps=2, batches=endless, **given).info.steps == 2
    with pytest.raises(RankError, match=r"batches\(world_size=1, rank=0, steps=4\) gave 3 batches: give one per step"):
        record("zero1", steps=4, batches=lambda *_: BATCHES, **given)


@pytest.mark.parametrize("call", [record, compare])
def test_what_cannot_go_to_the_ranks_is_refused_by_the_name_of_what_trains(call: Callable[..., object]) -> None:
    lock, large = threading.Lock(), torch.zeros(80_000_000)

    def locked(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with lock:
            return models.loss(outputs, targets)

    def heavy() -> nn.Module:
        model = nn.Linear(4, 3)
        model.register_buffer("table", large)
        return model

    given: dict[str, Any] = {"world_size": 1, "batches": BATCHES, "steps": 2, "device": "cpu"}
    with pytest.raises(TypeError, match=r"^train cannot be sent to the ranks because of lock, which locked uses"):
        call("zero1", model=half_frozen, loss_fn=locked, **given)
    with pytest.raises(ValueError, match=r"^train carries 320\.0 MB to each rank, most of it in argument model"):
        call("zero1", model=heavy, **given)


def total(sizes: dict[str, int]) -> int:
    return sum(sizes.values())
