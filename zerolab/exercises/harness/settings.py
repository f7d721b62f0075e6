"""What an answer sets in torch for good is as before again once it has ended: more runs follow on the same ranks."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def settings_restored() -> Iterator[None]:
    """Restores the default dtype, the default device and whether gradients are taken."""
    dtype, device, gradients = torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled()
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        if torch.get_default_device() != device:
            torch.set_default_device(device)
        torch.set_grad_enabled(gradients)
