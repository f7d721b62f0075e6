"""What the player shows of a run that broke off: everything up to there, and which rank ended early."""

import pytest
from showing import state

from zerolab import Cluster, RankError

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def training_that_breaks():
    import torch
    import torch.distributed as dist

    from zerolab import Zero3, models

    engine = Zero3(models.build("gpt-tiny"), torch.optim.AdamW, lr=1e-3)
    for number, (inputs, targets) in enumerate(models.batches("gpt-tiny", 2, dist.get_rank(), 2)):
        if number == 1 and dist.get_rank() == 1:
            raise ValueError("this batch is empty")
        engine.training_step(inputs, targets, models.loss)


def test_a_run_that_a_rank_broke_off_is_drawn_up_to_there(show):
    with Cluster(world_size=2, device="cpu") as cluster, pytest.raises(RankError) as caught:
        cluster.record(training_that_breaks)
    recording = caught.value.recording
    tab = show(recording)
    badges = tab.locator(".zl-badge").all_inner_texts()
    assert "rank 1 ended early" in badges
    tab.keyboard.press("End")
    assert state(tab)["index"] == len(recording.events) - 1
    tab.keyboard.press("z")
    labels = [label["text"] for label in tab.evaluate("window.zerolabPlayers[0].labels()")["timeline"]]
    assert "ended early" in labels
