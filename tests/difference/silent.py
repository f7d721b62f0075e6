"""Trainings on two ranks that run to their end and are silently wrong, and the right ones they are compared with."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from zerolab.difference.watch import Fingerprints

STEPS, ROWS = 3, 16


class Net(nn.Module):
    """Two layers, a head that may share the first one's weight, a buffer that counts."""

    def __init__(self, *, tied=False, dropout=0.0, batch_norm=False):
        super().__init__()
        self.embed, self.up, self.norm = nn.Linear(8, 16), nn.Linear(16, 16), nn.LayerNorm(16)
        self.middle = nn.BatchNorm1d(16) if batch_norm else nn.Identity()
        self.drop, self.head = nn.Dropout(dropout), nn.Linear(16, 8, bias=False)
        if tied:
            self.head.weight = nn.Parameter(self.embed.weight.detach().T.clone())
            self.again = nn.Linear(16, 16, bias=False)
            self.again.weight = self.up.weight

    def forward(self, x):
        x = self.middle(self.drop(torch.relu(self.embed(x))))
        x = self.norm(self.up(x))
        return self.head(self.again(x) if hasattr(self, "again") else x)


def batch(step, rank, *, micro=1, number=0):
    """This rank's rows of a step, or of one of its micro-batches."""
    dice = torch.Generator().manual_seed(step)
    inputs, targets = torch.randn(ROWS, 8, generator=dice), torch.randint(0, 8, (ROWS,), generator=dice)
    part = dist.get_world_size() * micro
    mine = rank * micro + number
    return inputs.chunk(part)[mine], targets.chunk(part)[mine]


def average(model, *, scale=None, skip=()):
    """All-reduces the gradients by hand."""
    for name, each in model.named_parameters():
        if each.grad is not None and name not in skip:
            dist.all_reduce(each.grad)
            each.grad *= 1 / dist.get_world_size() if scale is None else scale


def loop(folder, fault="", **given):  # noqa: C901  # a fault is a line of it
    """A loop of one's own, on replicas."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank if fault == "unequal start" else 1 if fault == "other seed" else 0)
    micro, kind, lr, decay = given.get("micro", 1), given.get("optimizer", "sgd"), 0.1, given.get("decay", 0.0)
    model = Net(
        tied=given.get("tied", False) and fault != "tied apart",
        dropout=given.get("dropout", 0.0),
        batch_norm=given.get("norms"),
    )
    if given.get("tied") and fault == "tied apart":
        model.head.weight = nn.Parameter(model.embed.weight.detach().T.clone())
        model.again = nn.Linear(16, 16, bias=False)
        model.again.weight = nn.Parameter(model.up.weight.detach().clone())
    if fault == "bf16 weights":
        model.bfloat16()
    if fault == "frozen":
        model.up.weight.requires_grad = False
    trained = [each for each in model.parameters() if each.requires_grad]
    if fault == "not held":
        trained = [each for name, each in model.named_parameters() if name != "head.weight"]
    flat = [each for each in trained if each.ndim == 1 and fault != "decay on all"]
    matrices = [each for each in trained if all(each is not other for other in flat)]
    if given.get("owners"):  # ZeRO-1 by hand: each rank updates every other parameter, and the steps are added up
        owned = [each for place, each in enumerate(matrices) if place % world_size == rank]
        matrices = matrices if fault == "two owners" and rank == 1 else owned
        flat = flat[rank::world_size]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": flat, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    lr = lr * world_size if fault == "lr scaled" else lr
    optimizer = torch.optim.SGD(groups, lr=lr) if kind == "sgd" else torch.optim.AdamW(groups, lr=0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    resumed = given.get("resumed", False)
    if resumed:
        before(model, optimizer)
    if fault == "state lost":
        optimizer.state.clear()
    torch.manual_seed(100 if fault == "same dropout" else 100 + rank)
    net = DistributedDataParallel(model, broadcast_buffers=fault != "buffers kept") if given.get("ddp") else model
    scale = 2.0**40 if fault == "overflow" else 2.0**10
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=given.get("fp16", False))
    with Fingerprints(folder, (1, STEPS)):
        for step in range(1, STEPS + 1):
            old = [each.detach().clone() for each in model.parameters()]
            one_step(net, model, optimizer, scaler, step, fault, micro)
            if given.get("owners"):
                add_steps(model, old)
            schedule.step()
            if fault == "schedule twice":
                schedule.step()


def before(model, optimizer):
    """Steps of an earlier run, which are not recorded."""
    for step in (101, 102):
        inputs, targets = batch(step, dist.get_rank())
        nn.functional.cross_entropy(model(inputs), targets).backward()
        average(model)
        optimizer.step()
        optimizer.zero_grad()


def add_steps(model, old):
    """Each rank gets the others' updates, which are zero where they have none."""
    with torch.no_grad():
        for before, each in zip(old, model.parameters(), strict=True):
            moved = each - before
            dist.all_reduce(moved)
            each.copy_(before + moved)


