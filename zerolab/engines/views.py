"""A module's parameters as views of their flat: shown while it is whole, hidden while it is released.

Nothing is read or written in vain. Where the optimizer updates something else than the flat, a write into the parameter
would be undone. torch counts writes; those that go through `.data` it does not count, so `Watched` does. Between two
uses under zero3 a parameter has no numbers. An empty tensor in its place would look like one: its sum is 0, its norm is
0. So it is `Released`, and says so. A parameter changes its class in place, as torch's own lazy parameters do: it stays
the same object to the optimizer, to hooks and to whoever ties it.
"""

from collections.abc import Callable
from copy import deepcopy
from enum import IntEnum
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from zerolab.engines.partition import Slot

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
    "grad", "backward", "requires_grad", "requires_grad_", "is_leaf", "grad_fn", "retains_grad", "_version",
    "register_hook", "register_post_accumulate_grad_hook", "_backward_hooks", "_post_accumulate_grad_hooks", "__hash__",
    "__dir__",
}  # fmt: skip


class Watched(nn.Parameter):
    """A parameter that counts how often its `.data` is asked for: what is written there, torch does not count."""

    data_uses = 0

    def _get_data(self) -> torch.Tensor:
        self.data_uses += 1
        return _data.__get__(self)  # type: ignore[no-any-return]

    data = property(_get_data, set_data)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]  # the stub lost its name
        return repr(nn.Parameter(self.detach(), self.requires_grad))  # as it printed before an engine had it


