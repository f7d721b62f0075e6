"""The doctor looks at the box, tries four ranks on it, and says what is missing and what to do about it."""

import json
import os
import subprocess
import sys

import pytest

from zerolab import doctor

GB = 10**9
CARD = {
    "index": 0,
    "uuid": "GPU-0",
    "name": "NVIDIA A100",
    "memory_total": 40 * GB,
    "memory_free": 30 * GB,
    "compute_mode": "Default",
    "mig": "Disabled",
    "capability": "8.0",
}


@pytest.fixture(scope="module")
def report():
    return doctor.examine()


def test_on_a_box_where_the_tests_run_nothing_essential_fails_and_four_ranks_add_up(report):
    assert report["ok"]
    checks = {check["name"]: check for check in report["checks"]}
    assert list(checks)[:3] == ["Python", "torch", "GPUs"]
    assert {name for name, check in checks.items() if check["essential"]} == {"Python", "torch", "ranks"}
    assert checks["ranks"]["found"].startswith("4 ranks started and added up 1, 2, 3, 4 to 10 in ")


def test_the_report_is_json_and_reads_as_one_line_a_check(report):
    assert json.loads(json.dumps(report)) == report
    assert report["cores"] >= 1
    assert 0 < report["memory_available"] <= report["memory_total"]
    lines = doctor.describe(report).splitlines()
    assert lines[-1] == "Lessons run here."
    shown = [line for line in lines[1:-1] if not line.startswith(" ")]
    assert [line.split()[0] for line in shown] == ["ok" if check["ok"] else "note" for check in report["checks"]]
    assert all(check["name"] in line for check, line in zip(report["checks"], shown, strict=True))


def test_what_fails_is_said_with_its_remedy_and_what_lessons_cannot_do_without():
    broken = doctor.check_python((3, 9))
    missing = doctor.check_deepspeed(None)
    shown = doctor.describe({"zerolab": "0", "system": "Linux", "checks": [broken, missing]})
    assert "FAILS Python         3.9 (" in shown
    assert "take 3.11 to 3.13: make env PYTHON=python3.12" in shown
    assert "note  DeepSpeed" in shown
    assert shown.endswith("No lesson runs before this is repaired: Python")


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is a folder that not even root can write to")
def test_a_home_in_which_jupyterlab_cannot_start_is_said(monkeypatch):
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/proc/nope")
    check = doctor.check_jupyter("4.6", doctor._jupyters_folder())
    assert not check["ok"]
    assert check["remedy"].startswith("JupyterLab cannot make '/proc/nope/")


@pytest.mark.parametrize("check", [doctor.check_python((3, 11)), doctor.check_deepspeed("0.17")])
def test_what_is_well_has_no_remedy(check):
    assert check["ok"]
    assert check["remedy"] == ""


@pytest.mark.parametrize(
    ("check", "words"),
    [
        (lambda: doctor.check_torch((None, None)), "make env"),
        (lambda: doctor.check_torch(("2.9.1+cpu", None)), "older than 2.11"),
        (lambda: doctor.check_gpus([CARD], ("2.13.0+cpu", None)), "make env TORCH=cuda"),
        (lambda: doctor.check_links({"NV12": ["0-1"], "SYS": ["0-2", "1-2"]}), "not all GPUs are joined by NVLink"),
        (lambda: doctor.check_memory(4 * GB, GB), "world_size=2"),
        (lambda: doctor.check_shared_memory(64 * 10**6, "cuda"), "--shm-size=1g"),
        (lambda: doctor.check_seats(0, "main memory", 4), "too little main memory"),
        (lambda: doctor.check_jupyter(None), "pip install"),
    ],
)
def test_each_thing_that_is_not_well_says_what_to_do(check, words):
    found = check()
    assert not found["ok"]
    assert words in found["remedy"]


@pytest.mark.parametrize(
    ("variable", "value", "name", "words"),
    [
        ("ZEROLAB_MAX_RANKS", "2", "ranks", ("allows 2", "lessons start 4 ranks: change that setting")),
        ("ZEROLAB_DEVICES", "first", "ranks", ("is 'first'", "change that setting")),
        ("ZEROLAB_CHROMIUM", "/nowhere", "browser", ("which is no file", "only the tests need it")),
    ],
)
def test_a_variable_that_the_host_has_set_wrong_is_named_on_its_line(monkeypatch, variable, value, name, words):
    monkeypatch.setenv(variable, value)
    check = doctor.check_ranks() if name == "ranks" else doctor.check_browser(*doctor._chromium())
    assert (check["name"], check["ok"]) == (name, False)
    assert words[0] in check["found"]
    assert words[1] in check["remedy"]


