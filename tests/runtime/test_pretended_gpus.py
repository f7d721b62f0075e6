"""What ranks do on GPUs that are only pretended: which they take, over what they talk, and what is said if they cannot.

torch's answers are changed in processes of their own, the ranks among them, and `nvidia-smi` is a recording.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from zerolab.runtime import drivers as reasons
from zerolab.runtime import report
from zerolab.runtime.board import RUNNING

HERE = Path(__file__).parent
NCCL = "cpu:gloo,cuda:nccl"


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """What came of each case of `pretended_gpus.py`."""
    folder = tmp_path_factory.mktemp("pretended")
    shutil.copy(HERE / "pretended_gpus.py", folder / "sitecustomize.py")
    path = os.pathsep.join([str(folder), str(HERE)])
    command = [sys.executable, str(HERE / "pretended_gpus.py"), str(folder)]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("ZEROLAB_", "CUDA", "NCCL"))
    }
    ended = subprocess.run(command, env=environment | {"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def test_a_rank_for_each_of_two_gpus_by_default_over_nccl(cases):
    assert cases["two"] == [2, [0, 1], NCCL, []]


def test_more_ranks_than_gpus_talk_over_gloo_and_are_told_that_seconds_mean_nothing(cases):
    size, gpus, backend, (note,) = cases["four on two"]
    assert (size, gpus, backend) == (4, [0, 1], "gloo")
    assert note == (
        "4 ranks share 2 GPUs: they communicate over gloo, not NCCL; they take turns, so seconds measured there mean "
        "nothing"
    )


def test_an_nccl_that_allows_several_ranks_on_a_gpu_is_used_where_its_variable_asks_for_it(cases):
    assert cases["several NCCL ranks"][2] == NCCL
    assert "over NCCL as NCCL_MULTI_RANK_GPU_ENABLE asks" in cases["several NCCL ranks"][3][0]
    assert cases["several ranks of an old NCCL"][2] == "gloo"


def test_a_torch_without_nccl_uses_the_gpus_over_gloo_and_says_so(cases):
    assert cases["no NCCL"][:3] == [2, [0, 1], "gloo"]
    assert "built without NCCL" in cases["no NCCL"][3][0]


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (
            "old driver",
            "built for CUDA 13.0, which needs driver 580 or newer, and NVIDIA H200 has 535.183.01 (make env",
        ),
        (
            "lost",
            "the driver lists NVIDIA H200, and CUDA does not start: CUDA error: unknown error: the card may be lost",
        ),
        (
            "fallen off the bus",
            "nvidia-smi fails: Unable to determine the device handle for GPU0: 0000:01:00.0: GPU is lost",
        ),
        ("CPU build", "this torch is a CPU build and cannot use NVIDIA H200 (make env TORCH=cuda"),
        ("unknown UUID", "CUDA_VISIBLE_DEVICES is 'GPU-9999', which leaves none of 1 visible"),
        ("V100", "GPU 0, NVIDIA H200, has compute capability 7.0, and this torch is built for sm_75, sm_80"),
    ],
)
def test_the_cpu_is_never_taken_in_silence_where_there_are_cards(cases, case, words):
    size, gpus, backend, notes = cases[case]
    assert (size, gpus, backend) == (4, [], "gloo")
    assert words in notes[0]
    assert "the ranks compute on the CPU" in " ".join(notes)


def test_cards_that_somebody_has_hidden_on_purpose_are_not_talked_about(cases):
    assert cases["hidden"] == [4, [], "gloo", []]


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("old driver, insisting", "torch sees no GPU here: this torch is built for CUDA 13.0, which needs driver 580"),
        ("hidden, insisting", "torch sees no GPU here: CUDA_VISIBLE_DEVICES is '', which leaves none of 1 visible"),
        ("V100, insisting", "GPU 0, NVIDIA H200, has compute capability 7.0, and this torch is built for sm_75"),
    ],
)
def test_who_insists_on_cuda_is_told_why_not_before_anything_starts(cases, case, words):
    assert words in cases[case]
    assert cases[case].endswith(("; use device='cpu'", "; use device='cpu', or other GPUs"))


def test_a_card_newer_than_the_build_runs_its_ptx_and_one_of_unknown_age_is_tried(cases):
    assert cases["newer than the build"][1] == [0]
    assert cases["silent about its capability"][1] == [0]


def test_local_rank_is_the_number_of_the_gpu_that_a_rank_has(cases):
    assert [(each[0], each[1]) for each in cases["ranks alone"]] == [("3", "cuda:3"), ("2", "cuda:2")]
    assert [(each[0], each[1]) for each in cases["ranks that share"]] == [
        ("0", "cuda:0"),
        ("1", "cuda:1"),
        ("0", "cuda:0"),
    ]
    assert [each[0] for each in cases["ranks on the CPU"]] == ["0", "1"]


def test_only_ranks_that_share_give_back_what_they_cached_after_a_call(cases):
    assert [each[2:] for each in cases["ranks alone"]] == [[NCCL]] * 2
    assert [each[2:] for each in cases["ranks that share"]] == [["gloo", "empty_cache"]] * 3


def test_a_gpu_that_fails_as_a_rank_takes_it_is_named_with_the_remedy(cases):
    assert "GPU 0 cannot be used: CUDA error: no kernel image is available" in cases["ranks without a kernel"]
    assert "TORCH=cuda12 is for older cards" in cases["ranks without a kernel"]


@pytest.mark.parametrize(
    "said",
    [
        "CUDA error: unspecified launch failure\nCUDA kernel errors might be reported at some other call",
        "NCCL error in: ProcessGroupNCCL.cpp:77, unhandled cuda error\nLast error:\nCuda failure 'GPU is lost'",
    ],
)
def test_a_gpu_that_is_lost_in_the_middle_of_a_run_is_reported_with_the_remedy(said):
    first, *others = report.of(RuntimeError(said), RUNNING)["message"].splitlines()
    assert first.startswith(f"{said.splitlines()[0]}; the card may be lost: `dmesg | grep -i xid` says why")
    assert others == said.splitlines()[1:]
    assert not report.blames_a_peer(RuntimeError(said)), "it is the cause"


def test_an_error_of_the_learners_own_gets_no_remedy_of_ours():
    assert report.of(ValueError("the parcel is lost"), RUNNING)["message"] == "the parcel is lost"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            "CUDA error: out of memory\nCUDA kernel errors might",
            "it is full; `nvidia-smi` lists whose processes fill it",
        ),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "another process has it to itself"),
        ("CUDA error: unspecified launch failure", "the card may be lost: `dmesg | grep -i xid` says why"),
        ("CUDA error: uncorrectable ECC error encountered", "the card may be lost"),
        ("NCCL error in: ProcessGroupNCCL.cpp:77, unhandled system error", "NCCL_DEBUG=INFO shows why"),
    ],
)
def test_what_cuda_says_is_one_line_with_what_to_do_about_it(said, words):
    explained = reasons.explained(said)
    assert explained.startswith(said.splitlines()[0])
    assert words in explained
    assert "\n" not in explained
