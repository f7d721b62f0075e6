"""Executes operations on shapes alone: torch's meta tensors have a size, a dtype and a storage, but no memory.

Every new tensor is a meta tensor, so a model of any size can be built and trained; single numbers (Adam's step counter)
stay real, because code asks for their values. Two faults that real ranks would notice, but meta tensors do not, are
checked for here: an operation that needs values, and one that reads a released storage.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, ClassVar, NamedTuple

import torch
from torch import get_default_dtype
from torch.nn import functional
from torch.optim import adam
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import flop_registry

from zerolab.recording import c10d
from zerolab.simulation.costs import Meter

META = torch.device("meta")
MOST_KNOWN = 4096  # outcomes that are kept; a stage has two hundred
_ALLOCATIONS = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")  # they touch no memory
_LOOK_UPS = ("embedding", "index_select", "index", "gather", "nll_loss_forward")  # they read a few entries of a table
_OVERWRITES = ("copy_", "zero_", "fill_")  # what was there is not read
# torch allocates for all elements, and keeps a single number in that memory.
_MEANS = ("mse_loss", "smooth_l1_loss", "binary_cross_entropy", "soft_margin_loss")
_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001  (torch names it so)
_ATTENTION = {  # products like [length, size] x [size, length], and the query's place; backward repeats one
    "aten::_scaled_dot_product_flash_attention_for_cpu": (2, 0),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": (5, 1),
}


class Kind(NamedTuple):
    """What is known about an operation; found out once for each."""

    effect: str  # "free" touches no memory, "communicates", "lifts" takes in a Python number, "computes"
    device_at: int  # the place of its argument `device`; -1 for none
    needs_values: bool
    looks_up: bool
    overwrites: bool
    is_fresh: bool  # its results are new tensors, whose shapes follow from the arguments'
    writes: bool  # it changes numbers of its first argument and nothing else, and returns that or nothing
    is_mean: bool  # one of `_MEANS`, whose meta implementation allocates a single number
    at_once: bool  # many tensors in one kernel, as in an optimizer's foreach update
    flops: Any  # a formula, or None
    func: Any  # kept, so that no other operation gets its `id`


Outcome = tuple[Any, float, int]
"""An operation's result for arguments of given shapes, as `_make` takes it; its flops, and the bytes that it writes."""
_WRITTEN = object()  # in place of a result: the argument that was written into


