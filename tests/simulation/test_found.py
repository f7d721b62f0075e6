"""fit: what follows from its table, and what it refuses."""

from functools import partial

import pytest
import torch
from own_models import llama, tied_gpt
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy

from zerolab import catalog, fit, theory
from zerolab.simulation.found import GPUS, MOST
from zerolab.simulation.needs import Question

TOKENS = torch.zeros(2, 16, dtype=torch.int64)
NUMBERS = torch.zeros(8, 64)


def layers(wide=64, hidden=256):
    return nn.Sequential(
        *[nn.Sequential(nn.Linear(wide, hidden), nn.GELU(), nn.Linear(hidden, wide)) for _ in range(4)]
    )


def ask(world_size=4, **given):
    asked = {"model": layers, "inputs": NUMBERS, "stages": "zero3", "checkpointing": "none"}
    return fit(world_size=world_size, **asked | given)


def test_offload_says_what_a_rank_needs_of_the_gpu_and_of_main_memory():
    """16 bytes of each parameter that it owns: fp32 masters, fp32 gradients and two moments, whatever the precision."""
    found = ask(stages="ddp,zero3,fsdp2", precision="fp32,bf16")
    psi, counters = sum(p.numel() for p in layers().parameters()), 1e-3
    rows = {(row["precision"], row["stage"]): row for row in found.offload()}
    for (_, stage), row in rows.items():
        owned = psi if stage == "ddp" else psi / 4
        assert row["in main memory"] == pytest.approx(16 * owned, rel=counters)
    for precision in ("fp32", "bf16"):
        # FSDP2's shards move with their optimizer; ZeRO's parameters stay.
        cells = {stage: found.cell(stage, "none", precision) for stage in ("zero3", "fsdp2")}
        moved = {stage: rows[precision, stage]["saves"] / psi for stage in cells}
        state = {stage: cell.state["optimizer_state"] / psi for stage, cell in cells.items()}
        assert moved["zero3"] >= state["zero3"] * (1 - counters)
        assert moved["fsdp2"] >= state["fsdp2"] + 4 / 4 * (1 - counters)
    assert "one rank's" in str(found.offload())


@pytest.mark.parametrize("stages", [None, "zero3", "fsdp2"])
def test_offload_is_no_option_for_all_memory_is_the_gpus(stages):
    """It made a row need more, or the model fail on shapes."""
    with pytest.raises(ValueError, match=r"options cannot have offload: .* ask found\.offload\(\)"):
        ask(stages=stages, options={"offload": True})


def test_neither_is_it_one_to_vary():
    with pytest.raises(ValueError, match=r"options cannot have offload: .* ask found\.offload\(\)"):
        ask().over("offload", [False, True])


@pytest.mark.parametrize(
    ("stages", "options", "says"),
    [
        ("zero2", {"nope": 1}, "unknown option of zero2 'nope': choose one of"),
        ("zero2", {"overlp": True}, "did you mean 'overlap'"),
        ("zero3,fsdp2", {"prefetch": 2}, "unknown option of fsdp2 'prefetch'"),
        (None, {"nope": 1}, "unknown option 'nope'"),
        (None, {"prefetch": 1, "mp_policy": None}, "no stage has all of prefetch, mp_policy"),
        ("zero2", {"precision": "bf16"}, "options cannot have precision: give it to fit itself"),
        (None, {"units": "Linear"}, "options cannot have units: give them to fit itself"),
        ("ddp", {"lr": 1.0}, "options cannot have lr: no size depends on it"),
    ],
)
def test_an_option_that_a_named_stage_does_not_have_is_refused_by_its_name(stages, options, says):
    with pytest.raises(ValueError, match=says):
        ask(stages=stages, options=options)


def test_hybrid_sharding_is_among_the_ranks_of_a_node():
    found = ask(16, stages="hsdp,fsdp2", gpus_per_node=4, precision="fp32")
    of_a_node, of_all = (found.cell(stage).state["parameters"] for stage in ("hsdp", "fsdp2"))
    assert of_a_node == 4 * of_all == 4 * sum(p.numel() for p in layers().parameters()) // 4
    calls = {(event.op, event.group) for event in found.cell("hsdp").recording.events if event.group}
    assert ("all_gather", (0, 1, 2, 3)) in calls
    assert ("all_reduce", (0, 4, 8, 12)) in calls
    assert "(4, 4)" in found.settings("hsdp")["fsdp2"]
    (unit,) = {row["one rank's"] for row in found.units("hsdp") if row["unit"] == "0"}
    assert unit == 4 * (2 * 64 * 256 + 256 + 64) // 4
    assert found.least_gpus("hsdp") == 8


