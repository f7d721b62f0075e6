"""What the player shows of a run that broke off: everything up to there, and which rank ended early."""

import pytest
from showing import state

from zerolab import Cluster, CollectiveHang, RankError

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


def one_rank_stays_out():
    import torch
    import torch.distributed as dist

    from zerolab import Zero3, models

    engine = Zero3(models.build("gpt-tiny"), torch.optim.AdamW, lr=1e-3)
    batches = models.batches("gpt-tiny", 2, dist.get_rank(), 2)
    engine.training_step(*batches[0], models.loss)
    if dist.get_rank() == 1:
        dist.barrier()  # and rank 0 goes on to its next step
    engine.training_step(*batches[1], models.loss)


def test_a_run_that_hung_ends_where_each_rank_waited_and_says_in_which_collective(show):
    with Cluster(world_size=2, device="cpu", timeout=4) as cluster, pytest.raises(CollectiveHang) as caught:
        cluster.record(one_rank_stays_out)
    tab = show(caught.value.recording)
    assert tab.locator(".zl-badge").all_inner_texts() == ["rank 0 ended early", "rank 1 ended early"]
    said = {}
    for event in tab.evaluate(
        "window.zerolabPlayers[0].events.filter((e) => window.zerolabPlayers[0].model.cut.has(e.index))"
    ):
        tab.evaluate(f"window.zerolabPlayers[0].goto({event['index']})")
        if event["kind"] == "wait":
            said[event["rank"]] = state(tab)["caption"]
            assert state(tab)["moving"] == [], "nobody has seen anything arrive"
    assert "in all gather #" in said[0]
    assert "in barrier #" in said[1]
    assert all(caption.endswith("which never ended: its recording ends here.") for caption in said.values())
    tab.keyboard.press("End")
    assert state(tab)["caption"].endswith("its recording ends here.")
