"""Counts every live storage of one rank by category, to the byte.

Tensors share storages, and it is storages that take memory; so the ledger counts those. A storage enters with the
first tensor that shows it, and leaves when torch drops it: a weak reference to the storage fires then, in any thread.
What a storage is *for* is often known only later (a temporary of backward becomes a gradient), therefore `assign` also
corrects the peak if the storage was already alive at that moment.
"""

import weakref
from collections import deque
from collections.abc import Callable
from time import monotonic_ns

import torch

from zerolab.recording.aliases import Releases
from zerolab.recording.events import CATEGORIES

PARAMETERS, GRADIENTS, OPTIMIZER_STATE, ACTIVATIONS, COMMUNICATION, OTHER = range(len(CATEGORIES))
# As an index it is the last place of a list: code that forgets to ask for it would change `other`.
EXCLUDED = -1


class Entry(weakref.ref[torch.UntypedStorage]):
    """A live storage: its bytes, its category, the flat that it belongs to, and when it came.

    The category EXCLUDED counts nowhere: older than the recorder and no model state, or part of a check.
    """

    # A reference that carries what is known of its storage: one object for each, and no second table by name.
    __slots__ = ("category", "key", "nbytes", "since", "unit")

    key: int
    nbytes: int
    category: int
    unit: str | None
    since: int


class Moment:
    """The highest moment of a phase so far: bytes in all and by category, and how many storages had been made."""

    __slots__ = ("birth", "live", "total")

    def __init__(self) -> None:
        self.total, self.live, self.birth = -1, [0] * len(CATEGORIES), 0


