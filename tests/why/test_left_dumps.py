"""Of dumps of the flight recorder that ranks leave in a hang: which rank, which line, and what the dumps do not say."""

import json
import sys
from pathlib import Path

import pytest
import warm

sys.path.append(str(Path(__file__).parents[1] / "opening"))
from made import START, dump, entry, nccl_bars, trace, write

from zerolab import cli
from zerolab.why.dumps import explain

AT_41 = [{"name": "skip", "filename": "/srv/train.py", "line": 41}]


def steps(*last, before=6, **more):
    """Collectives that have ended, and then these."""
    return [*(entry(seq, **more) for seq in range(1, before + 1)), *last]


def hanging(seq=7, op="all_reduce", **more):
    return entry(seq, op, state="started", **more)


def explained(folder, ranks, kind="pickle", **more):
    """What is said of the entries of these ranks."""
    paths = [write(folder / f"dump-rank{rank}.{kind}", dump(entries, **more)) for rank, entries in ranks.items()]
    return explain(paths)


def test_a_rank_that_did_not_come_is_named_with_its_last_line(tmp_path):
    late = steps(entry(6, frames=AT_41), before=5)
    found = explained(tmp_path, {0: steps(hanging()), 1: late, 2: steps(hanging()), 3: steps(hanging())})
    assert found.ranks == (1,)
    assert found.lines == ("train.py, line 41",)
    first, second, *_ = found.text.splitlines()
    late = "silent in its dump, after all_reduce #6; rank 1 was at train.py, line 41"
    assert first == f"rank 1 has not reached all_reduce #7: {late}"
    assert second == "ranks 0, 2 and 3 have waited in all_reduce #7, at train.py, line 12"


def test_a_rank_in_another_operation_is_named(tmp_path):
    other = steps(hanging(op="broadcast", frames=AT_41))
    found = explained(tmp_path, {0: steps(hanging()), 1: steps(hanging()), 2: other, 3: steps(hanging())})
    assert found.ranks == (2,)
    assert found.lines == ("train.py, line 41",)
    assert found.text.startswith("rank 2 is in broadcast #7, the others in all_reduce #7; rank 2 is at train.py")


def test_a_rank_with_another_size_is_named(tmp_path):
    smaller = steps(hanging(sizes=((100,), (100,)), frames=AT_41))
    found = explained(tmp_path, {0: steps(hanging()), 1: steps(hanging()), 2: steps(hanging()), 3: smaller})
    assert found.ranks == (3,)
    assert found.text.startswith("rank 3 is in all_reduce #7 with 100 elements, the others with 128; rank 3 is at")


def test_groups_of_the_same_ranks_are_told_apart(tmp_path):
    both = {name: {"name": name, "desc": "", "ranks": "[0, 1, 2, 3]"} for name in ("0", "3")}
    gathers = {"group": "3", "at": (START + 7_000) * 1000}
    done, hangs = entry(1, "all_gather", **gathers), hanging(2, "all_gather", **gathers)
    for rank in range(4):
        document = dump([*steps(), done, *[hangs] * (rank != 1)]) | {"pg_config": both}
        write(tmp_path / f"dump-rank{rank}.pickle", document)
    found = explain([tmp_path])
    assert found.ranks == (1,)
    assert found.text.startswith("rank 1 has not reached all_gather #2 of group 3: silent in its dump, after all_gath")


def test_groups_of_other_ranks_may_have_the_same_name(tmp_path):
    """As those that `split_group` makes of each half of the ranks, whose names are of places within the half."""
    gather = {"group": "split", "at": (START + 7_000) * 1000}
    calls = {0: [*steps(group="1"), hanging(1, "all_gather", **gather)], 1: steps(group="1")}
    for rank in range(4):
        half, names = ([0, 1], ("1", "split")) if rank < 2 else ([2, 3], ("split",))
        document = dump(calls.get(rank, [entry(1, "all_gather", **gather)]))
        document["pg_config"] |= {name: {"name": name, "desc": "", "ranks": str(half)} for name in names}
        write(tmp_path / f"dump-rank{rank}.pickle", document)
    found = explain([tmp_path])
    assert found.ranks == (1,)
    assert found.text.startswith("rank 1 has not reached all_gather #1 of ranks 0, 1: silent in its dump, after")


