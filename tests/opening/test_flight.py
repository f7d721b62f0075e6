"""What becomes of the flight recorder's dumps: the last collectives of each rank, and which have not ended."""

import made
import pytest

from zerolab import Recording
from zerolab.opening import found
from zerolab.why.dumps import explain

STAGES = {0: (0, 2), 1: (1, 3), 2: (0, 2), 3: (1, 3)}  # the ranks of each rank's pipeline


def dumps(folder, entries, suffix="pickle"):
    """A dump of each rank, of the entries that `entries(rank)` gives."""
    return [made.write(folder / f"nccl_rank_{rank}.{suffix}", made.dump(entries(rank))) for rank in range(4)]


def test_a_rank_that_never_came_is_seen_and_who_waits_for_it_is_cut_off(tmp_path):
    def entries(rank):
        done = [made.entry(seq) for seq in (1, 2)]
        return done if rank == 2 else [*done, made.entry(3, state="started")]

    recording = Recording.open(*dumps(tmp_path, entries))
    assert [rank.complete for rank in recording.ranks] == [False, False, True, False]
    last = recording.collectives[-1]
    assert (last.number, sorted(last.events)) == (3, [0, 1, 3])
    assert "cut off" in repr(recording)


def test_sizes_ends_and_lines_are_those_of_the_entry(tmp_path):
    sizes = ((64,), (4, 64))
    recording = Recording.open(*dumps(tmp_path, lambda _: [made.entry(1, "_all_gather_base", sizes=sizes)]))
    (event,) = recording.rank(0).events
    assert (event.op, event.dtype, event.numel, event.logical_bytes) == ("all_gather", "float32", 256, 768)
    assert event.t_end - event.t_start == 500_000
    assert (recording.sources[event.source.id].label, event.source.line) == ("train.py", 12)
    assert recording.info.steps == 0


def test_what_a_gather_and_a_scatter_send_depends_on_who_is_their_root(tmp_path):
    def entries(rank):
        whole = (4, 64) if rank == 1 else (0,)
        return [made.entry(1, "gather", sizes=((64,), whole)), made.entry(2, "scatter", sizes=(whole, (64,)))]

    recording = Recording.open(*dumps(tmp_path, entries))
    sent = [[event.logical_bytes for event in recording.rank(rank).events] for rank in range(4)]
    assert sent == [[256, 0], [0, 3 * 256], [256, 0], [256, 0]]


def test_messages_have_their_other_end_and_no_number(tmp_path):
    send = made.entry(1, "send 0->3", is_p2p=True)
    recording = Recording.open(*dumps(tmp_path, lambda _: [send]))
    (event,) = recording.rank(0).events
    assert (event.op, event.peer, event.number, event.logical_bytes) == ("send", 3, None, 512)


def pipelines(folder, entries, stages=STAGES):
    """A dump of each rank that also knows its pipeline, the group "3"."""
    for rank, ranks in stages.items():
        dump = made.dump(entries(rank))
        dump["pg_config"]["3"] = {"name": "3", "desc": "pp", "ranks": str(list(ranks))}
        made.write(folder / f"nccl_rank_{rank}.pickle", dump)
    return sorted(folder.iterdir())


def test_the_other_end_of_a_message_within_a_group_is_a_rank_of_the_world(tmp_path):
    def entries(rank):
        return [made.entry(1), made.entry(2, "send 0->1" if rank < 2 else "recv 1<-0", group="3", is_p2p=True)]

    unsorted = {**STAGES, 0: (2, 0)}  # torch counts places in sorted order
    recording = Recording.open(*pipelines(tmp_path, entries, unsorted))
    assert [rank.events[-1].peer for rank in recording.ranks] == [2, 3, 0, 1]


def test_a_place_that_a_group_does_not_have_is_no_rank(tmp_path):
    messages = [made.entry(1, "send 0->2", group="3", is_p2p=True), made.entry(2, "send 0->1", group="7", is_p2p=True)]
    recording = Recording.open(*pipelines(tmp_path, lambda _: messages))
    assert [event.peer for event in recording.rank(0).events] == [None, None]


def test_who_did_not_send_within_a_group_is_to_blame_and_nobody_of_another_group(tmp_path):
    def entries(rank):
        message = "send 0->1" if rank == 0 else "recv 1<-0"
        state = "scheduled" if rank == 3 else "completed"
        sent = [] if rank == 1 else [made.entry(2, message, group="3", state=state, is_p2p=True)]
        return [made.entry(1), *sent]

    assert explain(pipelines(tmp_path, entries)).ranks == (1,)


def batch(seq, p2p, state):
    """A batch of two messages as NCCL's are noted: what is in it stays scheduled, and only the whole has an end."""
    numbers = {"collective_seq_id": 1, "p2p_seq_id": p2p, "is_p2p": True}
    messages = [
        made.entry(seq + i, name, state="scheduled", **numbers) for i, name in enumerate(("send 0->1", "recv 0<-1"))
    ]
    return [*messages, made.entry(seq + 2, "coalesced", state=state, **numbers)]


def test_messages_of_a_batch_have_ended_when_the_batch_has(tmp_path):
    paths = dumps(tmp_path, lambda _: [made.entry(1), *batch(2, 1, "completed"), *batch(5, 2, "completed")])
    recording = Recording.open(*paths)
    assert all(rank.complete for rank in recording.ranks)
    assert [event.op for event in recording.rank(0).events] == ["all_reduce", "send", "recv", "send", "recv"]
    ends = [event.t_end for event in recording.rank(0).events]
    assert ends[1] == ends[2] < ends[3] == ends[4]
    assert "no hang in these dumps" in explain(paths).text


