"""What a schedule costs, where it can be said in a line what it must cost."""

from dataclasses import replace

import pytest
from schedule_table import BEGIN, END, END_OF_OFFLOAD, OFFLOAD, PAGE, job, offload, page
from step_schedule import FSDP2, GLOO, NCCL, PCIE_GEN5, SCHEDULES, offload_seconds, seconds

from zerolab import catalog
from zerolab.theory.seconds import attention_seconds, block_seconds, gather_seconds, head_seconds, reduce_seconds

SHAPE = catalog.architecture("llama-7b")
FAST, SLOW = job(8), job(1)
STAGES = ["ddp", "zero1", "zero2", "zero3"]


@pytest.mark.slow
def test_the_tables_of_the_page_are_what_the_model_and_the_simulation_give():
    assert PAGE.read_text().partition(BEGIN)[2].partition(END)[0] == page()


def test_the_table_of_offload_is_what_the_model_gives():
    assert PAGE.read_text().partition(OFFLOAD)[2].partition(END_OF_OFFLOAD)[0] == offload()


def test_where_the_link_keeps_up_an_update_waits_for_what_the_last_reductions_leave_of_the_last_two_blocks_and_root():
    root, block = (4 * numel / 8 / PCIE_GEN5 for numel in (SHAPE.root_params, SHAPE.block_params))
    left = 2 * block - sum(reduce_seconds("zero2", numel, FAST) for numel in (SHAPE.block_params, SHAPE.root_params))
    assert left > 0
    assert offload_seconds("zero2", FAST, own_stream=True) == pytest.approx(root + left)
    whole = 4 * (SHAPE.depth * SHAPE.block_params + SHAPE.root_params) / 8 / PCIE_GEN5
    assert offload_seconds("zero2", FAST, own_stream=False) == pytest.approx(whole)


@pytest.mark.parametrize("place", [FAST, SLOW], ids=["one node", "eight nodes"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_stream_of_its_own_never_makes_an_update_wait_longer_and_always_for_the_root(stage, place):
    own, after = (offload_seconds(stage, place, own_stream=own_stream) for own_stream in (True, False))
    assert 4 * SHAPE.root_params / 8 / PCIE_GEN5 * (1 - 1e-12) <= own <= after


def test_on_eight_gpus_the_shards_of_every_published_model_begin_at_addresses_of_16_bytes():
    for name, shape in catalog.ARCHITECTURES.items():
        for ranks in (2, 4, 8):
            for numel in (shape.block_params, shape.root_params):
                assert numel % (8 * ranks) == 0, (name, ranks)  # of 2 bytes each


def test_where_every_reduction_is_hidden_ddp_waits_for_the_roots_alone():
    computing = SHAPE.depth * (3 * block_seconds(FAST) + attention_seconds(FAST) / 2)
    computing += 3 * head_seconds(FAST) + reduce_seconds("ddp", SHAPE.block_params, FAST)  # the last block's, too
    wanted = computing + reduce_seconds("ddp", SHAPE.root_params, FAST)
    assert seconds("ddp", FAST, NCCL) == pytest.approx(wanted)


def test_where_sending_is_the_longer_half_a_units_backward_is_won_for_each_unit_but_the_first():
    half = block_seconds(SLOW) + attention_seconds(SLOW) / 4
    early, late = seconds("zero2", SLOW, GLOO), seconds("zero2", SLOW, replace(GLOO, waits_at_half=False))
    assert early - late == pytest.approx((SHAPE.depth - 1) * half)


def test_parameters_that_are_waited_for_where_they_are_used_arrive_while_units_compute():
    gather, block = gather_seconds(SHAPE.block_params, FAST), block_seconds(FAST)
    assert gather < block
    at_once = seconds("zero1", FAST, replace(NCCL, publishes_when_used=False))
    assert at_once - seconds("zero1", FAST, NCCL) == pytest.approx((SHAPE.depth - 1) * gather)


@pytest.mark.parametrize("place", [FAST, SLOW], ids=["one node", "eight nodes"])
@pytest.mark.parametrize("stage", STAGES)
def test_the_schedule_over_nccl_is_never_longer_than_that_over_gloo_nor_by_more_than_one_gather_than_fsdp2s(
    stage, place
):
    ours = seconds(stage, place, NCCL)
    assert ours <= seconds(stage, place, GLOO) * (1 + 1e-12)
    assert ours - seconds(stage, place, FSDP2) <= gather_seconds(SHAPE.block_params, place)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_schedule_is_shorter_than_computing_or_than_sending(schedule):
    for stage in STAGES:
        for place in (FAST, SLOW):
            computing = SHAPE.depth * 3 * block_seconds(place) + 3 * head_seconds(place)
            sending = SHAPE.depth * reduce_seconds(stage, SHAPE.block_params, place)
            sending += 2 * SHAPE.depth * gather_seconds(SHAPE.block_params, place) * (stage == "zero3")
            assert seconds(stage, place, SCHEDULES[schedule]) > max(computing, sending)
