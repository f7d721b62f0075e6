"""Of collectives without a model the player shows whose numbers lie on which rank, part by part, as they were sent."""

from contextlib import nullcontext

import pytest
from showing import state

from zerolab import Cluster

pytestmark = pytest.mark.browser
PLAYER = "window.zerolabPlayers[0]"


@pytest.fixture(scope="module")
def four():
    """Four ranks for all that is recorded here on as many."""
    with Cluster(world_size=4, device="cpu") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def run(four):
    """`run(world_size)` gives recordings of what ranks send each other without a model, by name."""

    def collectives(op):
        import torch
        import torch.distributed as dist

        from zerolab.engines import all_gather, all_reduce, reduce_scatter

        n, rank = dist.get_world_size(), dist.get_rank()
        flat, whole = torch.ones(2 * n) + rank, torch.empty(2 * n)
        {
            "all_reduce": lambda: dist.all_reduce(flat),
            "all_gather": lambda: dist.all_gather(list(whole.chunk(n)), flat[:2]),
            "reduce_scatter": lambda: dist.reduce_scatter(whole[:2], list(flat.chunk(n))),
            "broadcast": lambda: dist.broadcast(flat, n - 1),
            "all_to_all": lambda: dist.all_to_all_single(whole, flat),
            "direct all_gather": lambda: all_gather(flat).wait(),
            "direct all_reduce": lambda: all_reduce(flat).wait(),
            "direct reduce_scatter": lambda: reduce_scatter(flat).wait(),
        }[op]()

    def ring(adds):
        import torch
        import torch.distributed as dist

        n, rank = dist.get_world_size(), dist.get_rank()
        parts = torch.ones(2 * n).chunk(n)
        for turn in range(n - 1):
            leaving, coming = (rank - turn - adds) % n, (rank - turn - 1 - adds) % n
            into = torch.empty(2) if adds else parts[coming]
            receive, send = dist.irecv(into, src=(rank - 1) % n), dist.isend(parts[leaving], dst=(rank + 1) % n)
            receive.wait()
            send.wait()
            if adds:
                parts[coming].add_(into)

    def recorded(world_size):
        with nullcontext(four) if world_size == 4 else Cluster(world_size=world_size, device="cpu") as cluster:
            direct = ["direct all_gather", "direct all_reduce", "direct reduce_scatter"]
            ops = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", *direct]
            made = {op: cluster.record(collectives, op) for op in ops}
            rings = {"ring all_gather": cluster.record(ring, False), "ring reduce_scatter": cluster.record(ring, True)}
            return made | rings

    known = {}
    return lambda world_size: known.setdefault(world_size, recorded(world_size))


def tiles(tab, event):
    """Whose numbers each rank has in each part just after an event, -1 being the last one."""
    return tab.evaluate(
        f"""(event) => {{
          const player = {PLAYER}, {{ model }} = player, all = [...Array(model.worldSize).keys()];
          player.tellEvents(true);
          player.goto(event < 0 ? model.count - 1 : event);
          return all.map((rank) => all.map((part) => player.panes.ownership.has(rank, part, player.clock.time)));
        }}""",
        event,
    )


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_after_a_collective_each_rank_has_what_the_collective_gives(run, show, world_size):
    ranks = range(world_size)
    everybody = list(ranks)
    of_all = [[everybody] * world_size] * world_size
    owners = [[everybody if part == rank else [rank] for part in ranks] for rank in ranks]
    gathered = [[[part] for part in ranks]] * world_size
    wanted = {
        "all_reduce": of_all,
        "all_gather": gathered,
        "reduce_scatter": owners,
        "broadcast": [[[world_size - 1]] * world_size] * world_size,
        "all_to_all": gathered,
    }
    recordings = run(world_size)
    for op, after in wanted.items():
        for name in (op, f"direct {op}"):
            if name in recordings:
                assert tiles(show(recordings[name]), -1) == after, name
    assert tiles(show(recordings["ring all_gather"]), -1) == gathered


def test_a_step_of_exchanges_alone_as_an_exercise_has_it_is_told_as_these_and_no_training(four, show):
    def exercise():
        import torch
        import torch.distributed as dist

        from zerolab.runtime.observers import tell

        dist.barrier()
        tell(lambda observer: observer.beginning())  # as a check does before it calls an answer
        dist.all_reduce(torch.ones(4))
        dist.barrier()

    tab = show(four.record(exercise), story=True)
    assert state(tab)["story"] == "4 elements: combined over all ranks, which all get the result."
    assert tab.locator(".zl-where").text_content() == "step 1"
    tab.keyboard.press("ArrowRight")
    assert state(tab)["story"] == "All ranks wait for each other."


