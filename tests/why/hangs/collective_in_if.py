# 3 ranks. Lightning 6430, autocast 386: a barrier that only rank 0 comes to.
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()

for step in range(2):
    if rank == 0 and step == 1:
        dist.barrier()  # <- 0
    dist.all_reduce(torch.ones(4))
