"""Files that do not belong together are refused in a sentence that says why."""

import made
import pytest

from zerolab import Recording, cli
from zerolab.why.dumps import explain


def two(folder, first, second):
    """Two traces, from what differs in each: keywords of `nccl_bars`, and of `trace` under "about"."""
    paths = []
    for rank, given in enumerate((first, second)):
        about = {"rank": rank, **given.pop("about", {})}
        bars = given.pop("bars", None) or made.nccl_bars(**given)
        paths.append(made.write(folder / f"trace-{rank}.json", made.trace(bars, **about)))
    return paths


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ({"about": {"rank": 0}}, "'trace-0.json' and 'trace-1.json' are both of rank 0"),
        ({"about": {"world_size": 4}}, "'trace-0.json' is of 2 ranks, 'trace-1.json' of 4, so they are of different"),
        ({"first": 9}, "'trace-0.json' has steps 4 to 5, 'trace-1.json' steps 9 to 10: profile the same steps"),
        ({"steps": 1}, "'trace-0.json' has steps 4 to 5, 'trace-1.json' step 4"),
        ({"at": made.START + 9_000_000}, "'trace-1.json' begins 9.0 seconds after 'trace-0.json' has ended"),
        ({"about": {"cuda_runtime_version": 12090}}, "cuda_runtime_version is 12080 in 'trace-0.json' and 12090 in"),
        ({"about": {"schemaVersion": 2}}, "schemaVersion is 1 in 'trace-0.json' and 2 in 'trace-1.json': different"),
        ({"about": {"torch_version": "2.9.0"}}, "torch 2.13.0 wrote 'trace-0.json' and 2.9.0 'trace-1.json'"),
    ],
)
def test_traces_of_different_runs_are_refused(second, said, tmp_path, capsys):
    first = {"about": {"cuda_runtime_version": 12080, "torch_version": "2.13.0"}}
    second["about"] = {**first["about"], **second.get("about", {})}
    assert cli.main(["open", *map(str, two(tmp_path, first, second)), "--no-open"]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


def test_ranks_that_made_other_collectives_are_of_different_runs(tmp_path):
    others = [
        {**bar, "args": {**bar["args"], **{key: 7 for key in bar["args"] if key.endswith("msg nelems")}}}
        for bar in made.nccl_bars()
    ]
    with pytest.raises(ValueError, match=r"4 of 4 collectives of ranks 0 and 1 differ, so they are of different runs"):
        Recording.open(*two(tmp_path, {}, {"bars": others}))


def test_a_copy_of_a_trace_is_not_taken_for_another_ranks(tmp_path):
    document = made.trace(made.nccl_bars())
    del document["distributedInfo"]  # it began before the group, so that its name says the rank
    paths = [made.write(tmp_path / f"trace-rank{rank}.json", document) for rank in (0, 1)]
    with pytest.raises(ValueError, match=r"'trace-rank0\.json' and 'trace-rank1\.json' have the same events: one is a"):
        Recording.open(*paths)


@pytest.mark.parametrize("kind", ["json", "pickle"])
def test_a_copy_of_a_dump_is_not_taken_for_another_ranks(tmp_path, kind):
    first = made.write(tmp_path / f"dump-rank0.{kind}", made.dump([made.entry(1), made.entry(2)], world_size=2))
    second = tmp_path / f"dump-rank1.{kind}"
    second.write_bytes(first.read_bytes())
    said = rf"'dump-rank0\.{kind}' and 'dump-rank1\.{kind}' have the same events: one is a copy of the other"
    for read in (Recording.open, lambda *paths: explain(paths)):
        with pytest.raises(ValueError, match=said):
            read(first, second)


def test_kinds_of_files_must_be_the_same_of_each_rank(tmp_path):
    trace, _ = two(tmp_path, {}, {})
    dump = made.write(tmp_path / "dump-1.pickle", made.dump([made.entry(1)], world_size=2))
    with pytest.raises(ValueError, match=r"of rank 0 there is a trace of torch\.profiler, of rank 1 a dump of the"):
        Recording.open(trace, dump)


def test_a_trace_that_only_its_name_gives_a_rank_is_not_taken_for_another_ranks(tmp_path):
    document = made.trace(made.nccl_bars())
    del document["distributedInfo"]
    trace = made.write(tmp_path / "trace-rank0.json", document)
    dump = made.write(tmp_path / "dump-rank1.pickle", made.dump([made.entry(1)], world_size=2))
    with pytest.raises(ValueError, match=r"of rank 0 there is a trace of torch\.profiler, of rank 1 a dump of the"):
        Recording.open(trace, dump)


def test_a_dump_of_another_moment_is_not_taken_for_the_traces(tmp_path):
    trace, _ = two(tmp_path, {}, {})
    dump = made.write(tmp_path / "dump-0.pickle", made.dump([made.entry(1, at=made.START * 1000 + 1)], world_size=2))
    with pytest.raises(ValueError, match=r"have no collective in common"):
        Recording.open(trace, dump)


def test_a_collective_that_goes_on_while_the_next_is_asked_for_is_filled_from_its_own_entry(tmp_path):
    asked = [made.bar("c10d::allreduce_", made.START + 10 * place, 5) for place in (1, 2)]
    carried = [made.bar("gloo:all_reduce", made.START + 10 * place, 9, "user_annotation", 3) for place in (4, 5)]
    entries = [
        made.entry(place, at=(made.START + 10 * place + 1) * 1000, sizes=((size,), (size,)))
        for place, size in ((1, 8), (2, 64))
    ]
    trace = made.write(tmp_path / "trace-0.json", made.trace([*asked, *carried]))
    dump = made.write(tmp_path / "dump-0.pickle", made.dump(entries, world_size=2))
    events = Recording.open(trace, dump).rank(0).events
    assert [event.numel for event in events if event.op == "all_reduce"] == [8, 64]


def test_collectives_that_two_threads_ask_for_at_one_time_are_filled_from_an_entry_each(tmp_path):
    asked = [made.bar("c10d::allreduce_", made.START + start, dur, tid=start) for start, dur in ((10, 60), (20, 10))]
    entries = [
        made.entry(place, at=(made.START + at) * 1000, sizes=((size,), (size,)))
        for place, at, size in ((1, 25, 8), (2, 65, 64))
    ]
    trace = made.write(tmp_path / "trace-0.json", made.trace(asked))
    dump = made.write(tmp_path / "dump-0.pickle", made.dump(entries, world_size=2))
    events = Recording.open(trace, dump).rank(0).events
    assert [event.numel for event in events if event.op == "all_reduce"] == [64, 8]


def test_several_files_without_a_rank_are_asked_for_one(tmp_path):
    for name in ("a.pickle", "b.pickle"):
        made.write(tmp_path / name, made.dump([made.entry(1)]))
    with pytest.raises(ValueError, match=r"does not say of which rank it is: name it with its rank, such as rank-0"):
        Recording.open(tmp_path / "a.pickle", tmp_path / "b.pickle")


def test_versions_of_dumps_must_be_the_same(tmp_path):
    paths = [
        made.write(tmp_path / f"dump-{rank}.json", made.dump([made.entry(1)], version=f"2.{9 + rank}"))
        for rank in (0, 1)
    ]
    with pytest.raises(ValueError, match=r"the flight recorder's version is 2\.9 in 'dump-0\.json' and 2\.10 in"):
        Recording.open(*paths)


def test_clocks_of_two_nodes_are_compared_by_what_both_have_sent(tmp_path):
    first, second = {}, {"at": made.START + 300, "about": {"host_name": "two"}}
    recording = Recording.open(*two(tmp_path, first, second))
    assert "times of all nodes are on one clock, to within" in recording.info.clocks
    assert recording.rank(1).info.clock["offset_ns"] != 0


def test_a_rank_whose_file_is_missing_is_missing(tmp_path, capsys):
    trace, _ = two(tmp_path, {}, {})
    page = tmp_path / "page.html"
    assert cli.main(["open", str(trace), "--no-open", "--html", str(page), "--out", str(tmp_path / "run.json")]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "a trace of torch.profiler: rank 0 of 2, 2 steps (4 to 5 by torch's count), 4 collectives"
    assert "not in it: bytes of memory, and who holds what" in told
    assert page.exists()
    assert "1 rank missing" in repr(Recording.load(tmp_path / "run.json"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--no-open", "--out", "trace-0.json"], "the recording would overwrite 'trace-0.json', which is to be opened"),
        (["--no-open", "--out", "./link.json"], "the recording would overwrite 'link.json', which is to be opened"),
        (["--no-open", "--html", "trace-1.json"], "the page would overwrite 'trace-1.json', which is to be opened"),
    ],
)
def test_no_file_that_is_opened_is_written_over(options, said, tmp_path, monkeypatch, capsys):
    kept = {path: path.read_bytes() for path in two(tmp_path, {}, {})}
    (tmp_path / "link.json").symlink_to("trace-1.json")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["open", "trace-0.json", "trace-1.json", *options]) == 2
    assert said in capsys.readouterr().err
    assert {path: path.read_bytes() for path in kept} == kept


def test_a_trace_that_is_named_as_its_page_would_be_is_not_written_over(tmp_path, capsys):
    trace = two(tmp_path, {}, {})[0].rename(tmp_path / "trace.html")
    before = trace.read_bytes()
    assert cli.main(["open", str(trace)]) == 2
    assert "which is to be opened: choose a file with --html" in capsys.readouterr().err
    assert trace.read_bytes() == before


def test_the_page_is_not_written_over_the_recording_that_was_just_kept(tmp_path, capsys):
    trace, _ = two(tmp_path, {}, {})
    both = str(tmp_path / "kept.json")
    assert cli.main(["open", str(trace), "--no-open", "--out", both, "--html", both]) == 2
    assert "the page would overwrite the recording" in capsys.readouterr().err
    assert not (tmp_path / "kept.json").exists()
