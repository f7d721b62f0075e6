# 3 ranks. A rank spins in a loop of its own, for a flag that nobody sets.
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()

ready = rank != 1
tries = 0
dist.all_reduce(torch.ones(1))
while not ready:  # <- 1
    tries = max(tries, 1)  # <- 1
dist.all_reduce(torch.ones(1))
