"""Sharded checkpoints: on any number of ranks, in any stage, to and from FSDP2, and whole whoever is killed."""

import io
import os
import pickle
import re
import shutil
import signal
import threading
from pathlib import Path

import pytest
import torch
from awkward import batch, loss_fn, make, shard_of
from torch import nn

import zerolab
from zerolab import RankError, latest_checkpoint
from zerolab.engines import ENGINES
from zerolab.engines.stored import read_contents
from zerolab.recording.chrome import trace
from zerolab.theory import STAGES

FROZEN = ("blocks.1",)


def engine_of(stage, optimizer_cls=torch.optim.AdamW, **options):
    return ENGINES[stage](make(FROZEN), optimizer_cls, lr=0.01, **options)


def train(engine, steps):
    """Trains over the given steps; returns the losses, means over the ranks."""
    losses = []
    for step in steps:
        tokens, targets = (shard_of(tensor, engine.rank, engine.world_size) for tensor in batch(step))
        loss = engine.training_step(tokens, targets, loss_fn)
        torch.distributed.all_reduce(loss)
        losses.append(loss.item() / engine.world_size)
    return losses


def everything(engine):
    """The whole state of model and optimizer, by name."""
    state = engine.optimizer_state_dict()
    found = {f"model {key}": value for key, value in engine.state_dict().items()}
    found |= {f"{name} {key}": value for name, entry in state["state"].items() for key, value in entry.items()}
    # Their order is the flats', which of whole matrices depends on the owners.
    return found | {"groups": [{**group, "params": sorted(group["params"])} for group in state["param_groups"]]}


def assert_equal(found, saved):
    """Bit by bit."""
    assert found.keys() == saved.keys()
    different = [key for key in saved if not same(found[key], saved[key])]
    assert not different


def same(one, other):
    is_tensor = isinstance(one, torch.Tensor)
    return torch.equal(one, other) and one.dtype == other.dtype if is_tensor else one == other


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


OPTIONS = {
    "groups": {"param_groups": [(lambda name, _: "bias" in name, {"weight_decay": 0.0})]},
    "replicated": {"replicate": lambda name, _: "norm" in name},
    "offloaded": {"offload": True},
}


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


def odd():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(7, 13), nn.Tanh(), nn.Linear(13, 5))


def mse(outputs, targets):
    return nn.functional.mse_loss(outputs, targets)


