"""An image classifier with DDP: convolutions, batch norms whose buffers rank 0 sends, an accuracy over all ranks."""

import torch
import torch.distributed as dist
from net import join
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x):
        return torch.relu(x + self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.layer1, self.layer2 = Residual(8), Residual(8)
        self.fc = nn.Linear(8, 10)

    def forward(self, x):
        x = self.layer2(self.layer1(torch.relu(self.bn(self.conv(x)))))
        return self.fc(x.mean((2, 3)))


rank = join()
dice = torch.Generator().manual_seed(1)
images = TensorDataset(torch.randn(96, 1, 8, 8, generator=dice), torch.randint(0, 10, (96,), generator=dice))
sampler = DistributedSampler(images)
loader = DataLoader(images, batch_size=16, sampler=sampler)
model = DistributedDataParallel(Images())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
step = 0
for epoch in range(2):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        scores = model(inputs)
        loss = nn.functional.cross_entropy(scores, targets)
        loss.backward()
        optimizer.step()
        right = (scores.argmax(1) == targets).sum()
        dist.all_reduce(right)
        step += 1
        print(f"rank {rank} step {step} {loss.item()!r} {right.item()}\n", end="", flush=True)
dist.destroy_process_group()