@pytest.mark.parametrize(
    ("world_size", "gpus_per_node", "offered"), [(8, 8, False), (12, 8, False), (16, 8, True), (9, 3, True)]
)
def test_it_is_offered_where_there_are_several_nodes(world_size, gpus_per_node, offered):
    asked = {"gpus_per_node": gpus_per_node, "options": {"mp_policy": None}}  # of FSDP2's two alone
    assert ("hsdp" in [cell.stage for cell in ask(world_size, stages=None, **asked).cells]) is offered
    if not offered:
        with pytest.raises(ValueError, match=f"{world_size} are not several nodes of 8: give gpus_per_node"):
            ask(world_size, stages="hsdp", gpus_per_node=gpus_per_node)


def test_a_length_is_refused_where_rows_have_no_tokens():
    with pytest.raises(ValueError, match=r"the length is 100, and rows of float32 \[8, 64\] have no tokens"):
        ask(length=100)
    for call in (lambda: ask().most("length"), lambda: ask().over("length", [2, 4])):
        with pytest.raises(ValueError, match="have no tokens: leave length out"):
            call()


def test_no_answer_is_above_the_most_that_is_tried():
    assert fit(lambda: nn.Linear(1, 1), 1, inputs=torch.zeros(1, 1), stages="ddp", checkpointing="none").most() == MOST


def test_counts_may_be_whole_floats_and_truth_is_none():
    whole = ask(2.0, rows=2.0, micro_batches=2.0, gpus_per_node=8.0)
    assert list(whole) == list(ask(2, rows=2, micro_batches=2))
    assert whole.over("world_size", [4.0])[0]["needs"] == ask(4, rows=2, micro_batches=2)[0]["needs"]
    for given in ({"world_size": True}, {"rows": True}, {"micro_batches": 1.5}, {"rows": 0}):
        with pytest.raises(ValueError, match="must be a whole number, 1 or more"):
            ask(**given)
    with pytest.raises(ValueError, match=r"number of modules is -1"):
        ask().modules(-1)


def test_none_is_no_count():
    says = "is None: it must be a whole number, 1 or more"
    found = fit(tied_gpt, 2, inputs=TOKENS, stages="ddp", checkpointing="none")
    with pytest.raises(ValueError, match=f"the number of micro-batches {says}"):
        ask(micro_batches=None)
    for name in ("micro_batches", "world_size", "rows", "length"):
        with pytest.raises(ValueError, match=f"^the .* {says}"):
            found.over(name, [None])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"rows": 0}, "the number of rows is 0"),
        ({"micro_batches": 0}, "the number of micro-batches is 0"),
        ({"length": 0}, "the length is 0"),
        ({"length": "4"}, "the length is '4'"),
    ],
)
def test_a_count_is_refused_in_words(given, says):
    with pytest.raises(ValueError, match=f"^{says}: it must be a whole number, 1 or more"):
        fit(tied_gpt, 2, **{"inputs": TOKENS, "stages": "ddp", "checkpointing": "none"} | given)


@pytest.mark.parametrize(("name", "value"), [("precision", "fp32"), ("checkpointing", "block")])
def test_what_the_table_lacks_is_simulated_when_it_is_first_asked_for(name, value):
    forwards = []

    def loss(outputs, _targets):
        forwards.append(outputs.dtype)
        return outputs.square().mean()

    found = ask(loss_fn=loss)
    forwards.clear()
    first = list(found.over(name, [value]))
    assert forwards
    forwards.clear()
    assert list(found.over(name, [value])) == first
    assert not forwards


def test_of_several_precisions_each_can_be_asked_for():
    found = ask(precision="fp32,bf16", stages="ddp,fsdp2", memory=catalog.CONTEXT_BYTES + 4e6)
    for precision in ("fp32", "bf16"):
        chosen = {"stage": "fsdp2", "precision": precision}
        assert found.cell(**chosen).precision == precision
        assert found.settings(**chosen)["deepspeed"]["bf16"]["enabled"] is (precision == "bf16")
        assert found.units(**chosen)[1]["whole"] == (4 if precision == "fp32" else 2) * (2 * 64 * 256 + 256 + 64)
        assert found.units(**chosen)[1]["one rank's"] == 2 * 64 * 256 + 256 + 64  # fp32 shards, of four
        assert found.least_gpus(**chosen) == 1
        assert found.over("rows", [8], **chosen)[0]["needs"] == found.cell(**chosen).needs
    with pytest.raises(ValueError, match="unknown precision of this table 'fp16'"):
        found.cell(precision="fp16")
    assert found.units("ddp")[1]["one rank's"] == found.units("ddp")[1]["whole"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"precision": "bf16,bf16"}, "bf16 is named 2 times: name each precision once"),
        ({"precision": ""}, "no precisions were named: choose from fp32, bf16, fp16"),
        ({"checkpointing": ["none", "none"]}, "none is named 2 times: name each checkpointing once"),
        ({"checkpointing": []}, "no checkpointings were named: choose from none, selective, block"),
        ({"checkpointing": {}}, "checkpointing names no block"),
        ({"memory": 1e8}, r"the memory is 0\.1 GB, and CUDA itself takes 0\.537 GB of it"),
    ],
)
def test_what_says_nothing_or_says_it_twice_is_refused(given, says):
    with pytest.raises(ValueError, match=says):
        ask(**given)


