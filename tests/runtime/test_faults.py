import ctypes
import os
import re
import signal
import sys
import threading
import time
import types

import fault_injection
import psutil
import pytest
import torch
import torch.distributed as dist

from zerolab import Cluster, CollectiveHang, RankError
from zerolab.runtime import call
from zerolab.runtime.board import DONE, FAILED, INSIDE, Position
from zerolab.runtime.faults import Outcome, Standing, ending_words, rank_error, root_cause, table


@pytest.fixture(scope="module")
def three():
    with Cluster(3, device="cpu", timeout=1.5) as cluster:
        cluster.run(os.getpid)
        yield cluster


def end_rank_1(how):
    """A function in which rank 1 fails between two collectives, and the others wait for it."""

    def train():
        dist.all_reduce(torch.ones(1))
        if dist.get_rank() == 1:
            time.sleep(0.2)  # so that the others are surely waiting
            how()
        dist.barrier()

    return train


def raise_an_error():
    raise ValueError("the batch is empty")


ENDINGS = {
    "raise": (raise_an_error, r"raised ValueError: the batch is empty", {"exception": "ValueError"}),
    "sys.exit": (lambda: sys.exit(5), r"raised SystemExit: 5", {"exception": "SystemExit"}),
    "os._exit": (lambda: os._exit(3), r"ended with exit code 3 in the middle of the run", {"exitcode": 3}),
    "segv": (lambda: ctypes.string_at(0), r"was killed by SIGSEGV", {"signal": "SIGSEGV"}),
    "kill": (lambda: os.kill(os.getpid(), signal.SIGKILL), r"was killed by SIGKILL: .*memory", {"signal": "SIGKILL"}),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_rank_that_fails_is_named_within_two_seconds_with_what_the_others_waited_in(three, ending, capsys):
    how, what, facts = ENDINGS[ending]
    before, limit = three.run(os.getpid), fault_injection.limit(three)
    capsys.readouterr()
    started = time.monotonic()
    with pytest.raises(RankError) as caught:
        three.run(end_rank_1(how))
    assert time.monotonic() - started < 0.2 + limit
    error, message = caught.value, str(caught.value)
    assert re.match(rf"rank 1 \(pid {before[1]}\) {what}", message), message
    assert (error.rank, error.pid) == (1, before[1])
    assert {name: getattr(error, name) for name in facts} == facts
    assert re.search(r"^  [02] .*in barrier #1  +test_faults.py, line \d+: dist.barrier\(\)$", message, re.MULTILINE)
    assert "The next run starts fresh ranks" in message
    assert not set(three.run(os.getpid)) & set(before)
    assert capsys.readouterr().out == "fresh ranks: what the ranks held in memory was lost when the last run failed\n"
    assert three.run(dist.get_rank) == [0, 1, 2]
    assert capsys.readouterr().out == ""


def test_the_traceback_is_the_ranks_own_with_its_lines_and_without_the_runtimes(three):
    with pytest.raises(RankError) as caught:
        three.run(end_rank_1(raise_an_error))
    assert 'File "test_faults.py"' in caught.value.traceback
    assert 'raise ValueError("the batch is empty")' in caught.value.traceback
    assert "worker.py" not in caught.value.traceback


def test_a_crash_in_native_code_shows_the_python_lines_that_led_there(three):
    with pytest.raises(RankError) as caught:
        three.run(end_rank_1(lambda: ctypes.string_at(0)))
    assert "Segmentation fault" in caught.value.traceback
    assert "test_faults.py" in caught.value.traceback
    assert "how()" in caught.value.traceback
    assert "worker.py" not in caught.value.traceback


def test_a_rank_that_died_between_two_runs_is_named_by_the_next_one_and_replaced_after_it(three, capsys):
    before = three.run(os.getpid)
    os.kill(before[2], signal.SIGKILL)
    while psutil.pid_exists(before[2]):
        time.sleep(0.01)
    capsys.readouterr()
    with pytest.raises(RankError, match=rf"^rank 2 \(pid {before[2]}\) was killed by SIGKILL") as caught:
        three.run(dist.get_rank)
    assert (caught.value.rank, caught.value.phase, caught.value.signal) == (2, "idle", "SIGKILL")
    assert three.run(dist.get_rank) == [0, 1, 2]
    assert "fresh ranks" in capsys.readouterr().out


def halt_at_the_next_answer():
    """Has the rank stop itself in the very moment in which the kernel has its next answer."""
    from multiprocessing.connection import Connection

    answering, send = threading.get_ident(), Connection.send_bytes

    def send_and_halt(pipe, data):
        send(pipe, data)
        if threading.get_ident() == answering:
            os.kill(os.getpid(), signal.SIGSTOP)

    Connection.send_bytes = send_and_halt


@pytest.mark.parametrize("dies", ["before the next run", "during the next run"])
def test_a_rank_is_idle_from_the_moment_in_which_the_kernel_has_its_answer(three, dies):
    three.run(halt_at_the_next_answer)
    pid = three.run(os.getpid)[2]
    killing = threading.Timer(0.3 * (dies == "during the next run"), os.kill, (pid, signal.SIGKILL))
    killing.start()
    if dies == "before the next run":
        while psutil.pid_exists(pid):
            time.sleep(0.01)
    with pytest.raises(RankError, match=rf"^rank 2 \(pid {pid}\) was killed by SIGKILL") as caught:
        three.run(dist.get_rank)
    killing.join()
    assert caught.value.phase == "idle"


def test_a_process_that_a_rank_started_goes_with_it(three):
    def start_a_child():
        import subprocess

        return subprocess.Popen(["sleep", "1000"]).pid

    children = three.run(start_a_child)
    with pytest.raises(RankError):
        three.run(os._exit, 1)
    deadline = time.monotonic() + 10
    while any(psutil.pid_exists(pid) for pid in children) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(psutil.pid_exists(pid) for pid in children)


@pytest.mark.parametrize("how", ["run", "record"])
def test_a_message_to_a_rank_that_is_not_there_is_refused_before_gloo_crashes_on_it(three, how):
    def to_the_right():
        dist.isend(torch.ones(4), dst=dist.get_rank() + 1).wait()  # a ring that forgets the modulo

    with pytest.raises(RankError, match="isend names rank 3, and there are ranks 0 to 2 only"):
        getattr(three, how)(to_the_right)


def test_a_message_from_before_the_first_rank_is_refused(three):
    def from_the_left():
        dist.irecv(torch.ones(4), src=dist.get_rank() - 1)

    with pytest.raises(RankError, match="irecv names rank -1, and there are ranks 0 to 2 only"):
        three.run(from_the_left)


@pytest.mark.parametrize("how", ["isend", "irecv", "batch_isend_irecv"])
def test_a_message_of_a_rank_to_itself_is_refused(three, how):
    def to_everybody():
        for peer in range(dist.get_world_size()):
            if how == "batch_isend_irecv":
                dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.ones(4), peer)])
            else:
                getattr(dist, how)(torch.ones(4), peer)

    with pytest.raises(RankError, match=rf"{how} names rank \d, which is this rank itself: nothing needs to be sent"):
        three.run(to_everybody)


