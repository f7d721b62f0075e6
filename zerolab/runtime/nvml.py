"""How many bytes a process has on a card, according to NVIDIA's driver: the figure that `nvidia-smi` prints for it.

Asked of the driver's own library, because `nvidia-smi` takes a tenth of a second and this is asked for in each step.
Source: NVML API reference, nvmlDeviceGetComputeRunningProcesses_v3 and nvmlProcessInfo_t.
"""

import ctypes
from functools import cache

LIBRARY = "libnvidia-ml.so.1"
MOST_PROCESSES = 256  # on one card
_SUCCESS = 0
_UNKNOWN = 2**64 - 1  # NVML_VALUE_NOT_AVAILABLE


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def process_bytes(uuid: str, pid: int) -> int | None:
    """The bytes of a process on the card with this UUID (`GPU-...`); None where the driver does not tell.

    In a container it lists processes under the host's numbers, or none; then the process is not found.
    """
    driver = library()
    if driver is None:
        return None
    card = ctypes.c_void_p()
    if driver.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(card)) != _SUCCESS:
        return None
    count, found = ctypes.c_uint(MOST_PROCESSES), (_Process * MOST_PROCESSES)()
    if driver.nvmlDeviceGetComputeRunningProcesses_v3(card, ctypes.byref(count), found) != _SUCCESS:
        return None
    return next((each.used for each in found[: count.value] if each.pid == pid and each.used != _UNKNOWN), None)


@cache
def library() -> ctypes.CDLL | None:
    """The driver's library, started; None where there is none, or one too old to have the function."""
    try:
        driver = ctypes.CDLL(LIBRARY)
        _ = driver.nvmlDeviceGetComputeRunningProcesses_v3
    except (OSError, AttributeError):
        return None
    return driver if driver.nvmlInit_v2() == _SUCCESS else None
