"""A training that torch's own tools look at: `profiled.py SYSTEM FOLDER [OPTION ...]`, for 2 or 4 gloo ranks.

In FOLDER it leaves of each rank the trace of its steps 2 to 4 and the flight recorder's dumps.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

sys.path.insert(0, str(Path(__file__).parents[1] / "trace" / "scripts"))
from net import Block, Net, join, loss_of


def sharded(model: nn.Module, **options):
    for layer in model.layers:
        fully_shard(layer, **options)
    return fully_shard(model, **options)


SYSTEMS = {
    "ddp": lambda model: DistributedDataParallel(model, bucket_cap_mb=0.01),
    "fsdp1": lambda model: FullyShardedDataParallel(
        model, auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=torch.device("cpu")
    ),
    "fsdp2": sharded,
    "hsdp": lambda model: sharded(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("all", "part"))),
}


def main(system, folder, *options):
    rank = join()
    model = SYSTEMS[system](Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    profiler = profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=1, active=3, repeat=1),
        record_shapes="bare" not in options,
        with_stack="stack" in options,
    )
    with profiler:
        for step in range(5):
            loss_of(model, step, rank).backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    profiler.export_chrome_trace(f"{folder}/trace-rank{rank}.json")
    c10d = torch._C._distributed_c10d
    Path(folder, f"dump-rank{rank}.pickle").write_bytes(c10d._dump_fr_trace())
    Path(folder, f"dump-rank{rank}.json").write_bytes(c10d._dump_fr_trace_json())
    dist.barrier()
    del model
    dist.destroy_process_group()


main(*sys.argv[1:])
