"""An error on purpose becomes ordinary output, without what differs from run to run."""

import pytest

from zerolab import expect_error
from zerolab.lessons.errors import without_volatile


def test_the_expected_error_is_printed_and_the_cell_goes_on(capsys):
    with expect_error(ValueError):
        raise ValueError("3 is too much")
    assert capsys.readouterr().out == "ValueError: 3 is too much\n"


def test_a_subclass_is_printed_under_its_own_name(capsys):
    with expect_error(ArithmeticError):
        raise ZeroDivisionError("by zero")
    assert capsys.readouterr().out == "ZeroDivisionError: by zero\n"


def test_another_error_passes_through():
    with pytest.raises(KeyError), expect_error(ValueError):
        raise KeyError("other")


def test_no_error_is_an_error():
    with (
        pytest.raises(RuntimeError, match="expected to raise ValueError or KeyError"),
        expect_error(ValueError, KeyError),
    ):
        pass


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        ("rank 2 (pid 4711) raised", "rank 2 raised"),
        ("at 127.0.0.1:29500 refused", "at 127.0.0.1 refused"),
        ('File "/home/someone/lessons/mine.py", line 3', 'File "mine.py", line 3'),
        ("<object at 0x7f12ab>", "<object at 0x...>"),
        ("shapes cannot be multiplied (10x4 and 0x16)", "shapes cannot be multiplied (10x4 and 0x16)"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("3/4 of the flat, cell [3], zerolab/engines/zero1.py", "3/4 of the flat, cell [3], zerolab/engines/zero1.py"),
    ],
)
def test_what_differs_from_run_to_run_goes(message, kept):
    assert without_volatile(message) == kept