class Shapes(TorchDispatchMode):
    """While active, no new tensor has memory; the `meter`, if there is one, is told what is executed."""

    _kinds: ClassVar[dict[int, Kind]] = {}  # by `id`: an operation's own hash is slow
    _known: ClassVar[dict[Any, Outcome]] = {}  # other ranks, stages and simulations meet the same shapes

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no annotation there
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self.meter: Meter | None = None
        self.engine: Any = None  # it names the unit that a released storage belongs to
        self._nothing = torch.empty(0)  # what the fake group is given to send

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False, or torch would import its compiler at the first operation."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Executes the operation; called a hundred thousand times per simulation, so it does no more than it must."""
        keywords = kwargs or {}
        kind = self._kinds.get(id(func))
        if kind is None:
            kind = self._kinds[id(func)] = _kind_of(func)
        if kind.device_at >= 0 and not _is_real(args):  # whatever device is asked for: "cpu", or a GPU that is not here
            if kind.device_at < len(args):
                args = (*args[: kind.device_at], META, *args[kind.device_at + 1 :])
            else:
                keywords = {**keywords, "device": META}
        if kind.effect == "free":
            return func(*args, **keywords)
        if kind.effect == "communicates":
            return self._communicate(func, args)
        if kind.effect == "lifts":
            return func(*args) if args[0].numel() == 1 else args[0].to(META)
        if kind.needs_values and not _is_real(args) and _needs_values(func, args):
            raise RuntimeError(
                f"{func} needs values, and a simulated rank has none: take the branch on shapes, or train it on real "
                "ranks"
            )
        return self._compute(kind, types, args, keywords)

    def _compute(self, kind: Kind, types: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Executes it, or repeats the result for equal shapes: many of torch's meta implementations are slow Python."""
        func = kind.func
        read = self._bytes_read(func, args)
        # A tensor of another class, such as one that stands in for a gradient, may do more than torch.
        repeats = not types and (kind.is_fresh or (kind.writes and not _is_real(args)))
        key = (id(func), get_default_dtype(), _shape_of(args), _shape_of([*keywords.items()])) if repeats else None
        known = self._known.get(key) if key is not None else None
        if known is not None:
            recipe, flops, written = known
            result = args[0] if recipe is _WRITTEN else _make(recipe)
        else:
            try:
                result = func(*args, **keywords)
            except NotImplementedError as error:
                raise RuntimeError(
                    f"{func} cannot be simulated: torch cannot execute it without values; train it on real ranks"
                ) from error
            if kind.is_mean and result.is_meta and not result.dim():
                elements = torch.broadcast_shapes(args[0].shape, args[1].shape)
                result = torch.empty(elements, dtype=result.dtype, device=META).resize_(())
            written = _bytes_of(result)
            flops = kind.flops(args, keywords, result) if kind.flops is not None else 0.0
            if key is not None and len(self._known) < MOST_KNOWN:
                with suppress(LookupError):
                    recipe = _WRITTEN if kind.writes and result is not None else _recipe_of(result)
                    self._known[key] = recipe, flops, written
        if kind.looks_up:  # a few rows of a table that may be gigabytes
            read = written
        elif kind.overwrites:
            read -= written
        if self.meter is not None:
            self.meter.compute(flops, read + written, at_once=kind.at_once)
        return result

    def _bytes_read(self, func: Any, values: Iterable[Any]) -> int:
        """Bytes of all tensors among the arguments; refuses one whose memory was released."""
        total, last = 0, None
        for value in values:
            if isinstance(value, torch.Tensor):
                if value is last:  # squared: read once
                    continue
                last = value
                nbytes = value.nbytes
                if nbytes and not value.untyped_storage().nbytes():
                    self._refuse(func, value)
                total += nbytes
            elif value.__class__ is list or value.__class__ is tuple:
                total += self._bytes_read(func, value)
        return total

    def _communicate(self, func: Any, args: tuple[Any, ...]) -> Any:
        """The fake group sends nothing, so it is given nothing; the request is read from the real arguments."""
        request = c10d.read(func, args)
        if request is not None:
            self._bytes_read(func, request.tensors)
            if self.meter is not None:
                self.meter.communicate(request.op, request.nbytes, request.ranks)
        # c10d has no kernels for meta tensors; all that matters of the result is the handle to wait for.
        given = tree_map_only(torch.Tensor, lambda _: self._nothing, args)
        # How an all-to-all is split is checked against what it is given.
        return func(*([] if isinstance(each, list) and each and isinstance(each[0], int) else each for each in given))

    def _refuse(self, func: Any, tensor: torch.Tensor) -> None:
        key = tensor.untyped_storage()._cdata  # noqa: SLF001  (storages have no public identity)
        flats = self.engine.flats if self.engine is not None else []
        names = [flat.layout.name for flat in flats if flat.whole.untyped_storage()._cdata == key]  # noqa: SLF001
        of = f" of unit {names[0]!r}" if names else ""
        raise RuntimeError(
            f"{func} reads memory{of} that was released: on real ranks this is a crash; gather the unit before its use"
        )


def attention(original: Any, query: Any, key: Any, value: Any, *args: Any, **keywords: Any) -> Any:
    """`scaled_dot_product_attention` as CPUs and GPUs do it, fused: the matrix of all pairs is never stored.

    torch chooses by device, and for meta it takes the unfused form, with activations that real ranks do not have.
    """
    # Hugging Face passes a mask of None and a dropout of 0 explicitly.
    if keywords.get("attn_mask", 0) is None:
        del keywords["attn_mask"]
    if keywords.get("dropout_p") == 0:
        del keywords["dropout_p"]
    if query.device != META or query.dim() != 4 or args or set(keywords) - {"is_causal", "scale", "enable_gqa"}:
        return original(query, key, value, *args, **keywords)
    keywords.pop("enable_gqa", None)  # the fused form shares heads by itself
    return _FLASH(query, key, value, 0.0, keywords.pop("is_causal", False), **keywords)[0]


def rms_norm(original: Any, x: Any, shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    """`rms_norm` as GPUs do it, in one kernel that keeps its input and one number per row.

    torch chooses by device here, too: for meta and on the CPU it decomposes the norm, and keeps more.
    """
    if x.device != META or weight is None or len(shape) != 1:
        return original(x, shape, weight, eps)
    return _FusedNorm.apply(x, weight)  # type: ignore[no-untyped-call]  # torch has no annotation there


class _FusedNorm(torch.autograd.Function):
    """Memory and traffic of the fused kernel, which torch has only for GPUs; shapes have no values to get right."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight, x.select(-1, 0).to(torch.float32, copy=True))
        return x * weight

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        (gradient,), (x, _, _) = gradients, ctx.saved_tensors
        return gradient * x, gradient.flatten(0, -2).sum(dim=0)


def _kind_of(func: Any) -> Kind:
    schema = func._schema  # noqa: SLF001  (it has no public name)
    namespace, name = schema.name.split("::")
    aliases = [value.alias_info for value in schema.returns]
    is_view = bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)
    tags = func.tags
    needs = torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags
    if namespace == "c10d":
        effect = "communicates"
    elif name in ("lift", "lift_fresh", "lift_fresh_copy"):
        effect = "lifts"
    elif namespace != "aten" or name in _ALLOCATIONS or (is_view and not needs):
        effect = "free"
    else:
        effect = "computes"
    is_fresh = bool(aliases) and all(alias is None for alias in aliases)
    is_fresh = is_fresh and not needs and name not in ("_unsafe_view", "_local_scalar_dense", *_MEANS)
    writes = all(alias is not None and alias.is_write for alias in aliases) and name.endswith("_")
    writes = writes and len(aliases) < 2 and not needs and torch.Tag.inplace_view not in tags
    device_at = next((place for place, argument in enumerate(schema.arguments) if argument.name == "device"), -1)
    flops = _flops_of(func, schema.name)
    at_once, overwrites = name.startswith("_foreach"), name in _OVERWRITES
    looks_up, is_mean = name in _LOOK_UPS, name in _MEANS
    return Kind(effect, device_at, needs, looks_up, overwrites, is_fresh, writes, is_mean, at_once, flops, func)


def _flops_of(func: Any, name: str) -> Any:
    """A formula of (args, keywords, result) from torch's own flop counter, which lacks attention on the CPU."""
    formula = flop_registry.get(func.overloadpacket)
    if formula is not None:
        return lambda args, keywords, result: float(formula(*args, **keywords, out_val=result))
    if name not in _ATTENTION:
        return None
    multiplications, first = _ATTENTION[name]
    return lambda args, *_: float(2 * multiplications * args[first].numel() * args[first + 1].shape[-2])


def _is_real(args: tuple[Any, ...]) -> bool:
    """Whether an operation works on one of the few tensors that have values, or on a list with one of them."""
    first = args[0] if args else None
    tensors = first if first.__class__ is list else [first]
    return any(isinstance(tensor, torch.Tensor) and tensor.device != META for tensor in tensors)


def _needs_values(func: Any, args: tuple[Any, ...]) -> bool:
    """Indexing by integers gives a known shape; only indexing by a mask needs values."""
    if func.overloadpacket is not torch.ops.aten.index:
        return True
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])


