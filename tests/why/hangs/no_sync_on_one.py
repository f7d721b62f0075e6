# 3 ranks. sam 78, FunASR 3472: a rank counts its micro-batches differently and does not reduce.
import contextlib

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
for step in range(4):
    quiet = step == (1 if dist.get_rank() == 1 else 9)
    with model.no_sync() if quiet else contextlib.nullcontext():
        model(torch.ones(2, 4)).sum().backward()
dist.barrier()  # <- 1
