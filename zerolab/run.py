"""What torchrun starts on every node: trains a model under one stage, and puts all ranks into one recording.

    torchrun (which nodes, how they meet) -m zerolab.run --stage zero3 --out run.json

docs/several-nodes.md explains the whole command. When a node is lost, torchrun starts this module again on the
remaining ranks; with `--checkpoint` they resume from the last checkpoint and share the same rows of each step, so the
losses are those of an undisturbed run.
"""

import argparse
import gc
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record as report_to_torchrun

from zerolab import files, models
from zerolab.comparison import LEARNING_RATE
from zerolab.engines import ENGINES
from zerolab.engines.agreement import check_same_on_all_ranks
from zerolab.models import Batch
from zerolab.recording import clocks, jsonfile, pingpong
from zerolab.recording.clocks import Reading
from zerolab.recording.events import RankRecording, RunInfo, count
from zerolab.recording.recorder import Recorder
from zerolab.recording.recording import Recording
from zerolab.runtime import drivers
from zerolab.runtime.devices import NCCL
from zerolab.runtime.script import let_gloo_rest

CPU_ONLY = "no GPUs"
ROWS = 24  # of a step, on all ranks together; 1, 2, 3, 4, 6, 8 and 12 ranks share them evenly


@report_to_torchrun  # so that its summary shows the error of the rank that failed first
def main(arguments: Sequence[str] | None = None) -> None:
    """Joins the ranks, trains and records, and writes `--out` on rank 0."""
    options = _parse(arguments)
    _check(options)
    gc.freeze()  # torch's half a million objects, which no collection needs to look through from here on
    device = _join(options)
    # Both readings are outside the recording: their hundreds of messages are not part of the training.
    before = pingpong.read()
    with Recorder(times_only=options.times_only) as recorder:
        first = _train(options, device)
    after = pingpong.read()
    recordings = _gather(recorder.finish())
    if dist.get_rank() == 0:
        merged = _merge(recordings, before, after, first)
        merged.save(options.out)
        print(f"{len(merged.events):,} events of {merged.world_size} ranks in {options.out}; {merged.info.clocks}")
    dist.barrier()  # no rank leaves before the file is written
    let_gloo_rest()
    dist.destroy_process_group()
    gc.freeze()  # what torch has imported since, for the collections at Python's end


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    options = parser.parse_intermixed_args(arguments)  # the stage by position, as it was, may be anywhere
    for old, new in (("old_stage", "stage"), ("rows", "global_rows")):
        given = getattr(options, old)
        if given is not None:
            setattr(options, new, given)
            if os.environ.get("RANK", "0") == "0":  # once, not on every rank
                flag = f"--{new.replace('_', '-')}"
                print(
                    f"zerolab.run: write {flag} {given}; the old form will be removed in the next edition",
                    file=sys.stderr,
                )
    if options.stage is None:
        parser.error("the following arguments are required: --stage")
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="torchrun ... -m zerolab.run", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--stage", choices=ENGINES, metavar="STAGE", help="ddp, zero1, zero2, zero3, fsdp2, ...")
    parser.add_argument("old_stage", nargs="?", choices=ENGINES, metavar="stage", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the recording; rank 0 writes it")
    parser.add_argument("--model", default="gpt-tiny", choices=models.RECIPES, help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, default=5, help="training steps, at least 2 (default: %(default)s)")
    rows = "rows per step on all ranks together, a multiple of the number of ranks (default: %(default)s)"
    parser.add_argument("--global-rows", type=int, default=ROWS, metavar="R", help=rows)
    parser.add_argument("--rows", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--precision", default="fp32", help="fp32, bf16 or fp16 (default: %(default)s)")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"), help="(default: %(default)s)")
    parser.add_argument(
        "--checkpoint", type=Path, metavar="FILE", help="resume from it; on a disk that all nodes share"
    )
    parser.add_argument("--every", type=int, default=10, metavar="K", help="steps between checkpoints (default: 10)")
    parser.add_argument("--times-only", action="store_true", help="no bytes of memory, and hardly slower")
    silent = "seconds to wait for a silent peer (default: %(default)g)"
    parser.add_argument("--timeout", type=float, default=300.0, metavar="S", help=silent)
    return parser