@pytest.mark.parametrize(
    ("cards", "words"),
    [
        ([CARD | {"mig": "Enabled"}] * 2, "GPU 0 is split into MIG slices"),
        ([CARD | {"compute_mode": "Exclusive_Process"}], "GPU 0 is in compute mode Exclusive_Process"),
    ],
)
def test_gpus_that_the_four_ranks_of_a_lesson_cannot_use_are_named(monkeypatch, cards, words):
    monkeypatch.setattr(doctor.devices, "visible_gpus", lambda: list(range(len(cards))))
    found = doctor.check_gpus(cards, ("2.13.0", "13.0"))
    assert (found["ok"], found["essential"]) == (False, False)
    assert words in found["remedy"]


def test_cards_that_torch_cannot_use_are_said_with_the_reason(monkeypatch, tmp_path):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'GPU is lost.  Reboot the system'\nexit 15\n")
    (tmp_path / "nvidia-smi").chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = doctor.check_gpus([CARD], ("2.13.0", "13.0"))
    assert (found["ok"], found["remedy"]) == (False, "nvidia-smi fails: GPU is lost.  Reboot the system")


def test_ranks_train_with_a_gpu_each_and_on_a_shared_one_where_there_are_gpus(monkeypatch):
    monkeypatch.setenv("ZEROLAB_DEVICES", "0,1")
    monkeypatch.setattr(doctor, "LESSON_RANKS", 2)
    assert doctor.check_ranks_on_gpus() == [], "torch sees none here"
    checks = doctor.check_ranks_on_gpus("cpu")
    assert [(check["name"], check["ok"], check["essential"]) for check in checks] == [
        ("NCCL", True, False),
        ("a shared GPU", True, False),
    ]
    assert checks[0]["found"].startswith("1 rank trained over gloo, recorded, in ")
    assert checks[1]["found"].startswith("2 ranks trained over gloo, recorded, in ")
    assert os.environ["ZEROLAB_DEVICES"] == "0,1"


def test_small_shared_memory_is_enough_without_gpus():
    assert doctor.check_shared_memory(2**26, "cpu")["ok"]
    assert doctor.check_shared_memory(None, "cpu")["ok"], "macOS has none"


def test_ranks_that_do_not_start_are_reported_and_not_raised(monkeypatch):
    monkeypatch.setenv("ZEROLAB_MAX_RANKS", "1")
    found = doctor.check_ranks()
    assert not found["ok"]
    assert found["found"] == "world_size is 4, and ZEROLAB_MAX_RANKS allows 1 on this machine; ask for fewer ranks"


@pytest.mark.parametrize(("most", "status"), [("1", 1), ("4", 0)])
def test_the_exit_status_says_whether_lessons_run(most, status):
    command = [sys.executable, "-c", "import sys; from zerolab.cli import main; sys.exit(main())", "doctor", "--json"]
    environment = os.environ | {"ZEROLAB_MAX_RANKS": most}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == status, ended.stderr
    assert json.loads(ended.stdout)["ok"] is (status == 0)


def test_seats_are_set_by_what_is_scarcest():
    card = CARD | {"memory_total": 60_000 * 2**20, "memory_free": 60_000 * 2**20}

    def context(_):
        return 500 * 2**20

    assert doctor.seats([], 20 * GB, 64) == (10, "main memory")
    assert doctor.seats([], 1000 * GB, 2) == (2, "cores")
    # 60,000 MiB with 500 MiB a rank hold 120 ranks, which are 30 people
    assert doctor.seats([card], 1000 * GB, 64, context) == (30, "GPU memory")
    assert doctor.seats([card], 20 * GB, 64, context) == (10, "main memory")
    cut = card | {"compute_mode": "Prohibited"}
    assert doctor.seats([cut], 1000 * GB, 64, context) == (64, "cores"), "ranks use the CPU then"
