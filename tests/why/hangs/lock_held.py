# 3 ranks. pytorch 75147: a lock is taken twice, or was copied while another thread held it.
import threading

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
lock = threading.Lock()
with lock:
    dist.all_reduce(torch.ones(1))
    if dist.get_rank() == 2:
        lock.acquire()  # <- 2
dist.all_reduce(torch.ones(1))
