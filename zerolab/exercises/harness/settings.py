"""What an answer sets in torch for good is as before again once it has ended: more runs follow on the same ranks."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def settings_restored() -> Iterator[None]:
    """Restores the default dtype, the default device, whether gradients are taken, and how many threads compute.

    Within it, one does. On tensors so small, a second one would take five times as long: the two wait for each other.
    """
    dtype, device, gradients = torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled()
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        if torch.get_default_device() != device:
            torch.set_default_device(device)
        torch.set_grad_enabled(gradients)
