"""Sharded checkpoints: on any number of ranks, in any stage, to and from FSDP2, and in the background."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from awkward import shard_of
from resuming import assert_equal, engine_of, everything, fully_sharded, mse, odd, pairs_of, state_of, train, whole_of

import zerolab
from zerolab import AdamW8bit, latest_checkpoint
from zerolab.engines import ENGINES
from zerolab.recording.chrome import trace
from zerolab.theory import STAGES


def save_each(run):
    """Two steps of each stage, saved; what is in the checkpoints, and the losses of two more steps."""
    saved = {}
    for stage in STAGES:
        engine = engine_of(stage)
        train(engine, range(2))
        engine.save_sharded(f"{run}-{stage}", 2)
        saved[stage] = everything(engine), train(engine, range(2, 4))
    return saved


@pytest.fixture(scope="module")
def saved(clusters, tmp_path_factory):
    """The folders of four runs on 4 ranks by stage, and what they saved."""
    run = tmp_path_factory.mktemp("runs") / "run"
    return run, clusters(4).run(save_each, str(run))[0]


def load_each(run, pairs):
    """What engines of other stages have after loading, by the pair of stages; and the losses of two more steps."""
    loaded = {}
    for source, stage in pairs:
        engine = engine_of(stage)
        engine.load_sharded(f"{run}-{source}/step-2")
        loaded[source, stage] = everything(engine), train(engine, range(2, 4))
    return loaded


@pytest.mark.parametrize("world_size", [1, 3, 4, 6])
def test_what_4_ranks_saved_goes_on_bit_by_bit_in_every_stage_on_any_number(clusters, saved, world_size):
    run, contents = saved
    shift = {1: [3], 3: [0, 1, 2], 4: [0], 6: [0]}[world_size]
    pairs = [(source, STAGES[(place + by) % 4]) for by in shift for place, source in enumerate(STAGES)]
    for (source, _), (found, losses) in clusters(world_size).run(load_each, str(run), pairs)[0].items():
        expected, more = contents[source]
        assert_equal(found, expected)
        assert losses == (more if world_size == 4 else pytest.approx(more, abs=1e-6))


def test_each_rank_writes_an_equal_part_even_where_all_have_everything(saved):
    run, _ = saved
    for stage in STAGES:
        sizes = [file.stat().st_size for file in sorted(Path(f"{run}-{stage}/step-2").glob("__*.distcp"))]
        assert len(sizes) == 4
        assert max(sizes) < 0.5 * sum(sizes)


def test_an_optimizer_of_another_kind_and_parameters_without_steps_in_common_come_back(clusters, tmp_path):
    def there_and_back(run):
        engine = engine_of("zero2", torch.optim.SGD, momentum=0.9)
        train(engine, range(2))
        engine.save_sharded(run, 1)
        other = engine_of("zero3", torch.optim.SGD, momentum=0.9)
        other.load_sharded(latest_checkpoint(run))
        return everything(engine), everything(other)

    for expected, found in clusters(3).run(there_and_back, str(tmp_path / "run")):
        assert_equal(found, expected)


class Remembering(torch.optim.SGD):
    """Keeps beside what it needs a single number for each parameter, in a tensor of one element, or of several."""

    def __init__(self, params, lr=0.1, kept=1):
        super().__init__(params, lr)
        self.kept = kept

    def step(self):
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["kept"] = torch.full((self.kept,), 7.0)
        return super().step()


def test_rates_that_numpy_computed_and_numbers_in_tensors_of_one_element_come_back(clusters, tmp_path):
    def there_and_back(run):
        engine, other = (engine_of("zero3", Remembering) for _ in range(2))
        schedule = torch.optim.lr_scheduler.LambdaLR(engine.optimizer, np.cos)
        train(engine, range(2))
        schedule.step()
        engine.save_sharded(run, 1)
        other.load_sharded(latest_checkpoint(run))
        rate = other.optimizer.param_groups[0]["lr"]
        kept = {float(entries["kept"]) for entries in other.optimizer_state_dict()["state"].values()}
        return type(rate).__name__, rate == engine.optimizer.param_groups[0]["lr"], kept

    assert clusters(2).run(there_and_back, str(tmp_path / "run")) == [("float", True, {7.0})] * 2


@pytest.mark.parametrize("whole", [False, True])
def test_state_that_no_other_number_of_ranks_could_cut_is_refused_when_it_is_saved(clusters, tmp_path, whole):
    def saving(run):
        engine = engine_of("zero3", Remembering, kept=3)
        train(engine, range(1))
        with pytest.raises(TypeError) as caught:
            engine.save(run) if whole else engine.save_sharded(run, 1)
        return str(caught.value)

    for said in clusters(2).run(saving, str(tmp_path / "run")):
        assert "keeps 3 numbers as 'kept'" in said


OPTIONS = {
    "groups": {"param_groups": [(lambda name, _: "bias" in name, {"weight_decay": 0.0})]},
    "replicated": {"replicate": lambda name, _: "norm" in name},
    "offloaded": {"offload": True},
    "8-bit": {"optimizer_cls": AdamW8bit},
}


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["zero2", "zero3", "zero3-8bit", "muon-owners", "muon-replicated"])
def test_whatever_an_engine_was_made_with_comes_back_on_another_number_of_ranks(clusters, tmp_path, stage):
    options = OPTIONS if stage in STAGES else {"plain": {}}

    def save(run, stage, options):
        found = []
        for name, given in options.items():
            engine = engine_of(stage, **given)
            train(engine, range(2))
            engine.save_sharded(f"{run}-{name}", 2)
            found.append(everything(engine))
        return found

    def load(run, stage, options):
        found = []
        for name, given in options.items():
            engine = engine_of(stage, **given)
            engine.load_sharded(f"{run}-{name}/step-2")
            found.append(everything(engine))
        return found

    run = str(tmp_path / "run")
    saved = clusters(3).run(save, run, stage, options)[0]
    for found, expected in zip(clusters(2).run(load, run, stage, options)[0], saved, strict=True):
        assert_equal(found, expected)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_masters_in_fp32_come_back_and_the_loss_scale(clusters, tmp_path, precision):
    def there_and_back(run, precision):
        engine = engine_of("zero1", precision=precision)
        train(engine, range(2))
        engine.scaler.update(1024.0) if precision == "fp16" else None
        engine.save_sharded(run, 1)
        other = engine_of("zero3", precision=precision)
        other.load_sharded(latest_checkpoint(run))
        scales = (engine.scaler.get_scale(), other.scaler.get_scale())
        return everything(engine), everything(other), scales, train(engine, [2]), train(other, [2])

    found = clusters(2).run(there_and_back, str(tmp_path / "run"), precision)
    for expected, loaded, scales, losses, more in found:
        assert_equal(loaded, expected)
        assert scales[0] == scales[1]
        assert losses == more


# FSDP2, as its users write it.


def test_ours_opens_in_fsdp2(clusters, tmp_path):
    def save(run):
        engine = ENGINES["zero3"](odd(), torch.optim.AdamW, lr=0.01)
        for step in range(2):
            engine.training_step(*(shard_of(t, engine.rank, engine.world_size) for t in pairs_of(step)), mse)
        engine.save_sharded(run, 2)
        return everything(engine)

    def load(run):
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_optimizer_state_dict

        model, optimizer = fully_sharded()
        state = state_of(model, optimizer)
        dcp.load(state, checkpoint_id=f"{run}/step-2")
        set_model_state_dict(model, state["model"])
        set_optimizer_state_dict(model, optimizer, state["optim"])
        return whole_of(state_of(model, optimizer)), state["optim"]["param_groups"][0]["lr"]

    run = str(tmp_path / "run")
    expected = clusters(4).run(save, run)[0]
    del expected["groups"]
    for found, lr in clusters(3).run(load, run):
        assert_equal(found, expected)
        assert lr == 0.01


def test_fsdp2s_opens_in_ours(clusters, tmp_path):
    def save(path):
        import torch.distributed.checkpoint as dcp

        model, optimizer = fully_sharded()
        for step in range(2):
            rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
            inputs, targets = (shard_of(t, rank, world_size) for t in pairs_of(step))
            mse(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
        state = state_of(model, optimizer)
        dcp.save(state, checkpoint_id=path)
        return whole_of(state)

    def load(path):
        found = []
        for stage in ("ddp", "zero1", "zero3"):
            engine = ENGINES[stage](odd(), torch.optim.AdamW, lr=0.5)
            engine.load_sharded(path)
            found.append(everything(engine))
        return found

    path = str(tmp_path / "theirs")
    expected = clusters(4).run(save, path)[0]
    for found in clusters(3).run(load, path)[0]:
        assert found.pop("groups")[0]["lr"] == 0.01
        assert_equal(found, expected)


@pytest.mark.parametrize("grouped", [False, True])
def test_fsdp2s_opens_in_ours_if_its_optimizer_was_given_frozen_parameters_too(clusters, tmp_path, grouped):
    def there_and_back(path):
        import torch.distributed.checkpoint as dcp

        model, optimizer = fully_sharded(frozen=True)
        if grouped:  # the frozen ones are a group of their own
            optimizer = torch.optim.AdamW([{"params": part.parameters()} for part in (model[0], model[2])], lr=0.01)
        mse(model(pairs_of(0)[0]), pairs_of(0)[1]).backward()
        optimizer.step()
        state = state_of(model, optimizer)
        dcp.save(state, checkpoint_id=path)
        ours = odd()
        ours[0].requires_grad_(False)
        engine = ENGINES["zero3"](ours, torch.optim.AdamW, lr=0.5)
        engine.load_sharded(path)
        return whole_of(state), everything(engine)

    for expected, found in clusters(2).run(there_and_back, str(tmp_path / "theirs")):
        del found["groups"]
        assert_equal(found, expected)


@pytest.mark.parametrize("kind", ["numbered", "flattened"])
def test_fsdp2s_state_by_other_names_is_refused_with_the_remedy(clusters, tmp_path, kind):
    def refusal(path, kind):
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

        model, optimizer = fully_sharded()
        state = state_of(model, optimizer)
        flat = StateDictOptions(flatten_optimizer_state_dict=True)
        optim = (
            optimizer.state_dict() if kind == "numbered" else get_optimizer_state_dict(model, optimizer, options=flat)
        )
        dcp.save(state | {"optim": optim}, checkpoint_id=path)
        with pytest.raises(ValueError) as caught:
            ENGINES["zero3"](odd(), torch.optim.AdamW).load_sharded(path)
        return str(caught.value)

    said = {"numbered": "the state numbers its parameters", "flattened": "has the optimizer's state flattened"}
    for found in clusters(2).run(refusal, str(tmp_path / "theirs"), kind):
        assert said[kind] in found
        assert "get_optimizer_state_dict" in found


# In the background.


def test_a_save_in_the_background_is_of_the_moment_at_which_it_was_asked_for(clusters, tmp_path):
    def save(run):
        engine = engine_of("zero3")
        train(engine, range(2))
        expected = everything(engine)
        saving = engine.save_sharded(run, 2, background=True)
        train(engine, range(2, 5))
        saving.wait()
        engine.load_sharded(latest_checkpoint(run))
        return expected, everything(engine)

    for expected, found in clusters(2).run(save, str(tmp_path / "run")):
        assert_equal(found, expected)


def test_a_save_in_the_background_goes_where_it_was_sent_if_the_training_moves_to_another_folder(clusters, tmp_path):
    def save(folder):
        from zerolab.engines import saving

        engine, write, moved, home = engine_of("zero1"), saving.Saving._write, threading.Event(), Path.cwd()

        def write_later(self):
            assert moved.wait(60)
            write(self)

        saving.Saving._write = write_later
        try:
            os.chdir(folder)
            under_way = engine.save_sharded("run", 2, background=True)
            os.chdir(home)
            moved.set()
            under_way.wait()
        finally:
            saving.Saving._write = write
            os.chdir(home)
        return latest_checkpoint(Path(folder) / "run").name

    assert clusters(2).run(save, str(tmp_path)) == ["step-2"] * 2


def test_training_goes_on_while_the_copy_is_written_and_the_recording_has_both(clusters, tmp_path):
    def save(run):
        from zerolab.engines import saving

        engine, write, trained = engine_of("zero2"), saving.Saving._write, threading.Event()
        train(engine, range(2))

        def write_later(self):
            assert trained.wait(60)
            write(self)

        saving.Saving._write = write_later
        try:
            under_way = engine.save_sharded(run, 2, background=True)
            train(engine, range(2, 4))
            trained.set()
            under_way.wait()
        finally:
            saving.Saving._write = write
        engine.save_sharded(run, 4)
        return sum(value.nbytes for value in everything(engine).values() if isinstance(value, torch.Tensor))

    recording = clusters(2).record(save, str(tmp_path / "run"))
    for rank in recording.ranks:
        saves = {event.op: event for event in rank.events if event.kind == "save"}
        assert list(saves) == ["copy", "write", "save"]
        updates = [event for event in rank.events if event.kind == "optimizer"]
        beside = [event for event in updates if saves["write"].t_start < event.t_start < saves["write"].t_end]
        assert len(beside) == 2
        assert len({saves[op].text for op in saves}) == 1
        assert saves["copy"].t_end <= saves["write"].t_start
    copied = [event.text for rank in recording.ranks for event in rank.events if event.op == "copy"]
    assert sum(int(text.removesuffix(" bytes")) for text in copied) == recording.results[0]
    drawn = trace(recording)["traceEvents"]
    (lane,) = {entry["tid"] for entry in drawn if entry.get("args") == {"name": "saving"} and entry["pid"] == 10_000}
    assert [entry["name"] for entry in drawn if entry["tid"] == lane and entry["ph"] == "X"] == ["write"]
    path = tmp_path / "run.json"
    recording.save(path)
    assert [event.op for event in zerolab.Recording.load(path).ranks[0].events if event.kind == "save"] == list(saves)
