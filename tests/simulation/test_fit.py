"""fit: what is answered about a model of one's own, and what is refused."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from on_cpus import CPU
from own_models import MODELS, Adapters, ConvNet, llama, tied_gpt
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.utils.checkpoint import CheckpointPolicy

import zerolab
from zerolab import Table, catalog, cli, fit
from zerolab.simulation.found import MOST

TOKENS = torch.zeros(2, 16, dtype=torch.int64)
PAGE = Path(__file__).parents[2] / "docs" / "your-own-model.md"
ROOM = catalog.CONTEXT_BYTES + 4e6  # 4 MB for tensors


def keep_products(_context, func, *_arguments, **_keywords):
    kept = func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def questions():
    return [line.split(" | ") for line in PAGE.read_text().splitlines() if re.match(r"\| .* \| `(found|zerolab)", line)]


@pytest.fixture(scope="module")
def asked():
    """The names that the page's calls use."""
    batch = TOKENS
    found = fit(tied_gpt, 8, inputs=batch, memory=ROOM)
    bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    fp32 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    names = {"found": found, "zerolab": zerolab, "make_model": tied_gpt, "batch": batch, "keep_products": keep_products}
    return names | {"bf16": bf16, "bf16_reduced_in_fp32": fp32}


@pytest.mark.parametrize("question", questions(), ids=lambda parts: parts[0].strip("| "))
def test_a_question_of_the_page_is_answered_by_its_call(asked, question):
    call = re.search(r"`(.*)`", question[1])[1]
    answer = eval(call, asked)  # noqa: S307  (the page is ours)
    assert answer
    if isinstance(answer, Table):
        needs = [row["needs"] for row in answer if "needs" in row]
        assert all(size > 0 for size in needs)
        assert len(answer) > 1 or "blocks.0" in call


@pytest.mark.slow
def test_answers_follow_from_the_model(asked):
    found = asked["found"]
    gathered, kept = (row["needs"] for row in found.over("reshard_after_forward", [True, False], "fsdp2", "none"))
    assert kept >= gathered
    none, block = (found.cell("fsdp2", how).seen["kept"]["blocks.0"] for how in ("none", "block"))
    assert none > 3 * block
    most = found.most("rows", "fsdp2", "none")
    assert [row["fits"] for row in found.over("rows", [most, most + 1], "fsdp2", "none")] == [True, False]
    assert "tied" not in found.blocks
    assert found.blocks == "3 Block (blocks.0 to blocks.2)"
    assert all(cell.with_offload < cell.needs for cell in found.cells)


def test_what_the_allocator_reserves_holds_the_highest_moment_and_its_holes(asked):
    found = asked["found"]
    for cell, row in zip(found.cells, found.reserved, strict=True):
        plain, expandable = cell.seen["allocators"]
        assert (row["reserved"], row["in expandable segments"]) == (plain.peak_reserved, expandable.peak_reserved)
        assert row["needs"] <= plain.peak_allocated <= row["reserved"]
        assert plain.allocated == expandable.allocated
        assert row["reserved"] % 2**21 == 0


def test_fake_tensors_by_which_dtensor_learns_shapes_take_no_memory():
    # Of shapes that no other test has: what DTensor has learnt of an operation it remembers for the whole process.
    found = fit(lambda: nn.Linear(37, 4_099), 8, inputs=torch.zeros(2, 37), stages="fsdp2", checkpointing="none")
    at_update = [
        event.live["other"] for event in found.cells[0].recording.events if event.phase == "step" and event.step == 1
    ]
    shard = 4 * 38 * (4_099 + 5) // 8
    assert 2 * shard <= max(at_update) < 5 * shard, "moments that were just made, and AdamW's temporary tensors"


class DependsOnValues(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, rows):
        return self.layer(rows) if rows.sum() > 0 else rows


def test_a_model_that_does_not_run_reserves_nothing_known():
    found = fit(DependsOnValues, 2, inputs=torch.zeros(2, 4), stages="zero1", checkpointing="none")
    assert {row["reserved"] for row in found.reserved} == {None}


