# 2 ranks. nccl 479: both wait for the other's message before they send their own.
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()

other = 1 - rank
dist.recv(torch.empty(4), src=other)  # <- 0 1
dist.send(torch.ones(4), dst=other)
