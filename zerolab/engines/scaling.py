"""What torch's GradScaler finds at an engine's optimizer, so that the ranks skip a step together.

fp16 has no number between 0 and 6e-8, where many gradients lie. So the loss is multiplied by a scale before backward,
and its gradients are divided by it in fp32 (Micikevicius et al., arXiv 1710.03740, section 3.2). Where a gradient has
overflowed, the step is skipped and the scale lowered: an overflow that is in one rank's shard must be known to all.

A scaler goes over the `.grad` of what an optimizer updates and calls one operation for all of them, which divides and
looks for overflows. Here stand-ins wait for it in `.grad`: the engine divides, and the ranks take the maximum of what
they found. Then it calls `optimizer.step()`, and leaves to an optimizer that says `_step_supports_amp_scaling`, as
torch's fused ones do, to skip. So torch's own `torch.amp.GradScaler` is right for shards, and no other one is needed.
"""

import weakref
from collections.abc import Sequence
from types import MethodType
from typing import TYPE_CHECKING, Any, cast

import torch

from zerolab.engines import offload
from zerolab.engines.agreement import take_maximum_over_ranks
from zerolab.engines.taken import OwnUpdate, Taken

if TYPE_CHECKING:
    from zerolab.engines.engine import Engine
    from zerolab.engines.flat import Flat

_UNSCALE = torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default  # what a scaler calls


class StandIn(Taken):
    """In `.grad` of what the optimizer updates, from backward to step: of all that is done with gradients, it divides.

    It knows the engine's side weakly: no garbage collector sees what hangs on a `.grad`.
    """

    flat: "weakref.ref[Flat]"
    scaling: "weakref.ref[Scaling]"
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # noqa: SLF001  (a scaler asks for its dtype)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Divides for a scaler; refuses everything else."""
        if func is not _UNSCALE:
            return super().__torch_dispatch__(func, types, args, kwargs)
        gradients, found_inf, inverse = args
        flats = dict.fromkeys(gradient.flat() for gradient in gradients)
        return gradients[0].scaling().divide(list(flats), found_inf, inverse)


class Scaling:
    """Between an engine and whatever scaler its training loop has.

    From now on `engine.optimizer.step()` is the engine's step, but within `own_update`.
    """

    def __init__(self, engine: "Engine", own_update: OwnUpdate) -> None:
        self._engine = cast("Engine", weakref.proxy(engine))
        self._replaced: list[tuple[torch.Tensor, Flat]] = []  # whose gradients have stand-ins, and where they lie
        self._said: dict[str, Any] = {}  # by the scaler that calls for the step at hand
        self.is_unscaled = False  # a scaler has divided the gradients that wait for the step
        optimizer: Any = engine.optimizer
        optimizer._step_supports_amp_scaling = True  # noqa: SLF001  (as torch's fused optimizers say it)
        scaling, kind = weakref.proxy(self), type(optimizer)

        def step(_: Any, closure: Any = None) -> Any:
            if own_update.is_under_way:
                return kind.step(scaling._engine.optimizer)  # noqa: SLF001
            return scaling._step(closure)  # noqa: SLF001

        # A method, because torch's schedules take it apart; of a proxy, or the optimizer would hold itself.
        optimizer.step = MethodType(step, weakref.proxy(optimizer))

    def _step(self, closure: Any) -> None:
        if closure is not None:
            raise RuntimeError("an engine's update takes no closure: run forward and backward before the step")
        # Taken away meanwhile: a fused optimizer would obey them once more, and after an error they would stay.
        attributes = vars(self._engine.optimizer)
        self._said = {name: attributes.pop(name) for name in ("found_inf", "grad_scale") if name in attributes}
        said = self._said
        try:
            self._engine.step()
        finally:
            self._said = {}
        attributes |= said  # which a scaler deletes

    def stand_in(self) -> None:
        """The mean gradients are there: from now on a scaler may ask for them."""
        scaling, self.is_unscaled = weakref.ref(self), False
        # All of them, used or not: a rank that finds nothing to divide would take no part in the comparison.
        self._replaced = [(updated, flat) for flat in self._engine.trainable for updated, _ in flat.updated()]
        for updated, flat in self._replaced:
            updated.grad = stand_in = StandIn(flat.layout.name, updated, updated.dtype)
            stand_in.flat, stand_in.scaling = weakref.ref(flat), scaling

    @torch.no_grad()
    def divide(self, flats: "Sequence[Flat]", found_inf: torch.Tensor, inverse: torch.Tensor) -> None:
        """Divides the flats' mean gradients by the scale, in the precision of the update; RuntimeError without any.

        `found_inf` becomes 1 on all ranks if one of them has a gradient that is no finite number.
        """
        self._engine.refuse_without_gradients("unscale")
        if any(offload.lies_elsewhere(flat.shard, flat.owned) for flat in flats):
            offload.finish(flats[0].shard.device)  # a scaler sends both numbers to main memory, and waits for neither
        self.is_unscaled = True
        unscaled = []
        for flat in flats:
            if flat.mean is not None and flat.has_update:
                flat.unscaled = gradient = flat.way.end(flat.mean, flat.owned)
                unscaled.append(torch.view_as_real(gradient) if gradient.is_complex() else gradient)
        _UNSCALE(unscaled, found_inf, inverse)
        if any(flat.is_sharded for flat in flats):
            take_maximum_over_ranks(found_inf)

    def refuse_scaled(self, use: str) -> None:
        """Raises RuntimeError while the gradients are still multiplied by the scale of the engine's own scaler."""
        scaler = self._engine.scaler
        if not self.is_unscaled and scaler.is_enabled() and scaler._scale is not None:  # noqa: SLF001  (None: it has scaled nothing)
            raise RuntimeError(
                f"the gradients to {use} are still multiplied by the loss scale, {scaler.get_scale():g}: call "
                "engine.scaler.unscale_(engine.optimizer) first"
            )

    def must_skip(self) -> bool:
        """A step begins. Whether the scaler that calls for it, if one does, has found an overflow; divides if not."""
        for updated, _ in self._replaced:
            updated.grad = None
        self._replaced.clear()
        found_inf, scale = self._said.get("found_inf"), self._said.get("grad_scale")
        if scale is not None:
            inverse = scale.double().reciprocal().float()  # as a scaler computes it
            for flat in self._engine.trainable:
                if flat.unscaled is not None:
                    flat.unscaled.mul_(inverse.to(flat.unscaled.device))
        # Else nobody scales, or the rank is a simulated one.
        return found_inf is not None and not found_inf.is_meta and bool(found_inf)
