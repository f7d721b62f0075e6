"""`zerolab.run` on ranks of the contract: under torchrun, and forked as torchrun would start them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import warm

from zerolab import Recording


@pytest.mark.slow
@pytest.mark.parametrize("how", [[], ["--times-only"]], ids=["whole", "times only"])
def test_zerolab_run_trains_and_records_where_collectives_return_no_work(tmp_path, how):
    training = [
        "--stage",
        "zero3",
        "--model",
        "mlp-odd",
        "--steps",
        "2",
        "--device",
        "cpu",
        "--out",
        tmp_path / "run.json",
    ]
    script = Path(__file__).with_name("run_on_contract.py")
    environment = {"TMPDIR": str(tmp_path)}  # where torchrun leaves a folder for its logs
    command = [script, *training, *how]
    if how:
        done = warm.launch(command, environment=environment)
    else:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *command]
        environment = os.environ | environment
        done = subprocess.run(torchrun, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert "step 2 of 2: loss" in done.stdout
    recording = Recording.load(tmp_path / "run.json")
    assert recording.world_size == 2
    assert recording.info.times_only == bool(how)
    assert recording.times().title == "step 2, GPU time"
    starts = [event.device_start - event.t_start for event in recording.events if event.stream is not None]
    assert min(starts) > -1e6, "on the clock of rank 0, as the host's times"
    assert {"all_gather", "reduce_scatter"} <= {event.op for event in recording.events if event.kind == "collective"}
