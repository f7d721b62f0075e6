"""Claims about memory: what a rank holds, at the update and at the peak. GB is 1e9 bytes."""

from zerolab import theory
from zerolab.catalog import GB
from zerolab.facts.evidence import Evidence, Finding, bytes_a_parameter, copies

SHARDED = ("zero1", "zero2", "zero3")


def gigabytes(stage: str, num_params: float, world_size: int, precision: str = "fp32") -> float:
    """State of a rank by the closed form, in GB."""
    return sum(theory.state_bytes(stage, num_params, world_size, precision).values()) / GB


def seven_billion_under_ddp(evidence: Evidence) -> Finding:
    """Claim 1: 16 bytes per parameter in fp32 and in mixed precision, differently composed."""
    # A recording of a small model proves the bytes per parameter; the rest is arithmetic.
    said = [gigabytes("ddp", 7e9, 1, precision) for precision in ("fp32", "bf16")]
    fp32, bf16 = evidence.recording("ddp"), evidence.recording("ddp", precision="bf16")
    parts = [
        "+".join(f"{bytes_a_parameter(run, category):.0f}" for category in theory.STATE_CATEGORIES)
        for run in (fp32, bf16)
    ]
    return Finding(
        measured=f"{said[0]:g} and {said[1]:g} GB; on the ranks {parts[0]} bytes a parameter in fp32, {parts[1]} in "
        "bf16, where the fp32 copy of the gradients counts as gradients",
        borne_out=said == [112, 112] and parts == ["4+4+8", "2+6+12"],
    )


def sharded_seven_billion(evidence: Evidence) -> Finding:
    """Claim 2: true at the update; the peaks are higher."""
    rows = [evidence.simulated(stage, 8, "7b") for stage in SHARDED]
    state = [sum(row["state"].values()) / GB for row in rows]
    peak = [sum(row["peak"].values()) / GB for row in rows]
    more = [highest - held for highest, held in zip(peak, state, strict=True)]
    said = [gigabytes(stage, 7e9, 8) for stage in SHARDED]
    # To a hundredth of a GB: the engines also hold padding and step counters.
    agrees = all(abs(found - formula) < 0.01 for found, formula in zip(state, said, strict=True))
    return Finding(
        measured=f"{_list(state)} GB at the update; {_list(peak)} GB at the peak of a step on one row of 2,048 tokens",
        borne_out=agrees and min(more) > 0,
    )


def seven_billion_on_14_gb(evidence: Evidence) -> Finding:
    """Claim 3: 14 GB is an eighth of the state, and activations come on top."""
    alone, eighth = gigabytes("zero3", 7e9, 1), gigabytes("zero3", 7e9, 8)
    # One row is the smallest batch, with the fewest activations.
    peak = evidence.simulated("zero3", 8, "7b")["peak"]
    return Finding(
        measured=f"{eighth:g} GB of state on each of 8 GPUs, {alone:g} GB on one; at the peak "
        f"{peak['activations'] / GB:.1f} GB of activations come on top",
        borne_out=alone == 8 * eighth == 112,
    )


def wasted_copies(evidence: Evidence) -> Finding:
    """Claim 12: 1 - 1/N of the optimizer's memory is copies; what sharding frees on a rank levels off."""
    ranks = evidence.world_size
    # Counted by spans: two halves on two ranks are one copy, two wholes are two.
    ddp, zero1 = (copies(evidence.recording(stage), "optimizer_state") for stage in ("ddp", "zero1"))
    freed = [100 * (1 - 1 / size) for size in (2, 4, 8, 100)]
    state = [gigabytes("zero1", 7e9, size) for size in (1, 8, 100)]
    # All GPUs together need the same for any N, so a model N times as large fits on N GPUs.
    together = {round(size * gigabytes("zero3", 7e9, size), 6) for size in (1, 8, 100)}
    return Finding(
        measured=f"{ranks} ranks hold {ddp:g} copies under DDP, {zero1:g} under ZeRO-1; freed on each rank: "
        f"{', '.join(f'{share:g} %' for share in freed)} at N = 2, 4, 8, 100; 7B at N = 1, 8, 100: under ZeRO-3 "
        f"{', '.join(f'{total:g}' for total in together)} GB on all GPUs together, under ZeRO-1 {_list(state)} GB "
        "on each",
        borne_out=(ddp, zero1) == (ranks, 1) and freed[-1] == 99 and len(together) == 1,
    )


def activations_stay(evidence: Evidence) -> Finding:
    """Claim 13: activations take the same bytes in every stage."""
    found = {stage: evidence.recording(stage).highest("activations") for stage in theory.STAGES}
    return Finding(
        measured="at most " + ", ".join(f"{nbytes:,} ({stage})" for stage, nbytes in found.items()) + " bytes",
        borne_out=len(set(found.values())) == 1,
    )


def never_the_whole_model(evidence: Evidence) -> Finding:
    """Claim 15: one unit is whole at a time, so it depends on the model's units."""
    # Without other units everything is in the root unit, which is whole from its gather to its release.
    blocks, one = evidence.recording("zero3"), evidence.recording("zero3", units=[])
    whole = [run.highest("parameters") / (4 * run.num_params) for run in (blocks, one)]
    kept = [run.highest("optimizer_state") / (8 * run.num_params) for run in (blocks, one)]
    return Finding(
        measured=f"with a unit a block a rank holds at most {100 * whole[0]:.0f} % of the parameters, "
        f"with one unit for all {100 * whole[1]:.0f} %; of the optimizer's state {100 * max(kept):.0f} %",
        borne_out=whole[0] < 1 <= whole[1] and max(kept) < 1,
    )


def adam_of_100_billion(evidence: Evidence) -> Finding:
    """Claim 17: 12 bytes a parameter are the fp32 master and Adam's two moments; in fp32 it is 8."""
    # The closed form for 100 billion; recordings show that 12 is right.
    said = theory.state_bytes("ddp", 100e9, 1, "bf16")["optimizer_state"] / GB
    # On DDP, where nothing is sharded.
    bf16 = bytes_a_parameter(evidence.recording("ddp", precision="bf16"), "optimizer_state")
    fp32 = bytes_a_parameter(evidence.recording("ddp"), "optimizer_state")
    return Finding(
        measured=f"{said:g} GB; {bf16:.0f} bytes a parameter on the ranks in bf16, {fp32:.0f} in fp32: "
        f"{bf16 - fp32:.0f} of the {bf16:.0f} are the fp32 master copy",
        borne_out=said == 1200 and round(bf16) == 12,
    )


def _list(values: list[float]) -> str:
    return ", ".join(f"{value:.1f}".removesuffix(".0") for value in values)
