"""Counts every live storage of one rank by device and category, to the byte.

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

HOST = "cpu"
_HOST = torch.device(HOST)
PARAMETERS, GRADIENTS, OPTIMIZER_STATE, ACTIVATIONS, COMMUNICATION, OTHER = range(len(CATEGORIES))
# As an index it is the last place of a list: code that forgets to ask for it would change `other`.
EXCLUDED = -1
SEVERAL = ""  # in the place of a flat's name: the storage holds parts of several, as a bucket does


class Entry(weakref.ref[torch.UntypedStorage]):
    """A live storage: its bytes, its category, the flat that it belongs to, and when it came.

    The category EXCLUDED counts nowhere: older than the recorder and no model state, or part of a check.
    """

    # A reference that carries what is known of its storage: one object for each, and no second table by name.
    __slots__ = ("category", "key", "nbytes", "since", "tally", "unit")

    key: int
    tally: "Tally"
    nbytes: int
    category: int
    unit: str | None
    since: int


class Moment:
    """The highest moment of a phase so far: bytes in all and by category, and how many storages had been made."""

    __slots__ = ("birth", "live", "total")

    def __init__(self) -> None:
        self.total, self.live, self.birth = -1, [0] * len(CATEGORIES), 0


class Tally:
    """Live bytes by category on one kind of device, now and at the highest moments.

    `live` and `total` are those of now, `peak` and `peak_total` those of the highest moment since `forget`, and
    `phases` has the highest moment of each phase since then.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self.live = [0] * len(CATEGORIES)
        self.total = 0
        self.forget()

    def forget(self) -> None:
        """Forgets the highest moments so far; `enter` begins the next one."""
        self.phases: dict[str, Moment] = {}
        self.peak_total = -1

    def enter(self, phase: str, birth: int, operation: object) -> None:
        """Begins another phase, of which this moment is part; the other two as `rise` takes them."""
        self.here = self.phases.get(phase) or self.phases.setdefault(phase, Moment())
        # A phase may begin at its highest moment and only free from then on.
        if self.total > self.here.total:
            self.rise(0, birth, operation)

    def rise(self, passing: int, birth: int, operation: object) -> None:
        """Notes a new highest moment of this phase.

        Args:
            passing: bytes that belong to no storage.
            birth: how many storages had been made.
            operation: what made it the highest.
        """
        here = self.here
        here.live, here.total, here.birth = self.live.copy(), self.total + passing, birth
        here.live[OTHER] += passing
        if here.total > self.peak_total:  # the highest of all phases; its list is that phase's, which `assign` corrects
            self.peak, self.peak_total = here.live, here.total
            self.peak_time, self.peak_operation, self.peak_birth = self._clock(), operation, birth

    def move(self, entry: Entry, category: int) -> None:
        """Counts a storage under another category, at the highest moments as well if it was alive then."""
        for live in (self.live, *(moment.live for moment in self.phases.values() if entry.since <= moment.birth)):
            live[entry.category] -= entry.nbytes
            live[category] += entry.nbytes


