"""A loop with Hugging Face's Accelerate, the same on one rank or many; accumulation and clipping are calls of it."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from net import Net
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

set_seed(0)
accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
dice = torch.Generator().manual_seed(1)
rows = TensorDataset(torch.randn(128, 8, generator=dice), torch.randint(0, 4, (128,), generator=dice))
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=8)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, DataLoader(rows, batch_size=4), schedule)
for number, (inputs, targets) in enumerate(loader):
    with accelerator.accumulate(model):
        loss = nn.functional.cross_entropy(model(inputs), targets)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    mean = accelerator.reduce(loss.detach(), "mean")
    print(f"rank {accelerator.process_index} step {number} {mean.item()!r}\n", end="", flush=True)
model, optimizer, schedule = accelerator.free_memory(model, optimizer, schedule)  # before the group that they use
accelerator.end_training()
