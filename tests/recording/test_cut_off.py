"""A run that fails or never ends still says what its ranks did until then."""

import os
import re
import signal
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from zerolab import Cluster, CollectiveHang, RankError, Recording, models
from zerolab.engines import ENGINES
from zerolab.recording.recorder import Recorder


def train_then(fail):
    """Two steps of ZeRO-3, and then what the test is about."""
    engine = ENGINES["zero3"](models.build("mlp-odd"), torch.optim.AdamW, lr=1e-3)
    for inputs, targets in models.batches("mlp-odd", dist.get_world_size(), dist.get_rank(), 2):
        engine.training_step(inputs, targets, models.loss)
    fail(engine)


def one_rank_stays_out(engine):
    """Rank 0 gathers the units of a forward, for which it needs all the others; rank 1 only waits for rank 0."""
    if dist.get_rank() == 1:
        dist.barrier()
    engine.model(torch.ones(1, 6))


def the_last_rank_is_killed(engine):
    if dist.get_rank() == dist.get_world_size() - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    engine.model(torch.ones(1, 6))


def a_unit_of_the_last_rank_raises(engine):
    def refuse(*_):
        raise ValueError("enough")

    if dist.get_rank() == dist.get_world_size() - 1:
        engine.model.get_submodule("0").register_forward_hook(refuse)
    engine.model(torch.ones(1, 6))


def the_first_rank_raises(engine):
    if dist.get_rank() == 0:
        raise ValueError("enough")
    dist.barrier()


@pytest.fixture(scope="module")
def two():
    with Cluster(2, device="cpu", timeout=4) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def hang(two):
    with pytest.raises(CollectiveHang) as caught:
        two.record(train_then, one_rank_stays_out)
    return caught.value.recording


def test_ranks_that_wait_for_ever_hand_over_all_that_they_did_until_then(hang):
    assert [rank.rank for rank in hang.ranks] == [0, 1]
    assert not any(rank.complete for rank in hang.ranks)
    assert hang.info.steps == 2
    for rank in hang.ranks:
        assert {event.step for event in rank.events} >= {1, 2}
        assert [event.seq for event in rank.events] == list(range(len(rank.events)))


def test_the_wait_that_never_ended_lasts_until_the_recording_was_cut_off(hang):
    for rank in hang.ranks:
        waits = [event for event in rank.events if event.kind == "wait"]
        collective = rank.events[waits[-1].parent]
        end = max(event.t_end for event in rank.events)
        assert waits[-1].t_end == collective.t_end == end
        assert end - waits[-1].t_start > 3e9  # the cluster's timeout is 4 s
    assert [rank.events[-1].op for rank in hang.ranks] == ["all_gather", "barrier"]


def test_a_pass_that_was_under_way_lasts_until_the_recording_was_cut_off(hang):
    forward = [event for event in hang.ranks[0].events if (event.kind, event.op) == ("module", "forward")][-1]
    assert forward.t_end == max(event.t_end for event in hang.ranks[0].events)


@pytest.fixture(scope="module")
def raised(two):
    with pytest.raises(RankError, match="enough") as caught:
        two.record(train_then, a_unit_of_the_last_rank_raises)
    return caught.value.recording


def cut(rank):
    return [event for event in rank.events if event.t_end == rank.info.cut_ns]


def test_what_was_under_way_when_a_rank_raised_lasts_until_then(raised):
    lasting = [
        [(e.kind, e.op, e.unit) for e in cut(rank) if e.parent is None or e.kind == "wait"] for rank in raised.ranks
    ]
    # Rank 1 had begun the next unit's gather and not waited for it; rank 0 waits for the one after it.
    assert lasting[1] == [("module", "forward", "root"), ("collective", "all_gather", "2")]
    assert {("collective", "all_gather", "4"), ("wait", "all_gather", "4")} < set(lasting[0])


def test_a_wait_that_fails_as_its_peer_is_gone_never_ends_and_a_recording_says_when_it_was_cut_off(raised, tmp_path):
    raised.save(tmp_path / "raised.json")
    for rank in Recording.load(tmp_path / "raised.json").ranks:
        assert rank.info.cut_ns == max(event.t_end for event in rank.events)