def test_a_rank_given_by_a_name_that_a_message_does_not_have_is_torchs_to_refuse(three):
    def send_from():
        dist.send(torch.ones(4), (dist.get_rank() + 1) % 3, src=7)

    with pytest.raises(RankError, match=r"TypeError: send\(\) got an unexpected keyword argument 'src'"):
        three.run(send_from)


@pytest.mark.parametrize("how", ["send", "batch_isend_irecv"])
def test_a_message_from_another_memory_than_gloo_reads_is_refused(three, how):
    def send():
        tensor = torch.ones(4, device="meta")  # stands for a GPU's: gloo would take its address for one of main memory
        if how == "send":
            dist.send(tensor, dst=(dist.get_rank() + 1) % 3)
        else:
            dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor, (dist.get_rank() + 1) % 3)])

    with pytest.raises(RankError, match=f"{how} is given a tensor on meta, and the ranks talk over gloo, which sends"):
        three.run(send)


def test_an_error_while_recording_carries_what_was_recorded(three):
    def train():
        dist.all_reduce(torch.ones(1))
        raise ValueError("after one collective")

    with pytest.raises(RankError, match="after one collective") as caught:
        three.record(train)
    assert [event.op for event in caught.value.recording.events if event.kind == "collective"].count("all_reduce") == 3
    assert not any(rank.complete for rank in caught.value.recording.ranks)