def _check(options: argparse.Namespace) -> None:
    """Ends every rank before they meet if they could not train; one of them says why."""
    world_size, rows, wrong = int(os.environ.get("WORLD_SIZE", "1")), options.global_rows, None
    is_first = os.environ.get("RANK", "0") == "0"
    if options.steps < 2 or options.every < 1:
        wrong = f"--steps is {options.steps} and --every {options.every}: take at least 2 and 1"
    elif rows < 1 or rows % world_size:
        wrong = f"{world_size} ranks cannot share {rows} rows evenly: give --global-rows a multiple of {world_size}"
    elif not 0 < options.timeout < float("inf"):
        wrong = f"--timeout is {options.timeout:g}: give seconds above 0"
    elif is_first:  # it alone writes; the others end with it
        try:
            for place in filter(None, (options.out, options.checkpoint)):
                files.check_place(place)
        except ValueError as error:
            wrong = str(error)
    if wrong:
        raise SystemExit(f"zerolab.run: {wrong}" if is_first else 2)


def _join(options: argparse.Namespace) -> torch.device:
    """Joins the process group that torchrun's environment describes; returns this rank's device."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        raise SystemExit(
            "zerolab.run was not started by torchrun; on one node: "
            "torchrun --standalone --nproc-per-node 2 -m zerolab.run --stage zero3 --out run.json"
        )
    if os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0" and os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "True":
        # Measured with torch 2.13: restarted ranks find the addresses of the ranks before them, and never connect.
        raise SystemExit(
            "torchrun may restart the ranks, and the new ones would find the addresses of the old ones in its store: "
            "start torchrun with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 on every node"
        )
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    nodes, on_this_node = int(os.environ["GROUP_WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if nodes > 1 and local == 0 and "GLOO_SOCKET_IFNAME" not in os.environ:
        names = ", ".join(name for _, name in socket.if_nameindex() if name != "lo")
        print(
            f"GLOO_SOCKET_IFNAME is not set: if this ends in a timeout, set it to one of {names}, whichever leads to "
            "the other nodes",
            file=sys.stderr,
        )
    gpus = torch.cuda.device_count() if options.device != "cpu" and torch.cuda.is_available() else 0
    if options.device == "cuda" and not gpus:
        raise ValueError(f"--device is 'cuda', but torch sees no GPU on this node: {drivers.why_no_gpu()}")
    timeout = timedelta(seconds=options.timeout)
    store, _, world_size = next(dist.rendezvous("env://", timeout=timeout))
    backend = _agreed_backend(store, rank, world_size, gpus / on_this_node)
    device = torch.device("cuda", local % gpus) if backend != CPU_ONLY else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # Clock readings and recordings go over gloo in any case.
    backend = "gloo" if backend == CPU_ONLY else backend
    dist.init_process_group(backend, timeout=timeout, store=store, rank=rank, world_size=world_size)
    if rank == 0:
        endpoint = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        print(f"{options.stage} on {dist.get_world_size()} ranks of {count(nodes, 'node')}")
        print(f"torch's store at {endpoint} accepts whoever can reach it: use a network that you trust")
    return device


def _agreed_backend(store: dist.Store, rank: int, world_size: int, gpus_a_rank: float) -> str:
    """The backend of all ranks, which rank 0 chooses once: with one of its own each, unequal nodes would never meet.

    `store` is torchrun's, `gpus_a_rank` the GPUs of this node divided by its ranks: less than one if these share.
    """
    store.set(f"zerolab/gpus/{rank}", str(gpus_a_rank))
    if rank == 0:
        counts = [float(store.get(f"zerolab/gpus/{each}")) for each in range(world_size)]
        fewest = min(counts)
        chosen = CPU_ONLY if fewest == 0 else "gloo" if fewest < 1 else NCCL
        store.set("zerolab/backend", chosen)
        if fewest < max(counts) and chosen != NCCL:
            where = "no GPU: all ranks compute on the CPU" if fewest == 0 else "fewer GPUs than ranks: all use gloo"
            print(f"a node has {where}", file=sys.stderr)
    return store.get("zerolab/backend").decode()


def _train(options: argparse.Namespace, device: torch.device) -> int:
    """Trains to the last step; returns the number of steps done before, which the checkpoint has."""
    engine = ENGINES[options.stage](
        models.build(options.model).to(device), torch.optim.AdamW, lr=LEARNING_RATE, precision=options.precision
    )
    first = _resume(engine, options.checkpoint)
    for step, (inputs, targets) in enumerate(_batches(options)[first:], first + 1):
        loss = engine.training_step(inputs.to(device), targets.to(device), models.loss)
        mean = _mean(loss)  # between two steps, so that its bytes count in neither
        if dist.get_rank() == 0:
            print(f"step {step} of {options.steps}: loss {mean:.6f}", flush=True)
        # The step's number gives its rows, and the checkpoint everything else: losses after a restart are the same.
        if options.checkpoint is not None and step % options.every == 0:
            engine.optimizer.param_groups[0]["steps"] = step
            engine.save(options.checkpoint)
    return first


def _batches(options: argparse.Namespace) -> list[Batch]:
    """This rank's share of each step's rows, which are the same for any number of ranks."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    # Drawn as if for one rank and then divided, so that the number of ranks changes nothing.
    whole = models.batches(options.model, world_size=1, rank=0, steps=options.steps, rows=options.global_rows)
    return [(inputs.chunk(world_size)[rank], targets.chunk(world_size)[rank]) for inputs, targets in whole]


