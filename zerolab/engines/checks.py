"""What an engine refuses before it starts, each in one sentence."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import UninitializedParameter

from zerolab.engines.agreement import is_simulated
from zerolab.engines.declared import granule_of
from zerolab.engines.flat import Flat
from zerolab.engines.partition import FlatLayout, has_forward, places
from zerolab.names import ROOT

# By name, with the reason; the others are found by a trial (`_is_element_wise`).
WHOLE_TENSOR_OPTIMIZERS = {
    "LBFGS": "it searches along one direction for all parameters together",
    "Adafactor": "it keeps statistics by row and column of each matrix",
    "Muon": "it orthogonalises each whole matrix, and flats are cut within them",
    "SparseAdam": "it needs sparse gradients",
}


def check_optimizer(optimizer_cls: type, keywords: dict[str, Any]) -> None:
    """Raises TypeError for what is no optimizer's class or a keyword of none, ValueError if it needs whole tensors."""
    if isinstance(optimizer_cls, torch.optim.Optimizer):
        name = type(optimizer_cls).__name__
        made = f"optimizer_cls is an optimizer that is made already ({name}), and an engine makes its own"
        raise TypeError(f"{made}: pass the class and its keywords, such as {name}, lr=1e-3")
    if not (isinstance(optimizer_cls, type) and issubclass(optimizer_cls, torch.optim.Optimizer)):
        raise TypeError(f"optimizer_cls is {optimizer_cls!r}: pass an optimizer's class, such as torch.optim.AdamW")
    for name in (base.__name__ for base in optimizer_cls.__mro__):  # a subclass of LBFGS needs whole tensors too
        if reason := WHOLE_TENSOR_OPTIMIZERS.get(name):
            beside = ', and ENGINES["muon-owners"], which runs Muon beside it' if name == "Muon" else ""
            remedy = f"use an element-wise one, such as AdamW{beside}"
            raise ValueError(f"{name} cannot run on shards, because {reason}: {remedy}")
    for option in ("release_after_forward", "prefetch"):  # otherwise called an unknown keyword of the optimizer
        if option in keywords:
            raise TypeError(f"{option}={keywords[option]!r} is for Zero3, which alone releases units: leave it out")
    try:
        # Here, because the optimizer would refuse it only after the ranks have exchanged parameters.
        inspect.signature(optimizer_cls).bind([], **keywords)
    except TypeError as error:
        raise TypeError(f"{optimizer_cls.__name__} does not take {sorted(keywords)}: {error}") from None
    # One that rounds in blocks has shards that begin with a block.
    if granule_of(optimizer_cls) == 1 and not _is_element_wise(optimizer_cls, keywords):
        raise ValueError(
            f"{optimizer_cls.__name__} updates a matrix differently from its rows, so it cannot run on shards: "
            "use an element-wise one, such as AdamW"
        )


def _is_element_wise(optimizer_cls: type, keywords: dict[str, Any]) -> bool:
    """Tries it: two updates of a matrix must equal those of its rows, each by an optimizer of its own."""
    # All values differ and none is zero, so that a rule by row, column or norm shows. In fp64 a small one does, too.
    matrix = torch.arange(1.0, 9, dtype=torch.float64).view(2, 4)
    gradient = torch.arange(8, dtype=torch.float64).sub(3.3).view(2, 4)
    try:
        whole = _moved(optimizer_cls, keywords, matrix, gradient)
        rows = [_moved(optimizer_cls, keywords, *pair) for pair in zip(matrix, gradient, strict=True)]
        return torch.allclose(whole, torch.stack(rows), rtol=1e-4, atol=1e-13, equal_nan=True)
    except Exception:  # noqa: BLE001  (what cannot run here, such as a fused or a fake update, is not judged)
        return True


