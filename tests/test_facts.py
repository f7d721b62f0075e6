"""The facts are computed, and say what is known."""

from zerolab.facts import facts


def measured(beginning):
    [row] = [row for row in facts() if row["claim"].startswith(beginning)]
    return row["measured"]


def test_every_fact_has_claim_measurement_verdict_and_way():
    assert all(set(row) == {"claim", "measured", "verdict", "how"} and all(row.values()) for row in facts())


def test_the_numbers_are_those_that_are_known():
    assert measured("7B with Adam") == "112 and 112 GB"
    assert measured("ZeRO-1, 2, 3 on 8") == "63, 38.5, 14 GB"
    assert measured("7B runs") == "112 GB on one GPU"
    assert measured("100B") == "1200 GB"
    assert measured("ZeRO-3 sends") == "50 %"
    assert measured("7B, mixed") == "38.5 GB"
    assert measured("t5-3b") == "11.29 GiB by DeepSpeed's code, 9.96 by the paper"