def _shape_of(value: Any) -> Any:
    """What a result's shape depends on, as a key to compare: 1, 1.0 and True differ in it."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype, value.is_meta
    if value.__class__ is tuple or value.__class__ is list:
        return tuple([_shape_of(part) for part in value])
    return value.__class__, value


def _recipe_of(result: Any) -> Any:
    """What `_make` needs to repeat it. Raises LookupError for what must be computed: numbers, tensors with values."""
    if isinstance(result, torch.Tensor) and result.is_meta:
        return torch.Size(result.shape), result.stride(), result.dtype
    if isinstance(result, (tuple, list)):
        return [_recipe_of(part) for part in result]
    if result is not None:
        raise LookupError
    return None


def _make(recipe: Any) -> Any:
    if recipe is None:
        return None
    if recipe.__class__ is list:
        return tuple([_make(part) for part in recipe])
    shape, stride, dtype = recipe
    return torch.empty_strided(shape, stride, dtype=dtype, device=META)


def _bytes_of(result: Any) -> int:
    if isinstance(result, torch.Tensor):
        if result.layout is not torch.strided:
            raise RuntimeError(
                f"a tensor in {result.layout} cannot be simulated: its bytes depend on values; make embeddings with "
                "sparse=False, or train it on real ranks"
            )
        return result.nbytes
    return sum(_bytes_of(part) for part in result) if isinstance(result, (tuple, list)) else 0


def default_to_foreach(original: Any, params: list[torch.Tensor], *args: Any, **keywords: Any) -> tuple[bool, bool]:
    """Adam as torch runs it on GPUs: all tensors at once, with a temporary for each, where the CPU needs one in all."""
    return (False, True) if params and params[0].device == META else original(params, *args, **keywords)


FUSED = ((functional, "scaled_dot_product_attention", attention),)
ON_GPUS = ((functional, "rms_norm", rms_norm), (adam, "_default_to_fused_or_foreach", default_to_foreach))
"""What to replace while shapes are executed, always and on GPUs only, each as `patches.replace` takes it."""
