# 2 ranks. pytorch 52848, 8091, 49846: init_process_group is told of more ranks than there are.
import torch.distributed as dist

dist.init_process_group("gloo", world_size=dist.get_node_local_rank() * 0 + 3)  # <- 0 1
