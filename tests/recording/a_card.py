"""A rank on a pretended card: torch's `meta` device, whose tensors have bytes and no values, beside real main memory.

What a card has in common with it is all that the ledger looks at: its storages are on another device than the host's.
"""

import contextlib

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from zerolab.recording.recorder import Recorder

CARD = "meta"


class Copies(TorchDispatchMode):
    """Lets what is on the card be copied to the host, and sent: zeros arrive."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, kwargs = func._schema.name, kwargs or {}
        if func.namespace == "c10d":  # which has no form for this device; the group sends nothing anyway
            return func(*tree_map_only(torch.Tensor, lambda _: torch.empty(0), args))
        if name == "aten::_to_copy" and args[0].is_meta and kwargs.get("device") == torch.device("cpu"):
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        if name == "aten::copy_" and args[0].is_cpu and args[1].is_meta:
            return args[0].zero_()
        if name == "aten::_local_scalar_dense" and args[0].is_meta:
            return 0.0
        return func(*args, **kwargs)


@contextlib.contextmanager
def rank_on_a_card(world_size=2):
    """Within it this process is rank 0 of a group that does not exist."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    try:
        with Copies():
            yield
    finally:
        dist.destroy_process_group()


def recorded(function, world_size=2):
    """What is recorded of a function on such a rank."""
    with rank_on_a_card(world_size):
        with Recorder() as recorder:
            function()
        return recorder.finish()
