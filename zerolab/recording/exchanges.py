"""What the ranks send each other: one event per collective, and one per wait.

Two layers are watched. Everything that torch.distributed does, whoever asks for it (the learner, C++ DDP, FSDP or
DTensor), goes through the dispatcher, as a `c10d` operation or as a functional collective, whose own `c10d` operation
runs below the watch. The engines' own collectives consist of sends and receives; those become children of one event,
and carry no bytes of their own, so that nothing is counted twice.
"""

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from queue import SimpleQueue
from threading import get_ident, local
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.autograd.profiler import record_function
from torch.utils.weak import WeakIdKeyDictionary

from zerolab.recording import c10d, operations, others
from zerolab.recording.aliases import with_aliases
from zerolab.recording.events import COMMUNICATION as COMMUNICATION_STREAM
from zerolab.recording.events import SourceLine
from zerolab.recording.ledger import COMMUNICATION
from zerolab.recording.log import Draft, Log
from zerolab.recording.operations import module_of
from zerolab.recording.ownership import Ownership
from zerolab.recording.patches import replace
from zerolab.runtime.observers import Call, Observer, watching

Small = list[torch.Tensor]
"""What a collective brings, if it is to be looked at after the wait."""

# Keyed by identity: hashing an operation, or calling it through its overload, costs more than logging a message.
_MESSAGES = {id(torch.ops.c10d.send.default): "send", id(torch.ops.c10d.recv_.default): "recv"}


class _Thread(local):
    """What a thread is doing: others send meanwhile, such as gloo's, in which a communication hook may go on."""

    inside: Draft | None = None  # the engines' collective that is being started or finished
    called_back = 0  # callbacks of torch's futures that it is in
    comparing = 0  # open comparisons of the ranks, which can be nested: what they send is part of no step

    def __init__(self) -> None:
        self.labelled: list[str | None] = [None]  # for each open label of the profiler the unit that it names


