# 2 ranks. Native code computes for longer than the timeout, and keeps Python's lock meanwhile.
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 1:
    sum(range(70_000_000))
dist.barrier()
