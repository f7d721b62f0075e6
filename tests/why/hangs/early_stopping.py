# 3 ranks. rtg 11: each rank decides on its own loss when to stop.
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()

best, patience = float("inf"), 0
for step in range(10):
    mean = torch.ones(1)
    dist.all_reduce(mean)
    loss = 1.0 if rank == 0 else 1.0 / (step + 1)
    patience = 0 if loss < best else patience + 1
    best = min(best, loss)
    if patience == 2:
        break
dist.broadcast(torch.zeros(1), src=0)  # <- 0
