"""Claims about ZeRO that are in circulation: each with an experiment, what it measured, and a verdict.

    with Cluster(world_size=4, device="cpu") as cluster:
        evidence = Evidence(cluster)
        claims(evidence)            # 21 claims of four articles
        wrong_numbers(evidence)     # and five numbers that are quoted

What is claimed, where, and the verdict stand in data/claims.toml. Each experiment is a short function: memory in
`sizes.py`, communication in `traffic.py`, published code in `code.py` (with its mistakes, in our own words, in
`mistakes.py`), calculators in `calculators.py`. Everything that is printed has just been computed, simulated or
recorded, and is the same every time. A verdict that the measurement does not bear out is not printed, or it would be
repeated even after a change of an engine or of torch.
"""

import tomllib
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

from zerolab.facts.evidence import Evidence, Finding
from zerolab.names import check_known
from zerolab.tables import Table, Value

Experiment = Callable[[Evidence], Finding]

NOT_BORNE_OUT = "not confirmed here"
VOTES = ("true", "half true", "false", "open")  # how verdicts begin
_FILE: dict[str, Any] = tomllib.loads(Path(__file__).parents[1].joinpath("data", "claims.toml").read_text("utf-8"))

ARTICLES: dict[str, str] = _FILE["articles"]
"""What each of the articles is, by the names in `where`. None of their code is in this project."""


def _experiments(kind: str) -> dict[int, Experiment]:
    named = {int(number): entry["experiment"].split(".") for number, entry in _FILE[kind].items()}
    return {number: getattr(import_module(f"{__name__}.{module}"), name) for number, (module, name) in named.items()}


CLAIMS = _experiments("claims")
"""The experiment of each claim, by its number."""

WRONG_NUMBERS = _experiments("wrong_numbers")
"""The experiment for each quoted number that is wrong, by its number."""

__all__ = [
    "ARTICLES",
    "CLAIMS",
    "WRONG_NUMBERS",
    "Evidence",
    "Experiment",
    "Finding",
    "claims",
    "quoted",
    "wrong_numbers",
]


def quoted(*numbers: int) -> Table:
    """One row per claim: number, claim, and where it is made; nothing of what was found. By default all claims.

    Raises ValueError if there is no claim of that number.
    """
    _check("claims", CLAIMS, numbers)
    every = _FILE["claims"]
    return Table([_said(number, every[str(number)]) for number in numbers or CLAIMS])


def claims(evidence: Evidence, *numbers: int, votes: Mapping[int, str | None] = MappingProxyType({})) -> Table:
    """One row per claim: number, claim, where it is made, what was measured, verdict and how; by default all claims.

    Args:
        evidence: what to measure on.
        *numbers: which claims.
        votes: what you expect, by the claim's number: "true", "half true", "false" or "open"; None is no vote yet.

    Raises:
        ValueError: there is no claim of that number, or a vote is none of the four.
        RankError: a rank failed in an experiment.
    """
    for vote in votes.values():
        if vote is not None:
            check_known("vote", vote, VOTES)
    table = _table("claims", CLAIMS, evidence, numbers)
    yours = [votes.get(int(str(row["#"]))) for row in table]
    return Table([row | {"your vote": vote} for row, vote in zip(table, yours, strict=True)]) if any(yours) else table


def wrong_numbers(evidence: Evidence, *numbers: int) -> Table:
    """The same for numbers in circulation. Raises as `claims` does."""
    return _table("wrong_numbers", WRONG_NUMBERS, evidence, numbers)


def _table(kind: str, experiments: dict[int, Experiment], evidence: Evidence, numbers: tuple[int, ...]) -> Table:
    _check(kind, experiments, numbers)  # before anything runs: experiments may take a minute
    rows = []
    for number in numbers or experiments:
        said, found = _FILE[kind][str(number)], experiments[number](evidence)
        verdict = (found.verdict or said["verdict"]) if found.borne_out else NOT_BORNE_OUT
        rows.append(_said(number, said) | {"measured": found.measured, "verdict": verdict, "how": said["how"]})
    return Table(rows)


def _check(kind: str, experiments: dict[int, Experiment], numbers: tuple[int, ...]) -> None:
    for number in numbers:
        if number not in experiments:
            what = kind.removesuffix("s").replace("_", " ")
            raise ValueError(f"there is no {what} {number!r}: choose one from 1 to {len(experiments)}")


def _said(number: int, entry: dict[str, str]) -> dict[str, Value]:
    return {"#": number, "claim": entry["claim"], "where": entry["where"]}
