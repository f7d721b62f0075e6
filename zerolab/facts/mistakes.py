"""The mistakes of published code, each in a few lines of our own, to run and to see what it does.

Each function runs inside a rank and returns plain values; an error that the mistake leads to is caught and named, so
that it can be counted. None of them is an engine: how it is done stands in `zerolab/engines/`.
"""

import importlib
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional

from zerolab.engines.collectives import Exchange, all_reduce
from zerolab.engines.flat import Flat
from zerolab.engines.zero1 import Zero1


class AllReduceZero1(Zero1):
    """ZeRO-1 that brings every gradient whole to every rank, and gathers the parameters on top: a third pass."""

    def reduce(self, flat: Flat, gradient: torch.Tensor) -> Exchange:
        """Adds up the whole gradient on every rank, although each needs its own part only."""
        return all_reduce(gradient, name=flat.layout.name)


def shard_of_padded_gradient_of_bare(numel: int) -> tuple[int, int, bool]:
    """ZeRO-1 that cuts its shards from the padded parameters and its gradients from the bare ones.

    Returns elements of this rank's gradient, of its shard, and whether torch takes the one for the other.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    layer = nn.Linear(numel, 1, bias=False)
    # Every rank computes the whole gradient: what goes wrong is the cutting, and needs no exchange.
    layer(torch.ones(1, numel)).sum().backward()
    part = -(-numel // world_size)  # rounded up
    mine = slice(rank * part, (rank + 1) * part)
    # The padding is in what is trained and not in what autograd computes, so the last rank's two slices differ.
    padded = functional.pad(layer.weight.detach().flatten(), (0, part * world_size - numel))
    gradient, shard = _gradient(layer).flatten()[mine], nn.Parameter(padded[mine].clone())
    try:
        shard.grad = gradient
    except RuntimeError:
        return gradient.numel(), shard.numel(), False
    return gradient.numel(), shard.numel(), True


def _gradient(layer: nn.Linear) -> torch.Tensor:
    if layer.weight.grad is None:
        raise RuntimeError("the layer has no gradient: run backward first")
    return layer.weight.grad


def release_in_the_modules_backward_hook() -> tuple[list[str], bool]:
    """ZeRO-3 that releases a layer in its backward hook. The model's first layer: its inputs need no gradient.

    There torch calls the hook as soon as the gradient of the outputs is known, and the weight's comes after that.
    Returns what happened, in order, and whether backward went through.
    """
    width = 8 * dist.get_world_size()  # so that the shards are equal, as gloo's all_gather needs them
    layer = nn.Linear(width, width, bias=False)
    shard = layer.weight.detach().flatten().chunk(dist.get_world_size())[dist.get_rank()].clone()
    happened: list[str] = []

    def gather(*_: Any) -> None:
        pieces = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
        dist.all_gather(pieces, shard)
        # Other data under the same parameter: autograd will want a gradient of the shape that it has at the time.
        layer.weight.data = torch.cat(pieces).view(width, width)
        happened.append("gather")

    def release(*_: Any) -> None:
        layer.weight.data = shard
        happened.append("release")

    # The hooks of a module are all that the published class uses; the one on the weight only listens.
    layer.register_forward_pre_hook(gather)
    layer.register_forward_hook(release)
    layer.register_full_backward_pre_hook(gather)
    layer.register_full_backward_hook(release)
    layer.weight.register_post_accumulate_grad_hook(lambda _: happened.append("gradient"))
    outputs = layer(torch.ones(1, width))
    try:
        with warnings.catch_warnings():  # torch warns of just this
            warnings.filterwarnings("ignore", "Full backward hook is firing")
            outputs.sum().backward()
    except RuntimeError:
        return happened, False
    return happened, True


def release_by_swapping_data(width: int = 64) -> dict[str, bool]:
    """Gives a weight other data after forward, and looks whether the memory of the old data went.

    Returns for three moments whether the memory is still there: after the swap, after backward, and, for a layer whose
    storage was freed instead of swapped, after that.
    """
    swapped, freed = (nn.Linear(width, width, bias=False) for _ in range(2))
    for layer in (swapped, freed):
        layer.requires_grad_(requires_grad=False)  # what keeps the memory is the input's gradient alone
    # Autograd saves weight.t(), a view, to compute the input's gradient; a view keeps the whole storage.
    memory = StorageWeakRef(swapped.weight.untyped_storage())
    outputs = swapped(torch.ones(1, width, requires_grad=True))
    swapped.weight.data = torch.empty(0)
    found = {"after the swap": not memory.expired()}
    outputs.sum().backward()
    del outputs
    found["after backward"] = not memory.expired()
    freed(torch.ones(1, width, requires_grad=True))
    freed.weight.untyped_storage().resize_(0)
    found["after freeing the storage"] = freed.weight.untyped_storage().nbytes() > 0
    return found


def ceiling_spans(numel: int, world_size: int) -> list[tuple[int, int]]:
    """The spans of a flat without padding, cut into pieces of the rounded-up size until there is nothing left."""
    part = -(-numel // world_size)
    # The end is cut off at the last element and the beginning is not, so a span may begin after it has ended.
    return [(rank * part, min((rank + 1) * part, numel)) for rank in range(world_size)]


def keep_one_piece(model: nn.Module, world_size: int) -> torch.Tensor:
    """Goes through all parameters to shard them, but keeps one variable for all pieces and copies into it."""
    piece = torch.empty(0)
    for parameter in model.parameters():
        # Each round forgets the piece of the one before, and a clone is memory on top of what it was cut from.
        piece = parameter.detach().flatten().chunk(world_size)[0].clone()
    return piece


def _told(error: Exception) -> str:
    """An error's kind and the first line of what it says."""
    return f"{type(error).__name__}: {str(error).splitlines()[0].rstrip('.')}" if str(error) else type(error).__name__


