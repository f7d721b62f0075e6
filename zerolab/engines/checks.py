"""What an engine refuses before it starts, each with one sentence."""

import inspect
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import UninitializedParameter

WHOLE_TENSOR_OPTIMIZERS = {
    "LBFGS": "it searches along one direction for all parameters together",
    "Adafactor": "it keeps statistics by row and column of each matrix",
    "Muon": "it orthogonalises each whole matrix",
    "SparseAdam": "it needs sparse gradients",
}


def check_optimizer(optimizer_cls: type, keywords: dict[str, Any]) -> None:
    """Refuses what cannot update a flat element by element.

    Raises:
        TypeError: not an optimizer's class, or a keyword that it does not take.
        ValueError: an optimizer that needs whole tensors.
    """
    if not (isinstance(optimizer_cls, type) and issubclass(optimizer_cls, torch.optim.Optimizer)):
        raise TypeError(f"optimizer_cls is {optimizer_cls!r}: pass an optimizer's class, such as torch.optim.AdamW")
    for name, reason in WHOLE_TENSOR_OPTIMIZERS.items():
        if name in {base.__name__ for base in optimizer_cls.__mro__}:
            raise ValueError(f"{name} cannot run on shards, because {reason}: use an element-wise one, such as AdamW")
    try:
        inspect.signature(optimizer_cls).bind([], **keywords)
    except TypeError as error:
        raise TypeError(f"{optimizer_cls.__name__} does not take {sorted(keywords)}: {error}") from None


def check_parameters(model: nn.Module) -> None:
    """Refuses parameters that cannot be laid into flats.

    Raises:
        TypeError: `model` is no module.
        ValueError: a parameter has no shape or no values yet, belongs to an engine, or shares another one's memory.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is {model!r}: pass a torch.nn.Module")
    names: dict[Any, str] = {}
    for name, parameter in model.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise ValueError(  # noqa: TRY004  (it is the right type, too early)
                f"{name!r} has no shape yet: pass a batch through the model before making the engine"
            )
        if parameter.device.type == "meta":
            raise ValueError(f"{name!r} is on the meta device and has no values: call model.to_empty, then initialise")
        if getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise ValueError(f"{name!r} belongs to an engine already (or has a gradient hook): make a new model")
        memory = parameter.untyped_storage()._cdata, parameter.storage_offset()  # noqa: SLF001  (fakes have no pointer)
        if parameter.numel() and names.setdefault(memory, name) != name:
            raise ValueError(f"{name!r} and {names[memory]!r} share memory but are two parameters: tie them as one")


def check_dtype(model: nn.Module, dtype: torch.dtype | None) -> None:
    """Raises ValueError for a module that cannot run with its parameters in `dtype`, because its buffers stay fp32."""
    for name, module in model.named_modules():
        if dtype is not None and isinstance(module, _BatchNorm) and module.running_mean is not None:
            raise ValueError(
                f"{name!r} is a {type(module).__name__}, whose statistics stay in fp32 and whose parameters would not: "
                "use precision='fp32' and torch.autocast, or a GroupNorm"
            )


def check_same_on_all_ranks(numbers: list[int], what: str) -> None:
    """Raises ValueError on every rank unless all ranks bring the same numbers; a collective of a few bytes."""
    mine = torch.tensor([len(numbers), hash(tuple(numbers)), *numbers[:1]], device=_device())
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    if any(not torch.equal(mine, other) for other in everyone):
        shown = ", ".join(f"rank {rank}: {int(other[-1])}" for rank, other in enumerate(everyone))
        raise ValueError(f"{what} differ between ranks ({shown}): give every rank the same")


def check_state(state: dict[str, torch.Tensor], shapes: dict[str, torch.Size]) -> None:
    """Raises ValueError unless `state` has exactly the keys and shapes of the model."""
    if different := sorted(shapes.keys() ^ state.keys()):
        where = "the model" if different[0] in shapes else "the state"
        raise ValueError(f"{different[0]!r} is only in {where}: load a state that was saved from the same model")
    for key, shape in shapes.items():
        if state[key].shape != shape:
            found = tuple(state[key].shape)
            raise ValueError(
                f"{key!r} is {found} in the state and {tuple(shape)} in the model: load the same model's state"
            )


def rows(inputs: tuple[Any, ...], keywords: dict[str, Any]) -> int:
    """The number of rows of a batch: the first dimension of its first tensor; -1 if there is none."""
    tensors = (value for value in [*inputs, *keywords.values()] if isinstance(value, torch.Tensor) and value.dim())
    return next((len(tensor) for tensor in tensors), -1)


def _device() -> torch.device:
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