@pytest.mark.parametrize("world_size", [2, 4])
def test_around_a_ring_sums_grow_rank_by_rank_until_each_has_one_whole(run, show, world_size):
    tab = show(run(world_size)["ring reduce_scatter"])
    after = tiles(tab, -1)
    lengths = [sorted(map(len, row)) for row in after]
    assert lengths == [list(range(1, world_size + 1))] * world_size
    for part in range(world_size):
        assert sorted(len(row[part]) for row in after) == list(range(1, world_size + 1))


def test_before_a_gather_a_rank_has_its_own_part_alone_and_before_a_sum_its_own_numbers(run, show):
    recordings = run(4)
    own = [[[rank] if part == rank else [] for part in range(4)] for rank in range(4)]
    for name in ("direct all_gather", "ring all_gather"):
        assert tiles(show(recordings[name]), 0) == own
    assert tiles(show(recordings["direct all_reduce"]), 0) == [[[rank]] * 4 for rank in range(4)]


def test_of_sends_and_receives_that_are_one_beat_the_sentence_tells_one_by_one(run, show):
    tab = show(run(4)["ring all_gather"], story=True)
    assert "as the sentences below tell one by one" in state(tab)["story"]
    events = tab.evaluate(f"{PLAYER}.model.count")
    told = [tab.evaluate(f"({PLAYER}.goto({k}), {PLAYER}.state().caption)") for k in range(events)]
    assert all(sentence.startswith("Rank ") for sentence in told)
    assert len(set(told)) > events // 2


def test_what_is_on_its_way_is_drawn_between_its_send_and_its_receive(run, show):
    tab = show(run(4)["ring all_gather"])
    flight = tab.evaluate(
        f"""(() => {{
          const player = {PLAYER}, [first] = player.panes.ownership.exchanges[0].shipments;
          player.showTime((first.start + first.end) / 2);
          return first;
        }})()"""
    )
    moving = state(tab)["moving"]
    assert {"from": flight["from"], "to": flight["to"], "piece": flight["part"]} in [
        {key: one[key] for key in ("from", "to", "piece")} for one in moving
    ]
    assert (flight["to"] - flight["from"]) % 4 == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_screen_readers_hear_whose_numbers_lie_where_and_a_title_says_what_is_drawn(run, show, scheme):
    tab = show(run(4)["all_reduce"], scheme=scheme)
    tiles(tab, -1)
    label = tab.locator(".zl-ownership canvas").first.get_attribute("aria-label")
    assert label.startswith("all reduce: 8 elements in 4 parts, drawn as what it means. rank 0: 10 10 of 0 and 1")
    drawn = [one["text"] for one in tab.evaluate(f"{PLAYER}.labels()")["ownership"]]
    assert {"part 0", "part 3", "10 10"} <= set(drawn)
    assert tab.locator(".zl-ownership h3").inner_text() == "Whose numbers lie where"


def test_a_recording_of_a_model_has_no_such_blocks_and_no_notes_of_elements(recording, show):
    tab = show(recording)
    assert tab.evaluate(f"{PLAYER}.panes.ownership.exchanges") is None
    assert not any((event.text or "").startswith("elements") for rank in recording.ranks for event in rank.events)


def numbers(tab, time):
    """What is read to somebody who does not see the blocks, at a time: of each rank its parts."""
    tab.evaluate(f"(time) => {{ {PLAYER}.showTime(time); {PLAYER}.settle(); }}", time)
    told = tab.locator("canvas[aria-label*='rank 0:']").first.get_attribute("aria-label")
    return [part.split(": ", 1)[1].split(", ") for part in told.split(". ", 1)[1].split("; ")]


@pytest.mark.parametrize("both", [False, True])
def test_few_numbers_are_drawn_as_they_were_before_and_after(four, show, both):
    def halves(both):
        import torch
        import torch.distributed as dist

        from zerolab.engines import all_gather, reduce_scatter

        numbers = torch.arange(4) + 10 * dist.get_rank()
        reduce_scatter(numbers).wait()
        if both:
            all_gather(numbers).wait()

    tab = show(four.record(halves, both))
    before = numbers(tab, tab.evaluate(f"{PLAYER}.panes.ownership.exchanges[0].start"))
    assert before[2] == ["20 of 2", "21 of 2", "22 of 2", "23 of 2"]
    ends = f"Math.max(...{PLAYER}.panes.ownership.exchanges.at(-1).shipments.map((one) => one.end))"
    after = [[part.split(" of ")[0] for part in row] for row in numbers(tab, tab.evaluate(ends))]
    sums = ["60", "64", "68", "72"]
    assert [after[rank][rank] for rank in range(4)] == sums
    assert after[3] == (sums if both else ["30", "31", "32", "72"])