def pairs_of(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(12, 7, generator=generator), torch.randn(12, 5, generator=generator)


def fully_sharded():
    from torch.distributed.fsdp import fully_shard

    model = odd()
    for part in (model[0], model[2], model):
        fully_shard(part)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def state_of(model, optimizer):
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

    return {"model": get_model_state_dict(model), "optim": get_optimizer_state_dict(model, optimizer)}


def whole_of(state):
    """The same by the names that `everything` uses."""
    full = lambda value: value.full_tensor() if hasattr(value, "full_tensor") else value  # noqa: E731
    found = {f"model {key}": full(value) for key, value in state["model"].items()}
    entries = state["optim"]["state"].items()
    return found | {f"{name} {key}": full(value) for name, entry in entries for key, value in entry.items()}


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

    recording = clusters(2).record(save, str(tmp_path / "run"))
    for rank in recording.ranks:
        saves = {event.op: event for event in rank.events if event.kind == "save"}
        assert list(saves) == ["copy", "write", "save"]
        updates = [event for event in rank.events if event.kind == "optimizer"]
        beside = [event for event in updates if saves["write"].t_start < event.t_start < saves["write"].t_end]
        assert len(beside) == 2
        assert len({saves[op].text for op in saves}) == 1
        assert saves["copy"].t_end <= saves["write"].t_start
    drawn = trace(recording)["traceEvents"]
    (lane,) = {entry["tid"] for entry in drawn if entry.get("args") == {"name": "saving"} and entry["pid"] == 10_000}
    assert [entry["name"] for entry in drawn if entry["tid"] == lane and entry["ph"] == "X"] == ["write"]
    path = tmp_path / "run.json"
    recording.save(path)
    assert [event.op for event in zerolab.Recording.load(path).ranks[0].events if event.kind == "save"] == list(saves)


def test_what_goes_wrong_in_the_thread_is_said_by_all_ranks_at_the_wait(clusters, tmp_path):
    def save(run):
        engine = engine_of("zero1")
        saving = engine.save_sharded(run, 1, background=True)
        saving.wait()
        if engine.rank == 1:
            from zerolab.engines import saving as module

            module.FileSystemWriter.write_data = lambda *_: (_ for _ in ()).throw(OSError("no space left"))
        failing = engine.save_sharded(run, 2, background=True)
        try:
            failing.wait()
        except RuntimeError as error:
            return str(error), str(latest_checkpoint(run))

    run = str(tmp_path / "run")
    said = "rank 1 could not write its part of step-2 (no space left)"
    with zerolab.Cluster(world_size=2, device="cpu") as cluster:  # of its own: a rank's torch is broken in it
        assert cluster.run(save, run) == [(said, f"{run}/step-1")] * 2


# Killed.


def save_until_killed(run, first, kill):
    """Saves again and again, each time with the number of the step in every element, until rank 1 is killed."""
    engine = ENGINES["zero2"](nn.Linear(40, 30), torch.optim.SGD, lr=0.0)
    for step in range(first, first + 1000):
        if step == first + 1 and engine.rank == 1:
            kill()
        with torch.no_grad():
            for parameter in engine.model.parameters():
                parameter.fill_(step)
        engine.save_sharded(run, step, background=step % 2 == 0)


def numbers_in(path):
    """The numbers in the parameters of a checkpoint."""
    engine = ENGINES["zero1"](nn.Linear(40, 30), torch.optim.SGD, lr=0.0)
    engine.load_sharded(path)
    return {number for value in engine.state_dict().values() for number in value.unique().tolist()}


def killed_after(seconds):
    def kill():
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()

    return kill


def killed_at(function):
    def kill():
        from zerolab.engines import saving

        owner, _, name = function.rpartition(".")
        holder, calls = getattr(saving, owner) if owner else saving, []
        original = getattr(holder, name)

        def count(*arguments, **keywords):
            calls.append(1)
            if len(calls) == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*arguments, **keywords)

        setattr(holder, name, count)

    return kill


def test_whenever_a_rank_is_killed_the_last_whole_checkpoint_is_found_and_the_rest_is_removed(tmp_path):
    run = tmp_path / "run"
    moments = [killed_after(seconds) for seconds in (0.11, 0.23)]
    moments += [killed_at(name) for name in ("FileSystemWriter.write_data", "Saving._finish", "_sync")]
    with zerolab.Cluster(world_size=2, device="cpu") as cluster:
        first, lefts = 1, 0
        for moment in moments:
            with pytest.raises(RankError, match="KILL"):
                cluster.run(save_until_killed, str(run), first, moment)
            lefts += len(list(run.glob(".*.part")))
            assert len(list(run.glob(".*.part"))) <= 1  # what earlier kills have left was removed
            last = latest_checkpoint(run)
            step = int(last.name.removeprefix("step-"))
            assert cluster.run(numbers_in, str(last))[0] == {step}
            first = step + 1
        assert lefts  # or nothing was killed in the middle of a save


# Bad input.


def refusal(clusters, path, engine=engine_of, stage="zero2", **options):
    def load(path):
        try:
            engine(stage, **options).load_sharded(path)
        except ValueError as error:
            return str(error)

    said = clusters(2).run(load, str(path))
    assert said[0] == said[1]  # on all ranks, so none waits for another
    return said[0].replace(str(path), "PATH")


@pytest.fixture
def copied(saved, tmp_path):
    """A whole checkpoint, to be damaged."""
    return shutil.copytree(f"{saved[0]}-zero2/step-2", tmp_path / "step-2")


