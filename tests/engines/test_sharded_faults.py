"""Sharded checkpoints when something goes wrong: a rank is killed, a file is damaged, the model is another."""

import enum
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
from awkward import make
from resuming import FROZEN, engine_of, train
from torch import nn
from torch.distributed.checkpoint.planner import WriteItemType

import zerolab
from zerolab import RankError, latest_checkpoint
from zerolab.engines import ENGINES
from zerolab.engines.stored import read_contents, read_note


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


@pytest.mark.parametrize("call", ["save_sharded", "load_sharded"])
def test_other_systems_say_how_they_are_saved(clusters, tmp_path, call):
    def refused(run):
        try:
            getattr(engine_of("fsdp2"), call)(run, 1)
        except NotImplementedError as error:
            return str(error)

    assert all(
        "fsdp2 has no sharded checkpoints here: engine.save" in said for said in clusters(2).run(refused, tmp_path)
    )


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


@pytest.mark.slow
def test_whenever_a_rank_is_killed_the_last_whole_checkpoint_is_found_and_the_rest_is_removed(tmp_path):
    run = tmp_path / "run"
    moments = [killed_after(seconds) for seconds in (0.11, 0.23)]
    moments += [killed_at(name) for name in ("FileSystemWriter.write_data", "Saving._finish", "files.settle")]
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


@pytest.fixture(scope="module")
def saved(clusters, tmp_path_factory):
    """A whole checkpoint of 4 ranks."""

    def save(run):
        engine = engine_of("zero2")
        train(engine, range(2))
        return engine.save_sharded(run, 2).directory

    return clusters(4).run(save, tmp_path_factory.mktemp("runs") / "run")[0]


@pytest.fixture
def copied(saved, tmp_path):
    """The same, to be damaged."""
    return shutil.copytree(saved, tmp_path / "step-2")


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
    contents = (copied / ".metadata").read_bytes()
    (copied / ".metadata").write_bytes(contents.replace(b"relative_path", b"relative_qath"))
    assert re.fullmatch(rf"PATH/.metadata is damaged \(.+\): {remedy}", refusal(clusters, copied))
    (copied / ".metadata").write_bytes(b"nothing")
    assert re.fullmatch(rf"PATH/.metadata is damaged or not torch's \(.+\): {remedy}", refusal(clusters, copied))


def test_something_else_that_is_called_scaler_is_refused_before_anything_is_loaded(clusters, tmp_path):
    def refused(run):
        engine = engine_of("zero2", precision="fp16")
        train(engine, range(1))
        engine.scaler.state_dict = lambda: {"scale": 8.0}
        engine.save_sharded(run, 1)
        other = engine_of("zero2", precision="fp16")
        before = other.state_dict()
        with pytest.raises(ValueError) as caught:
            other.load_sharded(latest_checkpoint(run))
        return str(caught.value), all(map(torch.equal, other.state_dict().values(), before.values()))

    for said, is_as_it_was in clusters(2).run(refused, str(tmp_path)):
        assert "is not what a GradScaler's state_dict() gives" in said
        assert is_as_it_was


def test_a_setting_of_a_class_of_its_own_is_told_from_damage(clusters, tmp_path):
    def saving(run):
        engine = engine_of("zero3")
        engine.optimizer.param_groups[0]["logs"] = Path("logs")
        engine.save_sharded(run, 1)

    clusters(1).run(saving, str(tmp_path))
    said = refusal(clusters, tmp_path / "step-1")
    assert "'optim.param_groups.0.logs' in PATH is an object of a class that is not loaded from files" in said


def test_a_table_of_contents_that_would_call_something_is_refused(clusters, copied):
    (copied / ".metadata").write_bytes(pickle.dumps(Calling(os.mkdir, str(copied / "called"))))
    assert "it asks for" in refusal(clusters, copied)
    assert not (copied / "called").exists()
    (copied / ".metadata").write_bytes(pickle.dumps(Calling(getattr, Path, "unlink")))
    assert f"it asks for getattr of {Path}" in refusal(clusters, copied)


class Calling:
    def __init__(self, function, *arguments):
        self.called = function, arguments

    def __reduce__(self):
        return self.called


def test_a_checkpoint_that_an_early_python_3_11_wrote_is_opened(saved, tmp_path):
    class Early(pickle.Pickler):
        def reducer_override(self, value):
            if isinstance(value, enum.Enum):
                return getattr, (type(value), value.name)
            return NotImplemented

    contents = read_contents(saved)
    with (tmp_path / "note").open("wb") as file:
        Early(file).dump((contents, WriteItemType.TENSOR))
    assert b"getattr" in (tmp_path / "note").read_bytes()
    assert read_note(tmp_path / "note") == (contents, WriteItemType.TENSOR)


def test_a_checkpoint_that_python_3_13_wrote_is_opened(saved, tmp_path):
    contents = read_contents(saved)
    written = pickle.dumps(contents, protocol=3)  # in which names can be replaced: none has its length beside it
    (tmp_path / "note").write_bytes(written.replace(b"cpathlib\n", b"cpathlib._local\n"))
    assert b"cpathlib._local\nPosixPath\n" in (tmp_path / "note").read_bytes()
    assert read_note(tmp_path / "note") == contents


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
