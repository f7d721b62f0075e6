# 3 ranks. diffusion-planner 336: one rank raises, the others report a lost connection.
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 2:
    raise ValueError("row 17 has no label")  # <- 2
dist.barrier()
