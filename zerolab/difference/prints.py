"""Fingerprints of tensors, and hashes of a batch's rows; a complex number counts as its real and its imaginary part."""

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterable
from functools import cache
from numbers import Real
from typing import Any

import torch
from torch import nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._guards import active_fake_mode
from torch._subclasses import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from zerolab.difference.fingerprint import SIGNS, WORD, Print
from zerolab.engines.graph import tensors_needing_gradient

ON_CPU = 1 << 13  # elements at a time: the signs of each take 128 bytes, which should stay in the cache
MOST = 1 << 18  # on a device with much memory and slow starts
MOST_ROWS = 4096  # of a rank and step whose hashes are kept one by one, to name what is wrong; all are in the sum
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_READ = {  # torch converts no number of any other dtype: they share a byte, or have a scale elsewhere
    *(torch.bool, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz, torch.float8_e8m0fnu),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex32, torch.complex64, torch.complex128),
}
_ODD = (-4658895280553007687, -7723592293110705685, -7046029254386353131)  # of splitmix64, as signed numbers


def plain_value(value: Any) -> Any:
    """A setting of an optimizer for JSON: numbers, text and lists of them."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, torch.Tensor):
        return value.item() if value.numel() == 1 else value.tolist()
    if isinstance(value, Real):  # numpy's, too
        return float(value)
    return [plain_value(each) for each in value] if isinstance(value, (list, tuple)) else str(value)


@cache
def _seed(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little", signed=True)


def _mixed(values: torch.Tensor) -> torch.Tensor:
    """Well mixed 64 bits of each number, after splitmix64; torch shifts the sign in, which mixes as well."""
    values = (values ^ (values >> 30)) * _ODD[0]
    values = (values ^ (values >> 27)) * _ODD[1]
    return values ^ (values >> 31)


def is_traced() -> bool:
    """Whether a tracer runs the model, such as that of `torch.export`: none of it is training."""
    # The first must be first, for there torch's compiler stops reading; it would fail at the others.
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or active_fake_mode() is not None
        or ("torch.distributed.pipelining.stage" in sys.modules and _is_for_shapes())
    )


def _is_for_shapes() -> bool:
    """Whether a stage of a pipeline runs the model, perhaps on uninitialised memory, to learn what shapes come out."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_name != "_prepare_forward_infra":
        frame = frame.f_back
    return frame is not None


def unreadable(tensor: torch.Tensor) -> str:
    """Why its elements cannot be read one by one, in a few words; empty if they can."""
    if any(placement.is_partial() for placement in getattr(tensor, "placements", ())):
        return "a sum that ranks have yet to add up"
    if is_functorch_wrapped_tensor(tensor):
        return "within torch.func"
    if isinstance(tensor, FakeTensor):
        return "fake"
    if tensor.is_nested or tensor.is_meta:
        return "nested" if tensor.is_nested else "meta"
    if tensor.layout is not torch.strided:
        return str(tensor.layout).removeprefix("torch.")
    return "" if tensor.dtype in _READ else str(tensor.dtype).removeprefix("torch.")


def _real(flat: torch.Tensor) -> torch.Tensor:
    """Both parts of each complex number, one after the other; other numbers as they are."""
    return torch.view_as_real(flat.resolve_conj()).reshape(-1) if flat.is_complex() else flat


@torch.no_grad()
def print_of(name: str, tensor: torch.Tensor, start: int = 0, index: torch.Tensor | None = None) -> Print:
    """The fingerprint of elements of the parameter `name`.

    Args:
        name: of the whole tensor.
        tensor: the elements, any shape and dtype that are not `unreadable`.
        start: the first one's index in the whole tensor, laid end to end.
        index: the index of each, where they do not follow one another.
    """
    with _disable_current_modes():  # a recorder sees all operations, and this is none of the training
        flat = _real(tensor.detach().reshape(-1))
        if tensor.is_complex():
            start *= 2
            index = None if index is None else torch.stack([2 * index, 2 * index + 1], 1).reshape(-1)
        chunk = ON_CPU if flat.device.type == "cpu" else MOST
        exact, coarse, sums = 0, 0, torch.zeros(SIGNS + 1, dtype=torch.float64)
        for begin in range(0, flat.numel(), chunk):
            part = flat[begin : begin + chunk]
            if index is None:
                first = start + begin
                places = torch.arange(first, first + part.numel(), device=flat.device)
            else:
                places = index[begin : begin + chunk].to(flat.device)
            hashed = _mixed(places * _ODD[2] + _seed(name))
            if part.is_floating_point() and part.itemsize > 1:  # -0.0 is 0.0, as an engine may mark it; fp8 cannot add
                part = part + torch.zeros((), dtype=part.dtype, device=part.device)
            bits = part.to(torch.int64) if part.dtype == torch.bool else part.view(_BITS[part.itemsize]).long()
            exact += int(_mixed(hashed ^ (bits * _ODD[2])).sum())
            wide = part.to(torch.float64)
            coarse += int(((part.bfloat16().to(torch.float64) == wide) & (wide != 0)).sum())
            signs = (hashed.unsqueeze(0) >> torch.arange(8, 8 + SIGNS, device=flat.device).unsqueeze(1)) & 1
            found = torch.cat([(signs * 2 - 1).to(torch.float64) @ wide, (wide @ wide).reshape(1)])
            sums += found.cpu()
        *signed, squares = sums.tolist()
        dtype = str(tensor.dtype).removeprefix("torch.")
        return Print(flat.numel(), exact % WORD, squares, coarse, tuple(signed), dtype)


