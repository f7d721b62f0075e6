"""Every claim and every wrong number has an experiment that finds what is known, and a verdict that hangs on it."""

import pytest

from zerolab import Cluster, facts, reveal
from zerolab.facts import NOT_BORNE_OUT
from zerolab.facts.mistakes import ceiling_spans, failure_of_import, failure_of_unknown_name

pytestmark = pytest.mark.slow  # ranks, simulations, and FSDP's imports


@pytest.fixture(scope="module")
def evidence():
    with Cluster(world_size=4, device="cpu") as cluster:
        yield facts.Evidence(cluster)


@pytest.fixture(scope="module")
def claims(evidence):
    return {row["#"]: row for row in facts.claims(evidence)}


@pytest.fixture(scope="module")
def wrong(evidence):
    return {row["#"]: row for row in facts.wrong_numbers(evidence)}


# What each experiment must have found; the figures are those of the papers, of the articles, and of the stages' forms.
CLAIMS = {
    1: ["112 and 112 GB", "4+4+8 bytes a parameter in fp32", "2+6+12 in bf16"],
    2: ["63, 38.5, 14 GB at the update", "66.9, "],
    3: ["14 GB of state on each of 8 GPUs, 112 GB on one"],
    4: ["DDP 2, ZeRO-1 2, ZeRO-2 2", "all-reduce and all-gather 3"],
    5: ["3 passes", "instead of 2: 50 % more"],
    6: ["a gradient of 17 for a shard of 18", "of 72 elements: all accepted"],
    7: ["gather, release, gather, release, then an error"],
    8: ["after the swap: yes, after backward: no", "after freeing the storage: no"],
    9: ["2, 2, 2, 2, 1, 0, 0, 0; 3 spans begin past the end", "torch.chunk gives 5 parts", "padded to 16: 2 on each"],
    10: ["the import: ModuleNotFoundError", "FSDP1 over FSDP2: RuntimeError"],
    12: ["4 copies under DDP, 1 under ZeRO-1", "99 % at N = 2, 4, 8, 100", "112 GB on all", "112, 63, 56.6 GB"],
    13: ["2,442,504 (ddp), 2,442,504 (zero1), 2,442,504 (zero2), 2,442,504 (zero3)"],
    14: ["ZeRO-1 2, ZeRO-2 5"],
    15: ["at most 78 %", "with one unit for all 125 %", "state 25 %"],
    16: ["over nvlink4", "over ethernet-100g", "DDP holds 2 and 140 GB"],
    17: ["1200 GB", "12 bytes a parameter on the ranks in bf16, 8 in fp32"],
    18: ["it returns 16, where a shard has 53,088"],
    19: ["NameError: name 'functools' is not defined", "wraps 12 modules of gpt-tiny, 0 of them blocks"],
    20: ["always by all_gather", "every rank sends 0.75"],
    21: ["every rank runs 5 units", "from DDP's: yes", "4 of 4"],
}
WRONG_NUMBERS = {
    1: ["89.7 GiB", "59.8 GiB"],
    2: ["15.93 GiB", "11.29", "9.96"],
    3: ["0.20 GiB", "once more 0.02"],
    4: ["38.5 GB", "63;", "3 bytes a parameter"],
    5: ["zero1 2, zero2 2, zero3 3"],
}


def test_there_are_21_claims_and_5_wrong_numbers_each_with_all_its_columns(claims, wrong):
    assert list(claims) == list(range(1, 22))
    assert list(wrong) == list(range(1, 6))
    for row in (*claims.values(), *wrong.values()):
        assert set(row) == {"#", "claim", "where", "measured", "verdict", "how"}
        assert all(row.values())


@pytest.mark.parametrize("number", CLAIMS)
def test_a_claims_measurement_is_what_is_known(claims, number):
    for part in CLAIMS[number]:
        assert part in claims[number]["measured"]


@pytest.mark.parametrize("number", WRONG_NUMBERS)
def test_what_comes_out_instead_of_a_wrong_number_is_what_is_known(wrong, number):
    for part in WRONG_NUMBERS[number]:
        assert part in wrong[number]["measured"]


def test_fsdp1s_offload_needs_an_accelerator_and_a_torch_for_cuda_says_it_in_the_same_words_as_any_other(claims):
    import torch

    has_gpu = torch.cuda.is_available()
    assert (claims[11]["measured"] == "without an accelerator: RuntimeError") == (not has_gpu)


def test_every_verdict_is_borne_out_by_its_measurement(claims, wrong):
    assert [row for row in (*claims.values(), *wrong.values()) if row["verdict"] == NOT_BORNE_OUT] == []


