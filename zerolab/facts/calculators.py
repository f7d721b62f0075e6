"""Wrong numbers in circulation: the arithmetic behind each, and what comes out with nothing left out or counted twice.

GB is 1e9 bytes, GiB is 2**30.
"""

from zerolab import theory
from zerolab.catalog import GIB
from zerolab.facts.evidence import Evidence, Finding, bytes_a_parameter
from zerolab.facts.sizes import gigabytes
from zerolab.theory.systems import deepspeed_estimate

LLAMA3_8B = 8_030_261_248
T5_3B = 2_851_598_336
NEOX = 6.87e9


def playbook_figure(_: Evidence) -> Finding:
    """Wrong number 1: the figure says K = 12 and draws K = 8."""
    # The figure's 8 bytes are the two moments alone, as in fp32.
    k12 = theory.state_bytes("ddp", LLAMA3_8B, 1, "bf16")["optimizer_state"] / GIB
    k8 = theory.state_bytes("ddp", LLAMA3_8B, 1, "fp32")["optimizer_state"] / GIB
    return Finding(
        measured=f"{k12:.1f} GiB with its own K = 12; {k8:.1f} GiB with K = 8",
        borne_out=round(k8) == 60 and k12 > k8,
    )


def deepspeed_documentation(_: Evidence) -> Finding:
    """Wrong number 2: the page shows the result of older code."""
    # The older form, as on the page: 4 bytes per parameter whole, and 16 sharded.
    old = (4 + 16 / 8) * T5_3B / GIB
    now = sum(deepspeed_estimate("zero2", T5_3B, 8).values()) / GIB
    paper = sum(theory.state_bytes("zero2", T5_3B, 8, "bf16").values()) / GIB
    return Finding(
        measured=f"4P + 16P/N gives {old:.2f} GiB; its code now {now:.2f} (2P + 18P/N), the paper {paper:.2f} "
        "(2P + 14P/N)",
        borne_out=f"{old:.2f}" == "15.93" and paper < now < old,
    )


def eleuther_calculator(_: Evidence) -> Finding:
    """Wrong number 3: divided by 64 GPUs, and by the 8 of them that share a tensor once more."""
    # 64 GPUs are 8 tensor-parallel times 8 data-parallel: all 64 shard the model already.
    once, twice = (2 * NEOX / 64 / split / GIB for split in (1, 8))
    return Finding(
        measured=f"{once:.2f} GiB; divided by the tensor-parallel 8 once more {twice:.2f}",
        borne_out=f"{twice:.2f}" == "0.02" and f"{once:.2f}" == "0.20",
    )


def mixed_zero1_notebook(evidence: Evidence) -> Finding:
    """Wrong number 4: 2 + 2 + 4 + 8/N, as if every rank needed the whole fp32 master."""
    sharded = gigabytes("zero1", 7e9, 8, "bf16")
    # Parameters, gradients and the master whole, and the moments sharded.
    unsharded = (2 + 2 + 4 + 8 / 8) * 7e9 / 1e9
    recording = evidence.recording("zero1", precision="bf16")
    found = bytes_a_parameter(recording, "optimizer_state")
    return Finding(
        measured=f"{sharded:g} GB; with the fp32 master whole on every GPU {unsharded:g}; on {recording.world_size} "
        f"ranks the optimizer's state is {found:.0f} bytes a parameter, 12/N",
        # Only padding and step counters may differ: less than a thousand bytes in all.
        borne_out=unsharded == 63 and abs(found - 12 / recording.world_size) < 1000 / recording.num_params,
    )
