# 3 ranks. torchrec 4149: two collectives are started the other way round on one rank.
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()

starts = [
    lambda: dist.all_reduce(torch.ones(4), async_op=True),
    lambda: dist.barrier(async_op=True),
]
if rank == 1:
    starts.reverse()
for work in [start() for start in starts]:
    work.wait()  # <- 1