def keeping(kept):
    def policy(_context, func, *_arguments, **_keywords):
        is_kept = kept and func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

    return policy


def test_policies_of_one_name_are_not_taken_for_each_other_and_are_asked_further():
    """Answers were kept by the name; and a question about a policy's row looked for a word of that name."""
    given = {"inputs": TOKENS, "rows": 64, "stages": "ddp"}
    found = fit(llama, 1, **given, checkpointing=keeping(kept=True))
    products, nothing = found.over("checkpointing", [keeping(kept=True), keeping(kept=False)])
    assert products["activations"] > nothing["activations"]
    assert products["needs"] == found[0]["needs"]
    (more,) = found.over("rows", [99])
    assert more["activations"] > products["activations"]
    with pytest.raises(ValueError, match="policy is named 2 times"):
        fit(llama, 1, **given, checkpointing=[keeping(kept=True), keeping(kept=False)])


def test_the_fewest_gpus_are_looked_for_from_below_for_with_more_a_rank_may_need_more():
    """FSDP2 fills up the first dimension to one row a rank; and a second shard on four ranks needs four."""
    found = ask(8, stages="fsdp2", options={"reshard_after_forward": 4})
    needs = {row["world_size"]: row["needs"] for row in found.over("world_size", [4, 8, 64, 1024])}
    assert needs[1024] > needs[4] > needs[8] > needs[64]
    for found.usable, least in ((needs[8], 8), (needs[4], 4), (needs[64] / 2, None)):
        assert found.least_gpus() == least


def test_what_an_engine_refuses_is_said_in_its_words_and_not_as_a_step_that_failed():
    with pytest.raises(TypeError, match=r"^overlap is 'yes': pass True or False$"):
        ask(options={"overlap": "yes"})


@pytest.mark.parametrize(("width", "hidden", "most"), [(64, 256, 5), (9, 21, len(GPUS))], ids=["even", "padded"])
def test_it_gives_up_on_more_gpus_where_none_would_fit_and_only_there(width, hidden, most, monkeypatch):
    found = ask(1, model=partial(layers, width, hidden), inputs=torch.zeros(8, width))
    needs = {row["world_size"]: row["needs"] for row in found.over("world_size", GPUS)}
    for found.usable in sorted(needs.values())[:2]:
        assert found.least_gpus() == next(count for count, need in needs.items() if need <= found.usable)

    tried, cell = [], Question.cell
    monkeypatch.setattr(Question, "cell", lambda *asked, **how: tried.append(asked) or cell(*asked, **how))
    found.usable /= 2
    assert found.least_gpus() is None
    assert len(tried) <= most


def test_a_row_for_which_the_table_has_nothing_better_leaves_it_to_the_answer():
    """It said `fewer rows, or more GPUs`: of one row, and where more GPUs do not help."""
    found = fit(tied_gpt, 4, length=16, memory=catalog.CONTEXT_BYTES + 1e3, stages="zero3", checkpointing="none")
    assert found[0]["first"] is None
    assert "Not even 4096 GPUs would help" in found.answer


def test_settings_with_the_optimizer_in_main_memory_are_asked_for():
    found = ask(stages="zero2,fsdp2")
    assert found.settings("zero2", offload=True)["deepspeed"]["zero_optimization"]["offload_optimizer"]
    assert "CPUOffloadPolicy" in found.settings("fsdp2", offload=True)["fsdp2"]
    assert theory.settings("zero2", offload=True)["accelerate"] == found.settings("zero2", offload=True)["accelerate"]


def test_what_a_units_forward_keeps_is_the_same_however_its_parameters_travel():
    """Under FSDP2 it was too little by what is gathered, and below 0 where nothing else was kept."""
    given = {"stages": "zero3,fsdp2", "checkpointing": ["none", "block"], "inputs": torch.zeros(8, 16, 64)}
    found = ask(4, **given)
    for how in ("kept, none", "kept, block"):
        kept = {stage: {row["unit"]: row[how] for row in found.units(stage)} for stage in ("zero3", "fsdp2")}
        assert kept["fsdp2"] == kept["zero3"]
        assert min(kept["zero3"].values()) > 0
