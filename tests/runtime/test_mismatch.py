import xml.etree.ElementTree as ET

from zerolab.runtime.board import DONE, INSIDE, KEPT, Position
from zerolab.runtime.drawing import Stop, WaitsFor
from zerolab.runtime.faults import ABSENT, Standing
from zerolab.runtime.mismatch import findings, mismatches, waits_for


def history(*names, **more):
    return [Position(DONE, name, number, **more) for number, name in enumerate(names)]


def waiting(rank, name, number, **more):
    return Standing(rank, "running", Position(INSIDE, name, number, **more))


def test_the_first_collective_that_is_not_shared_is_named_and_not_what_follows_from_it():
    calls = {
        0: history("barrier", "all_gather", "barrier"),
        1: history("barrier", "reduce_scatter", "all_gather"),
        2: history("barrier", "all_gather"),
    }
    standings = [
        waiting(0, "barrier", 2),
        waiting(1, "all_gather", 2),
        waiting(2, "all_gather", 1),
    ]
    assert mismatches(standings, calls) == [
        "rank 1 is in reduce_scatter #1, the others in all_gather #1: rank 1 calls the same in a different order"
    ]
    assert waits_for(standings, calls) == {0: [1, 2], 1: [0, 2], 2: [1]}


def test_only_what_all_ranks_still_remember_is_compared():
    long = [Position(DONE, "all_reduce", number) for number in range(100, 100 + KEPT)]
    late = [*[Position(DONE, "all_reduce", number) for number in range(101, 100 + KEPT)], Position(DONE, "b", 228)]
    standings = [waiting(0, "all_reduce", 227), waiting(1, "b", 228)]
    assert mismatches(standings, {0: long, 1: late}) == [
        "rank 0 has not reached b #228: it is waiting in all_reduce #227"
    ]


def test_ranks_that_agree_have_nothing_said_about_them():
    calls = {0: history("barrier", "all_reduce", numel=4), 1: history("barrier", "all_reduce", numel=4)}
    assert mismatches([waiting(0, "all_reduce", 1), waiting(1, "all_reduce", 1)], calls) == []


def test_groups_are_compared_each_for_itself():
    calls = {
        0: history("all_reduce", members=0b0011),
        1: history("all_reduce", members=0b0011),
        2: history("barrier", members=0b1100),
        3: history("broadcast", members=0b1100),
    }
    standings = [
        *(waiting(rank, "all_reduce", 0, members=0b0011) for rank in (0, 1)),
        waiting(2, "barrier", 0, members=0b1100),
        waiting(3, "broadcast", 0, members=0b1100),
    ]
    assert mismatches(standings, calls) == [
        "rank 3 is in broadcast #0 of ranks 2, 3, the others in barrier #0 of ranks 2, 3"
    ]
    assert waits_for(standings, calls) == {0: [], 1: [], 2: [3], 3: [2]}


def test_groups_of_the_same_ranks_are_compared_each_for_itself_and_only_where_a_rank_stands():
    ours, beside = history("barrier", "all_reduce"), history("all_gather", "all_gather", group=1)
    calls = {0: [ours[0], *beside, ours[1]], 1: [*beside[:1], ours[0]]}
    standings = [waiting(0, "all_reduce", 1), Standing(1, "running", ours[0])]
    behind = "rank 1 has not reached {}: it is running, after barrier #0"
    assert mismatches(standings, calls) == [behind.format("all_reduce #1")]
    saving = [waiting(0, "all_gather", 1, group=1), Standing(1, "running", ours[0])]
    assert mismatches(saving, {0: [ours[0], *beside], 1: calls[1]}) == [behind.format("all_gather #1 of group 1")]


def test_a_rank_is_compared_though_another_threads_calls_fill_its_history():
    many = [Position(DONE, "all_gather", number, group=1) for number in range(KEPT)]
    standings = [waiting(0, "all_reduce", 5), Standing(1, "running", Position(DONE, "all_reduce", 4))]
    assert mismatches(standings, {0: many, 1: many}) == [
        "rank 1 has not reached all_reduce #5: it is running, after all_reduce #4"
    ]


def test_a_type_of_another_size_is_told_from_another_number_of_elements():
    calls = {rank: history("all_reduce", numel=4, itemsize=2 if rank == 2 else 4) for rank in range(3)}
    standings = [waiting(rank, "all_reduce", 0) for rank in range(3)]
    assert mismatches(standings, calls) == ["rank 2 is in all_reduce #0 with 2 bytes an element, the others with 4"]


def test_an_argument_without_a_number_of_elements_is_told_from_a_tensor():
    calls = {rank: history("all_gather", numel=-1 if rank == 2 else 4) for rank in range(3)}
    standings = [waiting(rank, "all_gather", 0) for rank in range(3)]
    assert mismatches(standings, calls) == [
        "rank 2 is in all_gather #0, the others in it with an argument of another kind"
    ]


def test_a_chain_of_messages_leads_to_the_rank_at_its_end():
    def receiving(rank, peer):
        return Standing(rank, "running", Position(INSIDE, "recv", None, peer=peer))

    standings = [receiving(0, 1), receiving(1, 2), Standing(2, "finished", Position(DONE, "barrier", 0))]
    found = findings(standings, {rank: [] for rank in range(3)})
    assert [finding.ranks for finding in found] == [(2,), (2,)]
    assert found[0].text == "rank 0 waits in recv for rank 1, which is waiting in recv for rank 2"
    circle = [receiving(0, 1), receiving(1, 2), receiving(2, 0)]
    assert [finding.ranks for finding in findings(circle, {rank: [] for rank in range(3)})] == [(1,), (2,), (0,)]


def test_the_drawing_is_the_same_each_time_and_says_in_text_what_it_shows():
    def draw():
        return WaitsFor({1: Stop("waiting in b #3 <of 2>", [0]), 0: Stop("finished, after a #2", [])})

    assert draw()._repr_svg_() == draw()._repr_svg_()
    assert repr(draw()) == "rank 0, finished, after a #2\nrank 1, waiting in b #3 <of 2> -> rank 0"
    picture = ET.fromstring(draw()._repr_svg_())  # noqa: S314  # our own, and it must be well-formed
    space = "{http://www.w3.org/2000/svg}"
    assert picture.find(f"{space}title").text == repr(draw())
    texts = [text.text for text in picture.iter(f"{space}text")]
    assert texts == [
        "what each rank does",
        "waits for",
        "rank 0: finished, after a #2",
        "rank 0",
        "rank 1: waiting in b #3 <of 2>",
    ]
    assert len([path for path in picture.iter(f"{space}path") if path.get("marker-end")]) == 1


def test_a_collective_that_needs_a_rank_for_which_the_cell_is_not_says_so():
    absent = [Standing(0, ABSENT, Position()), waiting(1, "barrier", 0), Standing(2, ABSENT, Position())]
    (sentence,) = mismatches(absent, {1: [absent[1].position]})
    assert sentence.startswith("ranks 0 and 2 take no part in this run, and barrier #0 needs every rank of its group: ")
    assert sentence.endswith("%%ranks without numbers is for all")
    pair = [absent[0], waiting(1, "barrier", 0, members=0b110), absent[2]]
    (sentence,) = mismatches(pair, {1: [pair[1].position]})
    assert sentence.startswith("rank 2 takes no part in this run, and barrier #0 of ranks 1, 2 needs")
