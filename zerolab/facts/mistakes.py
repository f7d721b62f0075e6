"""The mistakes of published code, each in a few lines of our own, to be run and observed.

Each function runs on a rank and returns plain values; an error that the mistake causes is caught and named. None of
them is an engine: `zerolab/engines/` does it right.
"""

import importlib
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional

from zerolab import models
from zerolab.engines.collectives import Exchange, all_reduce
from zerolab.engines.flat import Flat
from zerolab.engines.zero1 import Zero1


class AllReduceZero1(Zero1):
    """ZeRO-1 that all-reduces every gradient, and also gathers the parameters: a third pass."""

    def reduce(self, flat: Flat, gradient: torch.Tensor) -> Exchange:
        """Reduces the whole gradient on every rank, although each needs only its shard."""
        return all_reduce(gradient, name=flat.layout.name)


def shard_with_padding_and_gradient_without(numel: int) -> tuple[int, int, bool]:
    """ZeRO-1 that shards padded parameters and gradients that are not padded.

    Returns elements of this rank's gradient, of its shard, and whether torch accepts one for the other.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    layer = nn.Linear(numel, 1, bias=False)
    # Every rank computes the whole gradient: the slicing goes wrong, even without an exchange.
    (whole,) = torch.autograd.grad(layer(torch.ones(1, numel)).sum(), [layer.weight])
    part = -(-numel // world_size)  # rounded up
    mine = slice(rank * part, (rank + 1) * part)
    # The trained parameter is padded, the gradient of autograd is not, so the last rank's two slices differ.
    padded = functional.pad(layer.weight.detach().flatten(), (0, part * world_size - numel))
    gradient, shard = whole.flatten()[mine], nn.Parameter(padded[mine].clone())
    try:
        shard.grad = gradient
    except RuntimeError:
        return gradient.numel(), shard.numel(), False
    return gradient.numel(), shard.numel(), True


def release_in_the_modules_backward_hook() -> tuple[list[str], bool]:
    """ZeRO-3 that releases a layer in its backward hook: the first layer of a model, whose inputs need no gradient.

    There torch calls the hook as soon as the gradient of the outputs is known, before the weight has its gradient.
    Returns what happened, in order, and whether backward succeeded.
    """
    width = 8 * dist.get_world_size()  # gloo's all_gather needs equal shards
    layer = nn.Linear(width, width, bias=False)
    shard = layer.weight.detach().flatten().chunk(dist.get_world_size())[dist.get_rank()].clone()
    happened: list[str] = []

    def gather(*_: Any) -> None:
        pieces = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
        dist.all_gather(pieces, shard)
        # Other data in the same parameter: autograd expects a gradient of the shape that it has at the time.
        layer.weight.data = torch.cat(pieces).view(width, width)
        happened.append("gather")

    def release(*_: Any) -> None:
        layer.weight.data = shard
        happened.append("release")

    # The published class uses only the hooks of a module; the one on the weight observes.
    layer.register_forward_pre_hook(gather)
    layer.register_forward_hook(release)
    layer.register_full_backward_pre_hook(gather)
    layer.register_full_backward_hook(release)
    layer.weight.register_post_accumulate_grad_hook(lambda _: happened.append("gradient"))
    outputs = layer(torch.ones(1, width))
    try:
        with warnings.catch_warnings():  # torch warns of exactly this
            warnings.filterwarnings("ignore", "Full backward hook is firing")
            outputs.sum().backward()
    except RuntimeError:
        return happened, False
    return happened, True


def release_by_swapping_data(width: int = 64) -> dict[str, bool]:
    """Gives a weight other data after forward, and looks whether the memory of the old data is freed.

    Returns for three moments whether the memory still exists: after the swap, after backward, and, in a layer whose
    storage is freed instead of swapped, after that.
    """
    swapped, freed = (nn.Linear(width, width, bias=False) for _ in range(2))
    for layer in (swapped, freed):
        layer.requires_grad_(requires_grad=False)  # only the gradient of the inputs keeps the memory
    # Autograd saves weight.t(), a view, to compute the gradient of the inputs; a view keeps the whole storage.
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
    """The spans of a flat without padding, sharded by a size that is rounded up."""
    part = -(-numel // world_size)
    # Only the end is limited to the last element, so a span may begin after its end.
    return [(rank * part, min((rank + 1) * part, numel)) for rank in range(world_size)]


def keep_one_piece(model: nn.Module, world_size: int) -> torch.Tensor:
    """Loops over all parameters to shard them, but has one variable for all pieces, and copies."""
    piece = torch.empty(0)
    for parameter in model.parameters():
        # Each iteration loses the piece before, and a clone takes memory in addition to the parameter's.
        piece = parameter.detach().flatten().chunk(world_size)[0].clone()
    return piece


def _failure(action: Callable[[], object]) -> str:
    """The type of the error that an action raises, and the first line of its message; empty if it succeeds."""
    try:
        action()
    except Exception as error:  # noqa: BLE001  (whatever it is, it is what is measured)
        return ": ".join([type(error).__name__, *str(error).splitlines()[:1]]).rstrip(".")
    return ""


def failure_of_import(name: str) -> str:
    """The type of the error that importing the module `name` raises; empty if it succeeds."""
    try:
        importlib.import_module(name)
    except ImportError as error:
        return type(error).__name__
    return ""


def failure_of_unknown_name(expression: str) -> str:
    """The error that an expression raises in a file without imports; empty if it succeeds."""
    return _failure(lambda: eval(expression, {}))  # noqa: S307  (our own text, in an empty namespace on purpose)


def mix_the_two_fsdps() -> str:
    """Shards the layers with FSDP2 and wraps the model in FSDP1; returns the error, or "" if a step succeeds."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    # On the CPU on every box: without a mesh FSDP2 would use GPUs.
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))

    def train() -> None:
        for layer in model:
            fully_shard(layer, mesh=mesh)
        FullyShardedDataParallel(model, device_id=torch.device("cpu"))(torch.ones(1, 8)).sum().backward()

    return _failure(train)


def offload_with_fsdp1() -> str:
    """FSDP1 with its CPUOffload; returns the error, or "" if a step succeeds.

    It computes on the CPU, but needs an accelerator for the pinned memory of the shards.
    """
    from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel

    offload, device = CPUOffload(offload_params=True), torch.device("cpu")

    def train() -> None:
        model = FullyShardedDataParallel(nn.Linear(8, 8), cpu_offload=offload, device_id=device)
        model(torch.ones(1, 8)).sum().backward()

    return _failure(train)


def wrapped_by_size(smallest: int) -> list[str]:
    """The modules of `gpt-tiny` that FSDP1 wraps by size, if it wraps all of at least `smallest` parameters."""
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

    # The policy counts what no smaller wrapped module has, so with a small number it wraps single layers.
    policy = partial(size_based_auto_wrap_policy, min_num_params=smallest)
    model = FullyShardedDataParallel(models.build("gpt-tiny"), auto_wrap_policy=policy, device_id=torch.device("cpu"))
    named = [(name, module) for name, module in model.named_modules() if isinstance(module, FullyShardedDataParallel)]
    return [name.replace("_fsdp_wrapped_module.", "").removeprefix("_fsdp_wrapped_module") for name, _ in named if name]
