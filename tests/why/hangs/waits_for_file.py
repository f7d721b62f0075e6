# 3 ranks. datasets 564, 1672: a rank looks again and again for a file that another should have made.
import time
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 1:
    while not Path("/nowhere/cache.bin").exists():
        time.sleep(0.05)  # <- 1
dist.barrier()