def of_gloo(seq, op, retired, **more):
    return entry(seq, profiling_name=f"gloo:{op}", state="scheduled", **more) | {"retired": retired}


def test_ranks_of_groups_that_gloo_does_not_list_are_those_that_called_something_in_them(tmp_path):
    pair = {"group": "1", "at": (START + 2_000) * 1000}
    begun = [of_gloo(1, "all_reduce", True), of_gloo(1, "all_reduce", True, **pair)]
    ranks = {
        0: [*begun, of_gloo(2, "all_reduce", False, **pair)],
        1: [*begun, of_gloo(2, "barrier", False)],
        2: [begun[0], of_gloo(2, "barrier", False)],
    }
    unlisted = {"": {"name": "", "desc": "", "ranks": "[]"}}
    for rank, entries in ranks.items():
        write(tmp_path / f"dump-rank{rank}.pickle", dump(entries) | {"pg_config": unlisted})
    found = explain([tmp_path])
    assert "rank 1 has not reached all_reduce #2 of ranks 0, 1: it is waiting in barrier #2, at train.py" in found.text
    assert "those that called something in one are taken for all of it" in found.text
    alone = explain([tmp_path / "dump-rank0.pickle"])
    assert (alone.ranks, alone.text.splitlines()[0]) == (
        (),
        "the dumps do not tell whom the ranks wait for: none of them differs within a group that is known",
    )


def test_ranks_that_have_all_come_in_a_group_that_is_not_listed_are_not_blamed_for_being_late(tmp_path):
    group = {"group": "1", "at": (START + 2_000) * 1000}  # of all three in truth, but rank 2 never called in it
    done = of_gloo(1, "all_reduce", True)
    waits = [done, of_gloo(1, "all_reduce", False, **group)]
    unlisted = {"": {"name": "", "desc": "", "ranks": "[]"}}
    for rank, entries in enumerate((waits, waits, [done, of_gloo(2, "barrier", False)])):
        write(tmp_path / f"dump-rank{rank}.pickle", dump(entries) | {"pg_config": unlisted})
    found = explain([tmp_path])
    assert (found.ranks, found.lines) == ((), ())
    assert found.text.startswith("the dumps do not tell whom the ranks wait for: all known ranks of a group not listed")
    assert found.text.endswith(
        "the dumps do not list the ranks of some groups: those that called something in one are taken for all of it"
    )


def test_ranks_that_differ_within_a_group_that_is_not_listed_are_named(tmp_path):
    group = {"group": "1", "at": (START + 2_000) * 1000}
    done = of_gloo(1, "all_reduce", True)
    ops = {0: "all_reduce", 1: "broadcast"}
    ranks = {rank: [done, of_gloo(1, op, False, **group)] for rank, op in ops.items()}
    ranks[2] = [done, of_gloo(2, "barrier", False)]
    unlisted = {"": {"name": "", "desc": "", "ranks": "[]"}}
    for rank, entries in ranks.items():
        write(tmp_path / f"dump-rank{rank}.pickle", dump(entries) | {"pg_config": unlisted})
    found = explain([tmp_path])
    assert found.ranks
    assert "rank 1 is in broadcast #1 of ranks 0, 1, the others in all_reduce #1 of ranks 0, 1" in found.text


def test_sends_and_receives_are_not_counted_as_collectives(tmp_path):
    sent = {0: "send 0->1", 1: "recv 1<-0"}
    ranks = {rank: [entry(1), entry(2, name, is_p2p=True)] for rank, name in sent.items()}
    text = "no hang in these dumps: 2 calls of collectives, and all have ended"
    assert explained(tmp_path, ranks, world_size=2).text == text