def test_a_verdict_begins_with_one_of_four_words(claims, wrong):
    assert {row["verdict"].partition(":")[0] for row in claims.values()} <= {"true", "half true", "false", "open"}
    assert {row["verdict"].partition(":")[0] for row in wrong.values()} <= {"wrong", "wrong of bytes"}


def test_what_needs_a_gpu_is_left_open_where_there_is_none(claims):
    import torch

    assert claims[11]["verdict"].startswith("true" if torch.cuda.is_available() else "open")


def test_each_claim_names_the_articles_in_which_it_stands(claims):
    for row in claims.values():
        assert any(article in row["where"] for article in facts.ARTICLES)


class Swapped(facts.Evidence):
    """The recordings of the ranks under wrong names: each stage gets what ddp did."""

    def recording(self, stage, **options):
        """The recording of ddp, whatever was asked for."""
        return super().recording("ddp")


@pytest.mark.parametrize("number", [4, 5, 12, 14, 15])
def test_a_verdict_falls_when_something_else_is_measured(evidence, number):
    swapped = Swapped(evidence.cluster)
    swapped._kept = evidence._kept
    assert facts.claims(swapped, number)[0]["verdict"] == "not confirmed here"


def test_what_is_claimed_can_be_read_without_what_was_found():
    rows = facts.quoted(4, 14)
    assert [set(row) for row in rows] == [{"#", "claim", "where"}] * 2
    assert [row["#"] for row in facts.quoted()] == list(facts.CLAIMS)
    with pytest.raises(ValueError, match="there is no claim 22"):
        facts.quoted(22)


def test_a_vote_stands_beside_the_verdict_and_changes_nothing(evidence):
    table = facts.claims(evidence, 4, 5)
    assert facts.claims(evidence, 4, 5, votes={4: None, 14: "true"}) == table
    voted = facts.claims(evidence, 4, 5, votes={4: "false", 5: None})
    assert [row["your vote"] for row in voted] == ["false", None]
    assert [{name: row[name] for name in table[0]} for row in voted] == table.rows
    with pytest.raises(ValueError, match="unknown vote 'maybe': choose one of true, half true, false, open"):
        facts.claims(evidence, 4, votes={4: "maybe"})


def test_what_is_printed_is_the_same_on_other_ranks(evidence):
    numbers = 1, 5, 6, 7, 8, 20, 21
    with Cluster(world_size=4, device="cpu") as cluster:
        again = facts.claims(facts.Evidence(cluster), *numbers)
    assert str(again) == str(facts.claims(evidence, *numbers))


@pytest.mark.parametrize("world_size", [2, 3])
def test_other_numbers_of_ranks_bear_out_the_same_verdicts(world_size):
    numbers = 4, 5, 6, 7, 12, 13, 14, 20, 21
    with Cluster(world_size=world_size, device="cpu") as cluster:
        rows = facts.claims(facts.Evidence(cluster), *numbers)
    assert f"{world_size} copies under DDP, 1 under ZeRO-1" in rows[4]["measured"]
    assert all(row["verdict"] != "not confirmed here" for row in rows)


def test_the_guess_of_notebook_12_is_put_beside_the_shards_two_blocks_and_the_root(evidence, capsys):
    recording = evidence.recording("zero3")
    sizes = {unit.name: unit.numel for unit in recording.units}
    whole = sizes["root"] + 2 * sizes["blocks.0"]  # one in use, and the next one on its way
    reveal("12-zero3-whole", 50, recording)
    assert f"measured  {100 * (1 / 4 + whole / sum(sizes.values())):.2f} % of the parameters" in capsys.readouterr().out


def test_one_rank_is_refused_because_it_sends_nothing():
    with Cluster(world_size=1, device="cpu") as cluster, pytest.raises(ValueError, match="one rank sends nothing"):
        facts.Evidence(cluster)


def test_a_number_that_no_claim_has_is_told():
    with pytest.raises(ValueError, match="there is no claim 22: choose one from 1 to 21"):
        facts.claims(None, 22)
    with pytest.raises(ValueError, match="there is no wrong number 0: choose one from 1 to 5"):
        facts.wrong_numbers(None, 0)


def test_the_mistakes_see_what_works_too():
    assert ceiling_spans(8, 4) == [(0, 2), (2, 4), (4, 6), (6, 8)]
    assert failure_of_import("torch.distributed.fsdp") == ""
    assert failure_of_unknown_name("len('')") == ""


def test_a_question_that_was_written_anew_is_asked_anew(evidence):
    answers = []
    for number in (1, 2):

        def question():
            return number  # noqa: B023  asked before the next one is written

        answers.append(evidence.answers(question)[0])
    assert answers == [1, 2]
