# 2 ranks. mmdetection3d 488: a layer that one rank's batch does not use, without find_unused_parameters.
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
layers.forward = lambda x: layers[0](x) if dist.get_rank() == 1 else layers[1](layers[0](x))
model = nn.parallel.DistributedDataParallel(layers)
model(torch.ones(2, 4)).sum().backward()
if dist.get_rank() == 1:
    dist.broadcast(torch.ones(1), src=0)  # <- 1
dist.barrier()
