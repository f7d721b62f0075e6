# 2 ranks. Rank 0 goes through its program with pauses: no line takes as long as the timeout.
import time

import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    time.sleep(0.6)
    time.sleep(0.6)
    time.sleep(0.6)
    time.sleep(0.6)
dist.barrier()
