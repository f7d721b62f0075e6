"""Modules that other systems put around a model, or into it: what the model is, what travels as one, and for whom."""

import re
import sys
import weakref
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import chain, count
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from zerolab.engines.partition import FlatLayout, Slot, find_units

# The attribute in which each kind of wrapper has what it wraps. By name: importing them all takes seconds.
DEEPSPEED = "deepspeed.runtime.engine", "DeepSpeedEngine"
_INSIDE = {
    ("torch.nn.parallel.distributed", "DistributedDataParallel"): "module",
    ("torch.distributed.fsdp", "FullyShardedDataParallel"): "_fsdp_wrapped_module",
    ("torch._dynamo.eval_frame", "OptimizedModule"): "_orig_mod",
    DEEPSPEED: "module",
}

_PREFIXES = re.compile(r"\b_(fsdp_wrapped_module|orig_mod|checkpoint_wrapped_module)\.")

COMPILED_EAGER = (
    "this model is compiled, but while memory is recorded torch executes it uncompiled, operation by operation: bytes "
    "and times are those of the uncompiled model, so record with times_only to see the compiled one's times"
)
COMPILED_HIDDEN = "this model is compiled: what happens within its compiled parts is not recorded"


def unwrapped(module: nn.Module) -> nn.Module:
    """The model within its wrappers, whose names for its parts are those that its author gave them."""
    while inside := next((name for kind, name in _INSIDE.items() if is_a(module, *kind)), None):
        module = getattr(module, inside)
    return module


def plain(name: str) -> str:
    """A name without what wrappers inside a model put into it."""
    return _PREFIXES.sub("", name)


def prefix_of(model: nn.Module, names: Collection[str]) -> str:
    """What is put before the names of a model's parameters, where the models so far have these `names`.

    Nothing for the first model, else its class, numbered from the second model of one class on.
    """
    if not names:
        return ""
    # `fully_shard` and `replicate` give a module a class of their own, which inherits from its author's.
    kinds = (kind for kind in type(unwrapped(model)).__mro__ if not kind.__module__.startswith("torch.distributed."))
    kind = next(kinds).__name__
    prefixes = (f"{kind}{number}." for number in chain([""], count(2)))
    return next(prefix for prefix in prefixes if not any(name.startswith(prefix) for name in names))


def units_of(model: nn.Module) -> list[str]:
    """Names of the modules that travel as one: those that FSDP2 shards individually; in other models, the blocks.

    In a model without a list of blocks, they are its children that have parameters.
    """
    fsdp = "torch.distributed.fsdp", "FSDPModule"
    sharded = [name for name, part in model.named_modules() if name and is_a(part, *fsdp)]
    # Where one lies in another, the inner one has parameters of its own, and the outer one's count as the root's.
    inner = [name for name in sharded if not any(other.startswith(f"{name}.") for other in sharded)]
    children = [name for name, part in model.named_children() if next(part.parameters(), None) is not None]
    return inner or find_units(model) or children


def is_sharded(module: nn.Module) -> bool:
    """Whether FSDP1, FSDP2 or DeepSpeed's stage 3 has sharded the module or a part of it."""
    kinds = [("torch.distributed.fsdp", name) for name in ("FullyShardedDataParallel", "FSDPModule")]
    sharded = (shard_of(each) is not None for each in module.parameters())
    return any(sharded) or any(is_a(part, *kind) for part in module.modules() for kind in kinds)


def shard_of(parameter: torch.Tensor) -> torch.Tensor | None:
    """What a rank keeps under DeepSpeed's stage 3 of a parameter, whose own storage is empty outside its use."""
    shard: torch.Tensor | None = getattr(parameter, "ds_tensor", None)
    return shard


def deepspeed_in(module: nn.Module) -> list[nn.Module]:
    """Those of DeepSpeed's engines that train the module or a part of it."""
    return [part for part in module.modules() if is_a(part, *DEEPSPEED)]


def buckets_of(engine: Any) -> Iterable[torch.Tensor]:
    """The buffers through which an engine of DeepSpeed's sends gradients; it may keep them afterwards."""
    buffers = (bucket.buffer for bucket in getattr(engine.optimizer, "ipg_buckets", {}).values())
    # With overlap there are two buffers, filled in turn.
    every = chain(*(buffer if isinstance(buffer, list) else [buffer] for buffer in buffers))
    return (buffer for buffer in every if buffer is not None)


