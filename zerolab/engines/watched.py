"""What an engine makes of a module's parameters, so that nothing is read or written in vain.

A parameter is a view of its flat, and where the optimizer updates something else than that flat, a write into the
parameter would be undone. torch counts writes; those that go through `.data` it does not count, so `Watched` does.
Between two uses under zero3 a parameter has no numbers. An empty tensor in its place would look like one: its sum is
0, its norm is 0. So it is `Released`, and says so. A parameter changes its class in place, as torch's own lazy
parameters do: it stays the same object to the optimizer, to hooks and to whoever ties it.
"""

from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

_data: Any = torch.Tensor.data
set_data = _data.__set__  # past `Watched`, which counts

# What can be told without numbers. `is_complex` is not among it, although it could be: torch.distributed asks for
# nothing else before it sends a tensor, and would send nothing at all.
_OF_THE_SHAPE = {
    "shape", "size", "numel", "nelement", "dim", "ndim", "ndimension", "stride", "storage_offset", "is_contiguous",
    "dtype", "device", "layout", "itemsize", "element_size", "nbytes", "untyped_storage", "is_floating_point",
    "is_cpu", "is_cuda", "is_meta", "is_sparse", "__len__",
    "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like",
}  # fmt: skip
# What autograd keeps with the parameter, wherever its numbers are.
_OF_THE_GRAPH = {
    "grad", "requires_grad", "requires_grad_", "is_leaf", "grad_fn", "retains_grad", "_version", "register_hook",
    "register_post_accumulate_grad_hook", "_backward_hooks", "_post_accumulate_grad_hooks", "__hash__", "__dir__",
}  # fmt: skip


class Watched(nn.Parameter):
    """A parameter that counts how often its `.data` is asked for: what is written there, torch does not count."""

    data_uses = 0

    def _get_data(self) -> torch.Tensor:
        self.data_uses += 1
        return _data.__get__(self)  # type: ignore[no-any-return]

    def _set_data(self, value: torch.Tensor) -> None:
        set_data(self, value)

    data = property(_get_data, _set_data)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]  # the stub lost its name
        return repr(nn.Parameter(self.detach(), self.requires_grad))  # as it printed before an engine had it


class Released(Watched):
    """A released parameter: it raises RuntimeError, with its name, when its numbers are read or written."""

    # Its name, the view of the flat that it is when the unit is whole, and the empty tensor that it is now.
    place: tuple[str, torch.Tensor, torch.Tensor]
    data = _data

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]  # the stub lost its name
        name, view, _ = self.place
        return f"Parameter {name!r}, released: shape {tuple(view.shape)}, {view.dtype}"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Whatever torch is asked to do with a released parameter comes here first."""
        accessor = func.__name__ if func.__name__ in ("__get__", "__set__", "__delete__") else ""
        name = func.__self__.__name__ if accessor else func.__name__
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001  (as torch.Tensor's own does)
            # Nearly always it is the first argument; a search through all of them costs ten times as much.
            candidates = args if args and isinstance(args[0], Released) else tree_leaves((args, kwargs))
            parameter = next(candidate for candidate in candidates if isinstance(candidate, Released))
            own_name, view, nothing = parameter.place
            if name in _OF_THE_SHAPE:
                return func(view, *args[1:], **kwargs or {})
            if name in _OF_THE_GRAPH:
                if accessor == "__set__":  # torch compares the shape of a gradient with the parameter's
                    set_data(parameter, view)
                try:
                    return func(*args, **kwargs or {})
                finally:
                    set_data(parameter, nothing)
        if name == "__format__":
            return repr(parameter)
        raise RuntimeError(
            f"{own_name!r} is released, so {name} has no numbers to work on: a unit is whole only while one of its "
            "modules runs; read a parameter in there, or take all of them from engine.state_dict(), and write them by "
            "engine.load_state_dict()"
        )
