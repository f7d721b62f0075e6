# 2 ranks. A worker of a DataLoader takes longer for a batch than the timeout.
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader


class Rows(list):
    def __getitem__(self, place):
        until = time.monotonic() + 3.0
        while dist.get_rank() == 1 and place == 1 and time.monotonic() < until:
            sum(range(1000))
        return torch.ones(2)


dist.init_process_group("gloo")
for batch in DataLoader(Rows([0] * 2), num_workers=1):
    dist.all_reduce(batch)