def one_step(net, model, optimizer, scaler, step, fault, micro):  # noqa: C901, PLR0912, PLR0917  # a fault is a line of it
    rank = dist.get_rank()
    rows_of = 0 if fault == "same rows" else rank
    of = step - 1 if fault == "repeated" and rank == 1 and step == 2 else step
    of = step + 1 if fault == "skipped" and rank == 1 and step == 2 else of
    for number in range(micro):
        inputs, targets = batch(of, rows_of, micro=micro, number=number)
        if fault == "bf16 weights":
            inputs = inputs.bfloat16()
        if fault == "other loss":
            targets = targets.roll(1)
        with torch.autocast("cpu", torch.float16, enabled=scaler.is_enabled()):
            outputs = net_of(net, model, inputs, fault, last=number == micro - 1)
        loss = nn.functional.cross_entropy(outputs.float(), targets)
        scaler.scale(loss if fault == "micro summed" else loss / micro).backward()
        if fault == "zeroed early" and number < micro - 1:
            optimizer.zero_grad()
    if net is model:
        reduce(model, fault, step)
    clip(model, fault)
    if fault == "scale twice":
        for each in model.parameters():
            each.grad /= scaler.get_scale()
    if fault == "scale left in":
        optimizer.step()
    elif not (fault == "rank left out" and rank == 1 and step == 2):
        scaler.step(optimizer)
        scaler.update()
    if fault == "stepped twice":
        optimizer.step()
    if fault == "not sent" and rank == 1:
        with torch.no_grad():
            model.head.weight += 0.1 * model.head.weight.grad
    if fault in ("NaN at the end", "always NaN") and step == (STEPS if fault == "NaN at the end" else 1):
        with torch.no_grad():
            model.up.bias[0] = torch.nan
    if fault == "rounded masters":
        with torch.no_grad():
            for each in model.parameters():
                each.copy_(each.bfloat16())
    if fault == "shard left":
        owned_elsewhere(model, step)
    if fault != "not zeroed":
        optimizer.zero_grad()


def net_of(net, model, inputs, fault, *, last):
    if net is model or (last and fault != "no_sync to the end"):
        return net(inputs)
    with net.no_sync():
        return net(inputs)


def reduce(model, fault, step):  # noqa: C901  # a fault is a line of it
    world_size = dist.get_world_size()
    if fault == "summed":
        average(model, scale=1.0)
    elif fault == "averaged twice":
        average(model, scale=1 / world_size**2)
    elif fault == "not reduced":
        return
    elif fault == "one not reduced":
        average(model, skip=("norm.weight",))
    elif fault == "bf16 reduced":
        for each in model.parameters():
            half = each.grad.bfloat16()
            dist.all_reduce(half)
            each.grad.copy_(half / world_size)
    elif fault == "rank 0 alone":
        for each in model.parameters():
            dist.broadcast(each.grad, src=0)
    elif fault == "dropped":
        average(model)
        model.up.bias.grad = None
    elif fault == "inf gradient":
        average(model)
        model.up.bias.grad[0] = torch.inf
    else:
        average(model)


def clip(model, fault):
    """Each rank has the norm of every other parameter, as if it owned these, and must sum over ranks."""
    if fault not in ("clipped", "clipped by shard"):
        return
    rank, mine = dist.get_rank(), [each for each in model.parameters() if each.grad is not None]
    squares = sum(each.grad.square().sum() for each in mine[rank :: dist.get_world_size()])
    if fault == "clipped":
        dist.all_reduce(squares)
    for each in mine:
        each.grad *= 0.01 / squares.sqrt()


