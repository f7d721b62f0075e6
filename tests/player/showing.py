"""What the tests of the player share: what a page shows, and recordings with something changed."""

import time
from dataclasses import replace

from zerolab import Recording


def state(tab):
    """What the player on a page shows."""
    return tab.evaluate("window.zerolabPlayers[0].state()")


def until(tab, expression, seconds=20):
    """Waits until an expression is true on a page; playwright's own waiting evaluates text, which the page forbids."""
    end = time.monotonic() + seconds
    while not tab.evaluate(expression):
        assert time.monotonic() < end, expression
        tab.wait_for_timeout(20)


def changed(recording, *, ranks=None, units=None, meta=None):
    """The recording with some of it replaced."""
    return Recording(
        recording.ranks if ranks is None else ranks,
        world_size=recording.world_size,
        meta={**recording.meta, **(meta or {})},
        units=recording.units if units is None else units,
        sources=recording.sources,
    )


def renamed(recording, old, new):
    """The recording with a unit of another name."""

    def event(one):
        return replace(one, unit=new) if one.unit == old else one

    ranks = [replace(rank, events=tuple(event(one) for one in rank.events)) for rank in recording.ranks]
    units = [replace(unit, name=new) if unit.name == old else unit for unit in recording.units]
    return changed(recording, ranks=ranks, units=units)


def in_order(recording):
    """The events as the player steps through them: by their end, a rank's own in the order they were written."""
    return sorted((event for rank in recording.ranks for event in rank.events), key=lambda e: (e.t_end, e.rank, e.seq))
