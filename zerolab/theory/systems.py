"""Other systems compared with the formulas: which closed form is theirs, and what they hold beyond it.

What this project's engines hold beyond the formula follows from the layout of their flats (`theory.terms`). Other
systems have their own layouts, so here the terms are read from their tensors at the optimizer's update. What the ledger
counts as model state, but the system does not show, is a term too (`not_shown`): nothing is hidden in a sum.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from zerolab.engines.partition import FlatLayout
from zerolab.names import check_known
from zerolab.recording.events import merge_spans
from zerolab.theory import forms

FORMS = {
    "zero3-8bit": "zero3",
    "torch-ddp": "ddp",
    "torch-zero1": "zero1",
    "fsdp1": "zero3",
    "fsdp2": "zero3",
    "hsdp": "zero3",
    "deepspeed-0": "ddp",
    "deepspeed-1": "zero1",
    "deepspeed-2": "zero2",
    "deepspeed-3": "zero3",
    "muon-replicated": "ddp",
    "muon-owners": "zero2",
    "muon-rows": "zero3",
}
"""The stage whose closed form a system should follow; hsdp's on half the ranks. With Muon that is the ranks'
mean, for they own matrices of unequal sizes: `theory.muon` has what each holds and sends, to the byte."""

IN_FLATS = ("zero3-8bit",)
"""Those that have our flats, so that `theory.terms` of that stage are theirs."""

GATHERED_IN_8_BITS = 1 + forms.SCALE_BYTES / forms.BLOCK
"""Bytes per element of a gather in 8 bits: one, and 4 for the scale of each block of 256."""

ROOT_ONCE = ("fsdp1", "fsdp2", "hsdp", "muon-rows")
"""Systems that gather the root unit once a step: FSDP by default keeps it whole from forward to backward."""

WITHOUT_MASTERS = ("torch-ddp", "torch-zero1", "deepspeed-0")


def check(stage: str, world_size: int, precision: str) -> None:
    """Refuses what another system cannot do, before any rank is started, where each would raise an error of its own.

    Raises ValueError for an odd number of ranks for hsdp, or 16 bits where a system keeps no fp32 masters; ImportError
    for DeepSpeed where it is not installed.
    """
    if stage == "hsdp" and world_size % 2:
        raise ValueError(f"hsdp needs two halves of equal size, and {world_size} ranks have none: take an even N")
    if precision != "fp32" and stage in WITHOUT_MASTERS:
        raise ValueError(f"{stage} has no {precision} with fp32 masters: leave it out, or compare in fp32")
    if stage.startswith("deepspeed") and find_spec("deepspeed") is None:
        raise ImportError('DeepSpeed is not installed: pip install -c constraints.txt -e ".[deepspeed]"')


def check_moments(stage: str, precision: str, moments: str, offered: Iterable[str]) -> None:
    """Raises ValueError for unknown moments, or those that the stage does not take, naming the `offered` that do."""
    state_bytes(stage, 1, 1, precision, moments=moments)  # only to refuse unknown names
    *others, last = (name for name in offered if name not in FORMS or name in IN_FLATS)
    if moments != "fp32" and stage not in (*others, last):
        raise ValueError(f"{stage} has no moments in {moments}: take {', '.join(others)} or {last}")


def state_bytes(
    stage: str,
    num_params: int,
    world_size: int,
    precision: str,
    *,
    trained: int | None = None,
    moments: str = "fp32",
    matrices: int = 0,
) -> dict[str, int]:
    """`theory.state_bytes`, for other systems too: hsdp holds what zero3 holds on half the ranks.

    Of `matrices` elements Muon keeps one momentum in fp32, where Adam has two moments (Jordan et al. 2024).

    Raises ValueError as `theory.state_bytes` does.
    """
    shards = _shards(stage, world_size)
    like = FORMS.get(stage, stage)
    found = forms.state_bytes(like, num_params, shards, precision, trained=trained, moments=moments)
    spared = forms.FP32_BYTES * matrices // (shards if "optimizer_state" in forms.SHARDED[like] else 1)
    return found | {"optimizer_state": found["optimizer_state"] - spared}


def traffic_bytes(
    stage: str, num_params: int, world_size: int, precision: str, *, matrices: int = 0, root: int = 0
) -> int:
    """`theory.traffic_bytes`, for other systems too; hsdp's halves also all-reduce their shards of the gradients.

    FSDP gathers the `root` elements of the root unit once (`ROOT_ONCE`). Under muon-rows an Nth of `matrices` elements
    goes to the owners for the update, and an Nth back, in fp32.
    Source of the second pass: FSDP (arXiv 2304.11277) section 3.2, hybrid sharding.
    """
    shards = _shards(stage, world_size)
    if stage == "zero3-8bit":  # of three passes, two are gathers
        elements = forms.traffic_elements("ddp", num_params, world_size)
        return int(GATHERED_IN_8_BITS * elements) + forms.traffic_bytes("zero3", num_params, world_size, precision) // 3
    within = forms.traffic_bytes(FORMS.get(stage, stage), num_params, shards, precision)
    if root and stage in ROOT_ONCE:
        within -= forms.traffic_bytes("ddp", root, shards, precision) // 2
    if stage == "muon-rows":
        return within + 2 * forms.FP32_BYTES * matrices * (world_size - 1) // world_size**2
    # Between the halves, a rank all-reduces only the shard that it owns.
    return within + (forms.traffic_bytes("ddp", num_params, 2, precision) // shards if stage == "hsdp" else 0)


def _shards(stage: str, world_size: int) -> int:
    """Ranks among which a stage divides. Raises ValueError for an unknown one."""
    check_known("stage", stage, (*forms.STAGES, *FORMS))
    return max(world_size // 2, 1) if stage == "hsdp" else world_size


@contextmanager
def shown_at_updates(engine: Any) -> Iterator[dict[str, int]]:
    """Yields a dictionary that each update of `engine` fills with what `shown` finds; empty without an engine."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    latest: dict[str, int] = {}
    if engine is None:
        yield latest
        return
    updated = [False]  # since the last forward: some systems update group by group, or nest one optimizer in another

    def before_forward(*_: Any) -> None:
        updated[0] = False

    def before_update(*_: Any) -> None:
        if not updated[0]:
            updated[0] = True
            latest.clear()
            latest.update(shown(engine))

    # torch's hooks, not a system's: every system calls the module, and ends up in some torch optimizer.
    handles = engine.model.register_forward_pre_hook(before_forward), register_optimizer_step_pre_hook(before_update)
    try:
        yield latest
    finally:
        for handle in handles:
            handle.remove()