def test_that_gloo_dumps_no_messages_is_said_where_no_hang_is_seen(tmp_path):
    found = explained(tmp_path, {rank: [of_gloo(1, "all_reduce", True)] for rank in range(2)}, world_size=2)
    assert found.text.endswith("gloo's dumps have no messages in them: a send or a receive may hang all the same")


def test_two_collectives_in_another_order_are_told_from_one_that_is_another(tmp_path):
    one = steps(hanging(7), hanging(8, "broadcast"))
    other = steps(hanging(7, "broadcast", frames=AT_41), hanging(8))
    found = explained(tmp_path, {0: one, 1: other, 2: one}, world_size=3)
    assert found.ranks == (1,)
    assert found.lines == ("train.py, line 41",)
    assert "rank 1 is in broadcast #7, the others in all_reduce #7" in found.text


def test_a_rank_that_is_late_in_a_group_of_two_is_named_with_the_group(tmp_path):
    groups = {
        "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"},
        "5": {"name": "5", "desc": "tensor_parallel", "ranks": "[2, 3]"},
    }
    pair = {"group": "5", "frames": AT_41}
    ranks = {
        0: steps(hanging()),
        1: steps(hanging()),
        2: steps(hanging(1, "all_gather", **pair), before=6),
        3: steps(before=6),
    }
    paths = [
        write(tmp_path / f"dump-rank{rank}.pickle", dump(entries) | {"pg_config": groups})
        for rank, entries in ranks.items()
    ]
    found = explain(paths)
    assert found.ranks == (3,)  # rank 2 is late for the others because it waits for rank 3
    assert "rank 3 has not reached all_gather #1 of ranks 2, 3: silent in its dump" in found.text
    assert "rank 2 has not reached all_reduce #7: it is waiting in all_gather #1 of ranks 2, 3" in found.text


def test_a_message_that_nobody_sends_names_the_rank_that_it_should_come_from(tmp_path):
    waits = hanging(1, "recv 0<-1", is_p2p=True, frames=AT_41)
    found = explained(tmp_path, {0: steps(waits), 1: steps()}, world_size=2)
    assert found.ranks == (1,)
    assert found.lines == ("train.py, line 12",)
    assert found.text.startswith("rank 0 waits in recv for rank 1, which is silent in its dump, after all_reduce #6")


def test_a_host_that_runs_ahead_of_its_device_is_not_the_cause(tmp_path):
    ahead = steps(hanging(7), hanging(8), hanging(9))
    found = explained(tmp_path, {0: ahead, 1: steps(hanging(7)), 2: ahead, 3: ahead})
    assert found.ranks == ()
    assert found.text.startswith("the ranks do not differ in what they called: ")


def test_a_rank_without_a_dump_is_named_where_the_others_agree(tmp_path):
    found = explained(tmp_path, {0: steps(hanging()), 1: steps(hanging()), 3: steps(hanging())})
    assert found.ranks == (2,)
    assert found.text.startswith("the ranks that are here do not differ: look at rank 2, of which there is no dump")


def test_a_rank_without_a_dump_is_mentioned_where_another_is_the_cause(tmp_path):
    found = explained(tmp_path, {0: steps(hanging()), 1: steps(), 2: steps(hanging())})
    assert found.ranks == (1,)
    assert found.text.endswith("of rank 3 there is no dump, and so nothing is said")


def test_json_has_no_lines_and_that_is_said(tmp_path):
    bare = {"frames": []}
    found = explained(tmp_path, {0: steps(hanging(**bare), **bare), 1: steps(**bare)}, kind="json", world_size=2)
    assert found.ranks == (1,)
    assert found.lines == ("",)
    assert "some dumps have no lines of source" in found.text


