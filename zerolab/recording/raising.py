"""Where an error that ends a recording came from: what it has left there never ended."""

from collections.abc import Iterator
from traceback import walk_tb
from typing import Any


class Left:
    """What functions of torch and zerolab had in their variables when the error left them.

    Those that it left when it was caught, and another raised later, are not among them; of the one that was raised in
    handling it, they are.
    """

    def __init__(self, error: BaseException | None) -> None:
        self._things = list(_things(error))

    def __contains__(self, thing: object) -> bool:
        return any(thing is each for each in self._things)


def _things(error: BaseException | None) -> Iterator[Any]:
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    for each in chain:
        for frame, _ in walk_tb(each.__traceback__):
            # A loop of the user's has a model at hand all the time, whatever raises.
            if frame.f_globals.get("__name__", "").partition(".")[0] in ("torch", "zerolab"):
                yield frame.f_code
                yield from frame.f_locals.values()