def rows_of(tensors: list[torch.Tensor]) -> list[int]:
    """A hash of each row (of the first dimension) of a batch, over all its tensors; 48 bits.

    Floats count as bf16 has them: the same rows in another precision are the same rows. So they are in whatever order
    the tensors come, for one that a loop gives by place another may give by name.
    """
    rows = next((tensor.shape[0] for tensor in tensors if tensor.dim()), 0)  # as engines count them
    with _disable_current_modes():
        total = torch.zeros(rows, dtype=torch.int64)
        for tensor in tensors:
            if tensor.dim() and tensor.shape[0] == rows and rows and tensor.numel():
                flat = _real(tensor.detach().reshape(-1).cpu()).reshape(rows, -1)
                wide = flat.bfloat16().view(torch.int16).long() if flat.is_floating_point() else flat.long()
                places = torch.arange(flat.shape[1]) * _ODD[2]
                total += _mixed(_mixed(places) ^ (wide * _ODD[2])).sum(1)
        return [value & ((1 << 48) - 1) for value in total.tolist()]


def of_batch(
    step: dict[str, Any],
    model: nn.Module,
    batch: Any,
    sees: Callable[[torch.Tensor], bool],
    casts: list[str],
    *,
    dropout: bool,
) -> Callable[[torch.Tensor | None], None]:
    """Returns what adds it to the step when first called, as by hooks of the outputs: without a backward it is none.

    Args:
        step: the fingerprints.
        model: what gets the batch.
        batch: its arguments.
        sees: whether a tensor of the batch can be read.
        casts: what autocast casts to in this forward, which adds to it while it runs.
        dropout: whether what the model computes depends on the random generator.
    """
    name, waiting = type(model).__name__, [True]
    leaves = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    # What has a gradient's function comes from another model and is no batch: other shares round it otherwise.
    given = [leaf for leaf in leaves if leaf.grad_fn is None]
    hashes, rows = rows_of([leaf for leaf in given if sees(leaf)]), step["rows"]
    has_made = len(given) < len(leaves)  # said here: a loop may keep the graph, whose hooks are to keep no batch
    states = [hashlib.blake2b(torch.get_rng_state().numpy().tobytes(), digest_size=6).hexdigest()] if dropout else []

    def seen(_: torch.Tensor | None) -> None:
        if not waiting:
            return
        waiting.clear()
        if has_made and name not in step["made"]:
            step["made"].append(name)
        rows["count"] += len(hashes)
        rows["sum"] = (rows["sum"] + sum(hashes)) % (1 << 64)
        rows["hashes"] += hashes[: MOST_ROWS - len(rows["hashes"])]
        step["random"] += states
        step["compute"] += casts

    return seen


def note_casts(compute: list[str]) -> None:
    """Adds what autocast casts to, if it is on here."""
    on_cpu = torch.is_autocast_enabled("cpu")
    if on_cpu or torch.is_autocast_enabled():
        _note(compute, {torch.get_autocast_dtype("cpu" if on_cpu else "cuda")})


def note_outputs(compute: list[str], outputs: Iterable[Any]) -> None:
    """Adds the dtypes of a forward's outputs."""
    _note(compute, {leaf.dtype for leaf in outputs if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()})


def _note(compute: list[str], kinds: set[torch.dtype]) -> None:
    compute += sorted({str(kind).removeprefix("torch.") for kind in kinds}.difference(compute))


def hear(outputs: list[Any], seen: Callable[[torch.Tensor], None]) -> bool:
    """Has `seen` called when a backward comes to one of these outputs; whether there is one where it can be heard."""
    others = tensors_needing_gradient([each for each in outputs if not isinstance(each, torch.Tensor)])
    # Not at a parameter among them, say: it outlives the step, and has a gradient of each backward.
    made = [each for each in (*outputs, *others) if isinstance(each, torch.Tensor) and each.grad_fn is not None]
    for each in made:
        each.register_hook(seen)
    return bool(made)