def what_was_caught(_engine):
    """Caught and left behind: a forward, a backward, an update, and a wait that failed; sent and over: a message."""

    def refuse(*_):
        raise ArithmeticError("enough")

    rank = dist.get_rank()
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(ArithmeticError), model[1].register_forward_hook(refuse):
        model(torch.ones(1, 2))
    out = model(torch.ones(1, 2))
    out.register_hook(refuse)
    with pytest.raises(ArithmeticError):
        out.sum().backward()
    with pytest.raises(ArithmeticError):
        optimizer.step(refuse)
    if rank == 0:
        late = dist.barrier(async_op=True)
        with pytest.raises(RuntimeError):
            late.wait(timedelta(seconds=0.1))
        dist.send(torch.ones(1), 1)
        late.wait()
    else:
        dist.recv(torch.ones(1), 0)
        dist.barrier()
    message = torch.ones(1)
    kept = dist.isend(message, 1) if rank == 0 else dist.recv(message, 0)
    dist.barrier()
    raise ValueError(f"enough of {kept}")


def test_what_was_caught_has_ended_and_is_not_under_way_when_another_error_ends_the_recording(two):
    with pytest.raises(RankError, match="enough of") as caught:
        two.record(train_then, what_was_caught)
    for rank in caught.value.recording.ranks:
        assert [(event.kind, event.op) for event in cut(rank)] == []
        assert rank.info.cut_ns >= max(event.t_end for event in rank.events)


def wait_that_fails_in_handling_an_error(_engine):
    try:
        next(iter([]))
    except StopIteration:
        if dist.get_rank() == 0:
            dist.barrier(async_op=True).wait(timedelta(seconds=0.1))


def test_a_wait_that_failed_within_the_handling_of_an_error_is_under_way_too(two):
    with pytest.raises(RankError) as caught:
        two.record(train_then, wait_that_fails_in_handling_an_error)
    assert [(event.kind, event.op) for event in cut(caught.value.recording.ranks[0])] == [
        ("collective", "barrier"),
        ("wait", "barrier"),
    ]


def test_of_an_older_file_what_ends_with_the_last_wait_was_cut_off(hang, tmp_path):
    hang.save(tmp_path / "older.json")
    text, before = (tmp_path / "older.json").read_text(), [rank.info.cut_ns for rank in hang.ranks]
    (tmp_path / "older.json").write_text(re.sub(r',?"cut_ns":\d+', "", text))
    assert [rank.info.cut_ns for rank in Recording.load(tmp_path / "older.json").ranks] == before


def test_a_run_to_its_end_is_not_cut_off(two):
    assert [rank.info.cut_ns for rank in two.record(train_then, lambda _: None).ranks] == [None, None]


def test_a_recording_that_was_cut_off_is_saved_and_loaded_as_any_other(hang, tmp_path):
    hang.save(tmp_path / "hang.json")
    loaded = Recording.load(tmp_path / "hang.json")
    assert repr(loaded) == repr(hang)
    assert "cut off" in repr(loaded)


def test_a_rank_that_was_killed_is_missing_and_the_recording_says_so():
    with Cluster(3, device="cpu", timeout=20) as three, pytest.raises(RankError) as caught:
        three.record(train_then, the_last_rank_is_killed)
    recording = caught.value.recording
    assert caught.value.rank == 2
    assert [rank.rank for rank in recording.ranks] == [0, 1]
    assert recording.world_size == 3
    assert "1 rank missing, cut off" in repr(recording)


def test_the_ranks_that_wait_for_one_that_raised_are_in_the_recording_too(two):
    with pytest.raises(RankError, match="enough") as caught:
        two.record(train_then, the_first_rank_raises)
    assert [rank.rank for rank in caught.value.recording.ranks] == [0, 1]
    assert caught.value.recording.info.steps == 2


def test_a_call_that_records_nothing_carries_no_recording_of_an_earlier_one(two):
    two.record(train_then, lambda _: None)
    with pytest.raises(RankError, match="enough") as caught:
        two.run(train_then, the_first_rank_raises)
    assert caught.value.recording is None


def test_a_step_that_is_just_ending_is_not_lost_by_who_asks_meanwhile():
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    with Recorder() as recorder:
        log, measured = recorder._log, recorder._log._measured

        def measuring(step):
            log._measured = measured  # another thread asks at this moment
            seen.append(len(log.steps_over()))
            log._measured = measuring
            return measured(step)

        log._measured = measuring
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    assert seen == [1, 2]
