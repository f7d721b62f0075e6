"""How many bytes a process has on a card, according to NVIDIA's driver, as `nvidia-smi` prints; and a slice's memory.

Asked of the driver's own library, because `nvidia-smi` takes a tenth of a second and this is asked for in each step.
Source: NVML API reference, nvmlDeviceGetComputeRunningProcesses_v3 and nvmlProcessInfo_t, nvmlDeviceGetMemoryInfo.
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
    driver, card = _opened(uuid)
    if driver is None:
        return None
    count, found = ctypes.c_uint(MOST_PROCESSES), (_Process * MOST_PROCESSES)()
    if driver.nvmlDeviceGetComputeRunningProcesses_v3(card, ctypes.byref(count), found) != _SUCCESS:
        return None
    return next((each.used for each in found[: count.value] if each.pid == pid and each.used != _UNKNOWN), None)


def memory(uuid: str) -> tuple[int, int] | None:
    """Total and free bytes of a card or of a slice of one (`MIG-...`); None where the driver does not tell."""
    driver, card = _opened(uuid)
    found = (ctypes.c_ulonglong * 3)()  # nvmlMemory_t: total, free, used
    if driver is None or driver.nvmlDeviceGetMemoryInfo(card, found) != _SUCCESS:
        return None
    return found[0], found[1]


def _opened(uuid: str) -> tuple[ctypes.CDLL | None, ctypes.c_void_p]:
    driver, card = library(), ctypes.c_void_p()
    is_there = driver is not None and driver.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(card)) == _SUCCESS
    return driver if is_there else None, card


@cache
def library() -> ctypes.CDLL | None:
    """The driver's library, started; None where there is none, or one too old to have the function."""
    try:
        driver = ctypes.CDLL(LIBRARY)
        _ = driver.nvmlDeviceGetComputeRunningProcesses_v3
    except (OSError, AttributeError):
        return None
    return driver if driver.nvmlInit_v2() == _SUCCESS else None
