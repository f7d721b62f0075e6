"""Silent faults on real ranks: each is found where it happens, and named."""

import math

import pytest
import silent

from zerolab import Cluster
from zerolab.difference.compare import beside, compare


@pytest.fixture(scope="module", name="recorded")
def record_all(tmp_path_factory):
    """All runs, in one group of ranks."""
    folder = tmp_path_factory.mktemp("silent")
    with Cluster(2) as cluster:
        for name, how in silent.GOOD.items():
            cluster.run(silent.loop, folder / f"good {name}", **how)
            cluster.run(silent.loop, folder / f"again {name}", **how)
        for fault, name, *_ in silent.FAULTS:
            cluster.run(silent.loop, folder / fault, **{**silent.GOOD[name], "fault": fault})
    return folder


@pytest.mark.parametrize("name", silent.GOOD)
def test_a_right_run_and_the_same_again_do_not_part(recorded, name):
    assert compare(recorded / f"good {name}", recorded / f"again {name}").parting is None


@pytest.mark.parametrize("case", silent.FAULTS, ids=lambda case: case[0])
def test_a_silent_fault_is_found_where_it_happens_and_named(recorded, case):
    fault, right, step, phase, meaning = case
    result = compare(recorded / f"good {right}", recorded / fault)
    assert result.parting is not None
    assert (result.parting.step, result.parting.phase.startswith(phase)) == (step, True), str(result)
    assert meaning in result.parting.meaning, str(result)


@pytest.mark.parametrize(
    ("one", "two", "said"),
    [
        (6.4923354, 25.969342, "6.4923 in GOOD, 25.969 in BAD"),
        (6.4923356, 25.969342, "6.4923 in GOOD, 25.969 in BAD"),
        (6.4923354, 6.4923254, "6.4923354 in GOOD, 6.4923254 in BAD"),
        (2.5, math.nan, "2.5 in GOOD, nan in BAD"),
        (0.0, 1e-9, "0 in GOOD, 1e-09 in BAD"),
    ],
)
def test_two_losses_have_the_digits_that_tell_them_apart_and_no_more(one, two, said):
    assert beside(one, two) == said