class Released(Watched):
    """A released parameter: it raises RuntimeError, with its name, when its numbers are read or written."""

    # Its name, the view of the flat that it is when the unit is whole, and the empty tensor that it is now.
    place: tuple[str, torch.Tensor, torch.Tensor]
    state = "released"
    remedy = (
        "a unit is whole only while one of its modules runs; read a parameter in there, or take all of them from "
        "engine.state_dict(), and write them by engine.load_state_dict()"
    )
    data = _data

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]  # the stub lost its name
        name, view, _ = self.place
        return f"Parameter {name!r}, {self.state}: shape {tuple(view.shape)}, {view.dtype}"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Whatever torch is asked to do with a released parameter comes here first."""
        name = _name_of(func)
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001  (as torch.Tensor's own does)
            # Nearly always it is the first argument; a search through all of them costs ten times as much.
            candidates = args if args and isinstance(args[0], Released) else tree_leaves((args, kwargs))
            parameter = next(candidate for candidate in candidates if isinstance(candidate, Released))
            own_name, view, nothing = parameter.place
            if name in _OF_THE_SHAPE:
                return func(view, *args[1:], **kwargs or {})
            if name in _OF_THE_GRAPH:
                if func.__name__ != "__set__":  # `torch.autograd.grad` among them, which may make the unit whole
                    return func(*args, **kwargs or {})
                set_data(parameter, view)  # torch compares the shape of a gradient with the parameter's
                try:
                    return func(*args, **kwargs or {})
                finally:
                    set_data(parameter, nothing)
        if name == "__format__":
            return repr(parameter)
        raise RuntimeError(
            f"{own_name!r} is {parameter.state}, so {name} has no numbers to work on: {parameter.remedy}"
        )


class Arriving(Watched):
    """A parameter whose numbers are on their way: whoever reads or writes them waits for them first.

    No message is sent, so a single rank may. After that it is a parameter like any other.
    """

    settle: Callable[[], None]  # waits, and makes this parameter and all that arrive with it ordinary ones

    def _settled(self) -> nn.Parameter:
        self.settle()
        return self

    data = property(lambda self: self._settled().data, lambda self, value: setattr(self._settled(), "data", value))

    def __deepcopy__(self, memo: Any) -> Any:
        return deepcopy(self._settled(), memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._settled().__reduce_ex__(protocol)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Whatever torch is asked to do with a parameter that is arriving comes here first."""
        if _name_of(func) in _OF_THE_SHAPE | _OF_THE_GRAPH:
            with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001  (as torch.Tensor's own does)
                return func(*args, **kwargs or {})
        for value in tree_leaves((args, kwargs)):
            if isinstance(value, Arriving):  # no more, if it came with another one
                value.settle()
        return func(*args, **kwargs or {})


def _name_of(func: Any) -> str:
    """The name of a function of torch's, or of the attribute that it reads or writes."""
    is_accessor = func.__name__ in ("__get__", "__set__", "__delete__")
    return str(func.__self__.__name__ if is_accessor else func.__name__)


class Written(IntEnum):
    """Whether parameters were written."""

    NO = 0
    PERHAPS = 1  # somebody had their `.data`, and may only have read it
    YES = 2


class ModuleViews:
    """The parameters of a module that lie in one flat; they stay the same objects, whatever they are views of."""

    def __init__(self, members: list[tuple[Slot, nn.Parameter]], views: list[torch.Tensor]) -> None:
        self._members = members
        self._parameters = [parameter for _, parameter in members]
        self._views = views
        self._classes = [type(parameter) for parameter in self._parameters]
        self._empty: torch.Tensor | None = None
        self._writes = self._count_writes()
        self.show()

    def watch(self) -> None:
        """From now on writes through `.data` count, too: something else than the flat is what the optimizer updates."""
        self._classes = [Watched if kind is nn.Parameter else kind for kind in self._classes]
        if type(self._parameters[0]) is not Released:
            self.show()

    def show(self) -> None:
        """Makes the module's parameters views of the flat."""
        # Views made once: a gather refills the very storage that they lie in.
        for parameter, view, kind in zip(self._parameters, self._views, self._classes, strict=True):
            parameter.__class__ = kind
            # A new Parameter would be another object to the optimizer, to hooks and to whoever ties it.
            set_data(parameter, view)

    def show_when_used(self, settle: Callable[[], None]) -> None:
        """Has whoever uses one of the parameters first call `settle`, which waits for the flat and calls `show`."""
        for parameter in self._parameters:
            parameter.settle = settle  # type: ignore[attr-defined]
            parameter.__class__ = Arriving

    def hide(self) -> None:
        """Makes the module's parameters say that they are released, because the flat's memory is about to go."""
        if self._empty is None:
            # A placeholder of no elements, for what gets past `Released`: there released memory would end the process.
            with torch.inference_mode(mode=False):  # what an evaluation makes could not be trained afterwards
                self._empty = self._views[0].new_empty(0)
            for (slot, parameter), view in zip(self._members, self._views, strict=True):
                parameter.place = slot.name, view, self._empty  # type: ignore[attr-defined]
        for parameter in self._parameters:
            set_data(parameter, self._empty)
            parameter.__class__ = Released

    def were_written(self) -> Written:
        """Whether somebody has written into the parameters since this was last asked.

        Raises:
            RuntimeError: a parameter is no view of the flat any more, and so would not be trained.
        """
        if [parameter.data_ptr() for parameter in self._parameters] != [view.data_ptr() for view in self._views]:
            pairs = zip(self._members, self._views, strict=True)
            slot, parameter = next(member for member, view in pairs if member[1].data_ptr() != view.data_ptr())
            raise RuntimeError(
                f"{slot.name!r} has been given other memory, in {parameter.dtype} on {parameter.device}, and would not "
                "be trained: convert and move a model before making the engine, and write values into the parameter "
                "(copy_) instead of replacing its data"
            )
        before, self._writes = self._writes, self._count_writes()
        if before == self._writes:
            return Written.NO
        return Written.PERHAPS if before[0] == self._writes[0] else Written.YES

    def _count_writes(self) -> tuple[int, int]:
        """How often the parameters were written, and their `.data` asked for; the engine writes into the flat."""
        writes = sum([parameter._version for parameter in self._parameters])  # noqa: SLF001  (it has no other name)
        return writes, sum([p.data_uses for p in self._parameters if type(p) is Watched])


def share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether both lie in one storage."""
    # By the storage's identity, because a simulated tensor has no address.
    return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)  # noqa: SLF001  (it has no other name)
