# 3 ranks. nccl 1417, Lightning 7773: the last batch is smaller on one rank.
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()

scores = torch.ones(10 if rank == 1 else 30)
everyone = [torch.empty_like(scores) for _ in range(3)]
dist.all_gather(everyone, scores)  # <- 1
dist.barrier()
