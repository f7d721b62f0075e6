# 3 ranks. bergson 249: a logger's server does not answer rank 0, which waits for it.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 0:
    time.sleep(60)  # <- 0
dist.all_reduce(torch.ones(1))
