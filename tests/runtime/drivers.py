"""What real drivers answer, recorded: an `nvidia-smi` on the path that says it again.

Fields of cards are those of captures in utkuozdemir/nvidia_gpu_exporter (internal/captures, drivers 590 and 595), the
memory and modes as captured there; UUIDs are masked in them and made up here. Topologies: `nvidia-smi topo -m` on a DGX
A100 (NVIDIA/nccl issue 1505) and on two GeForce cards (noonghunna/club-3090 issue 1229).
"""

import os
import stat

H200 = "{index}, GPU-{index}aaaaaaa-0000-0000, NVIDIA H200, 143771, {free}, Default, Disabled"
H200_MIG = "{index}, GPU-{index}aaaaaaa-0000-0000, NVIDIA H200, 143771, 143103, Default, Enabled"
H100 = "{index}, GPU-{index}aaaaaaa-0000-0000, NVIDIA H100 80GB HBM3, 81559, 61263, Default, Disabled"
L40S = "{index}, GPU-{index}aaaaaaa-0000-0000, NVIDIA L40S, 46068, 44225, Default, [N/A]"
RTX = "{index}, GPU-{index}aaaaaaa-0000-0000, NVIDIA GeForce RTX 2080 SUPER, 8192, {free}, {mode}, [N/A]"
GB10 = "{index}, GPU-{index}aaaaaaa-0000-0000, NVIDIA GB10, [N/A], [N/A], Default, [N/A]"

DGX_A100 = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV12\tNV12\tPXB\tSYS\t48-63,176-191\t3\t\tN/A
GPU1\tNV12\t X \tNV12\tPXB\tSYS\t48-63,176-191\t3\t\tN/A
GPU2\tNV12\tNV12\t X \tSYS\tPXB\t16-31,144-159\t1\t\tN/A
NIC0\tPXB\tPXB\tSYS\t X \tSYS

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
"""
TWO_GEFORCES = """\
\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tPHB\t0-63\t0\t\tN/A
GPU1\tPHB\t X \t0-63\t0\t\tN/A
"""


def install(folder, monkeypatch, cards, topology="", *, driver="590.48.01", capability="9.0"):
    """Puts an `nvidia-smi` first on the path that lists these cards, of one driver and one compute capability."""
    for name, text in (("cards", cards), ("driver", [driver] * len(cards)), ("capability", [capability] * len(cards))):
        (folder / name).write_text("".join(f"{line}\n" for line in text))
    (folder / "topology").write_text(topology)
    command = folder / "nvidia-smi"
    command.write_text(f"""#!/bin/sh
case "$*" in
    topo*) exec cat {folder}/topology ;;
    *=driver_version*) exec cat {folder}/driver ;;
    *=compute_cap*) exec cat {folder}/capability ;;
    *) exec cat {folder}/cards ;;
esac
""")
    command.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    for variable in ("CUDA_VISIBLE_DEVICES", "ZEROLAB_DEVICES", "ZEROLAB_MAX_RANKS"):
        monkeypatch.delenv(variable, raising=False)


def lost(folder, monkeypatch):
    """Puts an `nvidia-smi` first on the path that says what it says of a card that has fallen off the bus."""
    words = "Unable to determine the device handle for GPU0: 0000:01:00.0: GPU is lost.  Reboot the system to recover"
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\necho '{words} this GPU'\nexit 15\n")
    (folder / "nvidia-smi").chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def several(card, count, **fields):
    """The same card so many times."""
    return [card.format(index=index, **fields) for index in range(count)]
