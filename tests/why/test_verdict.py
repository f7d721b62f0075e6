"""What is said of a rank that holds up the others, or that they have lost."""

import pytest

from zerolab.runtime.board import DONE, Position
from zerolab.runtime.faults import Standing
from zerolab.why import verdict


@pytest.mark.parametrize(
    ("state", "how", "at"),
    [
        ("finished", "finished", "last seen at"),
        ("gone", "is gone without a word", "last seen at"),
        ("raised ValueError", "raised ValueError: no batch", "at"),
    ],
)
def test_a_line_at_which_a_rank_was_only_seen_is_not_called_that_of_its_end(state, how, at):
    standings = [Standing(0, state, Position(DONE, "all_reduce", 1), where="train.py, line 6: step()")]
    found = verdict.of_end(0, how, standings, {0: []})
    assert found.text.splitlines()[0] == f"rank 0 {how}, {at} train.py, line 6: step()"
