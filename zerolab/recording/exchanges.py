"""What the ranks send each other: one event for each collective, and one for each time that somebody waits for it.

Two layers are watched. Everything that torch.distributed does, whoever asks for it (the learner, C++ DDP, FSDP), passes
through the dispatcher as a `c10d` operation. The engines' own collectives are made of sends and receives; those become
children of one event, and carry no bytes of their own, so that nothing is counted twice.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

from zerolab.recording.events import Phase
from zerolab.recording.ledger import COMMUNICATION
from zerolab.recording.log import Draft, Log
from zerolab.recording.patches import intercept, replace

PHASES_OF: dict[str, Phase] = {
    "all_gather": "gather",
    "gather": "gather",
    "broadcast": "gather",
    "all_reduce": "reduce",
    "reduce_scatter": "reduce",
    "reduce": "reduce",
}
_OPERATIONS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "_allgather": "all_gather",
    "reduce": "reduce",
    "_reduce": "reduce_scatter",
    "alltoall": "all_to_all",
    "monitored": "barrier",
}
_OUTPUT_IS_WHOLE = ("all_gather", "gather")


def operation(name: str) -> str:
    """The word for a c10d operation: `_allgather_base_` is an `all_gather`, and so is `allgather_coalesced_`."""
    if name.startswith(("reduce_scatter", "_reduce_scatter")):
        return "reduce_scatter"
    head = "_" * name.startswith("_") + name.lstrip("_").split("_")[0]
    return _OPERATIONS.get(head, head)


def logical_bytes(op: str, nbytes: int, ranks: int) -> int:
    """What one rank must send for a collective over a buffer of `nbytes`: (N-1)/N of it, twice for all_reduce.

    A send sends everything, a receive and a barrier nothing.
    """
    if op in ("recv", "barrier", "check"):
        return 0
    if op == "send":
        return nbytes
    return (2 if op == "all_reduce" else 1) * nbytes * (ranks - 1) // ranks


class Exchanges:
    """Logs collectives and waits; `sync` is called where ownership may have changed."""

    def __init__(self, log: Log, sync: Callable[[], None]) -> None:
        self._log, self._sync = log, sync
        self._inside: Draft | None = None  # the engines' collective that is being started or finished
        self._works: WeakKeyDictionary[Any, Draft] = WeakKeyDictionary()
        self._exchanges: WeakKeyDictionary[Any, Draft] = WeakKeyDictionary()
        self._newest: Any = (
            None  # keeps c10d's handle alive until Python has taken it, so that it stays the same object
        )

    def install(self, stack: ExitStack) -> None:
        """Watches until `stack` closes."""
        from zerolab.engines import collectives

        for op in ("all_reduce", "reduce_scatter", "all_gather"):
            function = inspect.unwrap(getattr(collectives, op))  # the collective counter may stand around it
            if isinstance(function, FunctionType):
                stack.enter_context(intercept(function, self._starts(op)))
        stack.enter_context(replace(collectives.Exchange, "wait", self._wait_exchange))
        stack.enter_context(replace(dist.Work, "wait", self._wait_work))
        stack.callback(self._forget)

    def _forget(self) -> None:
        self._newest = None
        self._works.clear()
        self._exchanges.clear()

    def _starts(self, op: str) -> Callable[..., Any]:
        def start(function: Callable[..., Any], flat: torch.Tensor, group: Any = None) -> Any:
            if self._inside is not None:  # a collective made of others: they are its children
                return function(flat, group)
            if op != "all_gather":
                self._sync()  # so that the gradient is known as the one of its flat
            draft = self._log_collective(op, flat, group)
            with self._within(draft):
                exchange = function(flat, group)
            self._exchanges[exchange] = draft
            return exchange

        return start

    def _log_collective(self, op: str, flat: torch.Tensor, group: Any) -> Draft:
        """Logs a collective over the whole buffer `flat`."""
        ranks = dist.get_process_group_ranks(group) if group is not None else range(dist.get_world_size())
        return self._log.add(
            "collective",
            op,
            phase=self._phase(op),
            unit=self._log.ledger.unit_of(flat),
            group=_group(ranks),
            dtype=str(flat.dtype).removeprefix("torch."),
            numel=flat.numel(),
            logical_bytes=logical_bytes(op, flat.numel() * flat.element_size(), len(ranks)),
            number=self._log.next_number(),
        )

    def _phase(self, op: str) -> Phase:
        return PHASES_OF.get(op, self._log.phase) if self._log.step else self._log.phase

    @contextmanager
    def _within(self, draft: Draft) -> Iterator[None]:
        """What is allocated in here belongs to the communication, what is sent to the collective `draft`."""
        ledger, before = self._log.ledger, self._log.ledger.category
        self._inside, ledger.category = draft, COMMUNICATION
        try:
            yield
        finally:
            self._inside, ledger.category = None, before

    def _wait_exchange(self, original: Callable[..., Any], exchange: Any) -> None:
        draft = self._exchanges.pop(exchange, None)
        if draft is None:
            original(exchange)
            return
        waiting = self._log_wait(draft)
        with self._within(draft):
            original(exchange)
        self._sync()
        self._log.end(waiting)
        self._log.end(draft)

    def _wait_work(self, original: Callable[..., Any], work: Any, *args: Any, **keywords: Any) -> Any:
        draft = self._works.pop(work, None)
        self._newest = None
        if draft is None or "parent" in draft:
            result = original(work, *args, **keywords)
        else:
            waiting = self._log_wait(draft)
            result = original(work, *args, **keywords)
            self._log.end(waiting)
        if draft is not None:
            self._log.end(draft)
        return result

    def _log_wait(self, draft: Draft) -> Draft:
        return self._log.add(
            "wait",
            draft["op"],
            phase=draft["phase"],
            unit=draft["unit"],
            group=draft["group"],
            numel=draft["numel"],
            parent=self._log.place(draft),
        )

    def on_c10d(self, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Logs and executes an operation of c10d that came through the dispatcher."""
        op = operation(func._schema.name.split("::")[1])
        if op == "check":  # c10d's look for NaN is no communication
            return func(*args, **keywords)
        handles = [argument for argument in args if isinstance(argument, torch.ScriptObject)]
        draft = self._log_c10d(op, args, dist.get_process_group_ranks(dist.ProcessGroup.unbox(handles[0])))
        result = func(*args, **keywords)
        handle = result[-1] if isinstance(result, (tuple, list)) else result
        if isinstance(handle, torch.ScriptObject):
            self._newest = dist.Work.unbox(handle)
            self._works[self._newest] = draft
        self._log.end(draft)
        return result

    def _log_c10d(self, op: str, args: tuple[Any, ...], ranks: list[int]) -> Draft:
        tensors = [leaf for leaf in tree_leaves(args[:2]) if isinstance(leaf, torch.Tensor)]
        point_to_point = op in ("send", "recv")
        smaller = [leaf for leaf in tree_leaves(args[_OUTPUT_IS_WHOLE.count(op)]) if isinstance(leaf, torch.Tensor)]
        share = op in (*_OUTPUT_IS_WHOLE, "reduce_scatter", "scatter")
        numel = sum(tensor.numel() for tensor in smaller) * (len(ranks) if share else 1)
        fields: dict[str, Any] = {
            "unit": self._log.ledger.unit_of(tensors[0]) if tensors else None,
            "group": _group(ranks),
            "dtype": str(tensors[0].dtype).removeprefix("torch.") if tensors else None,
            "numel": 0 if op == "barrier" else numel,
        }
        if point_to_point and isinstance(args[2], int):
            fields["peer"] = ranks[args[2]] if 0 <= args[2] < len(ranks) else None
        if self._inside is not None:
            fields |= {"parent": self._log.place(self._inside), "phase": self._inside["phase"]}
            fields["unit"] = self._inside["unit"]
            return self._log.add("collective", op, **fields)
        nbytes = numel * (tensors[0].element_size() if tensors else 0)
        fields["logical_bytes"] = logical_bytes(op, nbytes, len(ranks))
        if not point_to_point:
            fields["number"] = self._log.next_number()
        return self._log.add("collective", op, **{"phase": self._phase(op), **fields})


def _group(ranks: Any) -> tuple[int, ...] | None:
    """The ranks that take part, None if it is everybody."""
    return None if len(ranks) == dist.get_world_size() else tuple(ranks)
