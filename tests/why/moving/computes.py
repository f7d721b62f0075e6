# 2 ranks. Rank 1 computes for longer than the timeout, while the others wait in a barrier.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
until = time.monotonic() + 7.0
weight = torch.randn(400, 400)
while dist.get_rank() == 1 and time.monotonic() < until:
    weight = torch.tanh(weight @ weight)
dist.barrier()