def test_what_a_rank_has_of_each_unit_adds_up_to_its_parameters_padding_included():
    def odd():
        return nn.Sequential(nn.Linear(9, 9), nn.Linear(9, 9), nn.Linear(9, 3))

    found = fit(
        odd, 8, inputs=torch.zeros(2, 9), units=["0", "1"], stages="zero3", precision="bf16", checkpointing="none"
    )
    assert sum(row["one rank's"] for row in found.units()) == found[0]["parameters"]


@pytest.mark.slow
def test_terms_add_up_and_a_row_that_lacks_memory_says_what_to_change():
    found = fit(tied_gpt, 4, inputs=TOKENS, memory=catalog.CONTEXT_BYTES + 0.6e6)
    for row in found:
        assert row["needs"] == sum(row[name] for name in zerolab.simulation.needs.TERMS)
        assert row["fits"] is (row["needs"] <= found.usable)
        assert (row["first"] is None) is row["fits"]
    assert found.answer.startswith("Fits: ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("room", "rows", "remedy"),
    [
        (300e3, 4, r"It fits with 2 of 4 rows per rank: add up 2 micro-batches\."),
        (200e3, 2, r"With the optimizer in main memory it needs .* GB, and fits\."),
        (150e3, 2, r"It fits on 64 GPUs\."),
        (1e3, 2, r"Not even 4096 GPUs would help"),
    ],
)
def test_where_nothing_fits_it_says_what_helps(room, rows, remedy):
    found = fit(tied_gpt, 4, rows=rows, length=16, memory=catalog.CONTEXT_BYTES + room)
    assert not found.fitting
    assert found.answer.startswith("No: even zero3 in bf16 checkpointing block lacks ")
    assert re.search(remedy, found.answer), found.answer


@pytest.mark.slow
def test_as_many_rows_as_it_advises_fit_with_as_many_micro_batches():
    """From the second on FSDP2 has the gradients of the first: here one micro-batch of 2 rows fits, and two do not."""
    given = {"length": 16, "memory": catalog.CONTEXT_BYTES + 340e3, "stages": "fsdp2", "checkpointing": "none"}
    assert fit(tied_gpt, 4, rows=2, **given).fitting
    assert not fit(tied_gpt, 4, rows=2, micro_batches=2, **given).fitting
    for micro_batches, total in ((1, 4), (3, 12)):
        found = fit(tied_gpt, 4, rows=4, micro_batches=micro_batches, **given)
        assert f"It fits with 1 of 4 rows per rank: add up {total} micro-batches." in found.answer
        assert fit(tied_gpt, 4, rows=1, micro_batches=total, **given).fitting


@pytest.mark.slow
@pytest.mark.parametrize(
    ("room", "remedy", "followed"),
    [
        (290e3, "1 of 8 rows per rank as a whole step: two micro-batches need more.", (4, 1)),
        (250e3, "1 of 8 rows per rank on 16 GPUs: add up 8 micro-batches.", (16, 8)),
    ],
)
def test_where_micro_batches_do_not_fit_it_advises_a_smaller_step_or_more_gpus_too(room, remedy, followed):
    """It said that more GPUs would not help, having tried them with all 8 rows alone."""
    given = {"length": 16, "memory": catalog.CONTEXT_BYTES + room, "stages": "fsdp2", "checkpointing": "none"}
    assert fit(tied_gpt, 4, rows=8, **given).answer.endswith(f" It fits with {remedy}")
    world_size, micro_batches = followed
    assert fit(tied_gpt, world_size, rows=1, micro_batches=micro_batches, **given).fitting


def test_blocks_of_another_class_and_options_are_taken():
    found = fit(tied_gpt, 4, inputs=TOKENS, units="Attention", stages="fsdp2", checkpointing="none")
    assert found.blocks == "3 Attention (blocks.0.attention to blocks.2.attention)"
    only = fit(
        tied_gpt, 4, inputs=TOKENS, options={"reshard_after_forward": False}, gpus_per_node=2, checkpointing="none"
    )
    assert [cell.stage for cell in only.cells] == ["fsdp2", "hsdp"]