def test_recording_gives_the_results_of_run(three):
    recording = three.record(dist.get_rank)
    assert recording.results == [0, 1, 2]
    assert recording.world_size == 3


def take_another_size():
    dist.all_reduce(torch.ones(2 if dist.get_rank() == 1 else 1))
    dist.barrier()


def take_another_root():
    dist.broadcast(torch.ones(1), src=1 if dist.get_rank() == 1 else 0)
    dist.barrier()


def leave_out_a_group():
    pair = dist.new_group([1, 2])
    if dist.get_rank() == 2:
        dist.all_reduce(torch.ones(1), group=pair)
    dist.all_reduce(torch.ones(1))


def skip_a_step_of_ddp():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3), broadcast_buffers=False)
    for _ in range(1 if dist.get_rank() == 1 else 2):
        model(torch.ones(1, 3)).sum().backward()


def skip_a_collective():
    dist.all_reduce(torch.ones(1))
    if dist.get_rank() != 1:
        dist.all_reduce(torch.ones(1))


def call_another_collective():
    if dist.get_rank() == 1:
        dist.broadcast(torch.ones(1), src=0)
        dist.barrier()
    else:
        dist.barrier()


def sleep_for_ever():
    if dist.get_rank() == 1:
        time.sleep(1000)
    dist.barrier()


def hang_in_backward():
    def all_reduce_on_some(gradient):
        if dist.get_rank() != 1:
            dist.all_reduce(gradient)
        return gradient

    weight = torch.ones(1, requires_grad=True)
    weight.register_hook(all_reduce_on_some)
    (weight * 2).sum().backward()


def wait_for_a_send_that_nobody_makes():
    if dist.get_rank() == 0:
        dist.irecv(torch.ones(1), src=1).wait()


def hang_in_our_own_collective():
    from zerolab.engines.collectives import reduce_scatter

    if dist.get_rank() != 1:
        reduce_scatter(torch.ones(3)).wait()


DISAGREEMENTS = {
    "operation": (call_another_collective, r"rank 1 is in broadcast #0, the others in barrier #0$"),
    "size": (take_another_size, r"rank 1 is in all_reduce #0 with 2 elements, the others with 1$"),
    "root": (take_another_root, r"rank 1 is in broadcast #0 with rank 1 as its root, the others with rank 0$"),
    "missing": (skip_a_collective, r"rank 1 has not reached all_reduce #1: finished, after all_reduce #0$"),
    "asleep": (sleep_for_ever, r"rank 1 has not reached barrier #0: it is running, no collective yet, at .*time.sleep"),
    "group": (leave_out_a_group, r"rank 1 has not reached all_reduce #0 of ranks 1, 2: it is waiting in all_reduce #1"),
    "nobody sends": (wait_for_a_send_that_nobody_makes, r"rank 0 waits in irecv for rank 1, which is finished"),
    "C++ DDP": (skip_a_step_of_ddp, r"rank 1 has not reached broadcast #\d+: finished, after all_reduce #\d+$"),
}


@pytest.mark.slow
@pytest.mark.parametrize("disagreement", DISAGREEMENTS)
def test_what_the_ranks_disagree_on_is_said_and_drawn(three, disagreement):
    function, sentence = DISAGREEMENTS[disagreement]
    with pytest.raises(RankError) as caught:
        three.run(function)
    assert re.search(rf"^{sentence}", str(caught.value), re.MULTILINE), str(caught.value)
    if isinstance(caught.value, CollectiveHang):  # gloo may notice a wrong size by itself
        assert any(re.match(sentence, found) for found in caught.value.mismatches)
        assert re.search(r"^rank \d, .* -> ranks? \d", repr(caught.value.drawing), re.MULTILINE)


def stop_a_process():
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.barrier()


