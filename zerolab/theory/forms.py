"""Closed forms: what a rank holds and what it sends, per stage, each with its source. Pure arithmetic, no torch.

Sources, cited below by these names:

* ZeRO: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
  arXiv 1910.02054v3. Its K (bytes of optimizer state a parameter) is 12 in mixed precision and 8 in fp32.
* FSDP: Zhao et al. 2023, "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", arXiv 2304.11277.
* Adam: Kingma and Ba 2015, "Adam: A Method for Stochastic Optimization", arXiv 1412.6980.
* Blocks: Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization", arXiv 2110.02861.

All sizes are bytes. GB is 1e9 bytes, GiB is 2**30.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from zerolab.names import check_count, check_known

if TYPE_CHECKING:
    from zerolab.engines.partition import FlatLayout

STAGES = ("ddp", "zero1", "zero2", "zero3")
STATE_CATEGORIES = ("parameters", "gradients", "optimizer_state")

_MIXED = {"parameters": 2, "gradients": 2, "optimizer_state": 12}
BYTES_PER_PARAMETER = {
    "fp32": {"parameters": 4, "gradients": 4, "optimizer_state": 8},
    "bf16": _MIXED,
    "fp16": _MIXED,
}
"""ZeRO section 3.1. Adam keeps two moments (4 + 4); mixed precision adds a fp32 master copy of the parameters (4)."""

BLOCK, SCALE_BYTES = 256, 4
"""Elements that share a scale where numbers have 8 bits, and the bytes of that scale."""

MOMENTS = {"fp32": Fraction(8), "8-bit": 2 * (1 + Fraction(SCALE_BYTES, BLOCK))}
"""Bytes per parameter of Adam's two moments: 4 each, or 1 each and a scale per block (Blocks section 2.1): 2.03125."""

SHARDED: dict[str, tuple[str, ...]] = {
    "ddp": (),
    "zero1": ("optimizer_state",),
    "zero2": ("optimizer_state", "gradients"),
    "zero3": ("optimizer_state", "gradients", "parameters"),
}
"""Which categories a stage divides by N: ZeRO sections 5.1 (P_os), 5.2 (P_os+g) and 5.3 (P_os+g+p)."""

PASSES = {"ddp": 2, "zero1": 2, "zero2": 2, "zero3": 3}
"""How often a step moves the model, ZeRO sections 7.1, 7.2.1 and 7.2.2: reduce-scatter the gradients and all-gather
the parameters (an all-reduce is the same two passes); stage 3 gathers once more, for backward."""

WIDTHS = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}
"""Bytes of a number of each dtype in which gradients may be added up."""

STEP_COUNTER_BYTES = 4  # torch.optim.Adam keeps the step t of algorithm 1 (Adam) as one fp32 scalar a tensor
FP32_BYTES = 4


