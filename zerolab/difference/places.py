"""Which elements of which parameter a tensor has that an optimizer updates."""

import sys
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from zerolab.engines.deepspeed import partitions
from zerolab.engines.optimizer_state import local
from zerolab.recording.wrappers import DEEPSPEED, fsdp_params, is_a, is_part, plain, unwrapped
from zerolab.runtime.observers import holders


class Place(NamedTuple):
    """Elements `[place, place + numel)` of a tensor are those of the parameter `name` from `start` on, or at `at`."""

    name: str
    place: int
    start: int
    numel: int
    at: torch.Tensor | None = None


Places = list[tuple[torch.Tensor, list[Place]]]
# Whose masters are partitions, under stages 1 and 2, and 3.
ZERO_OF_DEEPSPEED = (
    ("deepspeed.runtime.zero.stage_1_and_2", "DeepSpeedZeroOptimizer"),
    ("deepspeed.runtime.zero.stage3", "DeepSpeedZeroOptimizer_Stage3"),
)


def names_of(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters by the names that their author gave them; those of a tied one all."""
    named: dict[str, nn.Parameter] = {}
    for name, each in unwrapped(model).named_parameters(remove_duplicate=False):
        fqns = getattr(each, "_fqns", [""])  # FSDP1 shows one flat parameter for many, unless told otherwise
        prefix = plain(name.removesuffix("_flat_param")) if fqns != [""] else plain(name)
        named |= {prefix + fqn: each for fqn in fqns}
    return named


def forget_parts(
    models: dict[int, tuple[nn.Module, str]], about: dict[str, Any], steps: list[dict[str, Any]], whole: nn.Module
) -> None:
    """Drops models that are parts of a whole and were called before it to learn shapes.

    Not once they train, by an engine or because a step has had a backward or an update.
    """
    if any(step["losses"] or step["updates"] for step in steps):
        return
    ids = {id(each) for each in whole.parameters()}
    trained = {id(holder.model) for holder in holders}
    others = [(key, other) for key, (other, _) in models.items() if key not in trained]
    parts = [key for key, other in others if ids.issuperset(map(id, other.parameters()))]
    for part, prefix in map(models.pop, parts):
        for name in [*names_of(part), *(plain(name) for name, _ in part.named_buffers())]:
            for noted in (about, *(step[moment] for step in steps for moment in ("before", "buffers"))):
                noted.pop(prefix + name, None)


def trained_within(module: nn.Module) -> list[nn.Module]:
    """The models of engines that have parameters of this module, which may be a part of one, or lie around it.

    In the order of its parameters, as all ranks must name them alike. None for one that is itself an engine's, whoever
    had its parameters before.
    """
    numbers, models = {id(each): number for number, each in enumerate(module.parameters())}, []
    for model in [holder.model for holder in holders]:
        if model is module:
            return []
        if mine := [numbers[id(each)] for each in model.parameters() if id(each) in numbers]:
            models.append((mine[0], model))
    return [model for _, model in sorted(models, key=itemgetter(0))]


def places_of(model: nn.Module) -> Places:
    """Each tensor that an optimizer of this model may update; without those of which nobody says what they hold."""
    engines = [engine for engine in holders if engine.model is model]
    if engines:
        owned = [each for engine in engines for each in engine._owned()]  # as for checkpoints
        return [(key, [Place(*piece) for piece in pieces]) for key, pieces, _ in owned]
    zero: Any = model.optimizer if is_a(model, *DEEPSPEED) else None
    if any(is_a(zero, *kind) for kind in ZERO_OF_DEEPSPEED):
        names = {id(parameter): name for name, parameter in names_of(model).items()}
        owned_here = partitions(zero, names, dist.get_rank())
        return [(master, [Place(*piece) for piece in pieces]) for master, _, pieces in owned_here]
    found: dict[int, tuple[torch.Tensor, list[Place]]] = {}
    for name, parameter in names_of(model).items():
        if not is_part(parameter):
            found.setdefault(id(parameter), (parameter, _of_whole(name, parameter)))
    for key, pieces in _of_fsdp1(model):
        found[id(key)] = key, pieces
    return list(found.values())


def of_models(models: Iterable[tuple[nn.Module, str]]) -> Places:
    """The same of several models, with what comes before each one's names; what they share is the first one's."""
    found: dict[int, tuple[torch.Tensor, list[Place]]] = {}
    for model, prefix in [*models]:  # another thread may be asking
        for tensor, pieces in places_of(model):
            named = [piece._replace(name=prefix + piece.name) for piece in pieces]
            found.setdefault(id(tensor), (tensor, named))
    return list(found.values())


def sharing(model: nn.Module) -> set[int]:
    """The ranks along the dimensions of its parameters' meshes over which FSDP2 shards nothing: they may share batches.

    Under tensor parallelism they do; under other ways to use such a dimension their rows tell.
    """
    meshes = {each.device_mesh for each in names_of(model).values() if hasattr(each, "device_mesh")}
    of_data = {rank for each in fsdp_params(model) for rank in each.mesh_info.mesh.mesh.flatten().tolist()}
    groups = [dist.get_process_group_ranks(group) for mesh in meshes for group in mesh.get_all_groups()]
    return {rank for ranks in groups if not of_data.issuperset(ranks) for rank in ranks}


def reasons(model: nn.Module) -> set[str]:
    """What makes a model's loss depend on how ranks share a batch."""
    found = set()
    for part in model.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd) and part.p:
            found.add("dropout")
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and not isinstance(part, nn.SyncBatchNorm):
            found.add("batch norm")
    return found


def buffers_of(model: nn.Module, prefix: str) -> Iterator[tuple[Place, torch.Tensor]]:
    """The buffers of numbers that are not whole, with their places; `prefix` comes before the names."""
    for name, buffer in model.named_buffers():
        if buffer.numel() and (buffer.is_floating_point() or buffer.is_complex()):
            yield Place(prefix + plain(name), 0, 0, local(buffer).numel()), buffer


def _of_whole(name: str, parameter: Any) -> list[Place]:
    if not hasattr(parameter, "placements"):
        return [Place(name, 0, 0, parameter.numel())]
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offset = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    index = torch.zeros(1, dtype=torch.int64)
    for size, first, mine in zip(parameter.shape, offset, shape, strict=True):
        index = (index.unsqueeze(-1) * size + torch.arange(first, first + mine)).reshape(-1)
    follows = index.numel() and int(index[-1] - index[0]) == index.numel() - 1
    start = int(index[0]) if index.numel() else 0
    return [Place(name, 0, start, index.numel(), None if follows else index)]


def _of_fsdp1(model: nn.Module) -> Iterator[tuple[Any, list[Place]]]:
    if "torch.distributed.fsdp" not in sys.modules:
        return
    from zerolab.engines.fsdp1 import flat_params, owned_of

    for prefix, handle in flat_params(model):
        for key, pieces, _ in owned_of(plain(prefix), handle):
            yield key, [Place(*piece) for piece in pieces]
