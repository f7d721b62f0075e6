"""AdamW whose two moments lie in 8 bits between steps: 2.03 bytes a parameter in place of 8.

A step unpacks the moments of one tensor, lets torch's AdamW update it, and packs them again; nothing else is new. So
for as long as a tensor is updated its moments exist in fp32 too, and with a flat for each unit that is a unit's share.
(Dettmers et al., arXiv 2110.02861; in fp8 as torchao's `AdamWFp8`.)

Why fp8 and not int8: an update is divided by the root of the second moment, and within a block of 256 the squares of
gradients lie many powers of ten apart. The steps of int8 are equal, so all squares below 1/254 of the block's largest
would be zero, and what is divided by zero explodes. fp8 is as exact for small numbers as for large ones, over five
powers of ten, and what is smaller still is rounded up to its smallest number, by which an update may only get smaller.
(Dettmers' own 8 bits, "dynamic", are more exact than fp8's three bits of mantissa, but are a table of their own.)

A shard begins with a block (`granule`), at a cost of up to 255 elements of padding: so N ranks, or a checkpoint of
another number, round every moment as one process would.
"""

from collections import UserDict
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch.optim.adamw import adamw

from zerolab.engines.blocks import BLOCK, Format, pack, unpack
from zerolab.engines.declared import DeclaredOptimizer

# Up to 256, and not to 448: by a power of two nothing is rounded, so what was unpacked packs into the same bytes again.
MOMENT = Format(torch.float8_e4m3fn, 256.0)
SQUARES = MOMENT._replace(smallest=2.0**-9)  # e4m3's smallest number above zero


class AdamW8bit(DeclaredOptimizer, torch.optim.AdamW):
    """AdamW with moments in 8 bits, for the engines of this project; `wide` shows them in fp32.

    Args:
        params: parameters, or groups of them, as for any torch optimizer.
        lr: the learning rate.
        betas: how much of each moment a step keeps.
        eps: added to the root of the second moment.
        weight_decay: as in AdamW.

    Raises:
        ValueError: in `step`, a gradient that leaves inf or NaN in a moment; a parameter that is complex.
    """

    granule = BLOCK  # a shard begins with a block
    moments = "8-bit"
    formats: ClassVar[dict[str, Format]] = {"exp_avg": MOMENT, "exp_avg_sq": SQUARES}

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, foreach=False)
        if any(parameter.is_complex() for group in self.param_groups for parameter in group["params"]):
            raise ValueError("a parameter is complex, and moments in 8 bits are real: use AdamW")

    @property
    def wide(self) -> "Wide":
        """The state as AdamW would keep it."""
        return Wide(self)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates every parameter that has a gradient, one after the other."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            settings = {key: group[key] for key in ("lr", "weight_decay", "eps", "amsgrad", "maximize", "foreach")}
            settings |= dict(zip(("beta1", "beta2"), group["betas"], strict=True))
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.wide.get(parameter)
                if not state:
                    state = {key: torch.zeros_like(parameter) for key in self.formats} | {
                        "step": torch.tensor(0.0, dtype=torch.float32)
                    }
                mean, squares, steps = ([state[key]] for key in ("exp_avg", "exp_avg_sq", "step"))
                adamw([parameter], [parameter.grad], mean, squares, [], steps, **settings)
                self.wide[parameter] = state
        return loss


class Wide(UserDict[torch.Tensor, dict[str, Any]]):
    """An optimizer's state with its moments in fp32: read, they are unpacked; written, they are packed."""

    def __init__(self, optimizer: AdamW8bit) -> None:
        self.data, self._formats = optimizer.state, optimizer.formats

    def __getitem__(self, parameter: torch.Tensor) -> dict[str, Any]:
        if parameter not in self:  # where a plain look would make an entry
            raise KeyError(parameter)
        return {key: self._unpacked(key, value, parameter) for key, value in self.data[parameter].items()}

    def __setitem__(self, parameter: torch.Tensor, entries: dict[str, Any]) -> None:
        kept = self.data[parameter]
        for key in kept.keys() - entries.keys():
            del kept[key]
        for key, value in entries.items():
            if key not in self._formats:
                kept[key] = value
                continue
            packed = pack(value.flatten(), self._formats[key], f"numbers of {key}")
            kept[key] = kept[key].copy_(packed) if key in kept else packed  # the same memory in every step

    def _unpacked(self, key: str, value: Any, parameter: torch.Tensor) -> Any:
        if key not in self._formats:
            return value
        moment = torch.empty(parameter.numel(), dtype=parameter.dtype, device=parameter.device)
        unpack(value, moment, self._formats[key])
        return moment.view(parameter.shape)
