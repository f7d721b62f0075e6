"""ZeRO stage 1 as an optimizer over a list of parameters, for a loop that has its own backward and its own averaging.

It keeps and updates this rank's shard of all parameters, and sends it to the other ranks. Gradients it leaves alone: it
takes `.grad` as it finds it, as every torch optimizer does, and it must be the same on all ranks, as torch DDP's is.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from zerolab.engines.agreement import check_same_layouts
from zerolab.engines.checks import check_optimizer
from zerolab.engines.collectives import all_gather
from zerolab.engines.declared import granule_of
from zerolab.engines.flat import Flat
from zerolab.engines.partition import FlatLayout, lay_out
from zerolab.engines.precision import Formats


class Zero1Optimizer(torch.optim.Optimizer):
    """An element-wise torch optimizer whose state is sharded over the ranks of the default process group.

    The parameters become views of flats, with rank 0's values; gradients that they have already are dropped. Making
    one is collective, like `step` and `add_param_group`.

    Args:
        params: parameters, or groups of them, as for any torch optimizer.
        optimizer_cls: the class of the optimizer that updates the shards.
        **keywords: for it, such as `lr=1e-3`.

    Raises:
        TypeError: no optimizer's class, or a keyword that it does not take.
        ValueError: an optimizer that needs whole tensors, or ranks whose parameters differ.
    """

    sharded: torch.optim.Optimizer  # the one over this rank's shards, which has the state

    def __init__(self, params: Iterable[Any], optimizer_cls: type, **keywords: Any) -> None:
        check_optimizer(optimizer_cls, keywords)
        self._make = optimizer_cls
        self._keywords = keywords
        self._flats: list[Flat] = []
        # A schedule asks for settings that have not been given, such as betas.
        super().__init__(params, optimizer_cls([nn.Parameter(torch.zeros(1))], **keywords).defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Takes in another group of parameters."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        flats = list(self._lay_out(group["params"]))
        shards = {**group, "params": [flat.owned for flat in flats]}
        if len(self.param_groups) == 1:
            self.sharded = self._make([shards], **self._keywords)
        else:
            self.sharded.add_param_group(shards)
        self._flats += flats

    def _lay_out(self, parameters: list[nn.Parameter]) -> Iterable[Flat]:
        """One flat for each dtype; frozen parameters are left where they are."""
        number, world_size = len(self.param_groups) - 1, dist.get_world_size()
        trained = [(f"{number}.{place}", p) for place, p in enumerate(parameters) if p.requires_grad]
        layouts: dict[FlatLayout, list[nn.Parameter]] = {}
        for dtype in dict.fromkeys(parameter.dtype for _, parameter in trained):
            members = [(name, parameter) for name, parameter in trained if parameter.dtype == dtype]
            name = f"group {number} {str(dtype).removeprefix('torch.')}"
            slots, whole = lay_out((name, p.shape) for name, p in members), granule_of(self._make)
            layout = FlatLayout(name, name, dtype, False, slots, world_size, number, granule=whole)
            layouts[layout] = [parameter for _, parameter in members]
        check_same_layouts([*layouts])
        for layout, laid_out in layouts.items():
            yield Flat(layout, laid_out, dist.get_rank(), lambda flat: flat.part(flat.whole), Formats())

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Updates this rank's shard and gathers the others'; a parameter whose `.grad` is None is left alone."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group, shards in zip(self.param_groups, self.sharded.param_groups, strict=True):
            shards |= {key: value for key, value in group.items() if key != "params"}  # a schedule's learning rate
        for flat in self._flats:
            flat.mean = _own_gradient(flat)
            flat.begin_update(self.sharded)
        self.sharded.step()
        for flat in self._flats:
            flat.finish_update()
        for exchange in [all_gather(flat.whole, name=flat.layout.name) for flat in self._flats]:
            exchange.wait()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Raises RuntimeError: nothing of the state is here."""
        raise RuntimeError("the state is in shards: save this rank's by .sharded.state_dict(), or train with Zero1")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Raises RuntimeError, as `state_dict` does."""
        raise RuntimeError("the state is in shards: load this rank's by .sharded.load_state_dict(), or use Zero1")


def _own_gradient(flat: Flat) -> torch.Tensor:
    """The gradients of what this rank owns, end to end; zero where there is none. Shape [owned]."""
    gradient, parameters = torch.zeros_like(flat.shard), dict(flat.members())
    for slot, mine in flat.by_parameter(gradient):
        if (whole := parameters[slot].grad) is not None:
            start = max(flat.span[0] - slot.start, 0)
            mine.view(-1).copy_(whole.to_dense().reshape(-1)[start : start + mine.numel()])
            flat.usage.used.add(slot)
    return gradient
