"""Small trainings whose batches, tensors and settings come in unusual forms."""

from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn.functional import mse_loss

from zerolab import DDP
from zerolab.difference.watch import Fingerprints

STEPS = 2


class Named(nn.Module):
    """Gets its batch by place, by name, or in an object of its own."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x=None, places=None, bag=None):
        x = x if bag is None else bag.x
        return self.layer(x if places is None else x + places)


@dataclass
class Bag:
    """A batch of which nobody but its model knows what is in it."""

    x: torch.Tensor


class Graph(nn.Module):
    """Multiplies by a matrix that comes with the batch, or that it keeps."""

    def __init__(self, kept=None, dtype=torch.float32):
        super().__init__()
        self.layer = nn.Linear(4, 4, dtype=dtype)
        self.register_buffer("kept", kept)

    def forward(self, x, matrix=None):
        matrix = self.kept if matrix is None else matrix
        x = self.layer(x)
        return x if matrix is None or matrix.dtype.itemsize == 1 else matrix @ x


def seeded(make, *args, **keywords):
    torch.manual_seed(0)
    return make(*args, **keywords)


def data(step, *, seed=0, rows=8):
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(100 * seed + step))


def train(folder, model, loss_of, kind=torch.optim.SGD, **settings):
    """Two steps on this process, without fingerprints where there is no folder for them; the losses."""
    optimizer = kind(model.parameters(), **{"lr": 0.1, **settings})
    losses = []
    with nullcontext() if folder is None else Fingerprints(folder, (1, STEPS)):
        for step in range(STEPS):
            loss = loss_of(model, step)
            losses.append(loss.item())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return losses


def with_engine(folder, rows, how="", *, named=False):
    """Two steps on the same rows, on any number of ranks."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    engine = DDP(seeded(Named), torch.optim.AdamW, lr=1e-3)
    with Fingerprints(folder, (1, STEPS)):
        for step in range(STEPS):
            x = data(step, rows=rows)
            if how == "one other row":
                x[-1] = 0
            x = x.chunk(world_size)[0 if how == "same rows" else rank]
            engine.training_step({"x": x} if named else x, x, mse_loss)


def two_models(folder, *, detached=False):
    """The second gets what the first has made, which other numbers of rows round otherwise."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    first, second = seeded(lambda: (nn.Linear(64, 1024), nn.Sequential(nn.Linear(1024, 1))))
    trained, dice = [*first.parameters(), *second.parameters()], torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(trained, lr=1e-2)
    with Fingerprints(folder, (1, 3)):
        for _ in range(3):
            x = torch.randn(512, 64, generator=dice)
            made = first(x.chunk(world_size)[rank]).tanh()
            outputs = second(made.detach() if detached else made)
            mse_loss(outputs, x.sum(1, keepdim=True).chunk(world_size)[rank]).backward()
            for each in trained:
                if each.grad is not None:
                    dist.all_reduce(each.grad)
                    each.grad /= world_size
            optimizer.step()
            optimizer.zero_grad()


def in_tensor_parallel(folder, rows=8, *, alone=False, own_rows=False):
    """Two layers whose matrices ranks share, and so the batch; or one process for itself; or ranks with other rows."""
    model = seeded(lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)))
    if not alone:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    seed = dist.get_rank() if own_rows else 0
    train(folder, model, lambda model, step: model(data(step, seed=seed, rows=rows)).square().mean())


def in_sequence_parallel(folder, *, alone=False):
    """A norm between whose ranks the rows are divided: of its gradients each has a sum over its own, or one process."""
    model = seeded(lambda: nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8), nn.LayerNorm(8)))
    if not alone:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        norm = SequenceParallel(sequence_dim=0)
        parallelize_module(
            model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel(output_layouts=Shard(0)), "2": norm}
        )

    def loss(model, step):
        outputs = model(data(step))
        return ((outputs if alone else outputs.full_tensor()) - data(step)).square().mean()

    train(folder, model, loss, torch.optim.AdamW, foreach=False)


def in_pipeline(folder):
    """A stage on each rank; torch first runs them on tensors that it does not fill, for their shapes."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    model = seeded(lambda: nn.Linear(8, 8))
    schedule = Schedule1F1B(PipelineStage(model, rank, last + 1, torch.device("cpu")), 2, loss_fn=mse_loss)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Fingerprints(folder, (1, STEPS)):
        for step in range(STEPS):
            x = data(step)
            schedule.step(*([x] if rank == 0 else []), **({"target": x} if rank == last else {}))
            optimizer.step()
            optimizer.zero_grad()
