"""What becomes of a trace of torch.profiler: steps, passes, collectives on the host and on the device."""

import gzip
import json
import random

import made
import pytest

from zerolab import Recording, cli
from zerolab.opening import describe, scan


@pytest.fixture
def traces(tmp_path):
    return [made.write(tmp_path / f"trace{rank}.json", made.trace(made.nccl_bars(), rank)) for rank in (0, 1)]


def collectives(recording):
    return [event for event in recording.rank(0).events if event.kind == "collective"]


def test_nccl_collectives_have_unit_bytes_and_the_times_of_their_kernels(traces):
    recording = Recording.open(*traces)
    gather, scatter = (event for event in collectives(recording) if event.step == 2)
    assert (gather.op, gather.unit, gather.dtype, gather.numel) == ("all_gather", "layers.0", "bfloat16", 128)
    assert gather.logical_bytes == 128 * 2 // 2
    assert (gather.device_start - gather.t_start, gather.device_end - gather.device_start) == (170_000, 300_000)
    assert (scatter.op, scatter.unit, scatter.numel, scatter.stream) == ("reduce_scatter", "layers.0", 128, None)
    assert (recording.info.backend, recording.info.device, recording.info.optimizer) == ("nccl", "cuda", "AdamW")
    assert (recording.info.steps, recording.info.first_step) == (2, 5)  # torch counts steps from 0
    assert [collective.ops for collective in recording.collectives] == [("all_gather",), ("reduce_scatter",)] * 2


@pytest.mark.parametrize("odd", [[], {}, None])
def test_a_kernel_that_does_not_say_whose_it_is_executed_no_collective(tmp_path, odd):
    bars = list(made.nccl_bars())
    for one in bars:
        if "External id" in one["args"]:
            one["args"] = {name: said for name, said in one["args"].items() if name != "External id"}
            one["args"] |= {} if odd is None else {"External id": odd}
        if one["cat"] == "kernel":
            del one["args"]["Collective name"]
    recording = Recording.open(made.write(tmp_path / "trace0.json", made.trace(bars)))
    assert len(collectives(recording)) == 4
    if odd is None:
        assert not any(event.stream for event in collectives(recording))


def test_passes_of_modules_last_from_what_fsdp2_does_before_them_to_what_it_does_after(traces):
    events = Recording.open(*traces).rank(0).events
    (forward, _) = (event for event in events if event.op == "forward")
    assert (forward.unit, forward.phase, forward.t_end - forward.t_start) == ("layers.0", "forward", 120_000)
    updates = [(event.phase, event.step) for event in events if event.kind == "optimizer"]
    assert updates == [("step", 1), ("step", 2)]


def test_groups_smaller_than_the_world_are_told_apart(tmp_path):
    bars = [
        made.bar("c10d::allreduce_", made.START + 10, 5),
        made.bar("record_param_comms", made.START + 11, 3, **made.said("allreduce", 8, 8, ranks=(0, 2), group="3")),
        made.bar("c10d::allreduce_", made.START + 20, 5),
        made.bar("record_param_comms", made.START + 21, 3, **made.said("allreduce", 8, 8, ranks=range(4))),
    ]
    recording = Recording.open(made.write(tmp_path / "t.json", made.trace(bars, world_size=4)))
    assert [(event.group, event.number) for event in collectives(recording)] == [((0, 2), 0), (None, 0)]
    assert [event.logical_bytes for event in collectives(recording)] == [16, 24]


def test_what_a_gather_and_a_scatter_send_depends_on_who_is_their_root(tmp_path):
    """In traces an empty list of lists has a type of numbers; one of tensors has none."""
    bars = []
    for place, kinds in enumerate((["", "TensorList"], ["ScalarList", "TensorList"], None)):
        start = made.START + 20 * place
        shapes = {} if kinds is None else {"Input type": kinds, "Input Dims": [[], [[8]]]}
        bars += [
            made.bar("c10d::gather_", start, 5, **shapes),
            made.bar("record_param_comms", start + 1, 3, **made.said("gather", 8, 24, ranks=range(3))),
            made.bar("c10d::scatter_", start + 10, 5, **{key: said[::-1] for key, said in shapes.items()}),
            made.bar("record_param_comms", start + 11, 3, **made.said("scatter", 24, 8, ranks=range(3))),
        ]
    recording = Recording.open(made.write(tmp_path / "t.json", made.trace(bars, world_size=3)))
    share, unknown = 8 * 2, (0, 0)
    expected = [(24, 0), (24, 2 * share), (24, share), (24, 0), unknown, unknown]
    assert [(event.numel, event.logical_bytes) for event in collectives(recording)] == expected