HANGS = {
    "stopped": (stop_a_process, [r"1  +-  +stopped, no collective yet", r"2  +-  +waiting in barrier"]),
    "skipped": (skip_a_collective, [r"0  +-  +waiting in all_reduce #1 ", r"1  +-  +finished, after all_reduce #0 "]),
    "another": (call_another_collective, [r"0  +-  +waiting in barrier #0 ", r"1  .* barrier #1 |1  .* broadcast #0"]),
    "asleep": (
        sleep_for_ever,
        [r"1  +-  +running, no collective yet .*time.sleep\(1000\)", r"2  +-  +waiting in barrier"],
    ),
    "backward": (hang_in_backward, [r"2  +backward  +waiting in all_reduce #0  .*dist.all_reduce\(gradient\)"]),
    "point to point": (wait_for_a_send_that_nobody_makes, [r"0  +-  +waiting in irecv  .*irecv", r"1  +-  +finished"]),
    "ours": (hang_in_our_own_collective, [r"0  +-  +waiting in reduce_scatter #0  .*reduce_scatter\(torch.ones\(3\)"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("hang", HANGS)
def test_ranks_that_wait_for_each_other_are_told_apart_within_two_seconds_after_the_timeout(three, hang):
    function, rows = HANGS[hang]
    three.run(os.getpid)
    limit, started = fault_injection.limit(three), time.monotonic()
    with pytest.raises(CollectiveHang, match=r"^rank \d has waited in .* for 2 s, and no other rank moves") as caught:
        three.run(function)
    error = caught.value
    assert str(error).startswith(f"rank {error.rank} has waited in {error.collective} for")
    assert ("moves: rank 1 is stopped, by a signal such as SIGSTOP." in str(error)) == (hang == "stopped")
    row = rf"^  {error.rank}  .*waiting in {error.collective}  .*{re.escape(error.where)}$"
    assert re.search(row, str(error), re.MULTILINE)
    assert 1.5 <= time.monotonic() - started < 1.5 + limit
    for row in rows:
        assert re.search(rf"^  {row}", str(caught.value), re.MULTILINE), str(caught.value)


def test_a_rank_that_is_stopped_while_none_waits_is_told_of_once_with_what_lets_it_go_on(three, monkeypatch):
    def stop():
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        return dist.get_rank()

    pid, told = three.run(os.getpid)[1], []

    def let_it_go_on(text):
        told.append(text)
        threading.Timer(0.5, os.kill, (pid, signal.SIGCONT)).start()

    monkeypatch.setattr(call, "SILENCE", 0.1)
    monkeypatch.setattr(call, "show", let_it_go_on)
    in_any_case = threading.Timer(20, os.kill, (pid, signal.SIGCONT))
    in_any_case.start()
    assert three.run(stop) == [0, 1, 2]
    in_any_case.cancel()
    words = "is stopped, by a debugger or by a signal such as SIGSTOP, and waited for"
    assert told == [f"rank 1 (pid {pid}) {words}; after a signal `kill -CONT {pid}` lets it go on\n"]


@pytest.mark.slow
def test_a_rank_may_be_asked_where_it_stands_while_python_executes_what_no_line_asked_for(three):
    def nap():
        time.sleep(1.5)  # the kernel asks five times a second
        return dist.get_rank()

    def train():
        return types.FunctionType(nap.__code__.replace(co_linetable=b""), globals())()

    assert three.run(train) == [0, 1, 2]


@pytest.mark.slow
def test_a_long_computation_is_not_a_hang(three):
    def compute_alone():
        if dist.get_rank() == 1:
            end = time.monotonic() + 4
            while time.monotonic() < end:
                torch.ones(10).sum()
        dist.barrier()
        return dist.get_rank()

    assert three.run(compute_alone) == [0, 1, 2]


@pytest.mark.slow
def test_a_long_computation_that_never_lets_another_thread_run_is_not_a_hang(three):
    def sum_alone():
        end = time.monotonic() + 4
        while dist.get_rank() == 1 and time.monotonic() < end:
            sum(range(3 * 10**7))  # one call into C, with the lock held
        dist.barrier()
        return dist.get_rank()

    assert three.run(sum_alone) == [0, 1, 2]


@pytest.mark.slow
def test_a_long_computation_on_all_ranks_is_not_a_hang(three):
    def compute_with_gradients_under_way():
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))
        end = time.monotonic() + 4
        while True:
            model(torch.ones(1, 3)).sum().backward()
            sum(range(10**6 * (1 + dist.get_rank())))
            if dist.get_rank() == 0:
                time.sleep(0.1)
            stop = torch.tensor(float(time.monotonic() >= end))
            dist.broadcast(stop, src=0)
            if stop:
                break
        return dist.get_rank()

    assert three.run(compute_with_gradients_under_way) == [0, 1, 2]


def test_the_root_cause_is_the_earliest_failure_that_does_not_blame_a_peer():
    closed = {"peer": True, "exception": "RuntimeError"}
    outcomes = [
        Outcome(0, "raised", closed, time=10),
        Outcome(1, "died", -9, time=30),
        Outcome(2, "raised", {"peer": False}, time=40),
        Outcome(3, "done", b"", time=5),
    ]
    assert root_cause(outcomes).rank == 1
    assert root_cause(outcomes[:1]).rank == 0


def test_a_rank_of_which_nobody_knows_how_it_ended_says_so():
    error = rank_error(Outcome(0, "died", None, time=1), 4711, "", [Standing(0, "gone", Position())])
    assert str(error).startswith(
        "rank 0 (pid 4711) is gone, and its exit code unknown: the process that started it has"
    )
    assert (error.exitcode, error.signal, error.exception) == (None, None, None)


def test_a_signal_that_has_no_name_is_said_by_its_number():
    error = rank_error(Outcome(0, "died", -40, time=1), 4711, "", [Standing(0, ending_words(-40), Position())])
    assert str(error).startswith("rank 0 (pid 4711) was killed by signal 40\n")
    assert error.signal == "signal 40"


def test_an_error_carries_as_data_what_its_message_is_written_from(three):
    def complain():
        if dist.get_rank() == 1:
            raise ValueError("no such thing\n\nand another paragraph")
        dist.barrier()

    with pytest.raises(RankError) as caught:
        three.run(complain)
    error = caught.value
    assert error.said == "no such thing\n\nand another paragraph"
    assert str(error).startswith(f"{error.what}\n\nThat was ")
    assert [standing.rank for standing in error.standings] == [0, 1, 2]
    assert all(line.strip() in str(error) for line in table(error.standings).splitlines())


class Complains(torch.nn.Module):
    def forward(self, inputs):
        raise ValueError("no batch")


def step():
    raise ValueError("no batch")


@pytest.mark.parametrize(
    ("function", "phase"), [(step, "running"), (lambda: Complains()(1), "forward")], ids=["own step", "a module"]
)
def test_a_phase_is_what_torch_does_and_not_what_a_function_of_ones_own_is_called(three, function, phase):
    with pytest.raises(RankError, match="no batch") as caught:
        three.run(function)
    assert caught.value.phase == phase


def test_a_step_of_a_pipelines_schedule_is_no_update(three):
    def train():
        from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

        stage = PipelineStage(torch.nn.Linear(8, 8), dist.get_rank(), 3, torch.device("cpu"))
        ScheduleGPipe(stage, 2).step(torch.ones(4, 8), losses="none")

    with pytest.raises(RankError, match="losses must be a list") as caught:
        three.run(train)
    assert caught.value.phase == "running"


def test_the_table_of_ranks_is_aligned_and_says_what_each_does():
    standings = [
        Standing(0, "running", Position(INSIDE, "all_gather", 17), "forward", "cell [3], line 2: engine.step()"),
        Standing(1, "finished", Position(DONE, "barrier", 3)),
        Standing(2, "lost a peer", Position(FAILED, "all_reduce", 4)),
        Standing(3, "running", Position()),
    ]
    assert table(standings).splitlines() == [
        "rank  phase    last collective                at",
        "0     forward  waiting in all_gather #17      cell [3], line 2: engine.step()",
        "1     -        finished, after barrier #3     -",
        "2     -        lost a peer, in all_reduce #4  -",
        "3     -        running, no collective yet     -",
    ]
