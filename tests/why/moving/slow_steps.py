# 2 ranks. Each step takes a while, on another rank each time.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(7):
    if step % 2 == dist.get_rank():
        time.sleep(0.5)
    dist.all_reduce(torch.ones(1))
