# 3 ranks. pytorch 53840: a rank waits for a key of the store, and the one that should set it waits for all.
import torch.distributed as dist

dist.init_process_group("gloo")
store = dist.distributed_c10d._get_default_store()
if dist.get_rank() == 1:
    store.wait(["vocabulary"])  # <- 1
dist.barrier()
store.set("vocabulary", "done")
