"""What the driver's library says of a process, asked of a library that answers as NVML's header declares it."""

import shutil
import subprocess

import drivers
import pytest

from zerolab.runtime import machine, nvml

LIBRARY = """
#include <string.h>
typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId, computeInstanceId;
} Info;
typedef struct { unsigned long long total, free, used; } Memory;
static int started, card, slice;
int nvmlInit_v2(void) { started = 1; return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    *device = strcmp(uuid, "MIG-1") ? &card : &slice;
    return !started || (*device == &card && strcmp(uuid, "GPU-1")) ? 6 : 0;
}
int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
    *memory = (Memory){10ull << 30, 9ull << 30, 1ull << 30};
    return device == &slice ? 0 : 3;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *count, Info *infos) {
    if (device != &card || *count < 3) return 7;
    Info found[] = {{7, 1ull << 20, -1, -1}, {8, 5ull << 32, -1, -1}, {9, -1, -1, -1}};
    memcpy(infos, found, sizeof found);
    *count = 3;
    return 0;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory, require):
    """The folder of such a library."""
    compiler = shutil.which("cc")
    require(compiler, "a C compiler", "apt install gcc")
    folder = tmp_path_factory.mktemp("nvml")
    (folder / "nvml.c").write_text(LIBRARY)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / nvml.LIBRARY, folder / "nvml.c"], check=True)
    return folder


@pytest.fixture(autouse=True)
def anew():
    """The library is looked for anew in each test."""
    nvml.library.cache_clear()
    yield
    nvml.library.cache_clear()


def test_a_process_has_the_bytes_that_the_driver_says(library, monkeypatch):
    monkeypatch.setattr(nvml, "LIBRARY", str(library / nvml.LIBRARY))
    assert nvml.process_bytes("GPU-1", 7) == 2**20
    assert nvml.process_bytes("GPU-1", 8) == 5 * 2**32


@pytest.mark.parametrize(("uuid", "pid"), [("GPU-1", 9), ("GPU-1", 10), ("GPU-2", 7)])
def test_a_process_or_a_card_of_which_the_driver_does_not_tell_has_no_bytes(library, monkeypatch, uuid, pid):
    monkeypatch.setattr(nvml, "LIBRARY", str(library / nvml.LIBRARY))
    assert nvml.process_bytes(uuid, pid) is None


def test_a_slice_of_a_card_has_the_memory_that_it_has_of_it(library, monkeypatch, tmp_path):
    drivers.install(tmp_path, monkeypatch, [drivers.H200_MIG.format(index=0)])
    monkeypatch.setattr(nvml, "LIBRARY", str(library / nvml.LIBRARY))
    seen = {}
    for name in ("MIG-1", "MIG-2"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", name)
        (seen[name],) = machine.cards()
    assert (seen["MIG-1"]["memory_total"], seen["MIG-1"]["memory_free"]) == (10 * 2**30, 9 * 2**30)
    assert (seen["MIG-2"]["memory_total"], seen["MIG-2"]["memory_free"]) == (143771 * 2**20, 143103 * 2**20)
    assert [card["uuid"] for card in seen.values()] == ["MIG-1", "MIG-2"], "what doctor opens to see what a rank takes"
    assert {card["mig"] for card in seen.values()} == {"Enabled"}


def test_without_a_driver_nothing_is_told_of_any_process(monkeypatch):
    monkeypatch.setattr(nvml, "LIBRARY", "libno-such-driver.so.1")
    assert nvml.process_bytes("GPU-1", 7) is None
