# 2 ranks. pytorch 1355, 82077: a worker of one rank's DataLoader does not come back.
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader


class Rows(list):
    def __getitem__(self, place):
        if dist.get_rank() == 1 and place == 2:
            time.sleep(60)
        return torch.ones(2)


dist.init_process_group("gloo")
for batch in DataLoader(Rows([0] * 4), num_workers=1):  # <- 1
    dist.all_reduce(batch)
