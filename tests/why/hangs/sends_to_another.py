# 3 ranks. PiPPy 969: a stage receives from one that sends to another.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()

if rank == 0:
    dist.recv(torch.empty(4), src=1)
if rank == 1:
    dist.send(torch.ones(4), dst=2)
    dist.recv(torch.empty(4), src=2)
if rank == 2:
    dist.recv(torch.empty(4), src=1)
    time.sleep(60)  # <- 2
