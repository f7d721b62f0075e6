# 3 ranks. pytorch 44353, Lightning 5243: out of memory on one rank, caught, and the batch skipped.
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()

for step in range(3):
    try:
        if rank == 1 and step == 1:
            raise MemoryError  # noqa: TRY301
        dist.all_reduce(torch.ones(1))
    except MemoryError:
        pass
    dist.broadcast(torch.ones(4), src=0)  # <- 1
