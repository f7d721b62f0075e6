"""Who owns what: a model becomes units, a unit becomes flats, a flat is cut into N equal shards.

Nothing here touches a process group or moves a byte; the same functions serve the engines, the theory and the tests.
A *unit* is what travels together (one block of the model; what is in no block is the root unit). A *flat* is a unit's
parameters laid end to end and padded with zeros to a multiple of N, so that every rank's shard has the same size:
the collectives need that, and it costs at most N - 1 elements a flat (N for one that has no elements itself). On GPUs
a shard is a multiple of 16 bytes as well, so it costs up to 8 N - 1. Other ways to cut are in `placement`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import nn

from zerolab.engines import placement
from zerolab.names import ROOT

_CONTAINERS = (nn.ModuleList, nn.Sequential)


@dataclass(frozen=True)
class Slot:
    """Where one parameter lies in its flat: elements `[start, stop)`, to be seen as `shape`."""

    name: str
    shape: torch.Size
    start: int

    @cached_property
    def stop(self) -> int:
        """One past the parameter's last element."""
        return self.start + self.shape.numel()


@dataclass(frozen=True)
class FlatLayout:
    """The plan of one flat: which parameters lie where, and which span each rank owns.

    A unit has one flat for each dtype and parameter group, and another for its frozen parameters, which no optimizer
    may touch: even with a gradient of zero, weight decay would move them. `name` is unique in the model; `unit` is the
    module's name, or "root"; `group` is the number of the parameter group, None for the parameters that no group
    claims. What is `replicated` has flats of its own, which are not cut. A shard has a multiple of `granule` elements.
    With `owners`, the rank of each slot in ascending order, parameters stay whole: shards are as large as what a rank
    owns, perhaps nothing, and there is no padding.
    """

    name: str
    unit: str
    dtype: torch.dtype
    frozen: bool
    slots: tuple[Slot, ...]
    world_size: int
    group: int | None = None
    replicated: bool = False
    granule: int = 1
    owners: tuple[int, ...] | None = None

    @cached_property
    def sizes(self) -> tuple[int, ...] | None:
        """Elements of each rank's shard where they differ; None where all are equal."""
        if self.owners is None:
            return None
        shares = placement.matrices(self.owners)([slot.shape for slot in self.slots], self.world_size)
        return tuple(share.size for share in shares)

    @cached_property
    def numel(self) -> int:
        """Elements that belong to parameters."""
        return self.slots[-1].stop

    @cached_property
    def shard_numel(self) -> int:
        """Elements of one shard, the Nth part, rounded up to whole granules; of unequal ones those of the largest."""
        if self.sizes is not None:
            return max(self.sizes)
        granules = -(-self.numel // (self.world_size * self.granule))
        return max(1, granules) * self.granule  # of nothing at all it would be: is it here, or released?

    @cached_property
    def padded(self) -> int:
        """Elements of the flat with its padding: N equal shards, or unequal ones end to end."""
        return self.numel if self.sizes is not None else self.shard_numel * self.world_size

    def span(self, rank: int) -> tuple[int, int]:
        """The elements `[start, stop)` that `rank` owns."""
        if self.sizes is not None:
            return sum(self.sizes[:rank]), sum(self.sizes[: rank + 1])
        return rank * self.shard_numel, (rank + 1) * self.shard_numel

    def owned_by(self, owners: Sequence[int]) -> "FlatLayout":
        """The same parameters, each whole on the rank that `owners` gives for it, in that order."""
        ranked = sorted(zip(owners, self.slots, strict=True), key=lambda pair: pair[0])
        slots = lay_out((slot.name, slot.shape) for _, slot in ranked)
        return replace(self, slots=slots, owners=tuple(owner for owner, _ in ranked))


Selector = Callable[[str, nn.Parameter], bool]
ParamGroups = Sequence[tuple[Selector, dict[str, Any]]]
_Kind = tuple[bool, int | None, torch.dtype, bool]


def partition(
    model: nn.Module,
    world_size: int,
    units: list[str] | None = None,
    param_groups: ParamGroups = (),
    replicate: Selector | None = None,
    *,
    granule: int = 1,
) -> list[FlatLayout]:
    """Plans the flats of `model` for `world_size` ranks, the root unit's first; options are as `Engine` takes them.

    A parameter that is reachable under several names counts once. A shard has a multiple of `granule` elements.

    Raises:
        TypeError: `model` is not a module.
        ValueError: N < 1, a model without parameters, or a unit that is not a module of it.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}, not a torch.nn.Module: pass the module to be trained")
    if isinstance(world_size, bool) or not isinstance(world_size, int) or world_size < 1:
        raise ValueError(f"world size is {world_size!r}: it must be a whole number of ranks, 1 or more")
    if next(model.parameters(), None) is None:
        raise ValueError(f"{type(model).__name__} has no parameters: there is nothing to shard or to train")
    flats = []
    for unit, members in _members(model, find_units(model) if units is None else units).items():
        kinds: dict[_Kind, list[tuple[str, nn.Parameter]]] = {}
        for name, parameter in members:
            kinds.setdefault(_kind(name, parameter, param_groups, replicate), []).append((name, parameter))
        # The same order on every rank, whatever order their modules were built in.
        for kind in sorted(kinds, key=str):
            frozen, group, dtype, replicated = kind
            flat = unit + _suffix(kind, several_dtypes=len({dtype for _, _, dtype, _ in kinds}) > 1)
            slots = lay_out((name, parameter.shape) for name, parameter in kinds[kind])
            flats.append(FlatLayout(flat, unit, dtype, frozen, slots, world_size, group, replicated, granule))
    return flats


def find_units(model: nn.Module) -> list[str]:
    """Names of the modules that travel as one: the blocks of a repeated structure.

    On each path from the root the first `ModuleList` or `Sequential` is taken; where all its children are such
    containers of one class, each holding modules of a single class, it is a list of lists, and the search goes one
    level down. Its children that hold parameters are the units. Nothing below a unit is searched: the experts inside
    a block travel with their block.
    """
    found: dict[nn.Module, str] = {}
    for name, module in _blocks(model, ""):
        if next(module.parameters(), None) is not None:
            found.setdefault(module, name)  # a list may have a second name, which brings no other blocks
    within = {part for block in found for part in block.modules() if part is not block}
    return [name for block, name in found.items() if block not in within]


def has_forward(module: nn.Module) -> bool:
    """Whether a module can be called; of a `ModuleList` or a `ModuleDict` only the parts are."""
    return type(module).forward is not nn.Module.forward


def _blocks(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    children = [(f"{name}.{child_name}".lstrip("."), child) for child_name, child in module.named_children()]
    # The first list on a path holds the blocks; a list inside a block (experts, heads) belongs to the block.
    if isinstance(module, _CONTAINERS) and not _is_list_of_lists(module):
        yield from children
    else:
        for child_name, child in children:
            yield from _blocks(child, child_name)


def _is_list_of_lists(container: nn.Module) -> bool:
    # Lists of one class alone: a list that mixes stages and blocks is taken as it is.
    children = list(container.children())
    return (
        len({type(child) for child in children}) == 1
        and isinstance(children[0], _CONTAINERS)
        and all(len({type(grandchild) for grandchild in child.children()}) == 1 for child in children)
    )


def _members(model: nn.Module, units: list[str]) -> dict[str, list[tuple[str, nn.Parameter]]]:
    """The parameters of each unit; the root unit takes those of no unit, and those that units share."""
    modules = dict(model.named_modules(remove_duplicate=False))
    for unit in units:
        if unit not in modules or not unit:
            raise ValueError(f"unit {unit!r} is not a module of {type(model).__name__}: name one of its submodules")
    owners: dict[int, set[str]] = {}
    for _, parameter, inside in places(model, units):
        if len(inside) > 1:
            raise ValueError(f"units {inside[0]!r} and {inside[1]!r} lie inside one another: keep one of them")
        # By identity, because a tied weight has several names and may be reached through several units.
        owners.setdefault(id(parameter), set()).add(inside[0] if inside else ROOT)
    members: dict[str, list[tuple[str, nn.Parameter]]] = {unit: [] for unit in [ROOT, *units]}
    for name, parameter in model.named_parameters():
        users = owners[id(parameter)]
        # What units share cannot travel with one of them: the other would find it released.
        members[users.pop() if len(users) == 1 else ROOT].append((name, parameter))
    return members


def places(model: nn.Module, units: Sequence[str]) -> Iterator[tuple[str, nn.Parameter, list[str]]]:
    """Each name of each parameter, and the units on its path: by their modules, because a unit may have other names."""
    modules, homes = dict(model.named_modules(remove_duplicate=False)), dict[nn.Module, str]()
    for unit in units:
        homes.setdefault(modules[unit], unit)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        path = map(modules.__getitem__, accumulate(name.split(".")[:-1], "{}.{}".format))
        yield name, parameter, [homes[module] for module in path if module in homes]


def lay_out(members: Iterable[tuple[str, torch.Size]]) -> tuple[Slot, ...]:
    """The places of parameters, of these names and shapes, that are laid end to end."""
    slots: list[Slot] = []
    for name, shape in members:
        slots.append(Slot(name, shape, slots[-1].stop if slots else 0))
    return tuple(slots)


def groups_of(members: Iterable[tuple[int | None, nn.Parameter]], param_groups: ParamGroups) -> list[dict[str, Any]]:
    """An optimizer's groups: what each of `param_groups` claims, by its number, and last what none claims."""
    groups: list[dict[str, Any]] = [{**keywords, "params": []} for _, keywords in param_groups] + [{"params": []}]
    for number, parameter in members:
        groups[-1 if number is None else number]["params"].append(parameter)
    return [group for group in groups if group["params"]]


def _kind(name: str, parameter: nn.Parameter, param_groups: ParamGroups, replicate: Selector | None) -> _Kind:
    replicated = replicate is not None and bool(replicate(name, parameter))
    # Frozen first: no test of a group may bring a frozen parameter to an optimizer.
    if not parameter.requires_grad:
        return True, None, parameter.dtype, replicated
    claims = (number for number, (selects, _) in enumerate(param_groups) if selects(name, parameter))
    return False, next(claims, None), parameter.dtype, replicated


def _suffix(kind: _Kind, several_dtypes: bool) -> str:
    frozen, group, dtype, replicated = kind
    words = ["replicated"] * replicated + ["frozen"] * frozen + [f"group {group}"] * (group is not None)
    words += [str(dtype).removeprefix("torch.")] * several_dtypes
    return "".join(f" {word}" for word in words)