def _resume(engine: Any, checkpoint: Path | None) -> int:
    """Loads the checkpoint if there is one; returns the number of its steps."""
    # Rank 0 looks for all: a shared disk may show a new file to one node earlier than to another.
    there = torch.tensor(int(checkpoint is not None and checkpoint.is_file()))
    dist.broadcast(there, src=0)
    if not there:
        return 0
    engine.load(checkpoint)
    # In the checkpoint itself: a second file could disagree with it. Files of the first edition have Adam's own count,
    # which leaves out what fp16 skips.
    group = engine.optimizer.param_groups[0]
    steps = int(group["steps"] if "steps" in group else next(iter(engine.optimizer.state.values()))["step"])
    check_same_on_all_ranks([steps], f"the steps in {checkpoint}, which is perhaps on no shared disk,")
    return steps


def _mean(loss: torch.Tensor) -> float:
    """The mean of a loss over all ranks."""
    mean = loss.detach().double().cpu()
    dist.all_reduce(mean)
    return float(mean) / dist.get_world_size()


def _gather(mine: RankRecording) -> list[RankRecording]:
    """The recordings of all ranks, on rank 0. They are sent as JSON: nothing from a network is unpickled."""
    contents = jsonfile.Contents(mine.world_size, RunInfo(), mine.units, mine.sources, [mine])
    data = torch.frombuffer(bytearray(jsonfile.text(contents).encode()), dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(mine.world_size)]
    dist.all_gather(sizes, torch.tensor([len(data)]))
    if mine.rank != 0:
        dist.send(data, 0)
        return []
    found = [mine]
    for rank, size in enumerate(sizes[1:], 1):
        received = torch.empty(int(size), dtype=torch.uint8)
        dist.recv(received, rank)
        found += jsonfile.parse(received.numpy().tobytes(), f"the recording of rank {rank}").ranks
    return found


def _merge(recordings: list[RankRecording], before: list[Reading], after: list[Reading], first: int) -> Recording:
    """One recording on rank 0's clock; it also says how closely the clocks agree, and which step is its first."""
    aligned = [clocks.align(*each) for each in zip(recordings, before, after, strict=True)]
    merged = Recording.merge(aligned)
    worst = max(reading.uncertainty for reading in (*before, *after))
    text = f"times of all ranks are on rank 0's clock, to within {worst / 1e3:.0f} microseconds"
    merged.info = replace(merged.info, first_step=first + 1, clocks=text)
    return merged


if __name__ == "__main__":
    main()
