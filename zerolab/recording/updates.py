"""Hears of the updates of all optimizers, in all threads; and what optimizers keep."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from zerolab.recording.c10d import tensors_in

Before = Callable[[Any, Any, Any], tuple[Any, Any] | None]
After = Callable[[Any, Any, Any], None]

_heard: tuple[tuple[Before | None, After | None], ...] = ()
_hooks = ExitStack()


@contextmanager
def hearing_updates(*, before: Before | None = None, after: After | None = None) -> Iterator[None]:
    """Calls `before` and `after` around each update, as torch's hooks for all optimizers would.

    Torch goes through its hooks as it calls them, and fails if another thread adds or removes one meanwhile, as a
    recording does that begins or ends there. So torch has one of ours, from the outermost block to its end.
    """
    global _heard  # noqa: PLW0603  # a tuple made anew, through which a thread may be going
    if not _heard:
        _hooks.callback(register_optimizer_step_pre_hook(_before).remove)
        _hooks.callback(register_optimizer_step_post_hook(_after).remove)
    mine = before, after
    _heard += (mine,)
    try:
        yield
    finally:
        _heard = tuple(each for each in _heard if each is not mine)
        if not _heard:
            _hooks.close()


def _before(optimizer: Any, args: Any, keywords: Any) -> tuple[Any, Any] | None:
    given = args, keywords
    for before, _ in _heard:
        if before is not None:
            given = before(optimizer, *given) or given
    return given


def _after(optimizer: Any, args: Any, keywords: Any) -> None:
    for _, after in _heard:
        if after is not None:
            after(optimizer, args, keywords)


def tensors_of(optimizer: torch.optim.Optimizer) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Each tensor of an optimizer's state and the parameter that it is for; LBFGS keeps lists of them."""
    for parameter, state in optimizer.state.items():
        for value in state.values():
            for tensor in tensors_in(value):
                yield parameter, tensor