def shown(engine: Any) -> dict[str, int]:
    """Bytes that `engine.holdings()` shows now, each storage once.

    Returns:
        Bytes by category; `step_counters`, which are part of the optimizer state; and, as `padding of` a category, what
        its storages hold beyond the parameters in them.
    """
    storages: dict[int, tuple[str, int, bool]] = {}
    covered: dict[int, dict[tuple[str, int], list[tuple[int, int]]]] = {}
    numels = {flat.layout.name: flat.layout.numel for flat in engine.flats}  # beyond that lies a flat's padding
    for holding in engine.holdings():
        storage = holding.tensor.untyped_storage()
        key, (start, stop) = storage._cdata, holding.span  # noqa: SLF001  (storages have no public identity)
        storages[key] = holding.category, storage.nbytes(), holding.tensor.dim() == 0
        stop = min(stop, numels[holding.unit])
        if stop > start:
            of_unit = holding.unit, holding.tensor.element_size()
            covered.setdefault(key, {}).setdefault(of_unit, []).append((start, stop))
    sums: Counter[str] = Counter()
    for key, (category, nbytes, is_number) in storages.items():
        sums[category] += nbytes
        # Step counters are in no formula: some systems keep one per parameter, others one per flat.
        if is_number and category == "optimizer_state":
            sums["step_counters"] += nbytes
        else:
            # Several views may show the same elements, which count once.
            merged = [(width, merge_spans(spans)) for (_, width), spans in covered.get(key, {}).items()]
            lying_in_it = sum(width * (stop - start) for width, spans in merged for start, stop in spans)
            sums[f"padding of {category}"] += nbytes - lying_in_it
    return dict(sums)


