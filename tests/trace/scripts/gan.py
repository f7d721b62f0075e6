"""Two models, each with an optimizer of its own; the critic is trained first."""

import torch
import torch.distributed as dist
from net import batch, join
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))

    def forward(self, x):
        return self.layers(x)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x):
        return self.layers(x)


rank = join()
generator, critic = DistributedDataParallel(Generator()), DistributedDataParallel(Critic())
optimizers = [torch.optim.Adam(model.parameters(), lr=1e-3) for model in (generator, critic)]
for step in range(1, 5):
    real, _ = batch(step, rank)
    noise = torch.randn(16, 4, generator=torch.Generator().manual_seed(step))
    critic_loss = critic(generator(noise).detach()).mean() - critic(real).mean()
    critic_loss.backward()
    optimizers[1].step()
    generator_loss = -critic(generator(noise)).mean()
    generator_loss.backward()
    optimizers[0].step()
    for optimizer in optimizers:
        optimizer.zero_grad()
    print(f"rank {rank} step {step} {critic_loss.item()!r} {generator_loss.item()!r}\n", end="", flush=True)
dist.destroy_process_group()
