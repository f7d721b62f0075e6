"""Counts every live storage of one rank by device and category, to the byte.

Tensors share storages, and storages are what takes memory, so the ledger counts those. A storage enters with the first
tensor that shows it, and leaves when torch drops it: a weak reference to it fires then, in whatever thread that is.
What a storage is *for* is often known only later (a temporary of backward becomes a gradient), so `assign` also
corrects the peak if the storage was already alive at that moment.

Of a sparse tensor, the indices and the values count. What an operation adds to one that is there counts from the next
look: at a gradient, when backward has added to it; at optimizer state, at the next update. What torch does not show
cannot be counted: the memory of `to_mkldnn`'s tensors, and what a kernel allocates and frees within one operation.
"""

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from threading import _active, _DummyThread, get_ident  # type: ignore[attr-defined]  # private
from time import monotonic_ns

import torch

from zerolab.recording.aliases import Releases
from zerolab.recording.events import CATEGORIES
from zerolab.recording.storages import parts_of, storages_of
from zerolab.theory.allocator import Allocator, Block

HOST = "cpu"
_HOST = torch.device(HOST)
PARAMETERS, GRADIENTS, OPTIMIZER_STATE, ACTIVATIONS, COMMUNICATION, OTHER = range(len(CATEGORIES))
# Used as an index, it is the last element of a list: code that forgets to check for it would change `other`.
EXCLUDED = -1
_graph_task = torch._C._current_graph_task_id  # which backward this thread is in; -1 for none
SEVERAL = ""  # in place of a flat's name: the storage holds parts of several flats, as a bucket does


class Entry(weakref.ref[torch.UntypedStorage]):
    """A live storage: its bytes, its category, the flat that it belongs to, and when it arrived.

    Storages of category EXCLUDED are not counted: not model state and older than the recorder, or part of a check.
    """

    # The reference itself carries what is known about its storage: one object for each, and no second table.
    __slots__ = ("blocks", "category", "key", "nbytes", "since", "tally", "unit")

    key: int
    tally: "Tally"
    nbytes: int
    category: int
    unit: str | None
    since: int
    blocks: Sequence[Block]


class Moment:
    """The peak of a phase so far: bytes in total and by category, and how many storages had been created by then."""

    __slots__ = ("birth", "live", "total")

    def __init__(self) -> None:
        self.total, self.live, self.birth = -1, [0] * len(CATEGORIES), 0


class Tally:
    """Live bytes by category on one kind of device, now and at the peaks.

    `live` and `total` are current, `peak` and `peak_total` belong to the highest moment since `forget`, and `phases`
    has the peak of each phase since then.
    """

    def __init__(self) -> None:
        self.live = [0] * len(CATEGORIES)
        self.total = 0
        self.forget()

    def forget(self) -> None:
        """Forgets the peaks so far; `enter` starts the next one."""
        self.phases: dict[str, Moment] = {}
        self.peak_total = -1

    def enter(self, phase: str, ledger: "Ledger") -> None:
        """Enters a phase; the current level counts towards its peak."""
        self.here = self.phases.get(phase) or self.phases.setdefault(phase, Moment())
        # A phase may begin at its peak and only free memory from then on.
        if self.total > self.here.total:
            self.rise(ledger)

    def rise(self, ledger: "Ledger", passing: int = 0) -> None:
        """Notes a new peak of this phase, caused by the ledger's operation; the bytes `passing` are of no storage."""
        here = self.here
        here.live, here.total, here.birth = self.live.copy(), self.total + passing, ledger.births
        here.live[OTHER] += passing
        if here.total > self.peak_total:  # the peak of the step; it shares the phase's list, which `assign` corrects
            self.peak, self.peak_total = here.live, here.total
            self.peak_time, self.peak_operation, self.peak_birth = ledger.clock(), ledger.operation, ledger.births

    def move(self, entry: Entry, category: int) -> None:
        """Counts a storage under another category, also at those peaks at which it was alive."""
        for live in (self.live, *(moment.live for moment in self.phases.values() if entry.since <= moment.birth)):
            live[entry.category] -= entry.nbytes
            live[category] += entry.nbytes
        entry.category = category