class Ledger:
    """Live bytes by category, now (`live`, `total`) and at the highest moment since `start_peak` (`peak`).

    `category` is what new storages count as, and `operation` what makes them; the recorder sets both as it goes, and
    says by `enter` which phase it is: `phases` has the highest moment of each.
    """

    def __init__(self, clock: Callable[[], int] = monotonic_ns) -> None:
        self._clock = clock
        self.live = [0] * len(CATEGORIES)
        self.total = 0
        self.category = OTHER
        # Formatted only when a peak is logged: `str` of an operation takes microseconds.
        self.operation: object = None
        # torch frees in any thread (gloo's among them). Appending is atomic; only the recorder's own thread adds up.
        self.freed: deque[Entry] = deque()
        self._on_free = self.freed.append
        self.releases = Releases()
        self._entries: dict[int, Entry] = {}
        # A clock of its own: two storages may come within one tick of the system's.
        self.births = 0
        self.start_peak()

    def start_peak(self) -> None:
        """Forgets the highest moments so far and looks for new ones, under no name until `enter` gives one."""
        self.phases: dict[str, Moment] = {}
        self.peak_total = -1
        self.enter("")

    def enter(self, phase: str) -> None:
        """Begins another phase, of which this moment is part."""
        self.settle()
        self.phase = phase
        self._here = self.phases.get(phase) or self.phases.setdefault(phase, Moment())
        # A phase may begin at its highest moment and only free from then on.
        if self.total > self._here.total:
            self._rise(0)

    def see(self, tensor: torch.Tensor) -> None:
        """Enters the storage of `tensor`, if it is new, under the current category."""
        storage = tensor.untyped_storage()
        if self._known(storage) is None and (nbytes := storage.nbytes()):
            self._enter(storage, nbytes, self.category, None)

    def note_existing(self, tensor: torch.Tensor) -> int:
        """Notes a storage from before the recording, and returns its bytes; 0 if it was noted already.

        What earlier runs left behind is no part of this one. It counts from the moment when it is assigned to a flat.
        """
        storage = tensor.untyped_storage()
        nbytes = storage.nbytes()
        # A released flat has no bytes now and will have some when it is gathered: it counts as new then.
        if self._known(storage) is not None or not nbytes:
            return 0
        entry = self._add(storage, EXCLUDED, None)
        entry.nbytes, entry.since = nbytes, 0
        return nbytes

    def exclude(self, tensor: torch.Tensor) -> None:
        """From now on the storage of `tensor` counts nowhere."""
        entry = self._known(tensor.untyped_storage())
        if entry is not None and entry.category != EXCLUDED:
            self.live[entry.category] -= entry.nbytes
            self.total -= entry.nbytes
            entry.category = EXCLUDED

    def resized(self, storage: torch.UntypedStorage) -> str | None:
        """Notes that a storage has changed its size; it keeps its category and its flat, which is returned."""
        entry, nbytes = self._known(storage), storage.nbytes()
        if entry is None:
            if nbytes:
                self._enter(storage, nbytes, self.category, None)
        elif entry.category == EXCLUDED:
            entry.nbytes = nbytes
        elif entry.nbytes != nbytes:
            self.live[entry.category] -= entry.nbytes
            self.total -= entry.nbytes
            # No operation of torch's dispatcher, so it is named here.
            self.operation = "resize_"
            self._grow(entry, nbytes)
        return entry.unit if entry is not None else None

    def count_temporary(self, operation: object, nbytes: int) -> None:
        """Counts bytes that an operation needed only while it ran, on top of everything else; they are `other`."""
        # Nothing enters: it comes and goes within the operation, so only a peak can notice it.
        if self.total + nbytes > self._here.total:
            self.settle()
            if self.total + nbytes > self._here.total:
                self.operation = operation
                self._rise(nbytes)

    def assign(self, tensor: torch.Tensor, category: int, unit: str | None) -> None:
        """Says what the storage of `tensor` is for; one that was never seen is older than the recorder."""
        storage = tensor.untyped_storage()
        entry = self._known(storage)
        if entry is None:
            if nbytes := storage.nbytes():
                self._enter(storage, nbytes, category, unit)
            return
        if entry.category == category and entry.unit == unit:
            return
        # A gradient hook knows the category and not the flat; what a flat has said before stays true.
        entry.unit = unit or entry.unit
        if entry.category == EXCLUDED:
            entry.category = category
            self._grow(entry, entry.nbytes)
        elif entry.category != category:
            self.live[entry.category] -= entry.nbytes
            self.live[category] += entry.nbytes
            for moment in self.phases.values():
                if entry.since <= moment.birth:  # alive at that moment: it counts there as what it turned out to be
                    moment.live[entry.category] -= entry.nbytes
                    moment.live[category] += entry.nbytes
            entry.category = category

    def travels(self, tensor: torch.Tensor) -> None:
        """Says that a tensor is being sent or received: communication, unless it is known to be model state."""
        entry = self._known(tensor.untyped_storage())
        # A flat that is gathered in place stays a parameter while it travels.
        if entry is not None and entry.category in (ACTIVATIONS, OTHER):
            self.assign(tensor, COMMUNICATION, None)

    def unit_of(self, tensor: torch.Tensor) -> str | None:
        """The flat that the storage of `tensor` was assigned to."""
        entry = self._known(tensor.untyped_storage())
        return entry.unit if entry is not None else None

    def settle(self) -> None:
        """Removes the storages that were dropped since the last call.

        Only where it matters: at an event, where there may be a new peak, and where an address lives again. A thousand
        operations a step drop something, and adding up in batches is cheaper.
        """
        if self.releases.pending:
            self.releases.wait()
        while self.freed:
            entry = self.freed.popleft()
            if self._entries.get(entry.key) is entry:  # else the address lives again, as another storage
                del self._entries[entry.key]
                if entry.category != EXCLUDED:
                    self.live[entry.category] -= entry.nbytes
                    self.total -= entry.nbytes

    def close(self) -> None:
        """Lets go of every storage, so that nothing of the recorder runs when one is dropped later."""
        self.settle()
        self._entries.clear()

    def _known(self, storage: torch.UntypedStorage) -> Entry | None:
        entry = self._entries.get(storage._cdata)
        if entry is not None and entry() is None:  # the address lives again, as another storage
            self.settle()
            return None
        return entry

    def _enter(self, storage: torch.UntypedStorage, nbytes: int, category: int, unit: str | None) -> None:
        self._grow(self._add(storage, category, unit), nbytes)

    def _add(self, storage: torch.UntypedStorage, category: int, unit: str | None) -> Entry:
        entry = self._entries[storage._cdata] = Entry(storage, self._on_free)
        entry.key, entry.category, entry.unit = storage._cdata, category, unit
        return entry

    def _grow(self, entry: Entry, nbytes: int) -> None:
        self.births += 1
        entry.nbytes, entry.since = nbytes, self.births
        self.live[entry.category] += nbytes
        self.total += nbytes
        # What was dropped is still in the total: only what seems a new peak has to be looked at closely.
        if self.total > self._here.total:
            self.settle()
            if self.total > self._here.total:
                self._rise(0)

    def _rise(self, passing: int) -> None:
        """Notes a new highest moment of this phase, with `passing` bytes that belong to no storage."""
        here = self._here
        here.live, here.total, here.birth = self.live.copy(), self.total + passing, self.births
        here.live[OTHER] += passing
        if here.total > self.peak_total:  # the highest of all phases; its list is that phase's, which `assign` corrects
            self.peak, self.peak_total = here.live, here.total
            self.peak_time, self.peak_operation, self.peak_birth = self._clock(), self.operation, here.birth
