"""Merging, tables, and the file."""

import json
from dataclasses import replace

import pytest

from zerolab.recording import jsonfile
from zerolab.recording.clocks import Reading, align
from zerolab.recording.events import Event, RankInfo, RankRecording, Source, SourceLine, UnitInfo
from zerolab.recording.recording import Recording


def of_rank(rank, started=1000, world_size=2, **figures):
    """A small recording by hand."""
    live = dict.fromkeys(("parameters", "gradients", "optimizer_state", "activations", "communication", "other"), rank)
    events = (
        Event(
            rank, 0, started + 5, started + 9, 1, "gather", "collective", "all_gather", unit="0", dtype="float32",
            numel=8, logical_bytes=16, live=live, source=SourceLine("abc", 3, from_autograd=True), number=0,
        ),
        Event(
            rank, 1, started + 6, started + 6, 1, "forward", "memory", "hold", unit="0", live=live,
            category="parameters", spans=((0, 4), (6, 8)), group=(0, 1),
        ),
        Event(
            rank, 2, started + 7, started + 8, 1, "forward", "note", "said", text='a "note" \u03a8', peer=1, parent=0,
        ),
    )  # fmt: skip
    units = (UnitInfo("0", 7, 8, "float32", ("0.weight", "0.bias")),)
    info = RankInfo(stage="zero1", started_ns=started, steps=1, wire_bytes=[None], logical_bytes=[16], **figures)
    return RankRecording(rank, world_size, events, {"abc": Source("cell [3]", "x = 1\n")}, units, info)


@pytest.fixture
def recording():
    return Recording.merge([of_rank(1, started=1020), of_rank(0, started=1000)], results=["a", "b"])


def test_the_clock_starts_with_the_first_rank(recording):
    assert [rank.events[0].t_start for rank in recording.ranks] == [5, 25]
    assert [rank.info.started_ns for rank in recording.ranks] == [0, 20]
    assert [(event.rank, event.seq) for event in recording.events] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_what_the_ranks_share_is_merged(recording):
    assert recording.world_size == 2
    assert list(recording.sources) == ["abc"]
    assert [unit.name for unit in recording.units] == ["0"]
    assert recording.info.stage == "zero1"
    assert recording.results == ["a", "b"]
    assert repr(recording) == "<Recording of zero1 on 2 ranks: 1 step, 1 collective>"


@pytest.mark.parametrize(
    "ranks", [[], [of_rank(0), of_rank(0)], [of_rank(0), of_rank(1, world_size=3)]], ids=["none", "twice", "two runs"]
)
def test_what_does_not_belong_together_is_not_merged(ranks):
    with pytest.raises(ValueError, match="cannot merge recordings of ranks"):
        Recording.merge(ranks)


def test_a_rank_may_be_missing():
    recording = Recording.merge([replace(of_rank(1), complete=False)])
    assert [rank.rank for rank in recording.ranks] == [1]
    assert "1 rank missing" in repr(recording)
    with pytest.raises(ValueError, match="rank 0 is not in this recording: choose one of 1"):
        recording.rank(0)


def test_a_collective_on_which_the_ranks_disagree_shows_both_words():
    other = of_rank(1)
    other = replace(other, events=(replace(other.events[0], op="reduce_scatter"), *other.events[1:]))
    (collective,) = Recording.merge([of_rank(0), other]).collectives
    assert collective.ops == ("all_gather", "reduce_scatter")


def test_tables_show_bytes_and_no_times(recordings):
    recording = recordings["zero1"]
    assert [row["peak"] for row in recording.table()] == [rank.info.peak_total for rank in recording.ranks]
    memory = {row["category"]: row for row in recording.memory(rank=1)}
    assert memory["total"]["state"] == sum(recording.ranks[1].info.state.values())
    assert memory["parameters"]["formula"] == 1372
    traffic = {row["op"]: row for row in recording.traffic()}
    assert traffic["total"]["logical bytes"] == recording.sent
    assert {row["count"] for op, row in traffic.items() if op != "total"} == {3}
    assert "ns" not in str(recording.table()) + str(recording.traffic())


