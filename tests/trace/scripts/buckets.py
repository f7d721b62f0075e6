"""Data parallelism of one's own, in the manner of picotron: hooks on gradients, buckets, asynchronous all-reduces."""

import torch
import torch.distributed as dist
from net import Net, join, loss_of
from torch import nn


class Buckets(nn.Module):
    """Reduces gradients as they come, so many elements at a time."""

    def __init__(self, module, numel=3000):
        super().__init__()
        self.module, self.handles, self.waiting = module, [], []
        self.buckets, self.of = [[]], {}
        for parameter in reversed(list(module.parameters())):
            if sum(each.numel() for each in self.buckets[-1]) + parameter.numel() > numel:
                self.buckets.append([])
            self.buckets[-1].append(parameter)
            self.of[parameter] = len(self.buckets) - 1
            parameter.register_post_accumulate_grad_hook(self.arrived)
        self.left = [len(bucket) for bucket in self.buckets]

    def forward(self, inputs):
        return self.module(inputs)

    def arrived(self, parameter):
        number = self.of[parameter]
        self.left[number] -= 1
        if self.left[number] == 0:
            flat = torch.cat([each.grad.flatten() for each in self.buckets[number]]) / dist.get_world_size()
            self.waiting.append((number, flat, dist.all_reduce(flat, async_op=True)))

    def finish(self):
        for number, flat, work in self.waiting:
            work.wait()
            parts = flat.split([each.numel() for each in self.buckets[number]])
            for parameter, part in zip(self.buckets[number], parts, strict=True):
                parameter.grad.copy_(part.view_as(parameter))
        self.waiting.clear()
        self.left = [len(bucket) for bucket in self.buckets]


rank = join()
model = Buckets(Net())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(1, 6):
    loss = loss_of(model, step, rank)
    loss.backward()
    model.finish()
    optimizer.step()
    optimizer.zero_grad()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    print(f"rank {rank} step {step} {mean.item()!r}\n", end="", flush=True)
dist.destroy_process_group()
