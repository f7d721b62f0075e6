"""The clinic's second ward: loops over fully_shard are run broken, and are told apart from one process."""

import pytest

from zerolab import Cluster
from zerolab.exercises import diagnose, examine, load, names

CASES = [name for name in names() if name.startswith("ward-")]


@pytest.fixture(scope="module")
def patients():
    """Every broken loop, examined once on four ranks, and a patient of the first ward."""
    with Cluster(world_size=4, device="cpu") as cluster:
        yield {case: examine(cluster, case) for case in [*CASES, "clinic-apart"]}


@pytest.mark.parametrize("case", CASES)
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


def test_each_ward_has_its_own_measure(patients):
    with pytest.raises(ValueError, match="ward-drifts is beside one process: call beside_one_process"):
        patients["ward-drifts"].beside_ddp()
    with pytest.raises(ValueError, match="clinic-apart is beside DDP: call beside_ddp"):
        patients["clinic-apart"].beside_one_process()
