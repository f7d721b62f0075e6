# 3 ranks. pytorch 126616, 158719, 152964: a sharded expert that one rank's tokens do not go to.
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
model = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 16), nn.Linear(8, 4)])
for expert in model:
    fully_shard(expert, mesh=mesh)
tokens = model[0](torch.randn(2, 8))
if dist.get_rank() != 1:
    tokens = tokens + model[1](tokens)[:, :8]
model[2](tokens)  # <- 1
