"""A loop of DeepSpeed's: `ds.py STAGE`; its engine does the backward and the update."""

import sys

import deepspeed
import torch
import torch.distributed as dist
from net import Net, join, loss_of

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # inference alone uses it; compiled for a minute
rank = join()
settings = {
    "train_micro_batch_size_per_gpu": 16,
    "gradient_accumulation_steps": 1,
    "zero_optimization": {"stage": int(sys.argv[1]), "stage3_param_persistence_threshold": 0},
    "zero_allow_untested_optimizer": True,
}
net = Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
engine, optimizer, _, _ = deepspeed.initialize(model=net, optimizer=optimizer, config=settings)
for step in range(1, 6):
    loss = loss_of(engine, step, rank)
    engine.backward(loss)
    engine.step()
    print(f"rank {rank} step {step} {loss.item()!r}\n", end="", flush=True)
dist.destroy_process_group()