def test_what_an_all_to_all_of_unequal_pieces_sends_is_counted_by_its_pieces(tmp_path):
    """As gloo's traces have it, in shapes and numbers, and as NCCL's have it without shapes."""
    kinds = ["float", "float", "", "ScalarList", "ScalarList"]
    asked = [
        {"Input type": kinds, "Input Dims": [[9, 2], [12, 2], [], [], []], "Concrete Inputs": ["", "", "", mine, sent]}
        for mine, sent in (("[7, 2]", "[7, 5]"), ("[]", "[]"), ("[1, ..., 2]", "[1, ..., 5]"))
    ]
    lists = {"Input type": ["TensorList", "TensorList"], "Input Dims": [[[7, 2], [2, 2]], [[7, 2], [5, 2]]]}
    group = {"pg_config": [{"pg_name": "0", "ranks": [0, 1]}], "rank": 0, "world_size": 2, "backend": "gloo"}
    bars = [made.bar("c10d::alltoall_base_", made.START + 10 * place, 5, **each) for place, each in enumerate(asked)]
    said = made.said("all_to_allv", 24, 18, dtype="Float")
    named = [("alltoall_", "[]"), ("alltoall_base_", "[7, 5]"), ("alltoall_base_", "[]")]
    for place, (name, pieces) in enumerate(named):
        start, split = made.START + 50 + 10 * place, {"In split size": pieces, "Out split size": pieces}
        bars += [made.bar(f"c10d::{name}", start, 5, **(lists if name == "alltoall_" else {}))]
        bars += [made.bar("record_param_comms", start + 1, 3, **said, **split)]
    recording = Recording.open(made.write(tmp_path / "t.json", made.trace(bars, distributedInfo=group)))
    unequal, equal, unknown = (18, 5 * 2 * 4), (18, 18 * 4 // 2), (0, 0)
    expected = [unequal, equal, unknown, unequal, unequal, equal]
    assert [(event.numel, event.logical_bytes) for event in collectives(recording)] == expected


def test_pieces_for_more_than_30_ranks_are_those_of_the_backend_or_are_not_known(tmp_path):
    """Of such a list torch writes nothing with the operator, where pieces that are equal are an empty list."""
    split = ["", "", "", "", ""]
    asked = {"Input type": ["float", "float", *split[2:]], "Input Dims": [[140, 2], [140, 2], [], [], []]}
    bars = [made.bar("c10d::alltoall_base_", made.START + 10 * place, 5, **asked) for place in range(3)]
    for place in range(3):
        bars[place]["args"]["Concrete Inputs"] = split if place < 2 else ["", "", "", "[]", "[]"]
    said = made.said("all_to_allv", 280, 280, dtype="Float", ranks=range(40))
    bars += [made.bar("record_param_comms", made.START + 11, 3, **said, **{"In split size": str([1] * 39 + [101])})]
    group = {"pg_config": [{"pg_name": "0", "ranks": [*range(40)]}], "rank": 0, "world_size": 40, "backend": "gloo"}
    recording = Recording.open(made.write(tmp_path / "t.json", made.trace(bars, distributedInfo=group)))
    expected = [(0, 0), (280, 139 * 2 * 4), (280, 39 * 7 * 4)]
    assert [(event.numel, event.logical_bytes) for event in collectives(recording)] == expected


def ddp_bars(micro_batches):
    """A step of DDP over gloo whose gradients add up; a checkpoint runs the model a second time in each backward."""
    for place in range(micro_batches):
        start = made.START + 1000 * place
        yield made.bar("DistributedDataParallel.forward", start, 200, "user_annotation")
        yield made.bar("autograd::engine::evaluate_function: CheckpointFunctionBackward", start + 300, 400)
        yield made.bar("DistributedDataParallel.forward", start + 350, 100, "user_annotation")
        yield made.bar("autograd::engine::evaluate_function: AddBackward0", start + 750, 50)
    yield made.bar("c10d::allreduce_", start + 760, 5)
    yield made.bar("gloo:all_reduce", start + 770, 20, "user_annotation", 3)
    yield made.bar("Optimizer.step#AdamW.step", start + 900, 50, "user_annotation")


def test_each_micro_batch_has_a_backward_of_its_own(tmp_path):
    recording = Recording.open(made.write(tmp_path / "t.json", made.trace(ddp_bars(2))))
    passes = [event for event in recording.events if event.op == "backward"]
    assert [(event.t_start - passes[0].t_start, event.t_end - event.t_start) for event in passes] == [
        (0, 500_000),
        (1_000_000, 500_000),
    ]


@pytest.mark.parametrize("model", ["DistributedDataParallel", "DeepSpeedEngine"])
def test_a_trace_that_names_no_forward_says_so(tmp_path, model):
    bars = [bar | {"name": bar["name"].replace("DistributedDataParallel", model)} for bar in ddp_bars(1)]
    recording = Recording.open(made.write(tmp_path / "t.json", made.trace(bars)))
    has_forward = any(event.op == "forward" for event in recording.events)
    assert has_forward == (model == "DistributedDataParallel")
    assert [lack for lack in recording.info.lacks if "forward" in lack] == [
        "forward (torch.profiler's traces name that of DDP and FSDP)"
    ] * (not has_forward)
    assert any(event.op == "backward" for event in recording.events)


def test_a_trace_that_began_before_the_group_says_what_it_does_not_know(tmp_path, capsys):
    document = made.trace(ddp_bars(1))
    del document["distributedInfo"]
    path = made.write(tmp_path / "trace-rank1.json", document)
    assert cli.main(["open", "--no-open", str(path)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "a trace of torch.profiler: rank 1 of 2, 1 step, 1 call of collectives"
    assert told[1] == "torch of an unknown version, gloo, cuda"


def test_a_backend_that_a_trace_gives_as_null_is_unknown(tmp_path):
    bars = [bar for bar in made.nccl_bars() if not bar["name"].startswith("nccl:")]
    document = made.trace(bars)
    document["distributedInfo"]["backend"] = None
    told = describe(Recording.open(made.write(tmp_path / "trace-0.json", document)))
    assert "torch of an unknown version, an unknown backend, cuda" in told.splitlines()


def test_without_steps_that_the_loop_names_they_end_with_updates(tmp_path):
    bars = [bar for bar in made.nccl_bars() if not bar["name"].startswith("ProfilerStep")]
    recording = Recording.open(made.write(tmp_path / "t.json", made.trace(bars)))
    assert [event.step for event in collectives(recording)] == [1, 1, 2, 2]
    assert recording.info.first_step is None


@pytest.mark.parametrize("how", ["indented", "compact", "sorted", "packed", "events first"])
def test_it_does_not_matter_how_a_writer_lays_out_its_json(how, traces, tmp_path):
    expected = Recording.open(traces[0]).events
    document = made.trace(made.nccl_bars())
    name = "other0.json"
    if how == "events first":
        document = {"traceEvents": document.pop("traceEvents"), **document}
    text = {
        "indented": lambda: json.dumps(document, indent=4),
        "compact": lambda: json.dumps(document, separators=(",", ":")),
        "sorted": lambda: json.dumps(document, sort_keys=True),
    }.get(how, lambda: json.dumps(document))()
    if how == "packed":
        name = "other0.json.gz"
    (tmp_path / name).write_bytes(gzip.compress(text.encode()) if how == "packed" else text.encode())
    assert Recording.open(tmp_path / name).events == expected


def noise(count):
    dice = random.Random(0)
    for _ in range(count):
        name = dice.choice(["aten::mm", "aten::add", 'a "name": "c10d:: of its own', "aten::copy_ {[", "\N{SNOWMAN}"])
        yield made.bar(name, made.START + dice.random(), 1, **{"Input Dims": [[dice.randrange(99)] * 3]})


@pytest.mark.parametrize("piece", [700, 4096, 1 << 20])
def test_events_are_found_wherever_a_piece_of_the_file_ends(piece, tmp_path, monkeypatch):
    bars = [one for pair in zip(made.nccl_bars(20), noise(280), strict=True) for one in pair]
    path = made.write(tmp_path / "t0.json", made.trace(bars))
    monkeypatch.setattr(scan, "CHUNK", piece)
    alone = made.write(tmp_path / "alone0.json", made.trace(made.nccl_bars(20)))
    assert Recording.open(path).events == Recording.open(alone).events
    assert len(collectives(Recording.open(path))) == 40


def test_a_trace_that_has_its_events_twice_is_refused(tmp_path):
    text = json.dumps(made.trace(made.nccl_bars()))
    (tmp_path / "after-itself0.json").write_text(text + text)  # cat trace.json trace.json
    made.write(tmp_path / "merged0.json", made.trace([*made.nccl_bars(), *made.nccl_bars()]))
    for name in ("after-itself0.json", "merged0.json"):
        with pytest.raises(ValueError, match=f"'{name}' has some of its events twice, such as '.*': give the trace as"):
            Recording.open(tmp_path / name)


@pytest.mark.slow
def test_memory_does_not_grow_with_what_is_passed_over(tmp_path, monkeypatch):
    import tracemalloc

    monkeypatch.setattr(scan, "CHUNK", 1 << 18)
    peaks = []
    for count in (5_000, 100_000):
        path = made.write(tmp_path / f"t{count}.json", made.trace([*made.nccl_bars(), *noise(count)]))
        Recording.open(path)
        tracemalloc.start()
        Recording.open(path)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0], peaks
