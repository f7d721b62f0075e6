"""`compare` on ranks of the contract: the same bytes as on gloo, but for the padding of shards to 16 bytes."""

import pytest
from contract import OnContract

from zerolab import comparison


@pytest.mark.slow
def test_compare_measures_what_it_measures_over_gloo_and_names_the_padding(monkeypatch, tmp_path):
    choice = {"stages": ("zero1", "zero3", "fsdp2"), "world_size": 2, "model": "mlp-odd", "steps": 3, "device": "cpu"}
    usual = comparison.compare(**choice).rows
    monkeypatch.setattr(OnContract, "folder", tmp_path)
    monkeypatch.setattr(comparison, "Cluster", OnContract)
    for row, known in zip(comparison.compare(**choice).rows, usual, strict=True):
        padding = row["terms"]["padding"] - known["terms"]["padding"]
        # mlp-odd has 91, 182 and 70 parameters: 46, 91 and 35 a rank, and 48, 96 and 40 where they are multiples of 8.
        held = {"zero1": 4 * (2 * 2 * 12 + 2 * 12), "zero3": 4 * 4 * 12, "fsdp2": 0}
        assert padding == held[row["stage"]]
        assert {name: row["terms"][name] for name in row["terms"] if name != "padding"} == {
            name: known["terms"][name] for name in known["terms"] if name != "padding"
        }
        assert sum(row["state"].values()) == sum(row["formula"].values()) + sum(row["terms"].values())
        assert sum(row["state"].values()) == sum(known["state"].values()) + padding
        assert row["losses"] == pytest.approx(known["losses"], rel=1e-6)
        more = row["traffic"]["logical_bytes"] - known["traffic"]["logical_bytes"]
        assert more == {"zero1": 2, "zero3": 3, "fsdp2": 0}[row["stage"]] * 4 * 12
