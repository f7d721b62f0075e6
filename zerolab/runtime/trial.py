"""Whether ranks train on this box's GPUs: what `zerolab doctor` tries on them."""

import time
from collections.abc import Iterator

from zerolab.runtime import variables
from zerolab.runtime.devices import visible_gpus


def trials(ranks: int, device: str = "cuda") -> Iterator[tuple[str, bool, str]]:
    """Lets ranks train with a GPU each, and then `ranks` of them on one; `device="cpu"` tries it without a GPU.

    Yields a name, whether it worked, and what was found, or the error in one line. Yields nothing without a GPU.
    """
    found = visible_gpus() if device == "cuda" else [0]
    if found:
        yield ("NCCL", *_trial(found, len(found), device))
        yield ("a shared GPU", *_trial(found[:1], ranks, device))


def _trial(chosen: list[int], world_size: int, device: str) -> tuple[bool, str]:
    from zerolab.runtime.cluster import Cluster

    started = time.monotonic()
    try:
        with variables.devices_limited_to(chosen), Cluster(world_size, device=device, timeout=60) as cluster:
            cluster.record(_train)
            backend = cluster.run(backend_of, device)[0]
    except Exception as error:  # noqa: BLE001  (whatever it is, the host should read it in the report)
        return False, str(error).split("\n", 1)[0]
    ranks = f"{world_size} rank{'s' * (world_size > 1)}"
    return True, f"{ranks} trained over {backend}, recorded, in {time.monotonic() - started:.1f} s"


def _train() -> None:
    """Runs on a rank: two steps of ZeRO-3."""
    import torch
    import torch.distributed as dist

    from zerolab import Zero3, models

    engine = Zero3(models.build("gpt-tiny"), torch.optim.AdamW)
    for batch in models.batches("gpt-tiny", dist.get_world_size(), dist.get_rank(), 2):
        engine.training_step(*batch, models.loss)


def backend_of(device: str) -> str:
    """Runs on a rank: what its collectives on `cpu` or `cuda` go over, `gloo` or `nccl`."""
    import torch
    from torch.distributed.distributed_c10d import _get_default_group

    return str(_get_default_group()._get_backend(torch.device(device)).name())
