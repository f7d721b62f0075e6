"""What Shift-Tab and `help` say of an engine's arguments: each is explained once, by the class that takes it first."""

import re
from inspect import cleandoc, signature
from typing import Any

_ARGS = re.compile(r"^Args:\n(?:    .*\n?)+", re.MULTILINE)
_ARGUMENT = re.compile(r"^    \**(\w+): .*\n?(?:        .*\n?)*", re.MULTILINE)
_RAISES = re.compile(r"^Raises:$", re.MULTILINE)


class Explained:
    """Completes the docstring of every subclass with what its base classes say of the arguments that it takes."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        said: dict[str, str] = {}
        for each in reversed(cls.__mro__):
            section = _ARGS.search(cleandoc(each.__doc__ or ""))
            said |= {found[1]: found[0].rstrip() for found in _ARGUMENT.finditer(section[0] if section else "")}
        own = _ARGS.sub("", cleandoc(cls.__doc__ or ""))
        raises = _RAISES.search(own)
        end = raises.start() if raises else len(own)
        arguments = "\n".join(said[name] for name in signature(cls).parameters if name in said)
        cls.__doc__ = f"{own[:end].rstrip()}\n\nArgs:\n{arguments}\n\n{own[end:]}".strip()
