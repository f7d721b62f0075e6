# 3 ranks. pytorch 138322: the ranks but the last come to a barrier.
import threading

import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() != 2:
    dist.barrier()
else:
    threading.Event().wait()  # <- 2
