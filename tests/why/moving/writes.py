# 2 ranks. Rank 0 writes a checkpoint for longer than the timeout.
import os
import time
from pathlib import Path

import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    until = time.monotonic() + 3.0
    with Path(os.devnull).open("wb") as file:
        while time.monotonic() < until:
            file.write(bytes(1 << 20))
            time.sleep(0.01)
dist.barrier()
