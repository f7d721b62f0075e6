"""A process that is ended while it is recorded ends, whoever else has listened to signals."""

import signal

from launching import run_alone

from zerolab.recording.recording import Recording

ASYNCIO = """
import asyncio, os, signal
import torch, zerolab
async def fetch():
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, print)
    loop.remove_signal_handler(signal.SIGINT)  # the last one, so that asyncio takes the pipe of signals away
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with zerolab.recording("run.json", steps=(1, 10**9)) as window:
    asyncio.run(fetch())
    for step in range(1, 1000):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        if step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
"""


def test_a_script_that_has_used_handlers_of_asyncio_is_still_ended_and_leaves_what_it_has(tmp_path):
    done = run_alone(tmp_path, ASYNCIO)
    assert done.returncode == 128 + signal.SIGTERM
    recording = Recording.load(tmp_path / "run.json")
    assert recording.info.steps >= 1
    assert not recording.ranks[0].complete


ENDS = """
import os, signal, time
from zerolab.trace.ending import leaving
with leaving(lambda: time.sleep(0.5)):
    os.kill(os.getpid(), signal.SIGTERM)
"""


def test_a_script_that_comes_to_its_end_while_a_signal_ends_it_has_the_status_of_the_signal(tmp_path):
    assert run_alone(tmp_path, ENDS).returncode == 128 + signal.SIGTERM


HANDLES = """
import os, signal, time
from zerolab.trace.ending import leaving
with leaving(lambda: None):
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *given: before(*given))
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.5)
    signal.signal(signal.SIGTERM, before)
print("done")
"""


def test_a_script_whose_own_handler_calls_the_one_before_goes_on_to_its_end(tmp_path):
    assert run_alone(tmp_path, HANDLES).stdout == "done\n"


CLOSES = """
import os, signal
import torch, zerolab
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with zerolab.recording("run.json", steps=(1, 1)) as window:
    os.closerange(3, 1000)
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    at_last()
print(window.steps)
"""


def test_a_script_that_closes_all_descriptors_ends_by_itself_or_by_a_signal(tmp_path):
    ended = run_alone(tmp_path, "at_last = lambda: [os.kill(os.getpid(), signal.SIGTERM), signal.pause()]" + CLOSES)
    assert ended.returncode == 128 + signal.SIGTERM, ended.stderr
    done = run_alone(tmp_path, "at_last = list" + CLOSES)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
