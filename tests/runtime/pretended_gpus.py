"""GPUs that are pretended, for a process of its own: a CUDA build of torch, and an `nvidia-smi` that lists cards.

As a program it prints what becomes of `CASES` as JSON. As `sitecustomize` on the path it makes torch pretend in every
process, the fork server and so the ranks among them; what these ask of CUDA is noted in `torch.cuda.noted`.
"""

import json
import os
import sys
import threading
from pathlib import Path

NO_KERNEL = "CUDA error: no kernel image is available for execution on the device\nCUDA kernel errors might be"


class Done:
    """An event or a stream of a GPU that is never behind."""

    def __init__(self, *_):
        pass

    def record(self):
        pass

    def query(self):
        return True


class Pretend:
    """Changes torch just before zerolab's own module about drivers is imported, which comes before CUDA is used."""

    def find_spec(self, name, path=None, target=None):
        if name == "zerolab.runtime.drivers":
            pretend()


def pretend():
    import torch
    import torch.distributed as dist

    ones, init, noted = torch.ones, dist.init_process_group, []

    def first_kernel(*arguments, device=None, **keywords):
        if device is not None and "PRETENDED_ERROR" in os.environ:
            raise RuntimeError(os.environ["PRETENDED_ERROR"])
        return ones(*arguments, **keywords)

    def joined(backend, **keywords):
        noted.append(backend)
        init("gloo", **keywords)

    def set_device(device):
        if threading.current_thread() is threading.main_thread():  # the side thread says it each time that it looks
            noted.append(str(device))

    torch.cuda.noted, torch.ones, dist.init_process_group = noted, first_kernel, joined
    torch.cuda.set_device = set_device
    torch.cuda.Event, torch.cuda.default_stream, torch.cuda.synchronize = Done, Done, Done
    torch.cuda.empty_cache = lambda: noted.append("empty_cache")
    torch.cuda.is_available = lambda: torch.cuda.device_count() > 0
    torch.cuda.device_count = lambda: int(os.environ.get("PRETENDED_GPUS", "0"))
    torch.cuda.get_arch_list = lambda: ["sm_75", "sm_80", "sm_86", "sm_90", "compute_90"]
    torch.cuda.init = lambda: (_ for _ in ()).throw(RuntimeError("CUDA error: unknown error"))
    torch.cuda.nccl.version = lambda: tuple(map(int, os.environ.get("PRETENDED_NCCL", "2.28").split(".")))
    torch.version.cuda = os.environ.get("PRETENDED_CUDA", "13.0")
    dist.is_nccl_available = lambda: os.environ.get("PRETENDED_NCCL") != "none"


class Environment:
    """As much of pytest's monkeypatch as the pretended drivers need."""

    setenv = staticmethod(os.environ.__setitem__)

    @staticmethod
    def delenv(name, **_):
        os.environ.pop(name, None)


def chosen(world_size, device):
    from zerolab.runtime import devices

    try:
        choice = devices.choose(world_size, device)
    except ValueError as error:
        return str(error)
    return [choice.world_size, list(choice.gpus), choice.backend, list(choice.notes)]


def ranks_of(world_size, device="cuda"):
    """The number that each rank gives to set_device, and what it has asked of CUDA."""
    import torch

    from zerolab import Cluster, RankError

    try:
        with Cluster(world_size, device=device) as cluster:
            cluster.run(int)
            return cluster.run(lambda: [os.environ["LOCAL_RANK"], *torch.cuda.noted])
    except RankError as error:
        return error.what


def main(folder):
    import drivers

    plain = dict(os.environ)

    def case(cards, call, driver="590.48.01", capability="9.0", **variables):
        os.environ.clear()
        os.environ.update(plain)
        drivers.install(folder, Environment, cards, driver=driver, capability=capability)
        os.environ.update(variables)
        return call()

    two = drivers.several(drivers.H200, 2, free=143158)
    one, auto = two[:1], (lambda: chosen(None, "auto"))
    found = {
        "two": case(two, auto, PRETENDED_GPUS="2"),
        "four on two": case(two, lambda: chosen(4, "cuda"), PRETENDED_GPUS="2"),
        "several NCCL ranks": case(
            two, lambda: chosen(4, "cuda"), PRETENDED_GPUS="2", PRETENDED_NCCL="2.30", NCCL_MULTI_RANK_GPU_ENABLE="1"
        ),
        "several ranks of an old NCCL": case(
            two, lambda: chosen(4, "cuda"), PRETENDED_GPUS="2", NCCL_MULTI_RANK_GPU_ENABLE="1"
        ),
        "no NCCL": case(two, auto, PRETENDED_GPUS="2", PRETENDED_NCCL="none"),
        "old driver": case(one, auto, driver="535.183.01"),
        "old driver, insisting": case(one, lambda: chosen(2, "cuda"), driver="535.183.01"),
        "lost": case(one, auto),
        "fallen off the bus": case(one, lambda: (drivers.lost(folder, Environment), auto())[1]),
        "CPU build": case(one, lambda: without_cuda(auto)),
        "hidden": case(one, auto, CUDA_VISIBLE_DEVICES=""),
        "hidden, insisting": case(one, lambda: chosen(2, "cuda"), CUDA_VISIBLE_DEVICES=""),
        "unknown UUID": case(one, auto, CUDA_VISIBLE_DEVICES="GPU-9999"),
        "V100": case(one, auto, PRETENDED_GPUS="1", capability="7.0"),
        "V100, insisting": case(one, lambda: chosen(1, "cuda"), PRETENDED_GPUS="1", capability="7.0"),
        "newer than the build": case(one, auto, PRETENDED_GPUS="1", capability="12.0"),
        "silent about its capability": case(one, auto, PRETENDED_GPUS="1", capability="Field not known"),
        "ranks alone": case(two, lambda: ranks_of(2), PRETENDED_GPUS="4", ZEROLAB_DEVICES="3,2"),
        "ranks that share": case(two, lambda: ranks_of(3), PRETENDED_GPUS="2"),
        "ranks without a kernel": case(one, lambda: ranks_of(1), PRETENDED_GPUS="1", PRETENDED_ERROR=NO_KERNEL),
        "ranks on the CPU": case(one, lambda: ranks_of(2, "cpu"), PRETENDED_GPUS="1"),
    }
    print(json.dumps(found))


def without_cuda(call):
    import torch

    version, torch.version.cuda = torch.version.cuda, None
    try:
        return call()
    finally:
        torch.version.cuda = version


sys.meta_path.insert(0, Pretend())
if __name__ == "__main__":
    main(Path(sys.argv[1]))