def _moved(optimizer_cls: type, keywords: dict[str, Any], start: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """By how much two updates with the same gradient move a parameter."""
    parameter = nn.Parameter(start.clone())
    optimizer = optimizer_cls([parameter], **keywords)
    for group in optimizer.param_groups:
        group["lr"] = group.get("lr") or 0.1  # a schedule may begin at zero, where nothing would move
    update: Any = getattr(optimizer_cls, "step")  # noqa: B009  (a plain type has none)
    update = getattr(update, "__wrapped__", update)  # without the hooks of a recorder
    # Twice, because a first update often hides what the state does to the second.
    for _ in range(2):
        parameter.grad = gradient.clone()
        update(optimizer)
    return parameter.detach() - start


def check_options(
    optimizer_cls: type, units: Any, param_groups: Any, reduce_dtype: Any = None, replicate: Any = None
) -> None:
    """Raises TypeError for options of other types than `Engine` documents."""
    if isinstance(units, str):
        raise TypeError(f"units is the string {units!r}: pass a list of module names, such as [{units!r}]")
    if not isinstance(units, list | tuple | None):
        raise TypeError(f"units is {units!r}: pass a list of module names, or None, which finds the blocks")
    if not (reduce_dtype is None or isinstance(reduce_dtype, torch.dtype)):
        raise TypeError(f"reduce_dtype is {reduce_dtype!r}: pass a torch dtype, such as torch.float32, or None")
    if reduce_dtype is not None and not (reduce_dtype.is_floating_point and reduce_dtype.itemsize > 1):
        impossible = f"reduce_dtype is {reduce_dtype}, in which no gradient can be added up"
        raise TypeError(f"{impossible}: pass torch.float32, or another floating-point type of two bytes or more")
    if not (replicate is None or callable(replicate)):
        raise TypeError(f"replicate is {replicate!r}: pass a test of a parameter's name and the parameter, or None")
    if not isinstance(param_groups, (list, tuple)):
        raise TypeError(f"param_groups is {param_groups!r}: pass a list of (test of name and parameter, keywords)")
    known = inspect.signature(optimizer_cls).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
    for group in param_groups:
        if not (isinstance(group, tuple) and len(group) == 2 and callable(group[0]) and isinstance(group[1], dict)):
            raise TypeError(f"a parameter group is {group!r}: pass pairs of (test of name and parameter, keywords)")
        if (unknown := sorted(group[1].keys() - known.keys())) and not takes_any:
            raise TypeError(f"{optimizer_cls.__name__} does not take {unknown[0]!r}, which a parameter group sets")


def check_values(optimizer_cls: type, options: Mapping[str, Any]) -> None:
    """Raises ValueError for values among these options that the optimizer would refuse, on the ranks only."""
    known = inspect.signature(optimizer_cls).parameters
    keywords = {name: value for name, value in options.items() if name in known}
    try:
        optimizer_cls([torch.zeros(1)], **keywords)
    except Exception as error:  # noqa: BLE001  (each optimizer has its own)
        raise ValueError(f"{optimizer_cls.__name__} refuses {keywords}: {error}") from None


def check_switches(**switches: Any) -> None:
    """Raises TypeError for an option that is neither True nor False."""
    for name, value in switches.items():
        if not isinstance(value, bool):  # "no" would count as True
            raise TypeError(f"{name} is {value!r}: pass True or False")


def check_prefetch(prefetch: int) -> None:
    """Raises ValueError for what is no number of units."""
    if isinstance(prefetch, bool) or not isinstance(prefetch, int) or prefetch < 0:
        raise ValueError(f"prefetch is {prefetch!r}: give a whole number of units, 0 or more")


def check_parameters(model: nn.Module) -> None:
    """Raises TypeError for what is no module, ValueError for parameters that cannot be laid into flats."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is {model!r}: pass a torch.nn.Module")
    for name, module in model.named_modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.max_norm is not None:
            raise ValueError(
                f"{name!r} is an {type(module).__name__} with max_norm={module.max_norm}, by which each rank would "
                "rescale the rows of its own batch alone: leave it out, and rescale all rows between steps"
            )
    named = dict(model.named_parameters())
    if named and not any(parameter.requires_grad for parameter in named.values()):
        raise ValueError(f"all {len(named)} parameters of {type(model).__name__} are frozen: nothing to train")
    for name, parameter in named.items():
        if isinstance(parameter, UninitializedParameter):
            raise ValueError(  # noqa: TRY004  (it is the right type, too early)
                f"{name!r} has no shape yet: pass a batch through the model before making the engine"
            )
        if parameter.device.type == "meta" and not is_simulated(dist.get_backend()):
            raise ValueError(
                f"{name!r} is on the meta device and has no values: take them from a file by from_file(model, path), "
                "or call model.to_empty, then initialise"
            )
        # Two engines on one model would each reduce the other's gradients.
        if getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise ValueError(f"{name!r} belongs to an engine already (or has a gradient hook): make a new model")
    _check_memory(model)


def _check_memory(model: nn.Module) -> None:
    """Raises ValueError for parameters that share memory with others, or with a buffer, all of it or a part."""
    parameters = dict(model.named_parameters())
    buffers = {name: each for name, each in model.named_buffers() if each.layout is torch.strided}
    places = sorted((*_place_of(each), name) for name, each in [*parameters.items(), *buffers.items()] if each.numel())
    reaching = (0, 0, 0, "")  # the one of those before that reaches furthest
    for storage, start, stop, name in places:
        other = reaching[3] if storage == reaching[0] and start < reaching[2] else ""
        # In a flat they would become two copies, and be trained separately.
        if name in parameters and other in parameters:
            raise ValueError(f"{name!r} and {other!r} share memory but are two parameters: tie them as one")
        buffer, trained = (name, other) if name in buffers else (other, name)
        if other and trained in parameters and parameters[trained].requires_grad:
            raise ValueError(
                f"the buffer {buffer!r} and {trained!r} share memory, which the engine would part, so that the buffer "
                "would not be trained: use the parameter itself, or make the buffer a copy"
            )
        if storage != reaching[0] or stop > reaching[2]:
            reaching = (storage, start, stop, name)


def _place_of(tensor: torch.Tensor) -> tuple[int, int, int]:
    """Its storage, and its bytes there, `[start, stop)`; if others may lie in its gaps, those of the first element."""
    start = int(tensor.storage_offset()) * tensor.itemsize
    numel = tensor.numel() if tensor.is_contiguous() else 1
    return tensor.untyped_storage()._cdata, start, start + numel * tensor.itemsize  # noqa: SLF001  (fakes have no pointer)


def check_unchanged(model: nn.Module, flats: Sequence[Flat], reached: set[int]) -> None:
    """Raises RuntimeError for a model that has changed since the engine was made; takes over what was written into it.

    `reached` are the ids of the tensors for which the next backward computes gradients.
    """
    others = reached.difference(id(parameter) for flat in flats for parameter in flat.parameters)
    # Usually none; they may be inputs or another model's parameters. Only if there are any is the model searched.
    for name, parameter in model.named_parameters() if others else ():
        if id(parameter) in others:
            raise RuntimeError(
                f"{name!r} was not there when the engine was made, and nothing would train it: change a model before "
                "making the engine, or make a new one"
            )
    for flat in flats:
        flat.take_over()
        for slot, parameter in flat.members() if flat.layout.frozen else ():
            if id(parameter) in reached:
                raise RuntimeError(f"{slot.name!r} was frozen when the engine was made: make a new engine to train it")


def check_dtype(model: nn.Module, dtype: torch.dtype | None) -> None:
    """Raises ValueError for a module that cannot run with its parameters in `dtype`, because its buffers stay fp32."""
    for name, module in model.named_modules():
        if dtype is not None and isinstance(module, _BatchNorm) and module.running_mean is not None:
            raise ValueError(
                f"{name!r} is a {type(module).__name__}, whose statistics stay in fp32 and whose parameters would not: "
                "use precision='fp32' and torch.autocast, or a GroupNorm"
            )


def check_fits(
    stage: str, model: nn.Module, units: Sequence[str], layouts: Sequence[FlatLayout], cannot: Sequence[str]
) -> None:
    """Raises ValueError for what another system cannot train: it would not name it, or would fail only later.

    It is said by `cannot`: some of "scalars", "integers" (and complex numbers), "strides", "containers" (among the
    units that it wraps), "dtypes", "dtypes of a unit", "ties" (between those units), and "repeats" (of one of them).
    """
    if "ties" in cannot:
        _check_memory(model)
        _check_ties(stage, model, units)
    _check_repeats(stage, model, units if "repeats" in cannot else ())
    if "dtypes of a unit" in cannot:
        _check_dtypes_of_units(stage, layouts)
    for name, parameter in model.named_parameters():
        if "scalars" in cannot and not parameter.dim():
            raise ValueError(f"{stage} cannot take {name!r}, which has no dimension: give it the shape (1,)")
        if "integers" in cannot and not parameter.is_floating_point():
            raise ValueError(f"{stage} cannot take {name!r}, which is {parameter.dtype}: train with a stage of ours")
        if "strides" in cannot and not parameter.is_contiguous():
            raise ValueError(f"{stage} cannot take {name!r}, which is not contiguous: make it a contiguous() copy")
    for unit in units if "containers" in cannot else ():
        module = model.get_submodule(unit)
        if not has_forward(module):
            kind = type(module).__name__
            raise ValueError(f"{stage} cannot gather {unit!r}, a {kind} without forward: name what is in it in units=")
    dtypes = sorted({str(parameter.dtype) for parameter in model.parameters() if parameter.requires_grad})
    if "dtypes" in cannot and len(dtypes) > 1:
        found = " and ".join(dtypes)
        raise ValueError(f"{stage} trains one dtype, and the model has {found}: convert it with model.to")


def _check_dtypes_of_units(stage: str, layouts: Sequence[FlatLayout]) -> None:
    """Raises ValueError for a unit in which parameters of several dtypes are trained."""
    dtypes: dict[str, torch.dtype] = {}
    for layout in layouts:
        if not layout.frozen and (other := dtypes.setdefault(layout.unit, layout.dtype)) != layout.dtype:
            raise ValueError(
                f"{stage} trains one dtype in a unit, and {layout.unit!r} has {other} and {layout.dtype}: convert one "
                "with to(), or name its module in units="
            )


def _check_repeats(stage: str, model: nn.Module, units: Sequence[str]) -> None:
    """Raises ValueError for a unit that is in several places: a wrapper takes its place in one of them alone."""
    wrapped, held = {model.get_submodule(unit) for unit in units}, dict[nn.Module, str]()
    for holder, module in model.named_modules():  # each once: what it holds is wrapped under its other names, too
        for name, part in module._modules.items():  # noqa: SLF001  (named_children leaves repeats out)
            place = f"{holder}.{name}".removeprefix(".")
            if part in wrapped and (other := held.setdefault(part, place)) != place:
                raise ValueError(
                    f"{stage} cannot wrap {other!r}, which is {place!r}, too: keep it in the root by units=[], or "
                    "train with fsdp2 or a stage of ours"
                )


def _check_ties(stage: str, model: nn.Module, units: Sequence[str]) -> None:
    """Raises ValueError for a parameter of modules in several units, each of which would train one of its own."""
    homes: dict[nn.Parameter, str] = {}
    for place, parameter, inside in places(model, units):
        home = inside[0] if inside else ROOT
        if (other := homes.setdefault(parameter, home)) != home:
            raise ValueError(
                f"{stage} cannot keep {place!r} tied, which {other!r} and {home!r} both use: name one unit in "
                "units= that has both in it, or train with a stage of ours"
            )
