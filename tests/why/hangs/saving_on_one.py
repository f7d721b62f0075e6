# 3 ranks. pytorch 143536, torchtune 1175: only rank 0 asks for the whole state of a sharded model.
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
model = nn.Linear(8, 8)
fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),)))
model(torch.randn(2, 8)).sum().backward()
if dist.get_rank() == 0:
    whole = {name: value.full_tensor() for name, value in model.state_dict().items()}  # <- 0
dist.barrier()
