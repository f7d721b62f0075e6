"""Ends the ranks of a notebook that nobody uses any more: on a shared machine their memory is somebody else's."""

import threading
import time
import weakref
from collections.abc import Callable


class IdleWatch:
    """Calls `expired(owner)` whenever the owner was not touched for so many seconds.

    The thread knows the owner only weakly: an object that is forgotten is not kept alive by being watched.
    """

    def __init__(self, owner: object, expired: Callable[..., None], seconds: float) -> None:
        self._stopped = threading.Event()
        # The end of the owner ends the thread, which otherwise would sleep on for twenty minutes.
        self._owner = weakref.ref(owner, lambda _: self.stop())
        self._expired, self.seconds, self._touched = expired, seconds, time.monotonic()
        if seconds > 0:
            threading.Thread(target=self._watch, name="zerolab-idle", daemon=True).start()

    def touch(self) -> None:
        """Somebody is there: the time begins anew. Costs next to nothing, for it is done at every call."""
        self._touched = time.monotonic()

    def stop(self) -> None:
        """Watch no longer."""
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(max(0.0, self._touched + self.seconds - time.monotonic())):
            # It was touched while this thread slept, in most cases: then it sleeps on for the rest.
            if time.monotonic() - self._touched >= self.seconds:
                self.touch()
                owner = self._owner()
                if owner is not None:
                    self._expired(owner)
                del owner  # or this thread would keep it until the next look
