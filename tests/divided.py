"""A loop over a model that tensor parallelism and FSDP2 divide, as in lesson 11."""

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from zerolab import models


def train(*, idle=False, **options):
    """Two steps of the tiny GPT on four ranks: two share each MLP, and FSDP2 divides the rest between the pairs.

    The last block is `idle` if no forward comes to it.
    """
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model = models.build("gpt-tiny")
    for block in model.blocks:
        parallelize_module(block, mesh["tensor"], {"mlp.0": ColwiseParallel(), "mlp.2": RowwiseParallel()})
        fully_shard(block, mesh=mesh["data"], **options)
    fully_shard(model, mesh=mesh["data"], **options)
    if idle:
        model.blocks[3].forward = lambda inputs: inputs
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for inputs, targets in models.batches("gpt-tiny", 2, mesh["data"].get_local_rank(), 2):
        models.loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
