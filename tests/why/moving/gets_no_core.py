# 2 ranks. Rank 1 computes on a core that other programs keep busy: it gets to run once in seconds.
import os
import time

import torch.distributed as dist

dist.init_process_group("gloo")
core = {min(os.sched_getaffinity(0))}
until = time.monotonic() + 6.0
if dist.get_rank() == 0:
    for _ in range(4):
        if os.fork() == 0:
            os.sched_setaffinity(0, core)
            while time.monotonic() < until:
                pass
            os._exit(0)
else:
    os.sched_setaffinity(0, core)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    while time.monotonic() < until:
        sum(range(100_000))
dist.barrier()
