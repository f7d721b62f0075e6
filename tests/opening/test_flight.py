"""What becomes of the flight recorder's dumps: the last collectives of each rank, and which have not ended."""

import made
import pytest

from zerolab import Recording


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


def test_messages_have_their_other_end_and_no_number(tmp_path):
    send = made.entry(1, "send 0->3", is_p2p=True)
    recording = Recording.open(*dumps(tmp_path, lambda _: [send]))
    (event,) = recording.rank(0).events
    assert (event.op, event.peer, event.number, event.logical_bytes) == ("send", 3, None, 512)


@pytest.mark.parametrize("suffix", ["pickle", "json"])
def test_the_rank_is_the_last_number_of_the_name_as_for_torchs_own_tool(suffix, tmp_path):
    recording = Recording.open(dumps(tmp_path, lambda _: [made.entry(1)], suffix)[2])
    assert [rank.rank for rank in recording.ranks] == [2]
    assert recording.world_size == 4
