# 3 ranks. Lightning 6430: a rank is killed, as for want of memory, and leaves no word.
import os
import signal
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 1:
    time.sleep(0.6)  # <- 1
    os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