def test_a_batch_that_hangs_and_a_message_before_a_batch_have_not_ended(tmp_path):
    def entries(rank):
        alone = made.entry(2, "send 0->1", state="scheduled", collective_seq_id=1, p2p_seq_id=1, is_p2p=True)
        hangs = [*batch(2, 1, "completed"), *batch(5, 2, "started")]
        return [made.entry(1), *([alone, *batch(5, 2, "completed")] if rank == 0 else hangs)]

    recording = Recording.open(*dumps(tmp_path, entries))
    unfinished = [[event.text is not None for event in rank.events] for rank in recording.ranks[:2]]
    assert unfinished == [[False, True, False, False], [False, False, False, True, True]]


def test_collectives_of_two_groups_of_the_same_ranks_are_different_ones(tmp_path):
    both = {name: {"name": name, "desc": "", "ranks": "[0, 1]"} for name in ("0", "3")}
    entries = [made.entry(5), made.entry(1, group="3", at=(made.START + 5_500) * 1000), made.entry(6)]
    for rank, known in enumerate((entries, entries[1:])):  # of one rank the oldest is gone
        made.write(tmp_path / f"dump-{rank}.pickle", made.dump(known) | {"pg_config": both})
    recording = Recording.open(tmp_path / "dump-0.pickle", tmp_path / "dump-1.pickle")
    assert recording.counted == "3 collectives"
    assert [[event.number for event in rank.events] for rank in recording.ranks] == [[5, 6, 7], [6, 7]]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_group_of_which_one_rank_has_no_entry_left_leaves_the_numbers_of_the_others_alike(rank, tmp_path):
    both = {name: {"name": name, "desc": "", "ranks": "[0, 1]"} for name in ("0", "3")}
    early = made.entry(1, "all_gather", group="3", at=(made.START + 100) * 1000)
    later = [made.entry(seq, "all_reduce" if seq % 2 else "broadcast") for seq in range(5, 25)]
    paths = [
        made.write(tmp_path / f"dump-{one}.pickle", made.dump([*[early] * (one == rank), *later]) | {"pg_config": both})
        for one in (0, 1)
    ]
    recording = Recording.open(*paths)
    assert recording.counted == "21 collectives"
    numbers = [[event.number for event in one.events] for one in recording.ranks]
    assert numbers[rank][1:] == numbers[1 - rank] == list(range(6, 26))
    assert explain(paths).text == "no hang in these dumps: 41 calls of collectives, and all have ended"


@pytest.mark.parametrize("frame", [{"line": 10**10}, {"filename": "/srv/\ud800.py"}])
def test_a_line_that_no_recording_could_hold_does_not_spoil_it(frame, tmp_path):
    frames = [{"name": "step", "filename": "/srv/train.py", "line": 12} | frame]
    document = made.dump([made.entry(1, frames=frames)])
    opened = Recording.open(made.write(tmp_path / "dump-0.pickle", document))
    opened.save(tmp_path / "run.json")
    assert Recording.load(tmp_path / "run.json").events == opened.events


def test_what_a_dump_says_of_itself_is_shown_in_few_words_and_moves_no_cursor(tmp_path):
    for rank, version in enumerate(("2.10\x1b[2J" + 1000 * "a", "2.10")):
        made.write(tmp_path / f"dump-{rank}.pickle", made.dump([made.entry(1)], version=version))
    with pytest.raises(ValueError, match=r"version is 2\.10\\x1b\[2Ja{20,40} in 'dump-0") as refused:
        Recording.open(tmp_path / "dump-0.pickle", tmp_path / "dump-1.pickle")
    assert len(str(refused.value)) < 300


def test_a_word_is_not_cut_within_what_stands_for_one_character():
    assert found.word("a" * 38 + "\x1b[2J") == "a" * 38
    assert found.word("a" * 36 + "\x1b[2J") == "a" * 36 + r"\x1b"


def test_of_a_dump_without_steps_a_table_of_times_says_so(tmp_path):
    opened = Recording.open(made.write(tmp_path / "dump-0.pickle", made.dump([made.entry(1)])))
    with pytest.raises(ValueError, match="no training step has ended in this recording"):
        opened.times()


def test_a_dump_of_torch_before_2_4_is_called_old_and_not_damaged(tmp_path):
    old = made.entry(1)
    old["seq_id"] = old.pop("collective_seq_id")
    path = made.write(tmp_path / "rank_0.pickle", made.dump([old], version="1.5"))
    with pytest.raises(ValueError, match=r"of version '1\.5', written by torch before 2\.4, .*: run the training with"):
        Recording.open(path)
    damaged = made.write(tmp_path / "rank_1.pickle", made.dump([old]))
    with pytest.raises(ValueError, match="is a damaged dump of the flight recorder"):
        Recording.open(damaged)


@pytest.mark.parametrize("suffix", ["pickle", "json"])
def test_the_rank_is_the_last_number_of_the_name_as_for_torchs_own_tool(suffix, tmp_path):
    recording = Recording.open(dumps(tmp_path, lambda _: [made.entry(1)], suffix)[2])
    assert [rank.rank for rank in recording.ranks] == [2]
    assert recording.world_size == 4


def test_a_dump_with_an_all_to_all_says_that_its_pieces_are_taken_for_equal(tmp_path):
    for op in ("all_to_all", "all_reduce"):
        path = made.write(tmp_path / f"{op}-rank0.pickle", made.dump([made.entry(1, op)]))
        lacks = Recording.open(path).info.lacks
        assert any("all-to-all" in lack for lack in lacks) == (op == "all_to_all")
