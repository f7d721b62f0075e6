"""Ends ranks that have not been used for a while: on a shared machine others need their memory."""

import threading
import time
import weakref
from collections.abc import Callable


class IdleWatch:
    """Calls `expired(owner)` whenever the owner has not been touched for `seconds`; holds the owner weakly.

    The owner may be touched at that very moment, so `expired` checks `left` once nobody can touch it any more.
    """

    def __init__(self, owner: object, expired: Callable[..., None], seconds: float) -> None:
        self._stopped = threading.Event()
        # When the owner is collected, the thread ends at once, not twenty minutes later.
        self._owner = weakref.ref(owner, lambda _: self.stop())
        self._expired, self.seconds, self._touched = expired, seconds, time.monotonic()
        if seconds > 0:
            threading.Thread(target=self._watch, name="zerolab-idle", daemon=True).start()

    def touch(self) -> None:
        """Restart the countdown."""
        self._touched = time.monotonic()

    @property
    def left(self) -> float:
        """The seconds of the countdown that are left; 0 or less once it is over."""
        return self._touched + self.seconds - time.monotonic()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(max(0.0, self.left)):
            if self.left <= 0:
                owner = self._owner()
                if owner is not None:
                    self._expired(owner)
                del owner  # or this thread would keep it alive
                self.touch()
