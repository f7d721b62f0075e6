# 3 ranks. pytorch 83289, nccl 849: a monitored barrier that one rank is late for.
import time
from datetime import timedelta

import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 1:
    time.sleep(60)  # <- 1
dist.monitored_barrier(timeout=timedelta(seconds=50))