def owned_elsewhere(model, step):
    """An update of ZeRO-1 by hand, whose second half is never sent."""
    with torch.no_grad():
        for each in model.parameters():
            if each.ndim == 2 and step == 1:
                each.view(-1)[each.numel() // 2 :] += 0.1 * each.grad.view(-1)[each.numel() // 2 :]


GOOD = {  # name: how it is trained
    "plain": {},
    "micro": {"micro": 2},
    "ddp": {"ddp": True, "micro": 2},
    "adam": {"optimizer": "adam"},
    "decay": {"optimizer": "adam", "decay": 0.1},
    "tied": {"tied": True},
    "dropout": {"dropout": 0.5},
    "resumed": {"optimizer": "adam", "resumed": True},
    "norms": {"ddp": True, "norms": True},
    "clipped": {"fault": "clipped"},
    "owners": {"owners": True},
    "fp16": {"fp16": True},
    "diverged": {"fault": "always NaN"},
}
# The fault, the right run, the step, the phase, and words of the meaning. Threads are those in which people met it.
FAULTS = [
    ("summed", "plain", 1, "gradients", "summed over 2 ranks and not averaged"),  # pytorch 126616
    ("averaged twice", "plain", 1, "gradients", "divided by the 2 ranks once more"),
    ("not reduced", "plain", 1, "gradients", "was never averaged"),
    ("one not reduced", "plain", 1, "gradients", "was never averaged"),  # modalities 357
    ("rank 0 alone", "plain", 1, "gradients", "rank 0's own gradient"),
    ("bf16 reduced", "plain", 1, "gradients", "reduced or kept in bf16"),  # accelerate 3979
    ("dropped", "plain", 1, "gradients", "it gets no gradient"),  # DeepSpeed 8224
    ("frozen", "plain", 1, "before it", "it is frozen"),  # accelerate 3979
    ("not held", "plain", 1, "gradients", "no optimizer has it"),  # DeepSpeed 8438
    ("unequal start", "plain", 1, "parameters", "unequal weights"),  # transformers 45662
    ("other seed", "plain", 1, "parameters", "begin with other weights"),
    ("same rows", "plain", 1, "batches", "rank 1 has the rows of rank 0"),
    ("repeated", "plain", 2, "batches", "rank 1 has the rows of its step before"),
    ("skipped", "plain", 2, "batches", "skipped a batch"),
    ("other loss", "plain", 1, "loss", "the same weights and rows give another loss"),
    ("not zeroed", "plain", 2, "gradients", "zero_grad() was forgotten"),
    ("inf gradient", "plain", 1, "gradients", "the backward or the reduction makes them"),
    ("NaN at the end", "plain", STEPS, "update", "the update makes them"),
    ("lr scaled", "plain", 1, "settings", "2 times GOOD's"),
    ("schedule twice", "plain", 2, "settings", "the schedule is ahead"),
    ("stepped twice", "plain", 1, "update", "made twice"),
    ("rank left out", "plain", 2, "batches", "rank 1 made 2 backwards before its update"),  # pytorch 158719
    ("not sent", "plain", 1, "update", "an update was not sent to all"),  # modalities 357
    ("rounded masters", "adam", 1, "update", "copied back from rounded ones"),
    ("shard left", "plain", 1, "update", "only a part of it moved"),
    ("bf16 weights", "adam", 1, "update", "no fp32 master copy"),  # litgpt 1417
    ("decay on all", "decay", 1, "settings", "weight decay on what has none"),
    ("micro summed", "micro", 1, "loss", "2 times as large, the number of micro-batches"),
    ("zeroed early", "micro", 1, "gradients", "zero_grad() comes too early"),
    ("no_sync to the end", "ddp", 1, "gradients", "no_sync() also surrounds"),
    ("tied apart", "tied", 1, "before it", "tied weights came apart"),  # torchtitan 2495
    ("same dropout", "dropout", 1, "random", "all ranks use the same dropout masks"),
    ("state lost", "resumed", 1, "optimizer state", "state was not there"),  # accelerate 3971
    ("buffers kept", "norms", 2, "buffers", "buffers came apart"),
    ("two owners", "owners", 1, "update", "ranks 0 and 1 updated it both"),
    ("scale twice", "fp16", 1, "gradients", "divided twice by the loss's scale of 1024"),
    ("scale left in", "fp16", 1, "gradients", "the loss's scale is still in it"),
    ("overflow", "fp16", 1, "overflow", "left the update out"),
    ("clipped by shard", "clipped", 1, "gradients", "clips by its own norm"),  # pytorch 170862, accelerate 4219
]