def state_bytes(
    stage: str,
    num_params: float,
    world_size: int,
    precision: str = "fp32",
    *,
    trained: float | None = None,
    moments: str = "fp32",
) -> dict[str, int]:
    """Bytes of parameters, gradients and optimizer state that one rank holds when Adam updates; sum for the total.

    With b bytes a parameter a category costs b * num_params, or b * num_params / world_size where the stage divides
    it, rounded down to bytes. `num_params` counts every parameter once, frozen and shared ones too; 7e9 is accepted.
    Gradients and optimizer state are those that `trained` parameters need; None means all of them. `moments` are those
    of Adam, "fp32" or "8-bit". Source: ZeRO sections 3.1 and 5.1 to 5.3, figure 1 and table 1 (those are "bf16" and
    "fp16" here, K = 12); of moments in 8 bits Blocks section 2.1.

    Raises ValueError for an unknown stage, precision or kind of moments, for counts below 1, and where fewer than none
    or more than all parameters are `trained`.
    """
    # Whole numbers throughout: a float is exact only up to 2**53, about 9e15, and 16 bytes for each of a trillion
    # parameters on 1,024 ranks are more.
    count, ranks = _checked(stage, num_params, world_size)
    if trained is not None and not (0 <= trained <= count and trained // 1 == trained):
        raise ValueError(f"{trained!r} of {count} parameters are trained: it must be a whole number from 0 to {count}")
    counts = dict.fromkeys(STATE_CATEGORIES, count if trained is None else int(trained)) | {"parameters": count}
    check_known("kind of moments", moments, MOMENTS)
    sizes: dict[str, Fraction | int] = {**_sizes(precision)}
    sizes["optimizer_state"] += MOMENTS[moments] - MOMENTS["fp32"]
    return {
        # Multiplied first: rounding down the number of parameters would lose up to 12 bytes, not one.
        category: sizes[category] * counts[category] // (ranks if category in SHARDED[stage] else 1)
        for category in STATE_CATEGORIES
    }


def moment_bytes(numel: int, moments: str = "fp32", width: int = FP32_BYTES) -> int:
    """Bytes of both moments of one tensor that Adam updates; in 8 bits a last block that is not full has scales too.

    `width` are the bytes of one of its numbers, which its moments have too where they are not in 8 bits.
    """
    if moments == "8-bit":
        return 2 * (numel + SCALE_BYTES * -(-numel // BLOCK))
    return 2 * width * numel


def traffic_elements(stage: str, num_params: float, world_size: int) -> int:
    """Elements that one rank sends in a step, rounded down: 2, 2, 2 or 3 passes of num_params * (N - 1) / N.

    Source: ZeRO section 7 for the passes; FSDP section 3.2 for the exact factor (N - 1) / N of each pass.
    Raises ValueError as `state_bytes` does.
    """
    count, ranks = _checked(stage, num_params, world_size)
    return PASSES[stage] * count * (ranks - 1) // ranks


def traffic_bytes(stage: str, num_params: float, world_size: int, precision: str = "fp32") -> int:
    """Bytes that one rank sends in a step: `traffic_elements` times 4 in fp32, else times 2 (ZeRO section 7)."""
    return traffic_elements(stage, num_params, world_size) * _sizes(precision)["parameters"]


def terms(
    stage: str,
    flats: Iterable[FlatLayout],
    world_size: int,
    precision: str = "fp32",
    *,
    offload: bool = False,
    on_gpu: bool = False,
    updated: Mapping[str, Sequence[int]] = MappingProxyType({}),
    moments: str = "fp32",
    reduce_dtype: str | None = None,
    amsgrad: Collection[str] = (),
) -> dict[str, int]:
    """What a rank holds beyond `state_bytes`, by name and to the byte; equal on all ranks that use the same parameters.

    `flats` are the layouts that `zerolab.engines.partition.partition` makes for the model. The names:

    * `padding`: each flat is filled up to N equal shards, and the formula is rounded down (FSDP section 3.2: at most
      N - 1 elements a flat; where a shard is a multiple of g, which is 8 over NCCL and 256 for 8-bit moments, gN - 1).
    * `step_counters`: Adam's step, 4 bytes for each tensor that is updated (Adam, algorithm 1): a flat, or, once a
      parameter of it got no gradient, each of its parameters.
    * `unused`: only where `updated` is given, and negative: no moments for what never had a gradient, and in 16 bits no
      fp32 copy of a gradient where that is a whole flat. `updated` has the elements of each tensor that was updated,
      by flat, where not all was (`Flat.updated_so_far`, a rank's `info`); 8-bit blocks then begin with each of them.
    * `fp32_gradient_shard`: in 16 bits the update reads a fp32 copy of the gradients that it owns, 4 * num_params / N,
      or 4 * num_params in `ddp`; this is why DeepSpeed's estimator says 18 P / N where ZeRO table 1 says 16.
    * `reduce_dtype`: only where gradients are added up in another dtype than the precision's own, such as "float32": by
      how much that makes them larger or, negative, smaller, their copies included.
    * `amsgrad`: only for the flats that it names: the largest second moments, which Adam keeps with that option.
    * `offloaded_copy`: only with `offload`, in fp32: what the optimizer updates in main memory; else that is a master.
    * `offloaded_gradients`: only with `offload` and `on_gpu`, in fp32: the update's copy of gradients in main memory,
      while they stay on the GPU (on the CPU both are one; in 16 bits `fp32_gradient_shard` is it).
    * `frozen`: negative; the formula counts frozen parameters, but they have neither gradients nor optimizer state.
    * `replicated`: only where some flats are: what a rank holds of them beyond a shard.
    * `other_dtypes`: only for parameters that are not fp32, which the formula counts as if they were; or negative.

    Raises ValueError as `state_bytes` does.
    """
    layouts = list(flats)
    formula, needed = _formulas(layouts, stage, world_size, precision, moments)
    # Copies of what a rank owns, for the optimizer: masters, which the formula has in 16 bits, and gradients.
    counted, leaves = int(precision != "fp32"), offload and on_gpu
    masters, copied = counted or int(offload), leaves or _is_cast("float32", precision, reduce_dtype)
    held = partial(_bytes_of, layouts, stage, precision, moments)
    sharded, plain = held(counted, in_fp32=True, all_sharded=True), held(counted, in_fp32=True)
    a_copy, alike = held(counted + 1, in_fp32=True) - plain, held(masters, copied=copied, in_fp32=True)
    moved = {
        **({"offloaded_copy": a_copy} if masters > counted else {}),
        **({"offloaded_gradients": a_copy} if leaves and not counted else {}),
        **({"replicated": plain - sharded} if plain > sharded else {}),
    }
    reduced = partial(held, masters, copied=copied, reduce_dtype=reduce_dtype, leaves=leaves)
    counters = sum(len(updated.get(flat.name, (flat.numel,))) for flat in layouts if not flat.frozen)
    return {
        "padding": sharded - needed,
        "step_counters": STEP_COUNTER_BYTES * counters,
        "fp32_gradient_shard": a_copy if copied and (counted or not leaves) else 0,
        "frozen": needed - formula,
        **_where_they_occur(reduced, alike, moved, amsgrad, updated),
    }


def _formulas(layouts: list[FlatLayout], stage: str, world_size: int, precision: str, moments: str) -> tuple[int, int]:
    """What the formula says in all, and what it says without frozen parameters' gradients and optimizer state.

    Both are rounded down; the rounding is part of `padding`.
    """
    trained, frozen = (sum(flat.numel for flat in layouts if flat.frozen is kind) for kind in (False, True))
    every = partial(state_bytes, stage, trained + frozen, world_size, precision, moments=moments)
    return sum(every().values()), sum(every(trained=trained).values())


def _where_they_occur(
    reduced: Callable[..., int], alike: int, moved: dict[str, int], amsgrad: Collection[str], updated: Any
) -> dict[str, int]:
    """The terms of `terms` that other tables have no column for; `alike` is what it would be in fp32 throughout."""
    in_fp32, as_they_are, largest = reduced(in_fp32=True), reduced(), reduced(amsgrad=amsgrad)
    wider, other_dtypes = in_fp32 - alike, as_they_are - in_fp32
    return {
        **({"reduce_dtype": wider} if wider else {}),
        **({"amsgrad": largest - as_they_are} if amsgrad else {}),
        **moved,
        **({"other_dtypes": other_dtypes} if other_dtypes else {}),
        **({"unused": reduced(amsgrad=amsgrad, updated=updated) - largest} if updated else {}),
    }


def _is_cast(dtype: str, precision: str, reduce_dtype: str | None) -> bool:
    """Whether the gradients of parameters in this dtype are added up in another than that of what is updated."""
    updated = dtype if precision == "fp32" or dtype == "float64" else "float32"
    return (reduce_dtype or (dtype if precision == "fp32" else precision)) != updated


def _bytes_of(
    flats: list[FlatLayout],
    stage: str,
    precision: str,
    moments: str,
    masters: int,
    *,
    copied: bool = False,
    in_fp32: bool = False,
    all_sharded: bool = False,
    reduce_dtype: str | None = None,
    leaves: bool = False,
    amsgrad: Collection[str] = (),
    updated: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> int:
    """Bytes of all flats on one rank, padding included, with so many `masters` of what it owns.

    As they are, or as if all were fp32, or none replicated; if `copied`, with a copy of the gradients of what it owns.
    The other keywords are as in `terms`.
    """
    is_mixed, word = precision != "fp32", BYTES_PER_PARAMETER[precision]["parameters"]
    total = 0
    for flat in flats:
        width = FP32_BYTES if in_fp32 else flat.dtype.itemsize
        shard = flat.padded if flat.replicated and not all_sharded else flat.shard_numel
        numel = {category: shard if category in SHARDED[stage] else flat.padded for category in STATE_CATEGORIES}
        # Cast to 16 bits, unless they are integers; master, moments and gradient copy are at least fp32.
        is_cast = is_mixed and (in_fp32 or flat.dtype.is_floating_point)
        total += (word if is_cast else width) * numel["parameters"]
        if flat.frozen:
            continue
        width, owned = max(width, FP32_BYTES) if is_mixed else width, numel["optimizer_state"]
        total += (WIDTHS[reduce_dtype] if reduce_dtype else word if is_mixed else width) * numel["gradients"]
        dtype = "float32" if in_fp32 else str(flat.dtype).removeprefix("torch.")
        has_copy = leaves or _is_cast(dtype, precision, reduce_dtype) if reduce_dtype else copied
        sizes = updated.get(flat.name, (owned,))
        total += sum(moment_bytes(size, moments, width) + width * size * (flat.name in amsgrad) for size in sizes)
        # A gradient that never came has no copy.
        total += width * owned * (masters + (has_copy and bool(sizes)))
    return total


def _checked(stage: str, num_params: float, world_size: int) -> tuple[int, int]:
    """`num_params` and `world_size` as ints, after all three arguments have been checked."""
    check_known("stage", stage, STAGES)
    check_count("world size", world_size)
    check_count("number of parameters", num_params)  # people write 7e9 for seven billion
    return int(num_params), int(world_size)


def _sizes(precision: str) -> dict[str, int]:
    check_known("precision", precision, BYTES_PER_PARAMETER)
    return BYTES_PER_PARAMETER[precision]
