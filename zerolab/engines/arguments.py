"""What Shift-Tab and `help` say of an engine's arguments: each is explained once, by the class that takes it first."""

import re
from collections.abc import Callable
from inspect import Parameter, Signature, cleandoc, signature
from typing import Any

_ARGS = re.compile(r"^Args:\n(?:    .*\n?)+", re.MULTILINE)
_ARGUMENT = re.compile(r"^    \**(\w+): .*\n?(?:        .*\n?)*", re.MULTILINE)
_RAISES = re.compile(r"^Raises:$", re.MULTILINE)


class Explained:
    """Completes every subclass with what its base classes take and say of it: the signature, and the docstring."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "__init__" in vars(cls):
            # Where `inspect` looks for it.
            cls.__signature__ = _completed(vars(cls)["__init__"], cls.__mro__[1])  # type: ignore[attr-defined]
        said: dict[str, str] = {}
        for each in reversed(cls.__mro__):
            section = _ARGS.search(cleandoc(each.__doc__ or ""))
            said |= {found[1]: found[0].rstrip() for found in _ARGUMENT.finditer(section[0] if section else "")}
        own = _ARGS.sub("", cleandoc(cls.__doc__ or ""))
        raises = _RAISES.search(own)
        end = raises.start() if raises else len(own)
        arguments = "\n".join(said[name] for name in signature(cls).parameters if name in said)
        cls.__doc__ = f"{own[:end].rstrip()}\n\nArgs:\n{arguments}\n\n{own[end:]}".strip()


def _completed(init: Callable[..., None], base: type) -> Signature:
    """A class's signature by its `__init__`: what that passes on as `*arguments, **others` is what `base` takes."""
    _, *own = signature(init).parameters.values()
    if not any(each.kind is Parameter.VAR_POSITIONAL for each in own):
        return Signature(own)
    *theirs, keywords = signature(base).parameters.values()
    return Signature([*theirs, *(each for each in own if each.kind is Parameter.KEYWORD_ONLY), keywords])