def test_of_gloo_what_is_not_retired_hangs(tmp_path):
    done, hangs = of_gloo(1, "all_reduce", True), of_gloo(2, "all_reduce", False)
    ranks = {0: [done, hangs], 1: [done], 2: [done, hangs]}
    found = explained(tmp_path, ranks, world_size=3)
    assert found.ranks == (1,)
    assert found.text.startswith("rank 1 has not reached all_reduce #2")


@pytest.mark.slow
def test_dumps_that_torch_writes_name_the_rank_that_did_not_come(tmp_path):
    command = [Path(__file__).with_name("dumping.py"), tmp_path]
    done = warm.launch(command, ranks=3, environment={"TORCH_FR_BUFFER_SIZE": "2000"}, timeout=60)
    assert done.returncode == 0, done.stderr
    found = explain([tmp_path])
    assert found.ranks == (1,)
    assert found.lines == ("dumping.py, line 17",)
    assert found.text.startswith(
        "rank 1 has not reached all_reduce #4: silent in its dump, after all_reduce #3; rank 1"
    )
    assert "ranks 0 and 2 have waited in all_reduce #4, at dumping.py, line 17" in found.text


def test_a_run_that_went_well_has_no_hang_in_it(tmp_path):
    found = explained(tmp_path, {rank: steps() for rank in range(4)})
    assert found.ranks == ()
    assert found.text == "no hang in these dumps: 24 calls of collectives, and all have ended"


def test_dumps_of_different_runs_are_refused(tmp_path):
    one = [entry(seq) for seq in range(1, 20)]
    other = [entry(seq, "broadcast") for seq in range(1, 20)]
    with pytest.raises(ValueError, match="19 of 19 collectives of ranks 0 and 1 differ, so they are of different runs"):
        explained(tmp_path, {0: one, 1: other}, world_size=2)


def test_a_trace_is_refused_with_what_to_give_instead(tmp_path):
    path = write(tmp_path / "trace-rank0.json", trace(nccl_bars()))
    with pytest.raises(ValueError, match="does not tell what has not ended: give dumps of the flight recorder"):
        explain([path])


def test_a_folder_without_a_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match=f"there is no file in '{tmp_path}': give dumps of the flight recorder"):
        explain([tmp_path])


def test_half_of_what_was_said_is_refused(tmp_path):
    (tmp_path / "hang.json").write_text('{"zerolab-why": 1, "ran')
    with pytest.raises(ValueError, match=r"is not what zerolab\.why wrote of a hang, or only half of it"):
        explain([tmp_path])


def test_notes_of_a_run_without_a_hang_say_so(tmp_path):
    (tmp_path / "rank-0").write_bytes(b"")
    assert explain([tmp_path]).text.startswith("no hang was noticed in the run whose notes are in")


def test_dumps_whose_names_begin_as_those_of_notes_are_read(tmp_path):
    for rank in range(2):
        write(tmp_path / f"rank-{rank}.json", dump(steps(*[hanging()] * (rank == 0)), world_size=2))
    assert explain([tmp_path]).ranks == (1,)


def test_the_command_prints_what_was_said_of_a_run(tmp_path, capsys):
    said = {"zerolab-why": 1, "ranks": [1], "lines": ["train.py, line 7: time.sleep(30)"], "text": "rank 1 has not ..."}
    (tmp_path / "hang.json").write_text(json.dumps(said))
    assert cli.main(["why", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "rank 1 has not ...\n"
    assert cli.main(["why", "--json", "--", str(tmp_path / "hang.json")]) == 0
    assert json.loads(capsys.readouterr().out) == said


def test_the_command_takes_a_folder_of_dumps(tmp_path, capsys):
    for rank in range(2):
        write(tmp_path / f"nccl_trace_rank_{rank}.pickle", dump(steps(*[hanging()] * (rank == 0)), world_size=2))
    assert cli.main(["why", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("rank 1 has not reached all_reduce #7: ")