def test_tables_refuse_a_step_or_a_rank_that_is_not_there(recordings):
    with pytest.raises(ValueError, match="step 9 is not in this recording: choose one of 1 to 3"):
        recordings["ddp"].traffic(step=9)
    with pytest.raises(ValueError, match="rank 5 is not in this recording: choose one of 0, 1"):
        recordings["ddp"].memory(rank=5)


def test_the_highest_bytes_of_a_category_are_at_least_those_of_the_update(recordings):
    for stage, recording in recordings.items():
        for rank in recording.ranks:
            for category, update in rank.state.items():
                assert recording.highest(category, rank.rank) >= update, (stage, category)
    assert recordings["zero2"].highest("gradients") < recordings["zero1"].highest("gradients")


@pytest.mark.parametrize(("category", "step"), [("gradient", None), ("gradients", 99)])
def test_the_highest_of_what_is_not_there_is_refused(recordings, category, step):
    with pytest.raises(ValueError, match="choose one of parameters, gradients"):
        recordings["zero2"].highest(category, step=step)


def test_tables_are_the_same_in_every_run(recordings, cluster, train):
    again = cluster.record(train, "zero3")
    for table in ("table", "memory", "traffic"):
        assert str(getattr(again, table)()) == str(getattr(recordings["zero3"], table)())
    told = [
        [(e.op, e.kind, e.unit, e.step, e.number, e.live) for e in recording.ranks[0].events if e.kind != "note"]
        for recording in (again, recordings["zero3"])
    ]
    assert told[0] == told[1]


def test_a_recording_that_was_saved_loads_as_it_was(recording, recordings, tmp_path):
    for number, saved in enumerate([recording, *recordings.values()]):
        path = tmp_path / f"{number}.json"
        saved.save(path)
        loaded = Recording.load(path)
        assert (loaded.ranks, loaded.units, loaded.sources) == (saved.ranks, saved.units, saved.sources)
        assert (loaded.info, loaded.world_size, loaded.results) == (saved.info, saved.world_size, None)
    assert sorted(file.name for file in tmp_path.iterdir()) == [f"{number}.json" for number in range(5)]


def test_what_the_first_edition_wrote_and_what_a_later_one_adds_is_read(recording, tmp_path):
    recording.save(tmp_path / "run.json")
    document = json.loads((tmp_path / "run.json").read_text())
    # The first edition said "nothing" where this one says nothing.
    document["meta"] |= {"optimizer": None, "offload": False, "formula": None, "weather": "fine"}
    for rank in document["ranks"]:
        rank["meta"] |= {"state": None, "step_counters": None, "peaks": {}, "updated": None, "weather": ["fine"]}
    (tmp_path / "run.json").write_text(json.dumps(document))
    loaded = Recording.load(tmp_path / "run.json")
    assert (loaded.info, loaded.ranks) == (recording.info, recording.ranks)


def test_what_one_asks_a_recording_for_most_has_a_name(recordings):
    recording = recordings["zero2"]
    assert recording.num_params == 343
    assert recording.state == recording.ranks[0].state == recording.ranks[0].info.state
    assert sum(recording.peak.values()) == recording.ranks[0].info.peak_total
    assert recording.sent == recording.ranks[0].info.logical_bytes[-1]


def test_what_was_not_recorded_is_refused_in_a_sentence(recording):
    with pytest.raises(ValueError, match="no state after 1 step: Adam makes its moments in the first"):
        _ = recording.state
    with pytest.raises(ValueError, match="this recording has no model in it"):
        _ = recording.num_params
    with pytest.raises(ValueError, match="no training step has ended"):
        _ = recording.peak


def test_meta_of_the_first_edition_still_answers_and_says_in_a_line_where_it_is_now(recordings):
    recording = recordings["zero2"]
    for holder in (recording, recording.ranks[1]):
        with pytest.warns(FutureWarning, match=r'^meta\["..."\] is now the attribute info; the old form') as warned:
            meta = holder.meta
        assert meta["num_params"] == 343
        assert meta.get("peak") == getattr(holder.info, "peak", None)
        assert [warning.filename for warning in warned] == [__file__]