class Exchanges(Observer):
    """Logs collectives and waits, and has ownership checked again where they change it."""

    def __init__(self, log: Log, ownership: Ownership) -> None:
        self._log, self._ownership = log, ownership
        self._thread = _Thread()
        # With the tensors to look at after the wait, which stay no longer: C++ waits for some, and nobody for others.
        self._works: WeakKeyDictionary[Any, tuple[Draft, list[SimpleQueue[None]], Small]] = WeakKeyDictionary()
        # By thread: keeps c10d's handle the same object until Python takes it. In `_Thread` it crashes a thread's end.
        self._newest: dict[int, Any] = {}
        self._calls: WeakKeyDictionary[Call, tuple[Draft, Small]] = WeakKeyDictionary()
        self._arriving: Any = WeakIdKeyDictionary()  # storage that a functional collective fills -> its event
        self._raised: tuple[Any, tuple[Draft, ...]] = None, ()  # the last wait that raised: for what
        self._awaited: dict[int, Draft] = {}  # by `seq`: waits that have not ended, and collectives they wait for
        self._lines: dict[str, SourceLine | None] = {}  # where the engines' collectives send and receive

    def install(self, stack: ExitStack) -> None:
        """Watches until `stack` is closed."""
        stack.enter_context(watching(self))
        stack.enter_context(replace(record_function, "__enter__", self._open_label))
        stack.enter_context(replace(record_function, "__exit__", self._close_label))
        stack.enter_context(replace(dist.Work, "wait", self._wait_work))
        stack.enter_context(others.counting_callbacks(self._thread))
        if self._log.streams is not None:
            stack.enter_context(replace(torch.cuda.Event, "wait", self._wait_event))
        for known in (self._works, self._newest, self._calls, self._arriving):
            stack.callback(known.clear)
        stack.callback(setattr, self, "_thread", _Thread())  # with what each thread keeps alive

    # The engines' own collectives.

    @contextmanager
    def starting(self, call: Call) -> Iterator[None]:
        """Logs the collective."""
        flat, unit = call.flat, self._ownership.flat_of(call)
        if call.op != "all_gather":
            self._ownership.sync(unit)  # so that it already counts as a gradient
        else:  # what is gathered may be a message of its own, such as parameters in 8 bits
            self._log.ledger.travels(flat)
        ranks = dist.get_process_group_ranks(call.group) if call.group is not None else range(dist.get_world_size())
        draft = self._log_collective(call.op, flat, flat.numel(), flat.nbytes, ranks, numbered=True)
        if call.sizes is not None:
            elements = operations.unequal_elements(call.op, call.sizes, dist.get_rank(call.group))
            draft["logical_bytes"] = elements * flat.itemsize
        if draft["unit"] is None:  # the flat was empty at every look at the holdings: ZeRO-3's first gather
            draft["unit"] = unit
        brought = self._look(draft, [flat], [flat])
        with self._within(draft):
            yield
        self._log.end(draft)
        self._calls[call] = draft, brought

    @contextmanager
    def _within(self, draft: Draft) -> Iterator[None]:
        """Within this block, allocations count as communication, and messages belong to the collective `draft`."""
        ledger = self._log.ledger
        category, phase = ledger.category, ledger.phase
        self._thread.inside, ledger.category = draft, COMMUNICATION
        ledger.enter(draft["phase"])
        try:
            yield
        finally:
            self._thread.inside, ledger.category = None, category
            ledger.enter(phase)

    @contextmanager
    def waiting(self, call: Call) -> Iterator[None]:
        """Logs the wait, and looks at what the collective has brought."""
        draft, brought = self._calls.pop(call, (None, []))
        if draft is None:  # it was started before the recording
            yield
            return
        wait = self._log_wait(draft)
        with self._awaiting(call, wait, draft):
            with self._within(draft):
                yield
            wait["numbers"] = c10d.numbers_of(brought)
            if call.op == "all_gather":
                self._ownership.sync(draft["unit"])
            else:  # what becomes of a reduced gradient is decided after the wait
                self._ownership.look_later(draft["unit"])

    @contextmanager
    def comparing(self) -> Iterator[None]:
        """Keeps what is sent during a comparison out of the step."""
        self._thread.comparing += 1
        try:
            yield
        finally:
            self._thread.comparing -= 1

    @contextmanager
    def _awaiting(self, what: Any, *drafts: Draft) -> Iterator[None]:
        """Makes the events last as long as the block, even if the wait for `what` raises."""
        self._awaited |= {draft["seq"]: draft for draft in drafts}
        try:
            yield
        except BaseException:
            self._raised = what, drafts
            raise
        finally:
            for draft in drafts:
                self._awaited.pop(draft["seq"], None)
                self._log.end(draft)

    def under_way(self, left: Container[object] | None = None) -> list[Draft]:
        """Waits that have not ended, or that an error `left`, with their collectives, and what nobody waited for."""
        what, raised = self._raised
        raised = raised if left is not None and what in left else ()
        return [*self._awaited.copy().values(), *raised, *c10d.unfinished(self._works, self._calls)]

    # What passes through the dispatcher.

    def communicate(
        self, func: Any, args: tuple[Any, ...], keywords: dict[str, Any], execute: Callable[..., Any] | None = None
    ) -> Any:
        """Logs and executes an operation that communicates; `execute`, if given, runs it in torch's place."""
        execute, inside, counts = execute or func._op, self._thread.inside, self._log.counts()
        aliases, brought = list[SimpleQueue[None]](), Small()
        given = args
        handed_over = None
        message = _MESSAGES.get(id(func)) if inside is not None else None
        if message is not None:
            draft = self._log_message(message, *args)
        elif func.namespace != "c10d":
            return self._on_functional(func, args, keywords)
        else:
            request = c10d.read(func, args)
            if request is None:
                return execute(*args, **keywords)
            draft = self._log_request(request)
            brought = self._look(draft, args[1], args[0])
            for tensor in c10d.tensors_in(args[:2]) if self._thread.comparing else []:
                self._log.ledger.exclude(tensor)  # when they are freed is up to gloo's threads
            # gloo's threads do not keep point-to-point tensors, and without a ledger nobody asks.
            if draft["peer"] is None and counts:
                given = with_aliases(args, aliases)
            # A barrier makes the host wait, and in a batch of sends and receives the end of a single one is not known.
            if self._log.streams is not None and request.op != "barrier" and request.peer is None:
                whole = inside or draft
                handed_over = self._log.streams.launch(whole["seq"], request.group, c10d.tensors_in(args[:2]))
        result = execute(*given, **keywords)
        work = self._note_work(result, draft, aliases, brought)
        if handed_over is not None:
            handed_over(work)
        if inside is None:
            if counts:
                self._ownership.communicated(draft["unit"], draft["phase"], () if self._thread.comparing else args)
            self._log.end(draft)
        return result

    def _note_work(self, result: Any, draft: Draft, aliases: list[SimpleQueue[None]], brought: Small) -> Any:
        """The Work to wait for; None if there is none."""
        handle = result[-1] if isinstance(result, (tuple, list)) else result
        if not isinstance(handle, torch.ScriptObject):
            return None
        work = self._newest[get_ident()] = dist.Work.unbox(handle)
        if work is not None:
            self._works[work] = draft, aliases, brought
        elif self._thread.inside is not None:  # NCCL has none for a synchronous collective: nobody will wait for it
            self._log.end(draft)
        return work

    def _on_functional(self, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if func._schema.name.endswith("::wait_tensor"):
            return self._wait_tensor(func, *args)
        drafts = [self._log_request(request) for request in c10d.read_functional(func, args, keywords)]
        ledger = self._log.ledger
        ledger.operation = func
        result = func(*args, **keywords)
        for position, tensor in enumerate(c10d.tensors_in(result)):
            ledger.see(tensor)
            # Keyed by storage, as torch itself finds what `wait_tensor` has to wait for: tensor objects change.
            self._arriving[tensor.untyped_storage()] = drafts[min(position, len(drafts) - 1)]
        self._ownership.communicated(drafts[0]["unit"], drafts[0]["phase"], args)
        for draft in drafts:
            self._log.end(draft)
        return result

    def _wait_tensor(self, func: Any, tensor: torch.Tensor) -> Any:
        draft = self._arriving.pop(tensor.untyped_storage(), None)
        if draft is None:  # waited for already
            return func(tensor)
        # A collective that returned several tensors is still waited for once.
        for storage in [storage for storage, other in self._arriving.items() if other is draft]:
            del self._arriving[storage]
        with self._awaiting(tensor, self._log_wait(draft), draft):
            return func(tensor)

    def _wait_work(self, original: Callable[..., Any], work: Any, *args: Any, **keywords: Any) -> Any:
        draft, aliases, brought = self._works.pop(work, (None, [], []))
        self._newest.pop(get_ident(), None)
        if draft is None:
            return original(work, *args, **keywords)
        if draft.get("parent") is not None:  # the wait for the whole exchange is an event, the one for a message is not
            result = self._wait(original, work, *args, **keywords)
            self._log.end(draft)
            return result
        wait = self._log_wait(draft)
        with self._awaiting(work, wait, draft):
            result = self._wait(original, work, *args, **keywords)
            wait["numbers"] = c10d.numbers_of(brought)
        self._log.ledger.releases.add(work, aliases)
        return result

    def _wait(self, original: Callable[..., Any], work: Any, *args: Any, **keywords: Any) -> Any:
        result = original(work, *args, **keywords)
        if self._log.streams is not None:
            self._log.streams.timer.waited(work)
        return result

    def _wait_event(self, original: Callable[..., Any], event: Any, stream: Any = None) -> Any:
        """One stream waits for another, via `Stream.wait_event`, `wait_stream` or this; FSDP does, for its gathers."""
        streams = self._log.streams
        if streams is None or not streams.computes_here(stream):
            return original(event, stream)
        draft = self._log.add("wait", "another_stream")
        streams.begin(draft["seq"])
        with self._awaiting(event, draft):
            return original(event, stream)

    def _open_label(self, original: Callable[..., Any], label: Any) -> Any:
        labelled = self._thread.labelled
        labelled.append(module_of(label.name) or labelled[-1])
        return original(label)

    def _close_label(self, original: Callable[..., Any], label: Any, *failure: Any) -> Any:
        if len(self._thread.labelled) > 1:  # else it was opened before the recording
            self._thread.labelled.pop()
        return original(label, *failure)

    def _log_message(self, op: str, tensors: list[torch.Tensor], _: Any, peer: int, *__: Any) -> Draft:
        """A send or receive of the engines' own collectives; there are 6 (N-1) of them per unit and step."""
        inside, tensor = self._thread.inside or {}, tensors[0]
        shared = {key: inside[key] for key in ("phase", "unit", "group", "dtype")}
        ranks = inside["group"]
        shared["peer"] = peer if ranks is None else ranks[peer]
        # Always the same two lines of collectives.py, so they are kept: walking the frames is half an event's cost.
        shared["source"] = self._lines.get(op) or self._lines.setdefault(op, self._log.sources.here())
        return self._log.add("collective", op, **shared, numel=tensor.numel(), parent=inside["seq"])

    def _log_request(self, request: c10d.Request) -> Draft:
        op, tensors, numel, nbytes, ranks, peer, _, note, sent = request
        tensor, inside = tensors[0] if tensors else None, self._thread.inside
        if inside is not None:
            dtype = str(tensor.dtype).removeprefix("torch.") if tensor is not None else None
            shared = {key: inside[key] for key in ("phase", "unit", "group")}
            parent = inside["seq"]
            return self._log.add("collective", op, **shared, dtype=dtype, numel=numel, parent=parent, peer=peer)
        # Only what all ranks call in one order is numbered, as neither messages are nor what other threads send.
        numbered = op not in ("send", "recv") and self._log.ledger.is_mine() and not self._thread.called_back
        draft = self._log_collective(op, tensor, numel, nbytes, ranks, numbered=numbered)
        draft["peer"] = peer
        if sent is not None:
            draft["logical_bytes"] = sent
        if not self._ownership.units:  # with a model, units say what travels
            draft["text"] = note
        return draft

    def _log_collective(
        self, op: str, tensor: torch.Tensor | None, numel: int, nbytes: int, ranks: Sequence[int], *, numbered: bool
    ) -> Draft:
        log = self._log
        group = None if len(ranks) == dist.get_world_size() else tuple(ranks)
        # The unit whose memory it is in, or that the sender names: of its two flats the first, if it gathers both.
        known = None if tensor is None else log.ledger.unit_of(tensor) or self._ownership.look_for(tensor)
        named = self._thread.labelled[-1]
        draft = log.add(
            "collective",
            op,
            phase=operations.PHASES_OF.get(op, log.phase) if log.step else log.phase,
            unit=known or next((flat for flat in (named, f"{named} frozen") if flat in self._ownership.units), None),
            group=group,
            dtype=str(tensor.dtype).removeprefix("torch.") if tensor is not None else None,
            numel=numel,
            logical_bytes=operations.logical_bytes(op, nbytes, len(ranks)),
            number=next(log.numbers[group]) if numbered else None,
        )
        if self._thread.comparing:
            draft |= {"step": 0, "phase": "setup"}
        return draft

    def _look(self, draft: Draft, given: Any, brought: Any) -> Small:
        """Notes the numbers a collective is given, if they are few and there is no model; returns where to look again.

        Not where a device sends, for which the host would have to wait; nor of a barrier, whose tensor nobody fills.
        """
        apart = self._log.times_only or self._log.streams is not None or draft["op"] == "barrier"
        if apart or self._thread.inside is not None or self._ownership.units:
            return []
        tensors = c10d.tensors_in(brought)
        draft["numbers"] = None if draft["op"] == "recv" else c10d.numbers_of(c10d.tensors_in(given) or tensors)
        return tensors if draft["numbers"] is not None or draft["op"] == "recv" else []

    def _log_wait(self, draft: Draft) -> Draft:
        shared = {key: draft[key] for key in ("phase", "step", "unit", "group", "numel")}
        waiting = self._log.add("wait", draft["op"], **shared, parent=draft["seq"])
        # What the host sends, the host waits for: the stream is not blocked then, it has nothing to do.
        if self._log.streams is not None and self._log.streams.has(draft["seq"]):
            self._log.streams.begin(waiting["seq"], COMMUNICATION_STREAM)
        return waiting
