"""One process, a DataLoader with workers that are forked anew each epoch, two optimizers, an evaluation every step."""

import torch
from net import Net
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return 2 * torch.randn(8, generator=torch.Generator().manual_seed(index)), index % 4


def main():
    torch.manual_seed(0)
    model = Net()
    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    others = [parameter for parameter in model.parameters() if parameter.ndim != 2]
    optimizers = [torch.optim.SGD(matrices, lr=1e-2, momentum=0.9), torch.optim.AdamW(others, lr=1e-2)]
    step = 0
    for _ in range(3):
        for inputs, targets in DataLoader(Rows(), batch_size=32, num_workers=2):
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            step += 1
            model.eval()
            with torch.no_grad():
                print(f"step {step} {loss.item()!r} {model(inputs).sum().item()!r}\n", end="", flush=True)
            model.train()


if __name__ == "__main__":
    main()
