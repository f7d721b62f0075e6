"""Every fault, at every moment, on one, two and all ranks: named within two seconds, and the next run works."""

import os
import re

import fault_injection
import pytest
import torch.distributed as dist

from zerolab import Cluster, CollectiveHang, RankError

FACTS = {
    "exception": {"exception": "ValueError"},
    "sys.exit": {"exception": "SystemExit"},
    "os._exit": {"exitcode": 3},
    "SIGSEGV": {"signal": "SIGSEGV"},
    "SIGABRT": {"signal": "SIGABRT"},
    "SIGKILL": {"signal": "SIGKILL"},
    "out of memory": {"exception": "RuntimeError"},
}
WORDS = {
    "exception": r"the batch is empty",
    "sys.exit": r"raised SystemExit: 5",
    "os._exit": r"ended with exit code 3",
    "SIGSEGV": r"was killed by SIGSEGV",
    "SIGABRT": r"was killed by SIGABRT$",
    "SIGKILL": r"was killed by SIGKILL: .*memory",
    "out of memory": r"memory",
}


@pytest.fixture(scope="module")
def three():
    with Cluster(3, device="cpu", timeout=20) as cluster:
        yield cluster


@pytest.mark.slow
@pytest.mark.parametrize("who", fault_injection.WHO.values(), ids=fault_injection.WHO)
@pytest.mark.parametrize("moment", fault_injection.MOMENTS, ids=lambda moment: moment.__name__)
@pytest.mark.parametrize("fault", fault_injection.FAULTS)
def test_a_fault_is_named_in_time_with_all_that_is_known_and_the_next_run_works(three, fault, moment, who, tmp_path):
    pids, limit = three.run(os.getpid), fault_injection.limit(three)
    trouble = fault_injection.Injection(fault, who, tmp_path)
    if moment is fault_injection.while_idle and fault not in fault_injection.DEADLY:
        assert fault_injection.call(three, moment, trouble) == [0, 1, 2], (
            "an error in a thread of an idle rank ends no rank"
        )
        assert three.run(os.getpid) == pids
        return
    with pytest.raises(RankError) as caught:
        fault_injection.call(three, moment, trouble)
    took = trouble.since()
    phase, collective, others = fault_injection.MOMENTS[moment]
    error, message = caught.value, str(caught.value)
    assert not isinstance(error, CollectiveHang)
    assert error.rank in who
    assert error.pid == pids[error.rank]
    assert message.startswith(f"rank {error.rank} (pid {error.pid}) ")
    assert re.search(WORDS[fault], message.splitlines()[0])
    assert {name: getattr(error, name) for name in FACTS[fault]} == FACTS[fault]
    assert (error.phase, error.collective) == (phase, collective)
    assert re.search(r"(injection|test_fault_matrix)\.py, line \d+", error.where), error.where
    assert f"{error.where}\n" in message
    for rank in {0, 1, 2} - set(who):
        assert re.search(rf"^  {rank} .* {others}", message, re.MULTILINE), message
    assert took < limit
    assert three.run(dist.get_rank) == [0, 1, 2]
    assert not any(fault_injection.is_alive(pid) for pid in pids)


def test_a_rank_that_survived_running_out_of_memory_can_fail_again_while_idle(three, tmp_path):
    three.run(fault_injection.leave_room, 4 << 20)  # as much as may be left then, and half of a thread's stack
    trouble = fault_injection.Injection("exception", (0, 1, 2), tmp_path)
    assert fault_injection.call(three, fault_injection.while_idle, trouble) == [0, 1, 2]
