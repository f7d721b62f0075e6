"""A module's parameters as views of their flat: shown while it is whole, hidden while it is released."""

import torch
from torch import nn

from zerolab.engines.partition import Slot
from zerolab.engines.watched import Released, Watched, set_data


class ModuleViews:
    """The parameters of a module that lie in one flat; they stay the same objects, whatever they are views of.

    Args:
        members: the parameters, each with its place in the flat.
        views: the same places in the flat's storage, each in its parameter's shape.
    """

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

    def were_written(self) -> bool:
        """Whether somebody has written into the parameters since this was last asked.

        Raises:
            RuntimeError: a parameter is no view of the flat any more, and so would not be trained.
        """
        if [parameter.data_ptr() for parameter in self._parameters] != [view.data_ptr() for view in self._views]:
            self._refuse_other_memory()
        before, self._writes = self._writes, self._count_writes()
        return before != self._writes

    def _refuse_other_memory(self) -> None:
        pairs = zip(self._members, self._views, strict=True)
        slot, parameter = next(member for member, view in pairs if member[1].data_ptr() != view.data_ptr())
        raise RuntimeError(
            f"{slot.name!r} has been given other memory, in {parameter.dtype} on {parameter.device}, and would not be "
            "trained: convert and move a model before making the engine, and write values into the parameter (copy_) "
            "instead of replacing its data"
        )

    def _count_writes(self) -> int:
        """How often somebody has written into the parameters; the engine itself writes into the flat."""
        writes = sum([parameter._version for parameter in self._parameters])  # noqa: SLF001  (it has no other name)
        return writes + sum([p.data_uses for p in self._parameters if type(p) is Watched])