class Ledger:
    """A tally for each kind of device that has held a storage: `tallies`, by torch's name, such as "cuda".

    Main memory has one from the start: `host`. Unless devices are kept `apart`, it also counts what tensors on other
    devices take, or on "meta" would take: a simulated rank has tensors without memory and a few real numbers.

    `category` is what new storages count as, and `operation` what creates them; the recorder keeps both up to date, and
    calls `enter` at each change of phase.
    """

    def __init__(self, clock: Callable[[], int] = monotonic_ns, *, apart: bool = True) -> None:
        self.clock, self._apart = clock, apart
        self.category = OTHER
        # Formatted only when a peak is logged: `str` of an operation takes microseconds.
        self.operation: object = None
        self.thread = get_ident()  # the recorder's
        # torch frees storages in any thread, gloo's included. Appending is atomic; only the recorder's thread adds up.
        self.freed: deque[Entry] = deque()
        self._on_free = self.freed.append
        self.releases = Releases()
        self._entries: dict[int, Entry] = {}
        # A counter instead of a clock: two storages may arrive within one tick of the system's.
        self.births = 0
        self._allocators: Sequence[Allocator] = ()
        self.host = Tally()
        self.tallies = {HOST: self.host}
        # Keyed by device rather than by its name, since torch builds a new string for the name each time.
        self._tally_of: dict[torch.device, Tally] = {}
        self.start_peak()

    def start_peak(self) -> None:
        """Forgets the peaks so far and starts new ones, in an unnamed phase until `enter` names one."""
        for tally in self.tallies.values():
            tally.forget()
        self.enter("")

    def enter(self, phase: str) -> None:
        """Enters a phase; the current level already counts towards its peak."""
        self.settle()
        self.phase = phase
        for tally in self.tallies.values():
            tally.enter(phase, self)

    def is_mine(self) -> bool:
        """Whether this thread may add up: the recorder's, or a GPU's own in autograd, for which that one waits."""
        # On a CPU, autograd works in whatever thread asks it; its own are none of Python's, but may have a stand-in.
        here = get_ident()
        return here == self.thread or (_graph_task() != -1 and isinstance(_active.get(here), _DummyThread | None))

    def levels(self) -> dict[str, list[int]]:
        """The current live bytes, by device."""
        # A copy: the recorder's thread may learn of a device while another asks.
        return {device: tally.live.copy() for device, tally in self.tallies.copy().items()}

    def older(self, device: str) -> int:
        """Live bytes on a device that are not counted: from before the recording and unused in it, or from a check."""
        self.settle()
        tally = self.tallies.get(device)
        # A copy, made in one step: another thread may ask while a rank hangs.
        entries = list(self._entries.values())
        return sum(entry.nbytes for entry in entries if entry.category == EXCLUDED and entry.tally is tally)

    def see(self, tensor: torch.Tensor) -> None:
        """Enters the storage of `tensor` under the current category, if it is new."""
        try:  # asking first would cost something for every tensor
            storage = tensor.untyped_storage()
        except NotImplementedError:
            for part in parts_of(tensor):
                self.see(part)
            return
        is_new = storage._cdata not in self._entries or self._known(storage) is None
        # Derivatives forward are full of zeros that have a size, but no memory.
        if is_new and (nbytes := storage.nbytes()) and not tensor._is_zerotensor():
            self._enter(storage, nbytes, self.category, None)

    def note_existing(self, tensor: torch.Tensor) -> int:
        """Notes the storage of a tensor from before the recording; returns its bytes, 0 if it is empty or known.

        What earlier runs left behind is not part of this one. It counts from the moment it is assigned to a flat.
        """
        noted = 0
        for storage in storages_of(tensor):
            # A released flat has no bytes until it is gathered, and counts as new then.
            if (nbytes := storage.nbytes()) and self._known(storage) is None:
                entry = self._add(storage, EXCLUDED, None)
                entry.nbytes, entry.since = nbytes, 0
                noted += nbytes
        return noted

    def exclude(self, tensor: torch.Tensor) -> None:
        """Stops counting the storage of `tensor`."""
        for storage in storages_of(tensor):
            entry = self._known(storage)
            if entry is not None:
                self._leave(entry)
                entry.category = EXCLUDED

    def resized(self, storage: torch.UntypedStorage) -> str | None:
        """Notes that a storage has changed size; it keeps its category and its flat, which is returned."""
        entry, nbytes = self._known(storage), storage.nbytes()
        if entry is None:
            if nbytes:
                self.operation = "resize_"  # the dispatcher does not see it, so it is named here
                self._enter(storage, nbytes, self.category, None)
        elif entry.category == EXCLUDED:
            entry.nbytes = nbytes
        elif entry.nbytes != nbytes:
            self._leave(entry)
            self.operation = "resize_"
            self._grow(entry, nbytes)
        return (entry.unit or None) if entry is not None else None

    def count_temporary(self, operation: object, nbytes: int) -> None:
        """Counts bytes that an operation needed only while it ran, as `other`, on top of everything on the host."""
        # No storage is entered: the memory comes and goes within the operation, so it can only affect a peak.
        tally = self.host
        if tally.total + nbytes > tally.here.total:
            self.settle()
            if tally.total + nbytes > tally.here.total:
                self.operation = operation
                tally.rise(self, nbytes)

    def assign(self, tensor: torch.Tensor, category: int, unit: str | None) -> None:
        """Sets what the storage of `tensor` is for; one that was never seen is older than the recorder."""
        try:
            storage = tensor.untyped_storage()
        except NotImplementedError:
            for part in parts_of(tensor):
                self.assign(part, category, unit)
            return
        entry = self._entries.get(storage._cdata)
        # Called for every parameter at every look, and nearly always nothing has changed.
        if entry is not None and entry.category == category and entry.unit == unit and entry() is not None:
            return
        entry = self._known(storage)
        if entry is None:
            if nbytes := storage.nbytes():
                self._enter(storage, nbytes, category, unit)
            return
        # A gradient hook knows the category but not the flat; a flat that was assigned before stays.
        if unit is not None and entry.unit != unit:
            entry.unit = unit if entry.unit is None else SEVERAL
        if entry.category == EXCLUDED:
            entry.category = category
            self._grow(entry, entry.nbytes)
        elif entry.category != category:
            entry.tally.move(entry, category)

    def travels(self, tensor: torch.Tensor) -> None:
        """Notes that a tensor is being sent or received: communication, unless it is known to be model state."""
        for entry in map(self._known, storages_of(tensor)):
            # A flat that is gathered in place still counts as parameters while it travels.
            # What is not counted yet may be a bucket of DDP's that is older than the recording.
            if entry is not None and entry.category in (ACTIVATIONS, OTHER, EXCLUDED):
                self.assign(tensor, COMMUNICATION, None)

    def unit_of(self, tensor: torch.Tensor) -> str | None:
        """The flat that the storage of `tensor` was assigned to; None if there is none, or several."""
        entries = map(self._known, storages_of(tensor))
        return next((entry.unit for entry in entries if entry is not None and entry.unit), None)

    def settle(self) -> None:
        """Removes the storages that were dropped since the last call.

        Called only where it matters: at an event, at a possible new peak, and where an address is reused. A thousand
        operations per step drop something, and removing in batches is cheaper. In other threads it does nothing.
        """
        if not self.is_mine():
            return
        if self.releases.pending:
            self.releases.wait()
        while self.freed:
            entry = self.freed.popleft()
            self._give_back(entry)
            if self._entries.get(entry.key) is entry:  # else another storage has reused the address
                del self._entries[entry.key]
                if entry.category != EXCLUDED:
                    tally = entry.tally
                    tally.live[entry.category] -= entry.nbytes
                    tally.total -= entry.nbytes

    def lay_out(self, allocators: Sequence[Allocator]) -> None:
        """From now on each of them has a block for every storage, as a GPU's would; those that exist come first."""
        self.settle()
        self._allocators = allocators
        for entry in list(self._entries.values()):
            if entry.category != EXCLUDED:
                self._place(entry)

    def _place(self, entry: Entry) -> None:
        self.settle()  # what was dropped makes room
        entry.blocks = [allocator.allocate(entry.nbytes) for allocator in self._allocators if entry.nbytes]

    def _give_back(self, entry: Entry) -> None:
        for allocator, block in zip(self._allocators, entry.blocks, strict=False):  # older ones have none
            allocator.free(block)
        entry.blocks = ()

    def close(self) -> None:
        """Lets go of every storage, so that no code of the recorder runs when one is dropped later."""
        self.settle()
        self._entries.clear()

    def _known(self, storage: torch.UntypedStorage) -> Entry | None:
        entry = self._entries.get(storage._cdata)
        if entry is not None and entry() is None:  # another storage has reused the address
            self.settle()
            return None
        return entry

    def _enter(self, storage: torch.UntypedStorage, nbytes: int, category: int, unit: str | None) -> None:
        self._grow(self._add(storage, category, unit), nbytes)

    def _add(self, storage: torch.UntypedStorage, category: int, unit: str | None) -> Entry:
        entry = self._entries[storage._cdata] = Entry(storage, self._on_free)
        entry.key, entry.category, entry.unit, entry.blocks = storage._cdata, category, unit, ()
        device = storage.device
        # Comparing is faster than looking up, and on a CPU it is enough.
        entry.tally = self.host if device == _HOST else self._tally_of.get(device) or self._learn(device)
        return entry

    def _learn(self, device: torch.device) -> Tally:
        """The tally of a device not seen before; all devices of one kind share it."""
        name = device.type if self._apart else HOST
        tally = self._tally_of[device] = self.tallies.setdefault(name, Tally())
        tally.enter(self.phase, self)
        return tally

    def _grow(self, entry: Entry, nbytes: int) -> None:
        self.births += 1
        entry.nbytes, entry.since = nbytes, self.births
        if self._allocators:
            self._place(entry)
        tally = entry.tally
        tally.live[entry.category] += nbytes
        tally.total += nbytes
        # The total still includes dropped storages, so only an apparent new peak needs a closer look.
        if tally.total > tally.here.total:
            self.settle()
            if tally.total > tally.here.total:
                tally.rise(self)

    def _leave(self, entry: Entry) -> None:
        self._give_back(entry)
        if entry.category != EXCLUDED:
            tally = entry.tally
            tally.live[entry.category] -= entry.nbytes
            tally.total -= entry.nbytes
