"""Gradients that the engine holds: what would use them behind its back is refused, where it would do nothing.

After a backward the gradients lie in flats, as means over ranks and often only in part, and no `parameter.grad` has
them. torch passes by a parameter without a gradient without a word, so that clipping, edits of gradients and an
optimizer of one's own would do nothing. `Taken` stands in `.grad` until the step and answers whatever is done with it.
"""

import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import torch
from torch._guards import CompileContext
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from zerolab.engines.engine import Engine

INSTEAD = (
    "see and change mean gradients in engine.gradients(), clip by engine.clip_grad_norm_, update by engine.step(), "
    "drop gradients by engine.zero_grad(); what a backward is to change in a gradient goes into a hook of the parameter"
)
_ADDITIONS = torch.ops.aten.add_.Tensor, torch.ops.aten.add.Tensor


class Taken(torch.Tensor):
    """In place of a gradient that the engine has taken: no memory, and an error for whoever uses it."""

    sentence: str
    has_yielded = False
    parameter: "Callable[[], torch.Tensor | None]" = staticmethod(lambda: None)  # known if its place may be taken

    def __new__(cls, name: str, place: torch.Tensor, dtype: torch.dtype) -> Self:
        """Stands for the gradient of the parameter `name`, of this dtype, which went to `place`."""
        # As large as the parameter, or torch would not let it stand there; without any storage.
        make: Any = torch.Tensor._make_wrapper_subclass  # noqa: SLF001  (DTensor, too)
        made: Self = make(cls, place.shape, dtype=dtype, device=place.device)
        made.sentence = f"the gradient of {name!r} is in the engine, and .grad is not used: {INSTEAD}"
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuses what Python does with it."""
        # A compiler looks at the gradients of what it compiles, and uses none.
        if CompileContext.try_get() is not None:
            return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        raise RuntimeError(_sentence(args))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Refuses what autograd does with it, or yields: a loop's own backward adds to `.grad`."""
        taken = args[0]
        parameter = taken.parameter() if isinstance(taken, Taken) else None
        if parameter is None or func not in _ADDITIONS:
            raise RuntimeError(_sentence(args))
        # What has been taken lies in the flat, where the engine adds this to it. Others may hold the same tensor.
        parameter.grad, taken.has_yielded = args[1].clone(), True
        return parameter.grad


def _sentence(arguments: Any) -> str:
    return next((argument.sentence for argument in tree_leaves(arguments) if isinstance(argument, Taken)), "")


class OwnUpdate:
    """`with` it the engine's optimizer updates; without, one of the engine's parameters would move nothing: refused."""

    def __init__(self, engine: "Engine") -> None:
        self.names = {id(parameter): slot.name for flat in engine.trainable for slot, parameter in flat.members()}
        self.is_under_way = False
        _updates.update(dict.fromkeys(self.names, self))
        add = partial(OwnUpdate._add_group, weakref.proxy(self), weakref.ref(engine.optimizer))
        engine.optimizer.add_param_group = add  # type: ignore[method-assign]

    def __enter__(self) -> None:
        self.is_under_way = True

    def __exit__(self, *_: object) -> None:
        self.is_under_way = False

    def _add_group(self, optimizer: "weakref.ref[torch.optim.Optimizer]", param_group: dict[str, Any]) -> None:
        known: Any = optimizer()
        if self.is_under_way:  # an optimizer may make its groups anew within its step
            return type(known).add_param_group(known, param_group)  # type: ignore[no-any-return]
        raise RuntimeError(
            "an engine's optimizer takes no further parameters, for no backward would average their gradients over "
            "ranks: make them part of the model before making the engine, which takes groups as param_groups="
        )


# Of all engines of the process, by the id of each parameter that they train; they go with the engine, as ids must.
_updates: "weakref.WeakValueDictionary[int, OwnUpdate]" = weakref.WeakValueDictionary()


def _check_update(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if (own := _updates.get(id(parameter))) and not own.is_under_way:
                what = f"{own.names[id(parameter)]!r} is trained by an engine, another optimizer has no gradient of it"
                raise RuntimeError(f"{what}: {INSTEAD}")


# Once, for all engines: a hook for each would cost every update a call for each engine that is still alive.
register_optimizer_step_pre_hook(_check_update)
