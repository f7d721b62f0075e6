# 2 ranks. pytorch 11275: both send first, and a send may wait for its receiver.
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()

other = 1 - rank
dist.send(torch.ones(1 << 22), dst=other)  # <- 0 1
dist.recv(torch.empty(1 << 22), src=other)
