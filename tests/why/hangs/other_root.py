# 3 ranks. torchrec 4601: ranks do not agree on who broadcasts.
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()

leader = 1 if rank == 1 else 0
weights = torch.ones(4)
dist.broadcast(weights, src=leader)  # <- 1
dist.barrier()
