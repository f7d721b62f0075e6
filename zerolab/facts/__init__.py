"""Claims about ZeRO that are in circulation: each with an experiment, what it measured, and a verdict.

    with Cluster(world_size=4, device="cpu") as cluster:
        evidence = Evidence(cluster)
        claims(evidence)            # 21 claims of four articles
        wrong_numbers(evidence)     # and five numbers that are quoted

Each experiment is a short function: memory in `sizes.py`, communication in `traffic.py`, published code in `code.py`
(with its mistakes, in our own words, in `mistakes.py`), calculators in `calculators.py`. Everything that is printed has
just been computed, simulated or recorded, and is the same every time.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict

from zerolab.facts import calculators, code, sizes, traffic
from zerolab.facts.evidence import Evidence, Fact
from zerolab.facts.sources import ARTICLES
from zerolab.tables import Table

Experiment = Callable[[Evidence], Fact]

CLAIMS: dict[int, Experiment] = {
    1: sizes.seven_billion_under_ddp,
    2: sizes.sharded_seven_billion,
    3: sizes.seven_billion_on_14_gb,
    4: traffic.overhead_of_stages_1_and_2,
    5: traffic.overhead_of_stage_3,
    6: code.zero1_of_any_model,
    7: code.zero3_that_trains,
    8: code.swapping_data,
    9: code.ceiling_division,
    10: code.an_import_that_fails,
    11: code.fsdp1_with_offload,
    12: sizes.wasted_copies,
    13: sizes.activations_stay,
    14: traffic.accumulation,
    15: sizes.never_the_whole_model,
    16: traffic.small_models,
    17: sizes.adam_of_100_billion,
    18: code.a_loop_that_shards,
    19: code.fsdp1_snippet,
    20: traffic.broadcasts,
    21: traffic.no_parallelism_of_its_own,
}
"""The experiment of each claim, by its number."""

WRONG_NUMBERS: dict[int, Experiment] = {
    1: calculators.playbook_figure,
    2: calculators.deepspeed_documentation,
    3: calculators.eleuther_calculator,
    4: calculators.mixed_zero1_notebook,
    5: traffic.three_stages_alike,
}
"""The experiment for each quoted number that is wrong, by its number."""

__all__ = ["ARTICLES", "CLAIMS", "WRONG_NUMBERS", "Evidence", "Experiment", "Fact", "claims", "wrong_numbers"]


def claims(evidence: Evidence, *numbers: int) -> Table:
    """One row per claim: number, claim, where it is made, what was measured, verdict and how; by default all claims.

    Raises:
        ValueError: there is no claim of that number.
        RankError: a rank failed in an experiment.
    """
    return _table(CLAIMS, evidence, numbers, "claim")


def wrong_numbers(evidence: Evidence, *numbers: int) -> Table:
    """The same for numbers in circulation. Raises as `claims` does."""
    return _table(WRONG_NUMBERS, evidence, numbers, "wrong number")


def _table(experiments: Mapping[int, Experiment], evidence: Evidence, numbers: tuple[int, ...], what: str) -> Table:
    # Before anything runs: experiments may take a minute.
    for number in numbers:
        if number not in experiments:
            raise ValueError(f"there is no {what} {number!r}: choose one from 1 to {len(experiments)}")
    return Table([{"#": number, **asdict(experiments[number](evidence))} for number in numbers or experiments])
