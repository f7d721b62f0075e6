# 2 ranks. Each has threads that read the store, and save with a group of their own, while rank 1 does not come.
import threading
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
store, own, saves = dist.distributed_c10d._get_default_store(), dist.new_group(), threading.Event()
store.set("stop", "no")


def beat():
    while True:
        store.get("stop")
        time.sleep(0.3)


def save():
    while True:
        saves.set()
        dist.all_gather_object([None] * 2, "saved", group=own)
        time.sleep(0.3)


threading.Thread(target=beat, daemon=True).start()
saver = threading.Thread(target=save, daemon=True)
if dist.get_rank() == 1:  # before its all_reduce, and rank 0 after it
    saver.start()
    saves.wait()
    time.sleep(0.3)
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 0:
    saver.start()
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 1:
    time.sleep(60)  # <- 1
dist.all_reduce(torch.ones(1))
