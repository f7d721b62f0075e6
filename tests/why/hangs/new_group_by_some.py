# 3 ranks. pytorch 130102, 81291: only the members call new_group.
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()

if rank < 2:
    pair = dist.new_group([0, 1])
    dist.barrier()
else:
    dist.all_reduce(torch.ones(1))  # <- 2
