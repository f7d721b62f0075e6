"""One rank of a world that is not there: torch's fake tensors and fake process group, and a clock that costs drive.

A fake tensor has a shape and no memory, so an engine runs on it as it is, at any size. What it does not notice is that
memory was released: reading a released storage kills a real rank, so every operation's inputs are looked at here.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from zerolab.engines import checks, collectives
from zerolab.recording import c10d, ledger, log, recorder
from zerolab.recording.patches import intercept, replace
from zerolab.recording.recorder import Recorder
from zerolab.simulation.costs import Clock, Hardware

_ALLOCATIONS = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")  # they touch nothing
_ATTENTION = {  # matrix multiplications [length, size] x [size, length] or the like; backward computes one again
    "aten::_scaled_dot_product_flash_attention_for_cpu": (2, 0),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": (5, 1),
}


class FakeRecorder(Recorder):
    """The recorder, which here looks away from what else lives in this process."""

    def _count_what_exists(self, engine_classes: tuple[type, ...]) -> None:
        """Nothing of the simulated rank exists before the recording."""


class Costs(TorchDispatchMode):
    """Advances the clock by what each operation would take, and refuses those that read released memory."""

    def __init__(self, clock: Clock, hardware: Hardware, precision: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no annotation there
        self._clock, self._hardware, self._precision = clock, hardware, precision
        self._engine: Any = None
        self._kinds: dict[int, tuple[str, Any]] = {}  # by `id`: an operation's own hash is slow
        self.flops = 0.0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: else torch imports its compiler for the first operation."""
        return False

    def know(self, engine: Any) -> None:
        """Learns which unit a released storage belongs to, to name it."""
        self._engine = engine

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Executes the operation on fakes."""
        keywords = kwargs or {}
        kind = self._kinds.get(id(func))
        if kind is None:
            kind = self._kinds[id(func)] = _kind_of(func), func
        if kind[0] == "free":
            return func(*args, **keywords)
        if kind[0] == "communicates":
            return self._communicate(func, args, keywords)
        touched = sum(self._bytes_of(argument, func) for argument in args)
        result = func(*args, **keywords)
        touched += sum(self._bytes_of(tensor, None) for tensor in _several(result))
        flops = _flops(func, args, keywords, result)
        self.flops += flops
        self._clock.compute(self._hardware.compute_seconds(flops, touched, self._precision))
        return result

    def _bytes_of(self, value: Any, func: Any) -> int:
        """Bytes that are read or written of an argument or a result; refuses an argument that was released."""
        if isinstance(value, torch.Tensor):
            nbytes: int = value.numel() * value.element_size()
            if nbytes and func is not None and not value.untyped_storage().size():
                self._refuse(func, value)
            return nbytes
        if isinstance(value, (list, tuple)):
            return sum(self._bytes_of(part, func) for part in value)
        return 0

    def _communicate(self, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        request = c10d.read(func, args)
        result = func(*args, **keywords)
        if request is not None:
            self._bytes_of(request.tensors, func)
            seconds = self._hardware.collective_seconds(request.op, request.nbytes, len(request.ranks))
            self._clock.communicate(seconds)
        return result

    def _refuse(self, func: Any, tensor: torch.Tensor) -> None:
        key = tensor.untyped_storage()._cdata  # noqa: SLF001  (storages have no public identity)
        flats = self._engine.flats if self._engine is not None else []
        names = [flat.layout.name for flat in flats if flat.whole.untyped_storage()._cdata == key]  # noqa: SLF001
        of = f" of unit {names[0]!r}" if names else ""
        raise RuntimeError(
            f"{func} reads memory{of} that was released: on real ranks this is a crash; gather the unit before its use"
        )


@contextmanager
def world(world_size: int) -> Iterator[FakeTensorMode]:
    """Makes this process rank 0 of a group that does not exist, and all tensors made here fake.

    Raises:
        RuntimeError: this process belongs to a process group already.
    """
    if dist.is_initialized():
        raise RuntimeError("this process is in a process group already: simulate from the notebook, not on its ranks")
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    try:
        with FakeTensorMode() as mode, intercept(checks, "check_same_on_all_ranks", _alike):
            yield mode
    finally:
        dist.destroy_process_group()


@contextmanager
def timed(clock: Clock, hardware: Hardware, precision: str) -> Iterator[Costs]:
    """Within it everything takes the time that the costs say, and a recorder that is started reads that time."""
    ready: WeakKeyDictionary[Any, float] = WeakKeyDictionary()
    waiting: list[Any] = []

    def start(original: Callable[..., None], exchange: Any, *args: Any) -> None:
        original(exchange, *args)
        ready[exchange] = clock.communicated  # it was started last

    def wait(original: Callable[..., None], exchange: Any) -> None:
        clock.wait(ready.pop(exchange, 0.0))
        waiting.append(exchange)
        try:
            original(exchange)
        finally:
            waiting.pop()

    def wait_work(original: Callable[..., Any], work: Any, *args: Any) -> Any:
        if not waiting:  # a collective outside of the engines' own: asked for and waited for at once
            clock.wait(clock.communicated)
        return original(work, *args)

    costs = Costs(clock, hardware, precision)
    with ExitStack() as stack:
        stack.enter_context(replace(collectives.Exchange, "__init__", start))
        stack.enter_context(replace(collectives.Exchange, "wait", wait))
        stack.enter_context(replace(dist.Work, "wait", wait_work))
        for module in (ledger, log, recorder):
            stack.enter_context(replace(module, "monotonic_ns", lambda _: clock.now()))
        stack.enter_context(costs)
        yield costs


def _alike(original: Callable[..., None], values: Sequence[object], what: str) -> None:
    """Ranks that are derived from one cannot differ, and a fake tensor has no values to compare."""


def _kind_of(func: Any) -> str:
    """Whether an operation communicates, is free (it touches no memory of a tensor), or computes."""
    schema = func._schema  # noqa: SLF001  (it has no public name)
    namespace, name = schema.name.split("::")
    aliases = [value.alias_info for value in schema.returns]
    is_view = bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)
    if namespace == "c10d":
        return "communicates"
    return "free" if namespace != "aten" or name in _ALLOCATIONS or is_view else "computes"


def _several(result: Any) -> tuple[Any, ...]:
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def _flops(func: Any, args: tuple[Any, ...], keywords: dict[str, Any], result: Any) -> float:
    """Floating-point operations, as torch's own counter has them; attention on CPU is not in its list."""
    formula = flop_registry.get(func.overloadpacket)
    if formula is not None:
        return float(formula(*args, **keywords, out_val=result))
    name = func._schema.name  # noqa: SLF001
    if name not in _ATTENTION:
        return 0.0
    multiplications, first = _ATTENTION[name]
    queries, keys = args[first], args[first + 1]
    return float(2 * multiplications * queries.numel() * keys.shape[-2])