def how_import_fails(name: str) -> str:
    """The error that importing the module `name` raises; empty if it goes well."""
    try:
        importlib.import_module(name)
    except ImportError as error:
        return type(error).__name__
    return ""


def how_an_unknown_name_fails(expression: str) -> str:
    """The error that an expression raises in a file without imports; empty if it goes well."""
    try:
        eval(expression, {})  # noqa: S307  (our own text, and an empty file is what is wanted)
    except NameError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def mix_the_two_fsdps() -> str:
    """Shards the layers with FSDP2 and wraps the model in FSDP1 on top; the error, or empty if a step goes well."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    # On the CPU on every box: without a mesh FSDP2 would take the GPUs that it sees.
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    try:
        for layer in model:
            fully_shard(layer, mesh=mesh)
        FullyShardedDataParallel(model, device_id=torch.device("cpu"))(torch.ones(1, 8)).sum().backward()
    except Exception as error:  # noqa: BLE001  (whatever it is, it is what is measured)
        return _told(error)
    return ""


def offload_with_fsdp1() -> str:
    """FSDP1 with its CPUOffload; the error, or empty if a step goes well.

    It computes on the CPU; what it wants an accelerator for is the pinned memory that the shards wait in.
    """
    from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel

    offload, device = CPUOffload(offload_params=True), torch.device("cpu")
    try:
        FullyShardedDataParallel(nn.Linear(8, 8), cpu_offload=offload, device_id=device)(
            torch.ones(1, 8)
        ).sum().backward()
    except Exception as error:  # noqa: BLE001  (whatever it is, it is what is measured)
        return _told(error)
    return ""


def wrapped_by_size(smallest: int) -> list[str]:
    """The modules of `gpt-tiny` that FSDP1 wraps by size, if it wraps all of at least `smallest` parameters."""
    from functools import partial

    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

    from zerolab import models

    # The policy counts what is in no smaller wrapped module, so with a small number it wraps single layers.
    policy = partial(size_based_auto_wrap_policy, min_num_params=smallest)
    model = FullyShardedDataParallel(models.build("gpt-tiny"), auto_wrap_policy=policy, device_id=torch.device("cpu"))
    named = [(name, module) for name, module in model.named_modules() if isinstance(module, FullyShardedDataParallel)]
    return [name.replace("_fsdp_wrapped_module.", "").removeprefix("_fsdp_wrapped_module") for name, _ in named if name]
