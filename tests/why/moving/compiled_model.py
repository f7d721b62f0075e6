# 2 ranks. A compiled model under DDP, whose buffers native code sends: nobody is told of what watches the collectives.
import warnings

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
warnings.simplefilter("error", UserWarning)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)))
compiled = torch.compile(model, backend="aot_eager")
for _ in range(2):
    compiled(torch.ones(3, 4)).sum().backward()
