"""What autograd will do for a loss, read from its graph before it runs; and what gradients will come back through."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode_temporarily
from torch.utils.checkpoint import _CachedTorchDispatchMode, _CachingTorchDispatchMode

_SELECTIVE = (_CachingTorchDispatchMode, _CachedTorchDispatchMode)  # in a forward, and in its recomputation


def parameters_behind(loss: torch.Tensor) -> set[int]:
    """The ids of the leaf tensors whose gradients `loss.backward()` computes.

    Raises:
        TypeError: the loss is no tensor.
        ValueError: it is more than one number.
        RuntimeError: it needs no gradient, or reentrant activation checkpointing took part in it.
    """
    if not isinstance(loss, torch.Tensor):
        raise TypeError(f"the loss is a {type(loss).__name__}: pass a tensor of one element, such as outputs.loss")
    if loss.numel() != 1:
        raise ValueError(f"the loss has shape {tuple(loss.shape)}: reduce it to one number, such as loss.mean()")
    if not loss.requires_grad:
        raise RuntimeError("the loss needs no gradient: compute it outside no_grad, from what engine.model returns")
    found = set()
    for node in nodes_behind(loss):
        # By name: torch does not export the classes of its nodes.
        kind = type(node).__name__
        if kind == "AccumulateGrad":
            found.add(id(node.variable))
        elif kind == "CheckpointFunctionBackward":  # runs backward within backward, where nothing can be awaited
            raise RuntimeError("reentrant activation checkpointing: call checkpoint(..., use_reentrant=False) instead")
    return found


def numbers_behind(loss: torch.Tensor) -> set[int]:
    """The numbers (see `number_of`) of all operations that `loss.backward()` runs backwards."""
    return {node._sequence_nr() for node in nodes_behind(loss)}  # noqa: SLF001  (it has no other name)


def number_of(tensor: torch.Tensor) -> int:
    """The number of the operation that made a tensor, which no other of this process has; -1 for a leaf."""
    return -1 if tensor.grad_fn is None else tensor.grad_fn._sequence_nr()  # noqa: SLF001


def nodes_behind(tensor: torch.Tensor) -> Iterator[Any]:
    """The nodes of the graph by which a tensor that needs a gradient was computed."""
    # A list and not a recursion: the graph of a deep model is deeper than Python's stack.
    seen, waiting = set(), [torch.autograd.graph.get_gradient_edge(tensor).node]
    while waiting:
        node: Any = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        waiting.extend(following for following, _ in node.next_functions)


def parameters_to_come(parameters: Iterable[nn.Parameter]) -> set[int]:
    """The ids of those of the `parameters` for which the backward that is running now brings gradients."""
    found = set()
    # Released parameters are asked here, too: what they have no numbers for is the model's forward, not the graph.
    with torch.enable_grad(), torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001  (as torch.Tensor's own does)
        for parameter in parameters:
            # Within torch.func nothing depends on a parameter itself.
            used = parameter.view_as(parameter).grad_fn if parameter.requires_grad else None
            if used is not None and _will_run(used.next_functions[0][0]):
                found.add(id(parameter))
    return found


def _will_run(node: Any) -> bool:
    try:
        return torch._C._will_engine_execute_node(node)  # noqa: SLF001  (as torch's own)
    except RuntimeError:  # `autograd.grad` is asked for this parameter's gradient, and leaves `.grad` as it is
        return False


# The number of the backward that is running in this thread, which no other of this process has; -1 for none.
running_backward: Callable[[], int] = torch._C._current_graph_task_id  # noqa: SLF001  (it has no other name)


def is_running() -> bool:
    """Whether autograd is at work in this thread: a forward that runs now is a recomputation."""
    return running_backward() != -1  # torch.utils.checkpoint asks the same


def beside_checkpointing(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, hidden from selective checkpointing, which counts operations on its way through a forward.

    It finds their results by these counts in the recomputation, where an engine does not do the same as in the forward.
    """

    @wraps(function)
    def call(*arguments: Any) -> Any:
        modes = _get_current_dispatch_mode_stack()  # usually none
        if not (modes and any(isinstance(mode, _SELECTIVE) for mode in modes)):
            return function(*arguments)
        with _pop_mode_temporarily():
            return call(*arguments)  # checkpoints may lie in one another, and other modes within them

    return call


def tensors_needing_gradient(values: Any) -> list[torch.Tensor]:
    """The tensors in a nest of tuples, lists, dicts and dataclasses through which a gradient will come back.

    Where there is none, those in the attributes of other objects: a model may wrap what its blocks pass on. Only then,
    because objects that travel beside the tensors (caches, configurations) hold much that belongs to others.
    """
    if isinstance(values, torch.Tensor):  # as mostly: nothing to search
        return [values] if values.requires_grad else []
    return list(_needing_gradient(values, into_objects=0)) or list(_needing_gradient(values, into_objects=3))


def _needing_gradient(values: Any, into_objects: int) -> Iterator[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        if values.requires_grad:
            yield values
        return
    if isinstance(values, Mapping):
        parts = list(values.values())
    elif isinstance(values, (tuple, list)):
        parts = list(values)
    elif is_dataclass(values):
        parts = [getattr(values, field.name) for field in fields(values)]
    else:
        parts = _attributes(values) if into_objects else []
        into_objects -= 1  # objects may hold one another
    for part in parts:
        yield from _needing_gradient(part, into_objects)


def _attributes(thing: Any) -> list[Any]:
    if isinstance(thing, (nn.Module, type)):
        return []
    slots = [getattr(thing, name, None) for name in getattr(type(thing), "__slots__", ())]
    return [*getattr(thing, "__dict__", {}).values(), *slots]
