# 3 ranks. pytorch 54059, 53979: rank 0 evaluates the wrapped model, whose forward broadcasts its buffers.
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
for _ in range(2):
    model(torch.randn(8, 4)).sum().backward()
if dist.get_rank() == 0:
    model(torch.randn(8, 4))  # <- 0
dist.barrier()