def test_a_checkpoint_that_is_not_whole_is_refused_with_the_remedy(clusters, copied):
    assert refusal(clusters, copied.parent) == (
        "PATH is no whole checkpoint, it has no .metadata: zerolab.latest_checkpoint(run) finds the last"
    )
    (copied / "__2_0.distcp").unlink()
    assert refusal(clusters, copied) == (
        "__2_0.distcp is missing in PATH: bring the files of all ranks into one folder"
    )


def test_damage_is_noticed(clusters, copied):
    remedy = "copy it again, or load an earlier checkpoint"
    file = copied / "__1_0.distcp"
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    assert refusal(clusters, copied) == (f"__1_0.distcp in PATH has {len(whole) - 100} bytes of {len(whole)}: {remedy}")
    file.write_bytes(b"\0" * len(whole))
    assert re.fullmatch(rf"'optim.state.*step' in PATH is damaged: {remedy}", refusal(clusters, copied))
    contents = read_contents(copied).storage_data
    places = {index: place for index, place in contents.items() if place.relative_path == file.name}
    index, place = max(places.items(), key=lambda each: each[1].length)
    stored = torch.load(io.BytesIO(whole[place.offset : place.offset + place.length]))
    byte = whole.index(stored.numpy().tobytes(), place.offset)  # one of the tensor's own: a number that is a little off
    file.write_bytes(whole[:byte] + bytes([whole[byte] ^ 1]) + whole[byte + 1 :])
    assert refusal(clusters, copied) == (
        f"{index.fqn!r} in PATH is damaged: {remedy}; the engine is half loaded, so load one before you train on"
    )
    file.write_bytes(whole)
    (copied / ".metadata").write_bytes(b"nothing")
    assert re.fullmatch(rf"PATH/.metadata is damaged or not torch's \(.+\): {remedy}", refusal(clusters, copied))


def test_a_table_of_contents_that_would_call_something_is_refused(clusters, copied):
    (copied / ".metadata").write_bytes(pickle.dumps(Malicious(str(copied / "called"))))
    assert "it asks for" in refusal(clusters, copied)
    assert not (copied / "called").exists()


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_checkpoint_of_another_model_or_optimizer_is_refused(clusters, copied):
    def wider(stage):
        model = make(FROZEN)
        model.norm = nn.LayerNorm(8)
        return ENGINES[stage](model, torch.optim.AdamW)

    def longer(stage):
        model = make(FROZEN)
        model.more = nn.Parameter(torch.ones(2))
        return ENGINES[stage](model, torch.optim.AdamW)

    assert refusal(clusters, copied, wider) == (
        "'norm.weight' is (7,) in the state and (8,) in the model: load the same model's state"
    )
    assert refusal(clusters, copied, longer) == (
        "'more' is only in the model: load a state that was saved from the same model"
    )
    assert refusal(clusters, copied, optimizer_cls=torch.optim.SGD) == (
        "the state does not set SGD's 'dampening': load a state of the same optimizer"
    )


def test_a_step_that_is_there_or_a_folder_that_is_not_is_refused(clusters, tmp_path):
    def save(run):
        engine, said = engine_of("zero1"), []
        for folder in (run, run, f"{run}/none/at all"):
            try:
                engine.save_sharded(folder, 3)
            except ValueError as error:
                said.append(str(error).replace(run, "RUN"))
        return said

    (told, same_on_1) = clusters(2).run(save, str(tmp_path / "run"))
    assert told == same_on_1
    assert told == [
        "RUN/step-3 is there already: remove it, or save into another folder",
        "cannot write 'RUN/none/at all': its folder does not exist; create it, or choose another",
    ]


def test_a_folder_without_a_whole_checkpoint_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no step-N with a \.metadata: give the folder that engine.save_sharded"):
        latest_checkpoint(tmp_path)
    (tmp_path / ".step-7.part").mkdir()
    (tmp_path / "step-8").mkdir()
    with pytest.raises(ValueError, match="has no whole checkpoint, only one that was never finished"):
        latest_checkpoint(tmp_path)
