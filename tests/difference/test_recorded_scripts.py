"""A script under torchrun, recorded with fingerprints: it trains as if nobody looked, and other systems agree."""

import pytest

from zerolab import cli
from zerolab.recording.recording import Recording


@pytest.mark.slow
def test_a_script_leaves_fingerprints_beside_its_recording_and_the_same_losses(tmp_path, capsys, script):
    runs = {}
    for system in ("ddp", "fsdp2"):
        out = tmp_path / f"{system}.json"
        done = script.traced(out, "wrapped.py", system, options=["--steps", "1:3", "--fingerprints"])
        plain = script.launch(script.SCRIPTS / "wrapped.py", system)
        assert done.returncode == 0, done.stderr
        assert script.losses(done) == script.losses(plain)
        assert len(script.losses(done)) == 12
        assert Recording.load(out).info.steps == 3
        runs[system] = str(out)
    assert cli.main(["diff", runs["ddp"], runs["fsdp2"]]) == 0, capsys.readouterr()
    assert "no difference in step 1, 2, 3" in capsys.readouterr().out
