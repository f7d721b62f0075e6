# 3 ranks. A debugger or a scheduler halts one rank with a signal.
import os
import signal
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 1:
    time.sleep(0.5)  # <- 1
    os.kill(os.getpid(), signal.SIGSTOP)
dist.all_reduce(torch.ones(1))