class Ledger:
    """A tally for each kind of device on which there was a storage: `tallies`, by torch's name, such as "cuda".

    Main memory has one from the beginning: `host`. What a tensor of shape alone (on "meta") would take is counted
    there too unless devices are `apart`: a simulated rank has shapes, and a few real numbers beside them.

    `category` is what new storages count as, and `operation` what makes them; the recorder sets both as it goes, and
    says by `enter` which phase it is.
    """

    def __init__(self, clock: Callable[[], int] = monotonic_ns, *, apart: bool = True) -> None:
        self._clock, self._apart = clock, apart
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
        self.host = Tally(clock)
        self.tallies = {HOST: self.host}
        # By device and not by its name, for which torch makes a new text each time.
        self._tally_of: dict[torch.device, Tally] = {}
        self.start_peak()

    def start_peak(self) -> None:
        """Forgets the highest moments so far and looks for new ones, under no name until `enter` gives one."""
        for tally in self.tallies.values():
            tally.forget()
        self.enter("")

    def enter(self, phase: str) -> None:
        """Begins another phase, of which this moment is part."""
        self.settle()
        self.phase = phase
        for tally in self.tallies.values():
            tally.enter(phase, self.births, self.operation)

    def levels(self) -> dict[str, list[int]]:
        """The live bytes of now, by device."""
        return {device: tally.live.copy() for device, tally in self.tallies.items()}

    def device_of(self, rank: str) -> str:
        """The device to tell a rank's bytes by that computes on `rank`: that, or the host if nothing ever lay there."""
        return rank if rank in self.tallies else HOST

    def older(self, device: str) -> int:
        """Live bytes on a device that count nowhere: made before the recording and not used in it, or in a check."""
        self.settle()
        tally = self.tallies.get(device)
        # A copy, made in one go: another thread may ask what there is while a rank hangs.
        entries = list(self._entries.values())
        return sum(entry.nbytes for entry in entries if entry.category == EXCLUDED and entry.tally is tally)

    def see(self, tensor: torch.Tensor) -> None:
        """Enters the storage of `tensor`, if it is new, under the current category."""
        storage = tensor.untyped_storage()
        is_new = storage._cdata not in self._entries or self._known(storage) is None
        if is_new and (nbytes := storage.nbytes()):
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
        if entry is not None:
            self._leave(entry)
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
            self._leave(entry)
            # No operation of torch's dispatcher, so it is named here.
            self.operation = "resize_"
            self._grow(entry, nbytes)
        return (entry.unit or None) if entry is not None else None

    def count_temporary(self, operation: object, nbytes: int) -> None:
        """Counts bytes that an operation needed only while it ran, on top of all else on the host; they are `other`."""
        # Nothing enters: it comes and goes within the operation, so only a peak can notice it.
        tally = self.host
        if tally.total + nbytes > tally.here.total:
            self.settle()
            if tally.total + nbytes > tally.here.total:
                self.operation = operation
                tally.rise(nbytes, self.births, operation)

    def assign(self, tensor: torch.Tensor, category: int, unit: str | None) -> None:
        """Says what the storage of `tensor` is for; one that was never seen is older than the recorder."""
        storage = tensor.untyped_storage()
        entry = self._entries.get(storage._cdata)
        # Asked for each parameter at each look, and then nearly always what is known.
        if entry is not None and entry.category == category and entry.unit == unit and entry() is not None:
            return
        entry = self._known(storage)
        if entry is None:
            if nbytes := storage.nbytes():
                self._enter(storage, nbytes, category, unit)
            return
        # A gradient hook knows the category and not the flat; what a flat has said before stays true.
        if unit is not None and entry.unit != unit:
            entry.unit = unit if entry.unit is None else SEVERAL
        if entry.category == EXCLUDED:
            entry.category = category
            self._grow(entry, entry.nbytes)
        elif entry.category != category:
            entry.tally.move(entry, category)
            entry.category = category

    def travels(self, tensor: torch.Tensor) -> None:
        """Says that a tensor is being sent or received: communication, unless it is known to be model state."""
        entry = self._known(tensor.untyped_storage())
        # A flat that is gathered in place stays a parameter while it travels.
        if entry is not None and entry.category in (ACTIVATIONS, OTHER):
            self.assign(tensor, COMMUNICATION, None)

    def unit_of(self, tensor: torch.Tensor) -> str | None:
        """The flat that the storage of `tensor` was assigned to; None if it holds parts of several."""
        entry = self._known(tensor.untyped_storage())
        return (entry.unit or None) if entry is not None else None

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
                    tally = entry.tally
                    tally.live[entry.category] -= entry.nbytes
                    tally.total -= entry.nbytes

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
        device = storage.device
        # Compared first, which is faster than to look up, and on a CPU is all.
        entry.tally = self.host if device == _HOST else self._tally_of.get(device) or self._learn(device)
        return entry

    def _learn(self, device: torch.device) -> Tally:
        """The tally of a device that was not seen yet; all devices of a kind share one."""
        name = device.type if self._apart else HOST
        tally = self._tally_of[device] = self.tallies.setdefault(name, Tally(self._clock))
        tally.enter(self.phase, self.births, self.operation)
        return tally

    def _grow(self, entry: Entry, nbytes: int) -> None:
        self.births += 1
        entry.nbytes, entry.since = nbytes, self.births
        tally = entry.tally
        tally.live[entry.category] += nbytes
        tally.total += nbytes
        # What was dropped is still in the total: only what seems a new peak has to be looked at closely.
        if tally.total > tally.here.total:
            self.settle()
            if tally.total > tally.here.total:
                tally.rise(0, self.births, self.operation)

    def _leave(self, entry: Entry) -> None:
        if entry.category != EXCLUDED:
            tally = entry.tally
            tally.live[entry.category] -= entry.nbytes
            tally.total -= entry.nbytes