def test_a_module_that_exists_is_taken_as_it_is_and_keeps_its_values():
    model = ConvNet()
    before = model.head.weight.clone()
    found = fit(model, 2, inputs=torch.zeros(4, 3, 8, 8), stages="ddp,zero3", precision="fp32", checkpointing="none")
    assert torch.equal(model.head.weight, before)
    assert model.head.weight.device.type == "cpu"
    assert found.fitting


def test_a_stage_that_refuses_the_model_is_left_out_with_its_reason():
    found = fit(ConvNet, 2, inputs=torch.zeros(4, 3, 8, 8), checkpointing="none")
    assert [cell.stage for cell in found.cells] == ["fsdp2"]
    assert "zero3 in bf16 is left out: 'blocks.0.1' is a BatchNorm2d" in str(found)
    with pytest.raises(ValueError, match="use precision='fp32'"):
        fit(ConvNet, 2, inputs=torch.zeros(4, 3, 8, 8), stages="zero3", checkpointing="none")


def test_settings_name_the_blocks_and_the_mesh():
    found = fit(llama, 4, inputs=TOKENS, stages="fsdp2,hsdp,zero2", gpus_per_node=2, checkpointing="none")
    assert "['LlamaBlock']" in found.settings("fsdp2")["fsdp2"]
    assert "fsdp_transformer_layer_cls_to_wrap: LlamaBlock" in found.settings("fsdp2")["accelerate"]
    assert "(2, 2)" in found.settings("hsdp")["fsdp2"]
    assert found.settings("zero2")["deepspeed"]["zero_optimization"]["stage"] == 2
    assert "fully_shard(model, mp_policy=policy)" in found.settings("fsdp2")["fsdp2"]
    for stage in ("fsdp2", "hsdp"):
        compile(found.settings(stage)["fsdp2"], stage, "exec")


def test_settings_name_no_other_modules_than_the_blocks():
    def layers():
        return nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(2)))

    found = fit(layers, 2, inputs=torch.zeros(4, 8), stages="fsdp2", checkpointing="none").settings()
    named = {"model": layers()}
    exec(found["fsdp2"].splitlines()[0], named)  # noqa: S102  (the line is what is tested)
    assert named["blocks"] == list(named["model"])
    assert "cls_to_wrap" not in found["accelerate"]
    assert "Accelerate wraps classes" in found["not covered"]


def test_settings_have_what_was_asked_for_or_say_that_they_lack_it():
    given = {"inputs": TOKENS, "stages": "fsdp2", "checkpointing": "none"}
    kept = fit(llama, 4, options={"reshard_after_forward": False}, **given).settings()
    assert "fully_shard(block, reshard_after_forward=False, mp_policy=policy)" in kept["fsdp2"]
    assert "fully_shard(model, mp_policy=policy)" in kept["fsdp2"], "the root is kept anyway"
    assert "fsdp_reshard_after_forward: false" in kept["accelerate"]
    assert kept["deepspeed"]["zero_optimization"]["stage"] == 2
    for reshard in (2, True):  # the engine gives it to the root, too
        lines = fit(llama, 4, options={"reshard_after_forward": reshard}, **given).settings()["fsdp2"]
        assert f"fully_shard(block, reshard_after_forward={reshard}, mp_policy=policy)" in lines
        assert f"fully_shard(model, reshard_after_forward={reshard}, mp_policy=policy)" in lines
    offloaded = fit(llama, 4, micro_batches=4, **given | {"stages": "zero2"}).settings(offload=True)
    assert offloaded["deepspeed"]["zero_optimization"]["offload_optimizer"] == {"device": "cpu"}
    assert offloaded["deepspeed"]["gradient_accumulation_steps"] == 4
    assert offloaded["not covered"].startswith("4 micro-batches a step: ")
    policy = fit(llama, 4, **given | {"checkpointing": keep_products, "options": {"mp_policy": MixedPrecisionPolicy()}})
    checkpointing, option = policy.settings()["not covered"].splitlines()
    assert checkpointing == "Checkpointing keep_products: apply it to the blocks yourself, as you gave it to fit."
    assert option.startswith("The option mp_policy=MixedPrecisionPolicy(")
    assert fit(llama, 4, **given).settings()["not covered"] is None


