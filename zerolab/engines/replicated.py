"""Parameters that stay whole on every rank, in any stage: the rules by which `ddp` treats all of them.

For what is small and often used, such as norms, biases or a router: sharded it would save little, and a flat of its own
would have to be gathered. FSDP2 has `ignored_params` for it, which it does not reduce either; DeepSpeed's
`stage3_param_persistence_threshold` keeps small parameters whole, but shards their optimizer state.
"""

import torch
import torch.distributed as dist

from zerolab.engines.collectives import Exchange, all_reduce
from zerolab.engines.flat import Flat


def own(flat: Flat) -> torch.Tensor:
    """Every rank updates all of it."""
    return flat.whole


def reduce(flat: Flat, gradient: torch.Tensor) -> Exchange:
    """Adds up the whole gradient on every rank."""
    return all_reduce(gradient, name=flat.layout.name)


def keep(flat: Flat, gradient: torch.Tensor) -> None:
    """Keeps the whole mean gradient; a stage that reduces every micro-batch adds them up here."""
    mean = gradient.div_(dist.get_world_size())
    flat.mean = mean if flat.mean is None else flat.mean.add_(mean)
    flat.gradient = None
