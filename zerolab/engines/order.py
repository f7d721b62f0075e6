"""In which order a pass uses the units, so that the next one can be fetched before it is needed."""


class Order:
    """Remembers the order of the last pass, and says what came next in it.

    A pass that leaves the remembered order (a model that branches) gets no advice until it returns to it.

    Args:
        ahead: how many units to name in advance; 0 never names any.
    """

    def __init__(self, ahead: int) -> None:
        self._ahead = ahead
        self._last: list[str] = []
        self.now: list[str] = []

    def begin(self) -> None:
        """A new pass begins."""
        self._last, self.now = self.now, []

    def expects(self, unit: str) -> bool:
        """Whether `unit` came at this place in the last pass, too."""
        return self._last[len(self.now) :][:1] == [unit]

    def use(self, unit: str) -> list[str]:
        """Notes that `unit` is used now; returns the units that are expected next, the nearest first."""
        place = len(self.now)
        self.now.append(unit)
        expected = self._last[place : place + 1 + self._ahead]
        # After a surprise no guess: a unit gathered for nothing costs its traffic, and its memory until it is used.
        return expected[1:] if expected[:1] == [unit] else []