def test_frozen_parameters_have_no_optimizer_state():
    row = fit(Adapters, 1, inputs=torch.zeros(4, 24), stages="ddp", precision="fp32", checkpointing="none")
    cell = row.cells[0]
    trained = sum(p.numel() for p in Adapters().parameters() if p.requires_grad)
    assert cell.terms["optimizer_state"] == 8 * trained + 4 * 3  # a step counter for each of the three blocks


def lazy():
    return nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, 8))


class ReadsAUnit(nn.Module):
    """Adds a parameter of a unit outside of its forward, where FSDP2 has only the shard."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x + self.blocks[0].bias


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else self.layer(-x)


class Reading(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(int(torch.tensor([4.0, 8.0]).max()), 8)

    def forward(self, x):
        return self.layer(x)


def test_a_model_whose_way_depends_on_values_is_answered_with_its_state():
    found = fit(Branching, 2, inputs=torch.zeros(4, 8), checkpointing="none", precision="fp32")
    assert "needs values" in found.answer
    assert found[0]["activations"] is None
    assert found[0]["parameters"] == 4 * 80  # padded as over NCCL
    with pytest.raises(ValueError, match="what fits is unknown"):
        found.most("rows")


@pytest.mark.parametrize("name", ["units", "options"])
def test_what_is_of_another_type_is_said_in_a_sentence(name):
    with pytest.raises(TypeError, match=f"{name} is 5: pass a "):
        fit(Branching, 2, inputs=torch.zeros(4, 8), **{name: 5})


def test_a_model_that_cannot_be_built_on_shapes_can_be_passed_as_a_module():
    with pytest.raises(ValueError, match="pass the module in place of the function"):
        fit(Reading, 2, inputs=torch.zeros(4, 8))
    assert fit(Reading(), 2, inputs=torch.zeros(4, 8), stages="ddp", checkpointing="none").fitting


SCRIPT = """
import argparse
from torch import nn
parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=13)
width = parser.parse_args().width
def make_model(): return nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 5))
def needing(config): return make_model()
def no_model(): return 3
if __name__ == "__main__": raise SystemExit("this would train")
"""
BAD = {
    "no such function": ("train.py:make_modle", "did you mean 'make_model'"),
    "needs arguments": ("train.py:needing", r"needing needs arguments \(config\)"),
    "returns no model": ("train.py:no_model", "returned a int, not a torch.nn.Module"),
    "no such file": ("trian.py:make_model", "'trian.py' does not exist: write the file and the function"),
    "a script without a guard": ("trains.py:make_model", "importing trains.py raised ValueError"),
    "no configuration": ("nothing.json", "cannot be read as a configuration"),
    "no model_type": ("plain.json", "has no model_type"),
    "unknown model_type": ("unknown.json", "did you mean 'llama'"),
    "unlike inputs": ("train.py:make_model --inputs 4x512:int64", r"was given int64 \[4, 512\]"),
    "no such dtype": ("train.py:make_model --inputs 4x6:int63", "'int63' is no dtype"),
    "no such card": ("train.py:make_model --gpu h1000", "did you mean 'h100'"),
    "no such class": ("train.py:make_model --inputs 4x6 --units Linaer", "did you mean 'Linear'"),
    "no such stage": ("train.py:make_model --inputs 4x6 --stages zero4", "unknown stage 'zero4'"),
    "no checkpointing": ("train.py:make_model --inputs 4x6 --checkpointing ,", "no checkpointings were named"),
    "no such checkpointing": ("train.py:make_model --inputs 4x6 --checkpointing all", "unknown checkpointing 'all'"),
    "too little memory": ("train.py:make_model --memory 80", "it is in bytes"),
    "no function": ("train.py", "train.py is a file: write the function behind it, such as train.py:make_model"),
    "a size of 0": ("train.py:make_model --inputs 0x6", "'0x6' has a size of 0: write the batch as 4x512:int64"),
    "a length without tokens": ("train.py:make_model --inputs 4x6 --length 9", "have no tokens: leave length out"),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "trains.py").write_text("raise ValueError('it trains')")
    (tmp_path / "plain.json").write_text("{}")
    (tmp_path / "unknown.json").write_text('{"model_type": "llamma"}')
    return tmp_path


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_used_is_refused_with_a_sentence(folder, capsys, case):
    given, sentence = BAD[case]
    assert cli.main(["fit", *given.split()]) == 2
    error = capsys.readouterr().err
    assert re.search(sentence, error), error
    assert error.count("\n") == 1
    assert "Traceback" not in error


def test_the_command_prints_the_table_the_answer_and_settings(folder, capsys):
    given = ["fit", "train.py:make_model", "--inputs", "4x6", "--stages", "zero2,fsdp2", "--world-size", "2"]
    assert cli.main([*given, "--settings", "--checkpointing", "none"]) == 0
    printed = capsys.readouterr().out
    assert "blocks: 2 Linear (0 to 2)" in printed
    assert "Fits: zero2" in printed
    assert '"stage": 2' in printed
    assert cli.main([*given, "--json"]) == 0
    read = json.loads(capsys.readouterr().out)
    assert len(read["rows"]) == 6
    assert read["answer"].startswith("Fits: zero2")


def test_its_json_has_all_that_it_searches_and_prints(folder, capsys):
    given = ["fit", "train.py:make_model", "--inputs", "4x6", "--stages", "hsdp", "--checkpointing", "none"]
    more = ["--world-size", "4", "--gpus-per-node", "2", "--most", "--settings", "--json", "found.json"]
    assert cli.main([*given, *more]) == 0
    printed, read = capsys.readouterr().out, json.loads((folder / "found.json").read_text())
    assert list(read) == ["answer", "notes", "rows", "most", "settings"]
    chosen = {"stage": "hsdp", "precision": "bf16", "checkpointing": "none"}
    assert read["most"] == chosen | {"rows": read["most"]["rows"], "least_gpus": 4}
    assert read["most"]["rows"] == MOST
    assert "hsdp in bf16 without checkpointing: at least 1048576 rows per rank" in printed
    assert "and with the rows of the table on at least 4 GPUs" in printed
    assert "(2, 2)" in read["settings"]["fsdp2"]


def test_where_more_rows_were_tried_than_fit_the_most_that_fit_are_told(folder, capsys):
    given = ["train.py:make_model", "--inputs", "4x6", "--stages", "ddp", "--checkpointing", "none", "--most"]
    assert cli.main(["fit", *given, "--memory", "537e6", "--json", "found.json"]) == 0
    rows = json.loads((folder / "found.json").read_text())["most"]["rows"]
    assert 0 < rows < MOST
    assert f"at most {rows} rows per rank" in capsys.readouterr().out


@pytest.mark.slow
def test_a_configuration_of_hugging_face_needs_no_weights_and_no_network(folder, capsys, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 128, **sizes}
    (folder / "config.json").write_text(json.dumps(config))
    assert cli.main(["fit", ".", "--world-size", "4", "--rows", "2", "--length", "32", "--checkpointing", "none"]) == 0
    printed = capsys.readouterr().out
    assert "3 LlamaDecoderLayer (model.layers.0 to model.layers.2)" in printed
    make, inputs, _ = MODELS["llama of transformers"]
    assert fit(make, 2, inputs=inputs, stages="fsdp2", checkpointing="selective").fitting


def test_whole_gradients_between_micro_batches_are_named_where_plan_counts_others():
    asked = {"inputs": TOKENS, "stages": "fsdp2", "checkpointing": "none", "micro_batches": 4}
    whole, each = (fit(tied_gpt, 8, **asked, sync_each_batch=sync) for sync in (False, True))
    assert each.cell().needs < whole.cell().needs
    (note,) = whole.notes
    assert "until the last of 4 micro-batches" in note
    assert note in str(whole)
    assert not each.notes
    assert note.startswith("fsdp2 adds up ")
    advice = "set_requires_gradient_sync(False) before all but the last, and (True) before the last"
    assert advice in whole.settings()["not covered"], "the flag stays, and the last would not reduce either"
    assert "set_requires_gradient_sync" not in each.settings()["not covered"]
    assert not fit(tied_gpt, 8, **{**asked, "stages": "zero1"}).notes


def test_what_fsdp2_fills_up_is_named_where_it_is_much():
    def narrow():
        return nn.Sequential(nn.Linear(64, 96), nn.Linear(96, 64))

    asked = {"inputs": torch.zeros(2, 64), "stages": "fsdp2", "checkpointing": "none"}
    assert not fit(narrow, 16, **asked).notes
    (note,) = fit(narrow, 64, **asked).notes
    assert "to a multiple of 64: 17% more than the model has" in note


def test_a_table_over_one_size_names_what_plan_counts_otherwise_for_its_values():
    found = fit(tied_gpt, 2, inputs=TOKENS, stages="zero3,fsdp2", checkpointing="none")
    assert not found.notes
    assert "fsdp2 adds up whole gradients until the last of 2 " in str(found.over("micro_batches", [1, 2], "fsdp2"))
    assert "to a multiple of 64: " in str(found.over("world_size", [2, 64], "fsdp2"))
    assert "multiple" not in str(found.over("world_size", [2, 64], "zero3"))
    assert "gradients until" not in str(found.over("rows", [1, 2], "fsdp2"))


def test_what_cannot_be_run_is_refused_with_its_reason_and_a_stage_without_a_row_has_no_note():
    """The notes ask the model for the shapes of its parameters, which these have not."""
    with pytest.raises(ValueError, match="Sequential has no parameters: "):
        fit(lambda: nn.Sequential(nn.ReLU()), 8, inputs=torch.zeros(2, 64))
    with pytest.raises(RuntimeError, match=r"a step of lazy failed on shapes .* pass inputs="):
        fit(lazy, 8, inputs=torch.zeros(2, 64))
    with pytest.raises(RuntimeError, match=r"a step of lazy failed on shapes .* pass inputs="):
        fit(lazy, 8, inputs=torch.zeros(2, 64), stages="fsdp2")
    no_row = fit(ReadsAUnit, 2, inputs=torch.zeros(2, 8), checkpointing="none", micro_batches=2)
    assert "fsdp2" not in [cell.stage for cell in no_row.cells]
    assert not any("adds up" in note for note in no_row.notes)
    assert any(note.startswith("fsdp2 in bf16 with checkpointing none is left out: ") for note in no_row.notes)


@pytest.mark.parametrize("given", ["no", None, 2])
def test_sync_each_batch_is_true_or_false(given):
    with pytest.raises(ValueError, match=f"unknown sync_each_batch {given!r}: choose one of False, True"):
        fit(tied_gpt, 2, inputs=TOKENS, sync_each_batch=given)


@pytest.mark.parametrize("both", [{"gpu": "a100"}, {"network": "infiniband-hdr"}, {"gpus_per_node": 2}])
def test_hardware_beside_a_name_that_it_would_replace_is_refused(both):
    with pytest.raises(ValueError, match=f"hardware= says what {next(iter(both))} would: leave it out, or give it to"):
        fit(tied_gpt, 4, inputs=TOKENS, hardware=CPU, **both)


def test_on_cpus_torch_updates_one_tensor_after_the_other_as_hardware_says():
    asked = {"inputs": TOKENS, "stages": "zero3", "checkpointing": "none", "precision": "fp32"}
    on_gpus, on_cpus = (fit(tied_gpt, 2, **asked, **more) for more in ({}, {"hardware": CPU}))
    assert on_cpus.question.hardware is CPU
    assert on_cpus.cell().recording.info.peaks["step"]["other"] < on_gpus.cell().recording.info.peaks["step"]["other"]
    nodes = fit(tied_gpt, 4, **{**asked, "stages": "hsdp"}, hardware=replace(CPU, gpus_per_node=2))
    assert nodes.question.shards("hsdp") == 2
    with pytest.raises(TypeError, match="hardware is 'h100': pass a Hardware, or gpu"):
        fit(tied_gpt, 2, **asked, hardware="h100")