def test_the_file_is_plain_json_of_one_event_a_line(recordings, tmp_path):
    recordings["zero3"].save(tmp_path / "run.json")
    text = (tmp_path / "run.json").read_text()
    json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    events = sum(len(rank.events) for rank in recordings["zero3"].ranks)
    assert events < text.count("\n") < events + 60
    assert str(tmp_path) not in text
    assert "/site-packages/" not in text


def test_a_loss_that_is_no_number_is_saved_as_null(tmp_path):
    Recording.merge([of_rank(0, losses=[float("nan"), 1.0])]).save(tmp_path / "run.json")
    assert Recording.load(tmp_path / "run.json").ranks[0].info.losses == [None, 1.0]


def test_a_file_is_written_whole_or_not_at_all(recording, tmp_path, monkeypatch):
    recording.save(tmp_path / "run.json")
    before = (tmp_path / "run.json").read_bytes()

    def broken(*arguments):
        raise OSError("disk full")

    monkeypatch.setattr(jsonfile.Path, "replace", broken)
    with pytest.raises(OSError, match="disk full"):
        recording.save(tmp_path / "run.json")
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]
    assert (tmp_path / "run.json").read_bytes() == before


def test_a_folder_is_no_place_to_save_to(recording, tmp_path):
    with pytest.raises(ValueError, match="is a folder; name a file in it"):
        recording.save(tmp_path)
    with pytest.raises(ValueError, match="its folder does not exist"):
        recording.save(tmp_path / "none" / "run.json")


def edited(document, path, value):
    """The document with one value changed; `path` is a sequence of keys."""
    *way, last = path
    holder = document
    for key in way:
        holder = holder[key]
    holder[last] = value
    return document


EVENT = ("ranks", 0, "events", 0)
BROKEN = {
    "newer": (("version",), 2, "a newer zerolab wrote it .version 2, this one reads 1.; upgrade zerolab"),
    "old": (("version",), 0, "version 0"),
    "version": (("version",), True, "'version' is True, not of type int"),
    "foreign": (("format",), "chrome-trace", "its format is 'chrome-trace'"),
    "world size": (("world_size",), "two", "'world_size' is 'two'"),
    "world too small": (("world_size",), 1, r"ranks \[0, 1\] of a world of 1"),
    "meta": (("meta",), [], "'meta' is "),
    "state": (("ranks", 0, "meta", "state"), {"parameters": "many"}, r"'state' of a 'meta' is {'parameters': 'many'}"),
    "state of two": (("ranks", 0, "meta", "state"), {"parameters": 1, "gradients": 2}, "'state' of a 'meta' is "),
    "formula": (("meta", "formula"), {"parameters": "many"}, "'formula' of a 'meta' is "),
    "peaks": (("ranks", 1, "meta", "peaks"), {"forward": 3}, "'peaks' of a 'meta' is {'forward': 3}"),
    "stage": (("meta", "stage"), ["zero1"], "'stage' of a 'meta' is "),
    "bytes": (("ranks", 0, "meta", "logical_bytes"), ["16"], "'logical_bytes' of a 'meta' is "),
    "half a character": (("meta", "optimizer"), "\ud800", r"it has '\\ud800', half of a character"),
    "names": (("units", 0, "parameters"), [5], r"'parameters' of a unit is \[5\]"),
    "categories": (("categories",), ["parameters"], "other categories"),
    "units": (("units", 0, "padded"), None, "'padded' of a unit is None"),
    "source": (("sources", "abc"), "text", "'label' of a source is None"),
    "ranks": (("ranks",), {}, "'ranks' is {}"),
    "no ranks": (("ranks",), [], r"ranks \[\]"),
    "rank": (("ranks", 0, "rank"), 1, r"ranks \[1, 1\]"),
    "event": (EVENT, [1, 2], r"event 0 of rank 0 is \[1, 2\]"),
    "time": ((*EVENT, 0), "now", "event 0 of rank 0"),
    "backwards": ((*EVENT, 1), -1, "event 0 of rank 0"),
    "phase": ((*EVENT, 3), "lunch", "event 0 of rank 0"),
    "live": ((*EVENT, 6), [1.5] * 6, "event 0 of rank 0"),
    "number": ((*EVENT, 7, "number"), "first", "'number' of event 0 of rank 0 is 'first'"),
    "points nowhere": ((*EVENT, 7, "at"), "xyz:3", "points to the source 'xyz:3'"),
    "no line": ((*EVENT, 7, "at"), "abc:x", "points to the source 'abc:x'"),
    "no number": ((*EVENT, 7, "at"), "abc:\u00b2", "points to the source 'abc:\u00b2'"),
    "too long a number": ((*EVENT, 7, "at"), "abc:" + "9" * 5000, "points to the source 'abc:9999"),
    "category": (("ranks", 0, "events", 1, 7, "category"), "snacks", "'category' of event 1 of rank 0 is 'snacks'"),
    "span": (("ranks", 0, "events", 1, 7, "spans"), [[0]], r"'spans' of event 1 of rank 0 is \[\[0\]\]"),
    "group": (("ranks", 0, "events", 1, 7, "group"), ["all"], r"'group' of event 1 of rank 0 is \['all'\]"),
}


