"""What a rank has handed to its device that the device may not have finished: which collective it waits in.

Handing a collective to a GPU returns at once: neither the call nor `wait()` makes the host wait, and only an event says
that everything before it is done. So each collective gets two events, one for all that must be done before it can begin
and one for its own end. If the first has happened and the second has not, the device is waiting for the other ranks.
"""

import threading
import time
from collections import deque
from collections.abc import Callable

import torch

from zerolab.runtime.board import ON_DEVICE, Page, Position

Place = tuple[str, str, int]
"""Phase, file and line."""


class Gpu:
    """A device that executes what it is handed, in its own time, by torch's events."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> torch.cuda.Event:
        """An event behind what the calling thread has handed over so far, on the current stream."""
        event = torch.cuda.Event()
        event.record()
        return event

    def is_busy(self) -> bool:
        """Whether the stream on which models compute unless told otherwise has work. Asked by another thread."""
        torch.cuda.set_device(self._device)  # a thread begins on the first GPU, and would take memory there
        return not torch.cuda.default_stream(self._device).query()

    def synchronize(self) -> None:
        """Waits for all streams. Raises what went wrong on them."""
        torch.cuda.synchronize(self._device)


class Entry:
    """One collective: where it was called, what comes before it, and what says that it is done."""

    def __init__(self, position: Position, place: Place, begins: torch.cuda.Event) -> None:
        self.position, self.place, self.begins = position, place, begins
        self.ends: list[Callable[[], bool]] = []
        self.is_handed_over = False

    def is_done(self) -> bool:
        """Whether it has ended on the device."""
        return self.is_handed_over and all(end() for end in self.ends)


class Enqueued:
    """The collectives of one rank that were handed to its device, on the device's page of the board."""

    def __init__(self, device: Gpu, page: Page) -> None:
        self._device, self._page = device, page
        self._entries: deque[Entry] = deque()
        self._waits_in: Entry | None = None
        self._lock = threading.Lock()  # the main thread and the side thread look

    def begin(self, position: Position, place: Place) -> Entry:
        """Notes a collective that is about to be handed over; the oldest ones are forgotten once they are done."""
        while self._entries and self._entries[0].is_done():
            self._entries.popleft()
        entry = Entry(position, place, self._device.mark())
        self._entries.append(entry)
        return entry

    def end(self, entry: Entry, failed: bool = False) -> None:
        """Notes that it was handed over, once. Without a Work to ask, it ends with all that lies before now."""
        if entry.is_handed_over:
            return
        if not entry.ends and not failed:
            entry.ends.append(self._device.mark().query)
        entry.is_handed_over = True

    def look(self) -> bool:
        """Writes down which collective the device waits in, the oldest if there are several; whether it computes."""
        with self._lock:
            busy = self._device.is_busy()
            waits_in = next((each for each in list(self._entries) if not each.is_done() and each.begins.query()), None)
            if waits_in is not self._waits_in:
                self._write(waits_in)
            return busy and waits_in is None

    def finish(self) -> None:
        """Waits until everything is done: a call with unfinished work has not succeeded yet."""
        self._device.synchronize()
        self.reset()

    def reset(self) -> None:
        """Forgets everything."""
        with self._lock:
            self._entries.clear()
            self._write(None)

    def _write(self, waits_in: Entry | None) -> None:
        self._waits_in = waits_in
        if waits_in is None:
            self._page.write(Position())
            return
        self._page.write_place(*waits_in.place)
        # From now on, not from when it was handed over: until it began, the device computed.
        self._page.write(waits_in.position._replace(state=ON_DEVICE, since=time.monotonic_ns()))
