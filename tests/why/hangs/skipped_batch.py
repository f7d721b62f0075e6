# 3 ranks. WeatherGenerator 2718, Automodel 2468: one rank skips a batch whose loss is no number.
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()

for step in range(3):
    loss = torch.tensor(float("nan") if rank == 1 and step == 1 else 1.0)
    if loss.isnan():
        continue
    dist.all_reduce(loss)
dist.barrier()  # <- 1
