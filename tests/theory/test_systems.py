"""Other systems beside the formulas: the same losses, and every byte of their state shown by themselves."""

from functools import partial
from importlib.util import find_spec

import pytest
import torch
from test_comparison import half_frozen, total

from zerolab import Cluster, theory
from zerolab.comparison import compare, record, train
from zerolab.theory import systems

pytestmark = pytest.mark.slow  # the ranks import FSDP first, which takes seconds
BATCHES = [(torch.randn(4, 4, generator=torch.Generator().manual_seed(step)), torch.arange(4) % 3) for step in range(2)]
TORCH = ("torch-ddp", "torch-zero1", "fsdp1", "fsdp2", "hsdp")


@pytest.fixture(scope="module")
def comparison():
    return compare(("ddp", *TORCH), world_size=2, model="mlp-odd", steps=3, device="cpu")


def test_they_learn_what_ddp_learns(comparison):
    for row in comparison.rows[1:]:
        assert row["losses"] == pytest.approx(comparison.rows[0]["losses"], abs=1e-5, rel=0)


def test_state_is_formula_plus_named_terms_on_every_rank_and_nothing_is_left_unshown(comparison):
    for row in comparison.rows[1:]:
        for rank in row["ranks"]:
            assert total(rank["state"]) - total(row["formula"]) == total(rank["terms"])
            assert rank["terms"]["not_shown"] == 0
        assert row["terms"] == row["ranks"][0]["terms"]


def test_ddp_has_a_counter_a_parameter_and_nothing_else_beyond_the_formula(comparison):
    row = comparison.rows[1]
    assert {name: value for name, value in row["terms"].items() if value} == {"step_counters": 4 * 6}
    assert row["peak"]["communication"] == 4 * 343  # the buckets, in which every gradient lies once more


def test_what_one_rank_has_too_much_of_another_has_too_little_of(comparison):
    rows = {row["stage"]: row for row in comparison.rows}
    more = [rank["terms"]["more_optimizer_state"] for rank in rows["torch-zero1"]["ranks"]]
    assert sum(more) == 0
    assert max(more) > 0


def test_the_table_has_a_row_for_each_and_nothing_unexplained(comparison):
    table = comparison.table()
    assert [row["stage"] for row in table] == ["ddp", *TORCH]
    assert {row["unexplained"] for row in table} == {0}


def test_a_recording_of_another_system_has_its_formula_and_its_page(tmp_path):
    recording = record("fsdp2", world_size=2, model="mlp-odd", steps=2, device="cpu")
    assert recording.info.stage == "fsdp2"
    assert recording.info.formula == theory.state_bytes("zero3", 343, 2)
    recording.to_html(tmp_path / "fsdp2.html")
    assert (tmp_path / "fsdp2.html").stat().st_size > 10_000


def test_frozen_parameters_are_a_term_of_their_own():
    rows = compare(("zero3", *TORCH[:4]), world_size=2, model=half_frozen, batches=BATCHES, steps=2, device="cpu").rows
    for row in rows:
        assert row["losses"] == pytest.approx(rows[0]["losses"], abs=1e-5, rel=0)
        assert row["terms"]["frozen"] < 0
        assert row["terms"].get("not_shown", 0) == 0


def test_hsdp_is_zero3_on_half_the_ranks_and_one_pass_between_the_halves():
    assert systems.state_bytes("hsdp", 1000, 8, "fp32") == theory.state_bytes("zero3", 1000, 4)
    within = theory.traffic_bytes("zero3", 1000, 4)
    assert systems.traffic_bytes("hsdp", 1000, 8, "fp32") == within + 2 * 4 * 250 // 2
    for form in (systems.state_bytes, systems.traffic_bytes):
        with pytest.raises(ValueError, match="unknown stage 'fsdp3': did you mean 'fsdp2', 'fsdp1' or 'hsdp'"):
            form("fsdp3", 1000, 8, "fp32")


def test_fsdp_gathers_the_root_once_and_sends_what_the_formula_says():
    thrice, twice = (systems.traffic_bytes("fsdp2", 1000, 8, "fp32", root=root) for root in (0, 160))
    assert thrice - twice == 4 * 160 * 7 // 8
    for row in compare(("fsdp1", "fsdp2", "muon-rows"), world_size=2, model="gpt-tiny", steps=2, device="cpu").rows:
        assert row["traffic"]["logical_bytes"] == row["traffic"]["formula_bytes"], row["stage"]


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"stages": "hsdp", "world_size": 3}, "hsdp needs two halves of equal size, and 3 ranks have none"),
        ({"stages": "torch-ddp", "precision": "bf16"}, "torch-ddp has no bf16 with fp32 masters"),
        ({"stages": "deepspeed-0", "precision": "fp16"}, "deepspeed-0 has no fp16 with fp32 masters"),
        ({"stages": "fsdp3"}, "unknown stage 'fsdp3': did you mean 'fsdp2', 'fsdp1' or 'hsdp'"),
    ],
)
def test_what_a_system_cannot_do_is_refused_before_any_rank_starts(keywords, message):
    with pytest.raises(ValueError, match=message):
        compare(model="mlp-odd", steps=2, device="cpu", **keywords)


def squares(depth, width):
    """Matrices without a bias, whose rows are of tokens, as a Llama's are."""
    return torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(depth)))


def test_deepspeeds_zero3_has_its_part_of_the_gradients_at_all_times_and_torchs_linear_keeps_its_weights_whole(require):
    """The closed form counts the first; docs/published-runs.md says what the second does to a run."""
    require(find_spec("deepspeed"), "DeepSpeed", 'pip install -c constraints.txt -e ".[deepspeed]"')
    depth, width, batch = 12, 64, (torch.ones(2, 4, 64), torch.ones(2, 4, 64))
    gathered, nothing_stays = {}, {"stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0}
    with Cluster(world_size=2, device="cpu") as cluster:
        for saves in (True, False):
            options = {"zero_optimization": nothing_stays | {"memory_efficient_linear": saves}}
            run = partial(
                train,
                "deepspeed-3",
                partial(squares, depth, width),
                lambda _world_size, _rank, steps: [batch] * steps,
                2,
                device="cpu",
                precision="bf16",
                options=options,
            )
            live = cluster.record(run).rank(0).info.peaks["forward"]
            assert live["gradients"] == 2 * depth * width**2 / 2
            gathered[saves] = live["parameters"] + live["communication"]
    # Without its own, all of them; with it, the last ones.
    assert gathered[False] - gathered[True] == pytest.approx(2 * depth * width**2, rel=0.3)
