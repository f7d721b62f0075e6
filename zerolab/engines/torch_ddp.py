"""torch's DistributedDataParallel behind the same step, alone and with its ZeroRedundancyOptimizer."""

import inspect
from collections.abc import Iterator
from typing import Any

from torch import nn

from zerolab.engines.native import Native
from zerolab.engines.optimizer_state import Owned
from zerolab.engines.partition import ParamGroups


class TorchDDP(Native):
    """torch's DistributedDataParallel: everything on every rank, gradients averaged bucket by bucket.

    Args:
        find_unused_parameters: look for them in every forward; needed where a parameter takes no part in a step.
        gradient_as_bucket_view: let gradients lie in their buckets; off, as in torch, each exists twice.
        bucket_cap_mb: MiB of gradients that are reduced together; None takes torch's own, 25.
    """

    stage = "torch-ddp"
    in_turn = True

    def __init__(
        self,
        *arguments: Any,
        find_unused_parameters: bool = False,
        gradient_as_bucket_view: bool = False,
        bucket_cap_mb: float | None = None,
        **others: Any,
    ) -> None:
        # The defaults are torch's own: what is measured is what people run.
        self._options: dict[str, Any] = {
            "find_unused_parameters": find_unused_parameters,
            "gradient_as_bucket_view": gradient_as_bucket_view,
            "bucket_cap_mb": bucket_cap_mb,
        }
        super().__init__(*arguments, **others)

    def _wrap(self, model: nn.Module) -> nn.Module:
        wrapper = nn.parallel.DistributedDataParallel
        # `Native` has broadcast rank 0's parameters already; buffers stay local, as in FSDP.
        renamed = "forward_sync_buffers" in inspect.signature(wrapper).parameters  # torch 2.13's name for it
        local_buffers: dict[str, Any] = {"forward_sync_buffers" if renamed else "broadcast_buffers": False}
        return wrapper(model, init_sync=False, **local_buffers, **self._options)

    def _check_turn(self) -> None:
        if not self._turn.updates:
            return  # nothing has to be reduced yet
        super()._check_turn()
        if not self._turn.reduces:
            raise RuntimeError(
                f"{self.stage}: the forward ran within engine.accumulate(), its backward does not: DDP decides in the "
                "forward whether it reduces. Run the last micro-batch's forward after accumulate(), too"
            )


class TorchZero1(TorchDDP):
    """DistributedDataParallel with torch's ZeroRedundancyOptimizer: each rank updates some whole parameters.

    Args:
        parameters_as_bucket_view: lay the parameters into the buffers that are broadcast after the update.
    """

    stage = "torch-zero1"
    cannot = ("dtypes",)

    def __init__(self, *arguments: Any, parameters_as_bucket_view: bool = False, **others: Any) -> None:
        self._parameters_as_bucket_view = parameters_as_bucket_view
        super().__init__(*arguments, **others)

    def _make_optimizer(self, optimizer_cls: type, param_groups: ParamGroups, keywords: dict[str, Any]) -> Any:
        # Here, because only this stage needs it.
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(
            self._groups(param_groups),
            optimizer_cls,
            parameters_as_bucket_view=self._parameters_as_bucket_view,
            **keywords,
        )

    def _owned(self) -> Iterator[Owned]:
        """The whole parameters that this rank updates."""
        # The inner optimizer has only this rank's parameters; the outer one has those of all ranks.
        mine = {id(parameter) for group in self.optimizer.optim.param_groups for parameter in group["params"]}
        return (owned for owned in super()._owned() if id(owned.key) in mine)

    def _state(self) -> Any:
        return self.optimizer.optim.state  # of the inner optimizer