def terms(
    stage: str,
    flats: Sequence[FlatLayout],
    world_size: int,
    precision: str,
    *,
    state: dict[str, int],
    showed: dict[str, int],
    matrices: int = 0,
) -> dict[str, int]:
    """What one rank of another system holds beyond its closed form, by name; their sum is `state` minus the formula.

    * `step_counters`, `padding`: as in `theory.terms`, but as the system has them.
    * `frozen`: negative; the formula counts frozen parameters, but they have neither gradients nor optimizer state.
    * `more_parameters`, `more_gradients`, `more_optimizer_state`: the system shards by whole parameters or rows, so
      a rank may have more or less than its Nth; or it keeps a copy more than the formula, or another precision
      (DeepSpeed's fp32 masters in fp32; FSDP's bf16, whose shards are fp32). Negative where it has less.
    * `not_shown`: what the ledger counts as model state, but the system's own tensors do not account for.
    """
    num_params = sum(flat.numel for flat in flats)
    trained = sum(flat.numel for flat in flats if not flat.frozen)
    formula = state_bytes(stage, num_params, world_size, precision, matrices=matrices)
    needed = state_bytes(stage, num_params, world_size, precision, trained=trained, matrices=matrices)
    seen = Counter(showed)  # zero for what the system does not have
    padding = {category: seen[f"padding of {category}"] for category in forms.STATE_CATEGORIES}
    counted = {category: seen[category] - padding[category] for category in forms.STATE_CATEGORIES}
    counted["optimizer_state"] -= seen["step_counters"]  # a term of their own
    return {
        "padding": sum(padding.values()),
        "step_counters": seen["step_counters"],
        "frozen": sum(needed.values()) - sum(formula.values()),
        **{f"more_{category}": counted[category] - needed[category] for category in forms.STATE_CATEGORIES},
        "not_shown": sum(state.values()) - sum(seen[category] for category in forms.STATE_CATEGORIES),
    }


def deepspeed_estimate(stage: str, num_params: float, world_size: int, largest: int = 0) -> dict[str, int]:
    """DeepSpeed's own estimate of a GPU's model state in 16 bits, as ZeRO's form and named differences from it.

    It has one for zero2 and zero3; `largest` are the elements of the layer with the most parameters of its own, for
    which only zero3 asks.

    Returns:
        Bytes, whose sum is what `estimate_zero2_model_states_mem_needs` (2P + 18P/N) or
        `estimate_zero3_model_states_mem_needs` (4 largest + 18P/N) returns without offload, except for rounding:

        * `formula`: ZeRO's own, 2P + 14P/N or 16P/N (arXiv 1910.02054, table 1).
        * `fp32_gradient_shard`: 4P/N, the copy of the gradients that the update reads; `theory.terms` has it, too.
        * `parameters_not_counted`: in zero3 -2P/N. The 18 are those of zero2, which counts parameters separately as
          2P; in zero3 the rank's own shard of them is not counted.
        * `largest_layer`: in zero3 parameters and gradients of one whole layer, 2 + 2 bytes per element.

    Raises ValueError for another stage, or a `largest` below 0 or above `num_params`.
    """
    if stage not in ("zero2", "zero3"):
        raise ValueError(f"DeepSpeed has no estimate for {stage!r}: choose zero2 or zero3")
    if not 0 <= largest <= num_params:
        raise ValueError(f"the largest layer has {largest!r} of {num_params!r} parameters: give none to all of them")
    sharded = stage == "zero3"
    # Each term is rounded to whole bytes, where DeepSpeed rounds their sum: they differ by at most two bytes.
    return {
        "formula": sum(forms.state_bytes(stage, num_params, world_size, "bf16").values()),
        "fp32_gradient_shard": int(4 * num_params // world_size),
        "parameters_not_counted": -int(2 * num_params // world_size) if sharded else 0,
        "largest_layer": 4 * largest if sharded else 0,
    }
