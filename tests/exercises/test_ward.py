"""The clinic's second ward: loops over fully_shard are run broken, and are told apart from one process."""

import pytest

from zerolab import Cluster
from zerolab.exercises import diagnose, examine, load, names

CASES = [name for name in names() if name.startswith("ward-")]
HANGING = ("ward-never-ends", "ward-stands-still")
EQUAL = "ward-saves-little"  # only its bytes are wrong


@pytest.fixture(scope="module")
def patients():
    """Every broken loop, examined once on four ranks, and a patient of the first ward."""
    with Cluster(world_size=4, device="cpu", timeout=2) as cluster:
        yield {case: examine(cluster, case) for case in [*CASES, "clinic-apart"]}


@pytest.mark.parametrize("case", [case for case in CASES if case not in (*HANGING, EQUAL)])
def test_all_ranks_agree_and_one_process_does_not(patients, case):
    table = patients[case].beside_one_process()
    assert [row["rank"] for row in table] == [0, 1, 2, 3]
    (said,) = {row["at the end"] for row in table}
    assert said.endswith(" apart")


@pytest.mark.parametrize("case", CASES)
def test_its_suspects_are_four_and_one_is_guilty(case, capsys):
    suspects = load(case).suspects
    assert len(suspects) == 4
    (guilty,) = (number for number, suspect in enumerate(suspects, 1) if suspect.guilty)
    diagnose(case, guilty)
    assert capsys.readouterr().out.startswith("Yes: ")


def test_an_optimizer_that_was_made_too_early_keeps_the_whole_model(patients):
    recording = patients["ward-loss-stays"].recording
    shard = 4 * (6 + 1) + 4 * (13 + 1) + 2 * (13 + 1)  # rank 0's rows of 13, 13 and 5
    assert recording.state["parameters"] == 4 * (shard + 343)  # beside it all of the model, as it was before


def test_nothing_but_the_layers_is_exchanged_where_a_norm_or_a_number_should_be(patients):
    for case in ("ward-drifts", "ward-weighs"):
        steps = [event for event in patients[case].recording.ranks[0].events if event.step == 2]
        assert {event.op for event in steps if event.kind == "collective"} == {"all_gather", "reduce_scatter"}


def test_a_gather_on_rank_0_alone_stands_beside_the_others_barrier_after_the_last_update(patients):
    last = []
    for rank in patients["ward-never-ends"].recording.ranks:
        assert [event.step for event in rank.events if event.kind == "optimizer"] == [1, 2, 3, 4]
        *_, exchange = (event for event in rank.events if event.kind == "collective")
        last.append((exchange.op, exchange.number))
    ((_, number), *_) = last
    assert last == [("all_gather", number), *[("barrier", number)] * 3]


def test_a_rank_that_leaves_out_a_backward_pass_is_in_the_next_forward_while_the_others_go_backward(patients):
    recording = patients["ward-stands-still"].recording
    last = [[event for event in rank.events if event.kind == "collective"][-1] for rank in recording.ranks]
    assert [(event.op, event.phase) for event in last] == [
        ("all_gather", "gather") if rank == 1 else ("reduce_scatter", "reduce") for rank in range(4)
    ]
    assert len({event.number for event in last}) == 1
    forwards = [
        sum(event.op == "forward" and event.unit == "root" for event in rank.events) for rank in recording.ranks
    ]
    assert forwards == [forwards[0] + (rank == 1) for rank in range(4)]


def test_layers_that_take_themselves_for_the_root_are_gathered_once_and_all_whole_at_the_end_of_forward(patients):
    recording = patients[EQUAL].recording
    assert {row["at the end"] for row in patients[EQUAL].beside_one_process()} == {"equal"}
    made = [event.op for event in recording.ranks[0].events if event.kind == "collective" and event.step == 2]
    assert made == ["all_gather"] * 3 + ["reduce_scatter"] * 3
    assert (
        recording.highest("parameters") == 5 * recording.state["parameters"]
    )  # its rows, and four ranks' of all layers
    event = patients[EQUAL].play()
    assert event.events[event.event]["op"] == "forward"


def test_gradients_that_come_too_late_are_reduced_in_the_first_of_three_backward_passes(patients):
    events = [event for event in patients["ward-a-step-late"].recording.ranks[0].events if event.step == 2]
    told = [
        event.op
        for event in events
        if (event.op == "backward" and event.unit == "root")
        or (event.kind, event.op) == ("collective", "reduce_scatter")
    ]
    assert told == ["backward", *["reduce_scatter"] * 3, "backward", "backward"]


@pytest.mark.parametrize("case", CASES)
def test_on_one_rank_alone_there_is_nothing_to_see(case):
    with (
        Cluster(world_size=1, device="cpu") as cluster,
        pytest.raises(ValueError, match="examine it on 2 ranks or more"),
    ):
        examine(cluster, case)


@pytest.mark.slow
def test_what_hangs_in_the_second_ward_is_reported_and_shown(capsys):
    with Cluster(world_size=2, device="cpu", timeout=2) as cluster:
        patient = examine(cluster, "ward-never-ends")
    said = capsys.readouterr().out
    assert "rank 1 is in barrier #" in said
    assert "ward-never-ends, line" in said
    assert "has waited" not in said
    player = patient.play()
    assert player.events[player.event]["rank"] == 0
    with pytest.raises(ValueError, match="ward-never-ends hangs: no rank has returned"):
        patient.beside_one_process()


@pytest.mark.parametrize("case", CASES)
def test_what_it_looks_like_on_a_cluster_is_told_to_whoever_found_it_and_to_nobody_else(case):
    told = ["On your cluster this looks like" in " ".join(suspect.reply.split()) for suspect in load(case).suspects]
    assert told == [suspect.guilty for suspect in load(case).suspects]


def test_no_title_of_a_case_tells_what_is_wrong():
    titles = [load(name).title for name in names() if name.startswith(("clinic-", "ward-"))]
    assert sorted(titles, key=lambda title: int(title.removeprefix("Case "))) == [f"Case {n}" for n in range(1, 16)]


def test_each_ward_has_its_own_measure(patients):
    with pytest.raises(ValueError, match="ward-drifts is beside one process: call beside_one_process"):
        patients["ward-drifts"].beside_ddp()
    with pytest.raises(ValueError, match="clinic-apart is beside DDP: call beside_ddp"):
        patients["clinic-apart"].beside_one_process()
