"""The scripts of the traces' tests, and what launches them."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "trace"))
import launching


@pytest.fixture(name="script")
def give_script():
    """What runs a script under torchrun, as it is or recorded."""
    return launching
