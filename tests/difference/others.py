"""Loops over systems that others made, right and silently wrong: FSDP2 on a mesh of two levels, and DeepSpeed."""

import torch
import torch.distributed as dist
from silent import Net, batch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

from zerolab.difference.watch import Fingerprints
from zerolab.engines.deepspeed import import_deepspeed

STEPS = 2


def model_and_optimizer():
    torch.manual_seed(0)
    model = Net()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def two_levels(folder, fault=""):
    """HSDP on four ranks: two replicas of two shards each; or two FSDPs that know nothing of one another."""
    torch.manual_seed(0)
    model = Net()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh["shard"] if fault == "replicas alone" else mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with Fingerprints(folder, (1, STEPS)):
        for step in range(1, STEPS + 1):
            inputs, targets = batch(step, dist.get_rank())
            loss = cross_entropy(model(inputs), targets)
            loss.backward()
            if fault == "norm of a shard":
                shards = [each.grad.to_local() for each in model.parameters()]
                norm = torch.cat([each.flatten() for each in shards]).norm()
                for each in shards:
                    each.mul_(0.01 / norm)
            elif fault == "norm of the whole":
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()
            optimizer.zero_grad()


def with_deepspeed(folder, stage, fault=""):
    """A loop over DeepSpeed's engine, two micro-batches a step: it divides the loss by their number."""
    model, optimizer = model_and_optimizer()
    settings = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 1.0 if fault == "clipped by itself" else 0.0,
    }
    engine, *_ = import_deepspeed().initialize(
        model=model, optimizer=optimizer, config=settings, dist_init_required=False
    )
    with Fingerprints(folder, (1, STEPS)):
        for step in range(1, STEPS + 1):
            for number in range(2):
                inputs, targets = batch(step, dist.get_rank(), micro=2, number=number)
                loss = cross_entropy(engine(inputs), targets)
                engine.backward(loss / 2 if fault == "divided twice" else loss)
                engine.step()


def alone(folder):
    """The same two micro-batches without a system."""
    model, optimizer = model_and_optimizer()
    with Fingerprints(folder, (1, STEPS)):
        for step in range(1, STEPS + 1):
            for number in range(2):
                inputs, targets = batch(step, dist.get_rank(), micro=2, number=number)
                (cross_entropy(model(inputs), targets) / 2).backward()
            for each in model.parameters():
                dist.all_reduce(each.grad)
                each.grad /= dist.get_world_size()
            optimizer.step()
            optimizer.zero_grad()
