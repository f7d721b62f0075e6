"""Traces, dumps and snapshots in the forms that torch writes on GPUs, as real ones of NCCL runs have them."""

import json
import pickle

from zerolab.opening.flight import rank_in

START = 1_700_000_000_000_000  # microseconds since 1970


def bar(name, ts, dur, cat="cpu_op", tid=1, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": ts, "dur": dur, "args": args}


def said(name, elements_in, elements_out, *, dtype="BFloat16", ranks=(0, 1), group="0"):
    """What `record_param_comms` says of a collective, and its kernel again."""
    return {
        "Collective name": name, "In msg nelems": elements_in, "Out msg nelems": elements_out, "dtype": dtype,
        "Group size": len(ranks), "Process Group Name": group, "Process Group Ranks": str(list(ranks)),
    }  # fmt: skip


def nccl_bars(steps=2, first=4, at=START):
    """The steps of an FSDP2 training over NCCL: in each one gather and one reduction of `layers.0`, and an update."""
    for step in range(steps):
        t, ids = at + 1000 * step, 100 * step
        yield bar(f"ProfilerStep#{first + step}", t, 990, "user_annotation")
        yield bar("FSDP::pre_forward (layers.0)", t + 10, 100, "user_annotation")
        yield bar("FSDP::all_gather (layers.0)", t + 20, 80, "user_annotation")
        yield bar("c10d::_allgather_base_", t + 30, 50, **{"External id": ids + 1})
        gather = said("_allgather_base", 64, 128)
        yield bar("record_param_comms", t + 35, 40, **{"External id": ids + 2}, **gather)
        yield bar("nccl:_all_gather_base", t + 40, 20, "user_annotation")
        kernel = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        yield bar(kernel, t + 200, 300, "kernel", 24, **{"External id": ids + 2, "stream": 24}, **gather)
        yield bar("FSDP::post_forward (layers.0)", t + 120, 10, "user_annotation")
        yield bar("autograd::engine::evaluate_function: MmBackward0", t + 300, 300, tid=2)
        yield bar("FSDP::post_backward_reduce (layers.0)", t + 400, 90, "user_annotation", 2)
        yield bar("c10d::_reduce_scatter_base_", t + 410, 50, tid=2, **{"External id": ids + 3})
        scatter = said("_reduce_scatter_base", 128, 64)
        yield bar("record_param_comms", t + 415, 40, tid=2, **{"External id": ids + 4}, **scatter)
        yield bar("record_param_comms", t + 470, 1, tid=2, **said("wait", 0, 0))
        yield bar("Optimizer.step#AdamW.step", t + 700, 200, "user_annotation")


def trace(bars, rank=0, world_size=2, **about):
    """A whole trace as a dictionary."""
    shared = {"backend": "nccl", "rank": rank, "world_size": world_size, "nccl_version": "2.27.5", "pg_config": []}
    head = {"schemaVersion": 1, "deviceProperties": [{"id": 0}], "distributedInfo": shared, "host_name": "one"}
    return {**head, **about, "baseTimeNanoseconds": 0, "traceEvents": list(bars), "traceName": "t"}


def write(path, document):
    """Writes a document as JSON, or as a pickle where its name says so; returns the path.

    A dump's times are by as many nanoseconds later as its name says: no two ranks ask at the very same moment.
    """
    if "entries" in document:
        later = rank_in(path.name) or 0
        moved = [{**each, "time_created_ns": each["time_created_ns"] + later} for each in document["entries"]]
        document = {**document, "entries": moved}
    if path.suffix == ".pickle":
        path.write_bytes(pickle.dumps(document, 2))
    else:
        path.write_text(json.dumps(document))
    return path


def entry(seq, op="all_reduce", *, sizes=((128,), (128,)), state="completed", group="0", at=None, **more):
    """An entry of the flight recorder."""
    created = (START + 1000 * seq) * 1000 if at is None else at
    done = created + 500_000 if state == "completed" else None
    return {
        "record_id": seq, "pg_id": 0, "process_group": (group, "default_pg"), "collective_seq_id": seq, "p2p_seq_id": 0,
        "op_id": seq, "profiling_name": f"nccl:{op}", "time_created_ns": created, "input_sizes": [list(sizes[0])],
        "input_dtypes": ["Float"], "output_sizes": [list(sizes[1])], "output_dtypes": ["Float"], "state": state,
        "time_discovered_started_ns": created + 1000, "time_discovered_completed_ns": done, "retired": done is not None,
        "timeout_ms": 600_000, "is_p2p": False,
        "frames": [{"name": "step", "filename": "/srv/train.py", "line": 12}], **more,
    }  # fmt: skip


def dump(entries, world_size=4, version="2.10"):
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(world_size)))}}
    return {"version": version, "comm_lib_version": "2.27.5", "pg_config": groups, "entries": list(entries)}


def snapshot(sizes=(1024, 2048, 512), *, freed=1, left=None, at=START):
    """A snapshot in which tensors of these sizes are allocated one after the other, and the first `freed` are freed."""
    frames = [{"name": "forward", "filename": "/srv/train.py", "line": 30}]
    shared = {"stream": 0, "frames": frames}
    entries = [
        {"action": "alloc", "addr": 512 * place, "size": size, "time_us": at + place, **shared}
        for place, size in enumerate(sizes)
    ]
    for place, size in enumerate(sizes[:freed]):
        moment = {"addr": 512 * place, "size": size, "time_us": at + len(sizes) + place, **shared}
        entries += [{"action": "free_requested", **moment}, {"action": "free_completed", **moment}]
    left = sizes[freed:] if left is None else left
    blocks = [{"size": 512, "requested_size": size, "state": "active_allocated", "frames": []} for size in left]
    segment = {"address": 0, "total_size": 1 << 21, "stream": 0, "segment_type": "small", "blocks": blocks}
    return {"segments": [segment], "device_traces": [entries, []]}
