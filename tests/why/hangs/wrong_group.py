# 3 ranks. pytorch 67600: a rank takes a group of its own where the others take that of all.
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()

pair = dist.new_group([0, 1])
dist.all_reduce(torch.ones(1))
dist.all_reduce(torch.ones(1), group=pair if rank == 1 else None)  # <- 1
