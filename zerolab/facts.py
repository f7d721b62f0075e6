"""Claims in circulation, each with what comes out here: claim, measured, verdict, how. Arithmetic only, no torch.

What needs ranks is measured by the lessons and tests; here stands what closed forms decide. GB is 1e9 bytes, GiB 2**30.
"""

from zerolab import theory
from zerolab.tables import Table

GB, GIB = 1e9, 2**30


def facts() -> Table:
    """One row a claim; every number in `measured` is computed when this is called."""
    return Table([*_sizes(), *_traffic(), *_calculators()], "claims, and what comes out")


def _row(claim: str, measured: str, verdict: str, how: str) -> dict[str, str]:
    return {"claim": claim, "measured": measured, "verdict": verdict, "how": how}


def _gigabytes(stage: str, num_params: float, world_size: int, precision: str = "fp32") -> float:
    return sum(theory.state_bytes(stage, num_params, world_size, precision).values()) / GB


def _sizes() -> list[dict[str, str]]:
    fp32, bf16 = (_gigabytes("ddp", 7e9, 8, precision) for precision in ("fp32", "bf16"))
    sharded = ", ".join(f"{_gigabytes(stage, 7e9, 8):g}" for stage in ("zero1", "zero2", "zero3"))
    alone = _gigabytes("zero3", 7e9, 1)
    adam = theory.state_bytes("ddp", 100e9, 1, "bf16")["optimizer_state"] / GB
    copies = [100 * (1 - 1 / ranks) for ranks in (2, 8, 100)]
    form = "theory.state_bytes"
    return [
        _row("7B with Adam needs 112 GB a GPU, in fp32 and mixed", f"{fp32:g} and {bf16:g} GB", "true", form),
        _row("ZeRO-1, 2, 3 on 8 GPUs: 63, 38.5, 14 GB", f"{sharded} GB", "true of the state, not of the peak", form),
        _row("7B runs on 14 GB", f"{alone:g} GB on one GPU", "only on 8 GPUs, before activations", form),
        _row("100B in mixed precision has 1.2 TB of Adam state", f"{adam:g} GB", "true, fp32 master counted", form),
        _row(
            "100 GPUs waste 99 % of the optimizer memory",
            ", ".join(f"{share:g} %" for share in copies) + " at N = 2, 8, 100",
            "true; what sharding saves levels off with N",
            "1 - 1/N",
        ),
    ]


def _traffic() -> list[dict[str, str]]:
    sent = {stage: theory.traffic_elements(stage, 1e6, 4) for stage in theory.STAGES}
    more = 100 * (sent["zero3"] / sent["ddp"] - 1)
    same = sent["zero1"] == sent["zero2"] == sent["ddp"]
    form = "theory.traffic_elements"
    return [
        _row("ZeRO-3 sends 50 % more than DDP", f"{more:g} %", "true", form),
        _row("ZeRO-1, 2 and 3 send the same", f"ZeRO-3 sends {more:g} % more", "false", form),
        _row("ZeRO-1 and 2 send no more than DDP", "equal" if same else "not equal", "true of 2 passes", form),
    ]


def _calculators() -> list[dict[str, str]]:
    mixed = _gigabytes("zero1", 7e9, 8, "bf16")
    optimizer = theory.state_bytes("ddp", 8_030_261_248, 1, "bf16")["optimizer_state"] / GIB
    t5 = 2_851_598_336
    estimator, paper = (2 * t5 + 18 * t5 / 8) / GIB, (2 * t5 + 14 * t5 / 8) / GIB
    return [
        _row(
            "7B, mixed precision, ZeRO-1 on 8: 63 GB",
            f"{mixed:g} GB",
            "false: the master is sharded too",
            "theory.state_bytes",
        ),
        _row(
            "Llama 3 8B, optimizer unsharded: 60 GiB", f"{optimizer:.1f} GiB", "false: the master is left out", "K = 12"
        ),
        _row(
            "t5-3b, ZeRO-2 on 8 GPUs: 15.93",
            f"{estimator:.2f} GiB by DeepSpeed's code, {paper:.2f} by the paper",
            "false: 4P + 16P/N is neither",
            "2P + 18P/N and 2P + 14P/N",
        ),
    ]
