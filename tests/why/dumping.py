"""A hang, of which each rank leaves the flight recorder's dump in FOLDER: rank 1 does not come to the fourth sum."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

dist.init_process_group("gloo")
rank, folder = dist.get_rank(), Path(sys.argv[1])
for step in range(4):
    if rank == 1 and step == 3:
        break
    work = dist.all_reduce(torch.ones(step + 1), async_op=True)
    if step < 3:
        work.wait()
time.sleep(0.5)  # gloo's threads note an end a little later
part = folder / f".{rank}"
part.write_bytes(c10d._dump_fr_trace())
part.rename(folder / f"dump-rank{rank}.pickle")
while len(list(folder.glob("dump-*"))) < dist.get_world_size():
    time.sleep(0.05)
os._exit(0)