def test_a_buffer_of_one_number_is_one_block_whatever_is_done_with_it(four, show):
    def product():
        import torch
        import torch.distributed as dist

        number = torch.tensor([1.0 + dist.get_rank()])
        dist.all_reduce(number, op=dist.ReduceOp.PRODUCT)

    tab = show(four.record(product))
    start = tab.evaluate(f"{PLAYER}.panes.ownership.exchanges[0].start")
    assert numbers(tab, start) == [["1 of 0"], ["2 of 1"], ["3 of 2"], ["4 of 3"]]
    assert (
        numbers(tab, tab.evaluate(f"{PLAYER}.model.columns.t_end[{PLAYER}.model.count - 1]"))
        == [["24 of 0 and 1 and 2 and 3"]] * 4
    )


@pytest.fixture(scope="module")
def in_groups(four):
    """`in_groups(op, of, late)` records 4 ranks: each group of `of` does `op` of 2 elements a rank; rank `late` is."""

    def inside(op, ranks, group):
        import torch
        import torch.distributed as dist

        own, whole = (torch.full((size,), 1.0 + dist.get_rank()) for size in (2, 2 * len(ranks)))
        {
            "all_reduce": lambda: dist.all_reduce(whole, group=group),
            "all_gather": lambda: dist.all_gather(list(torch.empty_like(whole).chunk(len(ranks))), own, group=group),
            "reduce_scatter": lambda: dist.reduce_scatter(own, list(whole.chunk(len(ranks))), group=group),
            "broadcast": lambda: dist.broadcast(whole, ranks[-1], group=group),
            "all_to_all": lambda: dist.all_to_all_single(torch.empty_like(whole), whole, group=group),
        }[op]()

    def grouped(op, of, late):
        import time

        import torch.distributed as dist

        groups = [(ranks, dist.new_group(ranks)) for ranks in of]
        dist.barrier()
        time.sleep(0.3 * (dist.get_rank() == late))
        for ranks, group in groups:
            if dist.get_rank() in ranks:
                inside(op, ranks, group)
        dist.barrier()  # in which a rank of no group has its part

    return lambda op, of, late=None: four.record(grouped, op, of, late)


def after(op, ranks, rank, part):
    """Whose numbers a rank of a group has in a part when the group is done."""
    owner = ranks[part]
    return {
        "all_reduce": ranks,
        "all_gather": [owner],
        "reduce_scatter": ranks if owner == rank else [rank],
        "broadcast": [ranks[-1]],
        "all_to_all": [owner],
    }[op]


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"])
def test_groups_that_do_alike_are_drawn_beside_each_other_each_with_its_own_parts(in_groups, show, op):
    groups = [[0, 2], [1, 3]]
    tab = show(in_groups(op, groups))
    assert tab.evaluate(f"{PLAYER}.panes.ownership.batches.map((batch) => batch.length)") == [2]
    seen = [row[:2] for row in tiles(tab, -1)]
    of = {rank: ranks for ranks in groups for rank in ranks}
    assert seen == [[after(op, of[rank], rank, part) for part in range(2)] for rank in range(4)]
    titles = tab.evaluate(f"{PLAYER}.labels().ownership.map((one) => one.text)")
    assert any("in 2 parts, in each of 2 groups" in text for text in titles)
    captions = tab.evaluate(f"{PLAYER}.beats.list.filter(({{ op }}) => op === '{op}').map((beat) => beat.caption)")
    assert captions
    assert all("all ranks" not in said and ("group" in said or "2 ranks" in said) for said in captions)


def test_a_rank_that_is_in_no_group_takes_no_part(in_groups, show):
    tab = show(in_groups("all_reduce", [[0, 2, 3]]))
    texts = tab.evaluate(f"{PLAYER}.labels().ownership.map((one) => one.text)")
    assert "takes no part" in texts
    assert any("among ranks 0, 2, 3" in text for text in texts)
    assert [row[0] for row in tiles(tab, -1)] == [[0, 2, 3], [], [0, 2, 3], [0, 2, 3]]
    told = tab.locator("canvas[aria-label*='rank 0:']").first.get_attribute("aria-label")
    assert "rank 1: takes no part" in told


@pytest.mark.parametrize("late", [0, 1, 2])
def test_groups_with_a_rank_in_common_are_drawn_one_after_the_other(in_groups, show, late):
    tab = show(in_groups("all_gather", [[0, 1], [1, 2]], late))
    first = tab.evaluate(f"{PLAYER}.panes.ownership.exchanges.map(({{ ranks }}) => ranks)")
    assert first == [[0, 1], [1, 2]]
    assert tab.evaluate(f"{PLAYER}.panes.ownership.batches.map((batch) => batch.length)") == [1, 1]
    assert [row[:2] for row in tiles(tab, -1)] == [[[], []], [[1], [2]], [[1], [2]], [[], []]]