def is_replicated(module: nn.Module) -> bool:
    """Whether torch's DDP reduces gradients of the module or of a part of it."""
    kinds = (
        ("torch.nn.parallel.distributed", "DistributedDataParallel"),
        ("torch.distributed._composable.replicate", "DDP"),
    )
    return any(is_a(part, *kind) for part in module.modules() for kind in kinds)


def fsdp_params(model: nn.Module) -> Iterable[Any]:
    """FSDP2's own record of every parameter that it shards."""
    if "torch.distributed.fsdp" not in sys.modules:
        return ()
    from zerolab.engines import fsdp2

    return fsdp2.fsdp_params(model)


Part = tuple[str, weakref.ref[nn.Module], dict[str, weakref.ref[Any]]]
"""A module of a model: the prefix of its parameters' names, the module, and FSDP2's records of its parameters."""


def parts_of(model: nn.Module, places: Mapping[Any, tuple[str, int]]) -> dict[str | None, list[Part]]:
    """The modules of a model as they are now, by the flats in which they have parameters; all of them under None."""
    records: dict[int, dict[str, weakref.ref[Any]]] = {}
    for each in fsdp_params(model):
        info = each._module_info
        records.setdefault(id(info.module), {})[info.param_name] = weakref.ref(each)
    found: dict[str | None, list[Part]] = {None: []}
    for name, module in model.named_modules():
        prefix = f"{name}." if name else ""
        names = module._parameters.keys()  # a scripted module's cannot be gone through by itself
        flats = {places[prefix + key][0] for key in names if prefix + key in places}
        for flat in (None, *flats):
            found.setdefault(flat, []).append((prefix, weakref.ref(module), records.get(id(module), {})))
    return found


def has_shapes(module: nn.Module) -> bool:
    """Whether its parameters have shapes, which those of a lazy module get in its first forward."""
    return not any(isinstance(each, UninitializedParameter) for each in module.parameters())


def is_compiled(module: nn.Module) -> bool:
    """Whether `torch.compile` has made something of the module or of a part of it."""
    compiled = "torch._dynamo.eval_frame", "OptimizedModule"
    return any(is_a(part, *compiled) or part._compiled_call_impl is not None for part in module.modules())


# What FSDP1 and DeepSpeed's stage 3 note of a parameter that shows a rank its part, or nothing.
_WHOLE_SHAPES = ("_unpadded_unsharded_size", "ds_shape")


def is_part(parameter: nn.Parameter) -> bool:
    """Whether a parameter shows a rank its part of something of which nobody tells where it lies."""
    # The last is the mark of FSDP1's views with `use_orig_params`.
    return any(hasattr(parameter, name) for name in (*_WHOLE_SHAPES, "_fsdp_flattened"))


def whole_shapes(model: nn.Module) -> dict[int, Any]:
    """The shapes that parameters have on all ranks together, by id, where a rank is shown its part, or nothing."""
    each_in_turn = ((id(each), getattr(each, name, None)) for each in model.parameters() for name in _WHOLE_SHAPES)
    noted = {key: shape for key, shape in each_in_turn if shape is not None}
    if "torch.distributed.fsdp" in sys.modules:
        from zerolab.engines import fsdp1

        for flat in (handle.flat_param for _, handle in fsdp1.flat_params(model)):
            noted |= {id(each): shape for each, shape in zip(flat._params or (), flat._shapes, strict=False)}
    return noted


def whole(
    layout: FlatLayout,
    parameters: Mapping[str, nn.Parameter],
    shapes: Mapping[int, Any],
    prefix: str,
    others: Collection[int],
) -> FlatLayout:
    """The layout with these `shapes` of whole parameters in place of their own, and `prefix` before its names.

    Without those whose ids are among the `others`, which are another model's, too.
    """
    slots, start = [], 0
    for slot in layout.slots:
        if id(parameters[slot.name]) in others:
            continue
        slots.append(Slot(slot.name, shapes.get(id(parameters[slot.name]), slot.shape), start))
        start = slots[-1].stop
    return replace(layout, name=f"{prefix}{layout.name}", unit=f"{prefix}{layout.unit}", slots=tuple(slots))


def is_a(thing: object, home: str, name: str) -> bool:
    """Whether something is of this class; not if nobody has imported the class."""
    kind: Any = getattr(sys.modules.get(home), name, None)
    return kind is not None and isinstance(thing, kind)


def local_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """What a tensor stands for on this rank: itself, or a DTensor's local part; None for tensors of other kinds."""
    mine = getattr(tensor, "_local_tensor", tensor)
    return mine if type(mine) in (torch.Tensor, nn.Parameter) else None
