"""Claims about what ranks send, how long that takes, and in what order they work."""

from math import isclose
from typing import Any

from zerolab import theory
from zerolab.catalog import gpu
from zerolab.facts.evidence import Evidence, Finding, passes
from zerolab.facts.mistakes import AllReduceZero1
from zerolab.recording.recording import Recording

NETWORKS = ("nvlink4", "ethernet-100g")
SIZES = ("gpt2", "7b")  # the first is about as large as BERT
ROWS, LENGTH = 8, 1024  # of a GPU's batch, the same for both
MICRO_BATCHES = 4


def overhead_of_stages_1_and_2(evidence: Evidence) -> Finding:
    """Claim 4: three articles, three answers, because the code decides: two passes of the model or three."""
    ddp, zero1, zero2 = (passes(evidence.recording(stage)) for stage in ("ddp", "zero1", "zero2"))
    # In the articles' code an all-reduce gives each rank all gradients, of which it needs its shard.
    wasteful = passes(evidence.recording(AllReduceZero1))
    return Finding(
        measured=f"passes of the model a step: DDP {ddp:g}, ZeRO-1 {zero1:g}, ZeRO-2 {zero2:g}; "
        f"ZeRO-1 with all-reduce and all-gather {wasteful:g}",
        borne_out=ddp == zero1 == zero2 == 2 and wasteful == 3,
    )


def overhead_of_stage_3(evidence: Evidence) -> Finding:
    """Claim 5: three passes instead of two."""
    ddp, zero3 = (passes(evidence.recording(stage)) for stage in ("ddp", "zero3"))
    return Finding(
        measured=f"{zero3:g} passes of the model a step instead of {ddp:g}: {100 * (zero3 / ddp - 1):g} % more",
        borne_out=zero3 / ddp == 1.5,
    )


def accumulation(evidence: Evidence) -> Finding:
    """Claim 14: stage 2 has no room to accumulate whole gradients, so it reduces each micro-batch."""
    # Four reductions and one gather make five passes; stage 1 still reduces once.
    zero1, zero2 = (passes(evidence.recording(stage, micro_batches=MICRO_BATCHES)) for stage in ("zero1", "zero2"))
    return Finding(
        measured=f"with {MICRO_BATCHES} micro-batches a step, passes of the model: ZeRO-1 {zero1:g}, ZeRO-2 {zero2:g}",
        borne_out=zero1 == 2 and zero2 == 1 + MICRO_BATCHES,
    )


def small_models(evidence: Evidence) -> Finding:
    """Claim 16: small models fit without it; by the cost model a slow network costs time, of a large one more."""
    # Both models get the same tokens per step: the longer context of the larger one would hide more.
    prices = [[_price(evidence, model, network) for model in SIZES] for network in NETWORKS]
    fast, slow = prices
    shown = [
        f"{' and '.join(f'{price:.2f}' for price in found)} over {name}"
        for found, name in zip(prices, NETWORKS, strict=True)
    ]
    rows = [_simulated(evidence, "ddp", model, NETWORKS[0]) for model in SIZES]
    small, large = (sum(row["state"].values()) / 1e9 for row in rows)
    return Finding(
        measured=f"a step of ZeRO-3 over one of DDP on 8 H100, {' and '.join(SIZES)}: {'; '.join(shown)}; "
        f"DDP holds {small:.0f} and {large:.0f} GB",
        # Each rank updates only its shard, which over a fast network saves more than the third pass costs.
        borne_out=max(fast) < 1 < slow[0] < slow[1] and small * 1e9 < gpu("h100").memory_bytes < large * 1e9,
    )


def _price(evidence: Evidence, model: str, network: str) -> float:
    """Seconds of a simulated step of zero3, divided by those of ddp."""
    zero3, ddp = (_simulated(evidence, stage, model, network)["step_seconds"] for stage in ("zero3", "ddp"))
    return float(zero3 / ddp)


def _simulated(evidence: Evidence, stage: str, model: str, network: str) -> dict[str, Any]:
    """Eight H100 in one node, or each in its own where the network is not NVLink."""
    # For another network than NVLink to be used, each GPU must be in a node of its own.
    place = {} if network == NETWORKS[0] else {"gpus_per_node": 1, "network": network}
    return evidence.simulated(stage, 8, model, precision="bf16", rows=ROWS, length=LENGTH, **place)


def broadcasts(evidence: Evidence) -> Finding:
    """Claim 20: it is an all-gather, in which every rank sends its shard and receives all others."""
    recording = evidence.recording("zero3")
    last = [collective for collective in recording.collectives if collective.step == recording.info.steps]
    gathers = [collective for collective in last if collective.events[0].phase == "gather"]
    ops = sorted({op for collective in gathers for op in collective.ops})
    sent = {rank: sum(each.events[rank].logical_bytes for each in gathers) for rank in range(recording.world_size)}
    # A broadcast would be sent by one rank; here each rank sends (N-1)/N of the bytes of the unit.
    share = sent[0] / (4 * sum(each.events[0].numel for each in gathers))
    all_alike = len(set(sent.values())) == 1
    return Finding(
        measured=f"a step gathers {len(gathers)} times, always by {', '.join(ops)}; of each unit "
        f"{'every rank' if all_alike else 'rank 0'} sends {share:.3g} of the bytes",
        borne_out=ops == ["all_gather"] and isclose(share, 1 - 1 / recording.world_size) and all_alike,
    )


def no_parallelism_of_its_own(evidence: Evidence) -> Finding:
    """Claim 21: all ranks run the whole data-parallel step; but they wait."""
    recording, ddp = evidence.recording("zero3"), evidence.recording("ddp")
    # Another kind of parallelism would compute something else, or elsewhere: losses and units would differ.
    apart = max(
        abs(one - other)
        for mine, theirs in zip(recording.results or [], ddp.results or [], strict=True)
        for one, other in zip(mine, theirs, strict=True)
    )
    used = [_units_used(recording, rank) for rank in range(recording.world_size)]
    # Data-parallel: each rank runs the whole model, on other rows.
    whole = [{unit.name for unit in recording.units}] * recording.world_size
    waits = [sum(event.kind == "wait" for event in rank.events) > 0 for rank in recording.ranks]
    return Finding(
        measured=f"every rank runs {len(used[0])} units, forward and backward; losses at most 1e-6 from DDP's: "
        f"{'yes' if apart <= 1e-6 else 'no'}; ranks that wait for a collective: {sum(waits)} of {len(waits)}",
        borne_out=apart <= 1e-6 and used == whole and all(waits),
    )


def _units_used(recording: Recording, rank: int) -> set[str | None]:
    """The units that a rank ran both forward and backward."""
    ran = {(event.op, event.unit) for event in recording.rank(rank).events if event.kind == "module"}
    return {unit for op, unit in ran if op == "forward" and ("backward", unit) in ran}


def three_stages_alike(evidence: Evidence) -> Finding:
    """Wrong number 5: stages 1 and 2 send what DDP sends, stage 3 half as much again."""
    found = {stage: passes(evidence.recording(stage)) for stage in theory.STAGES}
    return Finding(
        measured=", ".join(f"{stage} {times:g}" for stage, times in found.items()) + " passes of the model a step",
        borne_out=found["zero1"] == found["zero2"] == found["zero3"] / 1.5,
    )
