"""Why torch cannot use a GPU, in sentences with a remedy. Nothing here starts CUDA in the notebook's process.

torch is imported where it is asked: the site's pages, which have none, read what is told of errors by way of this file.
Both tables are NVIDIA's: CUDA Toolkit release notes, "Minimum Required Driver Version for CUDA Minor Version
Compatibility", and CUDA C++ Programming Guide, "Binary Compatibility".
"""

import os
import re

from zerolab.runtime import machine

OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}  # of Linux, by CUDA's major version
_REMEDIES = {
    "no kernel image": "this torch was not built for a card of its generation; TORCH=cuda12 is for older cards",
    "out of memory": "it is full; `nvidia-smi` lists whose processes fill it, and ZEROLAB_DEVICES chooses another GPU",
    "busy or unavailable": "another process has it to itself (compute mode Exclusive_Process), or nobody may use it "
    "(Prohibited); wait for that process to end, or choose another GPU by ZEROLAB_DEVICES",
    "launch failure|is lost|ECC error|unknown error|fallen off": "the card may be lost: `dmesg | grep -i xid` says "
    "why, and only an administrator's reset or a reboot brings it back; ZEROLAB_DEVICES chooses another GPU",
    "NCCL": "NCCL could not start; NCCL_DEBUG=INFO shows why, and `zerolab doctor` tries it by itself",
}
"""What CUDA says of a GPU that it cannot use, as a pattern, and what that means for the person."""


def why_no_gpu() -> str:
    """Why torch sees no GPU here, and what to do about it; without a full stop."""
    import torch

    found, chosen = machine.all_cards(), os.environ.get("CUDA_VISIBLE_DEVICES")
    if not found:
        return machine.complaint()
    names = ", ".join(sorted({card["name"] for card in found}))
    if torch.version.cuda is None:
        return f"this torch is a CPU build and cannot use {names} (make env TORCH=cuda installs one that can)"
    if chosen is not None and not machine.cards():
        return f"CUDA_VISIBLE_DEVICES is {chosen!r}, which leaves none of {len(found)} visible (unset it, or name one)"
    driver, needed = machine.driver_version(), OLDEST_DRIVER.get(int(torch.version.cuda.partition(".")[0]), 0)
    number = int(driver.partition(".")[0] or needed)
    if number < needed:
        other = "make env TORCH=cuda12, or " if number >= OLDEST_DRIVER[12] else ""
        return (
            f"this torch is built for CUDA {torch.version.cuda}, which needs driver {needed} or newer, and {names} has "
            f"{driver} ({other}update the driver)"
        )
    return f"the driver lists {names}, and CUDA does not start: {_said_by_cuda()} (zerolab doctor says more)"


def _said_by_cuda() -> str:
    import torch

    try:
        torch.cuda.init()
    except Exception as error:  # noqa: BLE001  (AssertionError, RuntimeError, OSError: torch is not of one mind)
        return explained(str(error))
    return "it gives no reason"


def explained(said: str) -> str:
    """What CUDA or NCCL said, in one line, with the remedy where it is known."""
    line = next((part.strip() for part in said.splitlines() if part.strip()), "no reason given").rstrip(".")
    return next((f"{line}: {words}" for pattern, words in _REMEDIES.items() if re.search(pattern, said)), line)


def lost(said: str) -> str:
    """What to do if this is an error of CUDA's after which the card may be lost; empty if it is not."""
    pattern = next(key for key in _REMEDIES if "is lost" in key)
    return _REMEDIES[pattern] if re.search("CUDA|NCCL", said) and re.search(pattern, said) else ""


def without_kernels(capability: str) -> str:
    """Why this torch has no kernels for a card of this compute capability, such as "7.0"; empty if it has.

    Also empty where nobody knows: of a card whose driver does not tell, or a torch that does not list its kernels.
    """
    import torch

    built = torch.cuda.get_arch_list()
    if not re.fullmatch(r"\d+\.\d+", capability) or not built or any(_runs(each, capability) for each in built):
        return ""
    oldest = min(float(each.rpartition("_")[2].rstrip("af")) / 10 for each in built)
    other = "cuda12" if float(capability) < oldest else "cuda"
    return (
        f"has compute capability {capability}, and this torch is built for {', '.join(built)} "
        f"(make env TORCH={other} installs one that may have it)"
    )


def _runs(kernels: str, capability: str) -> bool:
    """Whether `sm_86` or `compute_90` runs on a card: a cubin on its own generation, PTX on any later card, too."""
    found = re.fullmatch(r"(sm|compute)_(\d+)(\d)", kernels)
    if found is None:  # sm_90a and the like: for one card alone
        return kernels.rstrip("af") == f"sm_{capability.replace('.', '')}"
    major, minor = map(int, capability.split("."))
    built = (int(found[2]), int(found[3]))
    return built <= (major, minor) and (found[1] == "compute" or built[0] == major)
