"""Where a recording is written, and what happens where that is not possible: the training goes on."""

import pytest
from launching import SCRIPTS, launch, run_alone

from zerolab.recording import jsonfile
from zerolab.recording.recording import Recording

TRAIN = """import os, resource, shutil
import torch, zerolab
def train(out, within=lambda: None, fingerprints=True):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with zerolab.recording(out, steps=(1, 2), fingerprints=fingerprints) as window:
        within()
        for _ in range(4):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    print(window.steps, flush=True)
"""


def test_where_a_recording_cannot_be_written_a_line_names_the_file_and_the_training_goes_on(tmp_path):
    script = (
        "os.mkdir('gone'); train('gone/run.json', lambda: shutil.rmtree('gone'))\n"
        "limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
        "train('run.json', limit)\n"
        "raise SystemExit(7)\n"
    )
    done = run_alone(tmp_path, TRAIN + script)
    assert (done.returncode, done.stdout) == (7, "2\n2\n"), done.stderr
    missing, full = "[Errno 2] No such file or directory", "[Errno 27] File too large"
    said = done.stderr.splitlines()
    assert said[:3] == [
        f"zerolab: no fingerprints came from rank 0: {missing}: '{tmp_path}/gone/run.json.fingerprints'",
        f"zerolab: no recording came from rank 0: {missing}: '{tmp_path}/gone/run.json.parts'",
        f"zerolab: no fingerprints came from rank 0: {full}: '{tmp_path}/run.json.fingerprints/rank-0.json'",
    ]
    assert said[3].startswith(f"zerolab: no recording came from rank 0: {full}: '{tmp_path}/run.json.parts/rank-0-")
    assert len(said) == 4
    assert not list(tmp_path.rglob(".zerolab-*"))


def test_a_recording_lies_where_it_was_asked_for_and_fingerprints_of_another_run_do_not_stay_beside_it(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    script = (
        "train('run.json', lambda: os.chdir('elsewhere'))\n"
        "os.chdir('..'); print(os.listdir('elsewhere'), os.listdir('run.json.fingerprints'))\n"
        "train('run.json', fingerprints=False); print(os.listdir('run.json.fingerprints'))\n"
    )
    done = run_alone(tmp_path, TRAIN + script)
    assert done.stdout == "2\n[] ['rank-0.json']\n2\n[]\n", done.stderr
    assert done.stderr == 2 * "zerolab: 2 steps of 1 rank, from step 1 on, in run.json\n"
    assert Recording.load(tmp_path / "run.json").info.steps == 2


def test_a_script_that_ends_by_os_exit_after_the_last_step_has_left_what_was_recorded(tmp_path):
    script = (
        "forward, calls = torch.nn.Linear.forward, iter(range(3))\n"
        "torch.nn.Linear.forward = lambda *given: os._exit(7) if next(calls) == 2 else forward(*given)\n"
        "train('run.json', fingerprints=False)\n"
    )
    done = run_alone(tmp_path, TRAIN + script)
    assert done.returncode == 7, done.stderr
    # It may have ended before the part became the recording.
    left = [*tmp_path.glob("run.json"), *tmp_path.glob("run.json.parts/rank-0-*.json")]
    assert [jsonfile.read(path).ranks[0].info.steps for path in left[:1]] == [2]


def test_where_no_thread_can_be_started_a_recording_is_written_all_the_same(tmp_path):
    # As at the end of a script in Python 3.12.0 and 3.12.1: with stacks that no machine has room for.
    script = "import threading\ntrain('run.json', lambda: threading.stack_size(2**46), fingerprints=False)\n"
    done = run_alone(tmp_path, TRAIN + script)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
    assert done.stderr == "zerolab: 2 steps of 1 rank, from step 1 on, in run.json\n"
    assert Recording.load(tmp_path / "run.json").info.steps == 2


def test_fingerprints_of_another_run_that_cannot_be_removed_are_named_and_the_training_goes_on(tmp_path):
    stays = tmp_path / "run.json.fingerprints" / "rank-0.json"
    stays.mkdir(parents=True)
    done = run_alone(tmp_path, TRAIN + "train('run.json', fingerprints=False)\n")
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
    first, second = done.stderr.splitlines()
    assert first.startswith("zerolab: fingerprints of an earlier run stay beside this one's recording: [Errno ")
    assert first.endswith(f": '{stays}'")
    assert second == "zerolab: 2 steps of 1 rank, from step 1 on, in run.json"


@pytest.mark.parametrize("left", ["parts/rank-0-a-b.json", "parts/merged", "fingerprints/rank-0.json"])
def test_what_an_earlier_run_left_and_nobody_can_remove_is_named_before_anything_runs(left, tmp_path):
    out = tmp_path / "run.json"
    stays = tmp_path / f"run.json.{left}"
    stays.mkdir(parents=True)
    done = launch("-m", "zerolab.trace", "--fingerprints", "--out", out, SCRIPTS / "plain.py", ranks=0)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    *_, last = done.stderr.splitlines()
    assert f"error: cannot write '{out}': what an earlier run left is in the way ([Errno " in last
    assert last.endswith(f": '{stays}'); remove that, or choose another file")
