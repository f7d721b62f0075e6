# 3 ranks. pytorch 149200: one rank reduces where the others gather.
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()

part = torch.ones(2)
if rank == 2:
    dist.reduce(part, dst=0)  # <- 2
    dist.barrier()
else:
    dist.all_gather([torch.empty(2) for _ in range(3)], part)
