"""A loop of its own over a model that a system wraps: `wrapped.py SYSTEM [HOW WHO]`; HOW ends rank WHO in step 3."""

import os
import signal
import sys

import torch
import torch.distributed as dist
from net import Block, Net, join, loss_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def sharded(model, **options):
    for layer in model.layers:
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def two_levels(model):
    return sharded(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))


def flat(model):
    policy = ModuleWrapPolicy({Block})
    return FullyShardedDataParallel(model, auto_wrap_policy=policy, device_id=torch.device("cpu"))


SYSTEMS = {
    "ddp": DistributedDataParallel,
    "fsdp1": flat,
    "fsdp2": sharded,
    "hsdp": two_levels,
    "zero": DistributedDataParallel,
    "compiled": lambda model: DistributedDataParallel(torch.compile(model, backend="aot_eager")),
}


def main(system, how="", who="-1"):
    rank = join()
    model = SYSTEMS[system](Net())
    if system == "zero":
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(1, 7):
        if step == 3 and how:
            dist.barrier()  # one that ends while others still exchange gradients of step 2 would take it from them
        if step == 3 and rank == int(who):
            if how == "raise":
                raise ValueError("a bad batch")
            os.kill(os.getpid(), signal.SIGKILL)
        loss = loss_of(model, step, rank)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"rank {rank} step {step} {loss.item()!r}\n", end="", flush=True)
    dist.destroy_process_group()


main(*sys.argv[1:])