@pytest.mark.parametrize(("path", "value", "says"), BROKEN.values(), ids=BROKEN)
def test_a_malformed_file_is_refused_in_one_sentence(recording, tmp_path, path, value, says):
    recording.save(tmp_path / "run.json")
    document = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "bad.json").write_text(json.dumps(edited(document, path, value)))
    with pytest.raises(ValueError, match=says) as caught:
        Recording.load(tmp_path / "bad.json")
    assert "bad.json' is no recording that can be read: " in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"{", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"[1]", "its format is 'list'"),
        (b"3", "its format is 'int'"),
        (b"[" * 100_000, "is not JSON"),
        (b"9" * 5000, "is not JSON"),
    ],
    ids=["empty", "cut off", "not text", "list", "number", "deep", "long"],
)
def test_a_file_that_is_something_else_is_refused_in_one_sentence(tmp_path, content, says):
    (tmp_path / "bad.json").write_bytes(content)
    with pytest.raises(ValueError, match=says) as caught:
        Recording.load(tmp_path / "bad.json")
    assert "\n" not in str(caught.value)


def test_a_folder_and_a_missing_file_are_no_recordings(tmp_path):
    with pytest.raises(ValueError, match="is a folder, not a recording"):
        Recording.load(tmp_path)
    with pytest.raises(FileNotFoundError, match="does not exist: check the name"):
        Recording.load(tmp_path / "none.json")


def on_device(rank, start=None, end=None, stream=None):
    whole = of_rank(rank, started=1000)
    first = replace(whole.events[0], stream=stream, device_start=start, device_end=end)
    return replace(whole, events=(first, *whole.events[1:]))


def test_times_on_a_device_are_on_the_recordings_clock_and_survive_the_file(tmp_path):
    Recording.merge([on_device(0, 1100, 1250, "compute")]).save(tmp_path / "run.json")
    first, *others = Recording.load(tmp_path / "run.json").ranks[0].events
    assert (first.stream, first.device_start, first.device_end) == ("compute", 100, 250)
    assert (first.t_start, first.t_end) == (5, 9)
    assert {event.stream for event in others} == {None}


def test_times_on_a_device_follow_the_ranks_clock():
    start, end = Reading(1000, 500, 3), Reading(3000, 700, 2)
    (first, *_) = align(on_device(0, 1100, 2000, "compute"), start, end).events
    assert (first.device_start, first.device_end) == (590, 1400)


@pytest.mark.parametrize(
    "said", [("compute", 5, None), ("compute", None, None), (None, 5, 6), ("compute", 6, 5)], ids=str
)
def test_a_file_whose_times_on_a_device_are_damaged_is_refused(tmp_path, said):
    stream, start, end = said
    broken = Recording([on_device(0, start, end, stream)], world_size=2, info=RankInfo())
    broken.sources["abc"] = Source("cell [3]", "x = 1\n")
    broken.save(tmp_path / "run.json")
    with pytest.raises(ValueError, match="event 0 of rank 0 was executed on a device at no time"):
        Recording.load(tmp_path / "run.json")
