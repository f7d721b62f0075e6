# 3 ranks. ace 1068: a rank leaves with 0, which the launcher takes for success.
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 1:
    sys.exit(0)  # <- 1
dist.barrier()
