"""`compare` on ranks of the contract: the same bytes as on gloo."""

import pytest
from contract import OnContract

from zerolab import comparison


@pytest.mark.slow
def test_compare_measures_the_same_state_and_losses_as_over_gloo(monkeypatch, tmp_path):
    choice = {"stages": ("zero1", "zero3", "fsdp2"), "world_size": 2, "model": "mlp-odd", "steps": 3, "device": "cpu"}
    usual = comparison.compare(**choice).rows
    monkeypatch.setattr(OnContract, "folder", tmp_path)
    monkeypatch.setattr(comparison, "Cluster", OnContract)
    for row, known in zip(comparison.compare(**choice).rows, usual, strict=True):
        assert row["state"] == known["state"]
        assert row["losses"] == pytest.approx(known["losses"], rel=1e-6)
        assert row["traffic"]["logical_bytes"] == known["traffic"]["logical_bytes"]
