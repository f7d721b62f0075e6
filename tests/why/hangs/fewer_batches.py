# 3 ranks. pytorch 33148, snowfall 152: a rank's share of the data is one batch shorter.
import time

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
for _ in range(3 if dist.get_rank() == 2 else 4):
    model(torch.randn(2, 4)).sum().backward()
time.sleep(60)  # <- 2
