"""The clinic: each broken answer runs, shows its fault from outside, and is told apart from what it is not."""

import io
import re
from contextlib import redirect_stdout

import numpy as np
import pytest
import torch

from zerolab import Cluster, check
from zerolab.exercises import diagnose, examine, load, names

CASES = [load(name) for name in names() if name.startswith("clinic-")]
HANGING = {"clinic-stuck", "clinic-jam"}
by_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)


@pytest.fixture(scope="module")
def reports():
    """What each examination printed."""
    return {}


@pytest.fixture(scope="module")
def patients(reports):
    """Every broken answer, examined once on four ranks."""
    with Cluster(world_size=4, device="cpu", timeout=2) as cluster:
        found = {}
        for case in CASES:
            with redirect_stdout(io.StringIO()) as printed:
                found[case.id] = examine(cluster, case.id)
            reports[case.id] = printed.getvalue()
        yield found


def last_exchanges(patient):
    """The last exchange that each rank started, as (op, unit)."""
    for rank in patient.recording.ranks:
        *_, last = (event for event in rank.events if event.kind == "collective" and event.parent is None)
        yield last.op, last.unit


def apart(patient):
    """After which steps rank 0 is not where DDP is."""
    (first, *_) = patient.beside_ddp()
    return [step for step, said in first.items() if step != "rank" and said != "equal"]


def test_there_are_eight_cases():
    assert len(CASES) == 8


@by_case
def test_a_case_has_four_suspects_of_whom_one_is_guilty(case):
    assert len(case.suspects) == 4
    assert sum(suspect.guilty for suspect in case.suspects) == 1


@by_case
def test_the_learners_cell_holds_the_broken_code_below_an_open_hole(case, capsys):
    cell = case.cells()[1][1]
    body = case.broken_source().partition("\n")[2].rstrip()
    assert cell.endswith(f'return hole("{case.hole}")\n{body}')
    assert not check(case.id, case.compile(cell[cell.index("def ") :])).ran
    assert "nothing was run" in capsys.readouterr().out


@by_case
def test_a_broken_answer_without_its_hole_is_refused_as_any_wrong_one(case):
    broken = case.compile(case.broken_source())
    assert case.wrong[0].says in str(check(case.id, broken, seed=2))


@by_case
def test_a_picture_opens_at_a_telling_moment(case, patients):
    player = patients[case.id].play()
    assert 0 <= player.event < len(player.events)


@by_case
def test_the_source_in_the_picture_is_the_broken_code_and_not_the_solution(case, patients):
    texts = {source.text for source in patients[case.id].recording.sources.values() if source.label == case.id}
    assert texts == {f"{case.given}\n\n\n{case.broken_source()}"}


@by_case
def test_who_hangs_has_a_recording_but_no_weights(case, patients):
    assert bool(patients[case.id].noted) == (case.id not in HANGING)


def test_who_hangs_is_beside_nothing_and_that_is_said(patients):
    with pytest.raises(ValueError, match="clinic-stuck hangs: no rank has parameters to set beside DDP's"):
        patients["clinic-stuck"].beside_ddp()


def test_a_rank_that_left_out_a_unit_is_one_ahead(patients):
    exchanges = list(last_exchanges(patients["clinic-stuck"]))
    assert {op for op, _ in exchanges} == {"reduce_scatter"}
    units = [int(unit) for _, unit in exchanges]
    assert units[0] == units[2] == units[3] == units[1] + 1


def test_the_report_of_a_rank_that_is_ahead_leaves_it_to_the_picture(patients, reports):
    """All ranks wait alike: where units differ in size, it would name rank 1 and its elements."""
    assert patients["clinic-stuck"].recording.results is None
    assert len(re.findall("waiting in reduce_scatter #15 ", reports["clinic-stuck"])) == 4
    assert "elements" not in reports["clinic-stuck"]


def test_ranks_that_wait_for_each_other_ask_for_different_units(patients):
    exchanges = list(last_exchanges(patients["clinic-jam"]))
    assert exchanges == [("all_gather", str(rank)) for rank in range(4)]


@pytest.mark.parametrize(
    ("case", "steps"),
    [
        ("apart", ["step 1", "step 2"]),
        ("growing", []),
        ("last-batch", ["step 2"]),
        ("unmoved", ["step 1", "step 2"]),
        ("too-fast", ["step 1", "step 2"]),
        ("no-smaller", []),
    ],
)
def test_weights_differ_from_ddps_in_the_steps_that_the_fault_spoils(case, steps, patients):
    assert apart(patients[f"clinic-{case}"]) == steps


def test_kept_gradients_are_above_the_formula_and_units_left_out_below(patients):
    table = {name: str(patients[f"clinic-{name}"].recording.table()) for name in ("growing", "unmoved")}
    columns = {name: re.findall(r"^ +0 .*", text, re.MULTILINE)[0].split() for name, text in table.items()}
    numbers = {name: [int(word.replace(",", "")) for word in words] for name, words in columns.items()}
    assert numbers["growing"][4] > 2 * numbers["growing"][5]
    assert numbers["unmoved"][4] < 0.95 * numbers["unmoved"][5]


def test_units_that_are_never_released_are_all_whole_at_the_end_of_forward(patients):
    recording = patients["clinic-no-smaller"].recording
    held = recording.state["parameters"]
    assert recording.highest("parameters") >= 4 * held


@pytest.mark.slow
def test_a_hang_is_reported_without_the_rank_that_chance_tells_first(capsys):
    with Cluster(world_size=2, device="cpu", timeout=2) as cluster:
        examine(cluster, "clinic-jam")
    said = capsys.readouterr().out
    assert "waiting in all_gather" in said
    assert "clinic-jam, line" in said
    assert "has waited" not in said
    assert "pid" not in said


def test_a_guess_is_answered_with_what_can_be_seen(capsys):
    diagnose("clinic-apart", None)
    assert capsys.readouterr().out.startswith("1  A rank updates")
    for number, suspect in enumerate(load("clinic-apart").suspects, 1):
        diagnose("clinic-apart", number)
        assert capsys.readouterr().out == f"{'Yes' if suspect.guilty else 'No'}: {suspect.reply}\n"


@pytest.mark.parametrize("guess", [0, 5, "2", True, 1.5, [2], 1j, float("nan")])
def test_a_guess_that_is_no_number_of_the_list_is_told_so(guess, capsys):
    diagnose("clinic-apart", guess)
    assert capsys.readouterr().out == f"Your guess is {guess!r}: write a plain number from 1 to 4.\n"


@pytest.mark.parametrize("guess", [2.0, np.int64(2), np.float32(2), np.array(2), torch.tensor(2)])
def test_a_number_of_the_list_may_be_of_any_kind(guess, capsys):
    diagnose("clinic-apart", guess)
    assert capsys.readouterr().out.startswith("Yes: ")


def test_only_cases_can_be_examined():
    with pytest.raises(ValueError, match="zero1-average begins with a hole"):
        diagnose("zero1-average", None)
    with pytest.raises(ValueError, match="unknown exercise"):
        diagnose("clinic-nobody", None)
