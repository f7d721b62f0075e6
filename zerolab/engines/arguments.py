"""What Shift-Tab and `help` say of an engine's arguments: each is explained once, by the class that takes it first."""

import re
from inspect import Parameter, Signature, cleandoc, signature
from typing import Any

from torch import nn

_ARGS = re.compile(r"^Args:\n(?:    .*\n?)+", re.MULTILINE)
_ARGUMENT = re.compile(r"^    \**(\w+): .*\n?(?:        .*\n?)*", re.MULTILINE)


class _OfClass:
    """The signature where `inspect` looks for it; an object of the class has none, and is called as `__call__` says."""

    def __get__(self, instance: object, cls: type) -> Signature | None:
        return _completed(cls) if instance is None else None


class Explained:
    """Completes every subclass with what its base classes take and say of it: the signature, and the docstring."""

    __signature__ = _OfClass()
    model: nn.Module

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        said: dict[str, str] = {}
        for each in reversed(cls.__mro__):
            section = _ARGS.search(cleandoc(each.__doc__ or ""))
            said |= {found[1]: found[0].rstrip() for found in _ARGUMENT.finditer(section[0] if section else "")}
        own, raises, errors = _ARGS.sub("", cleandoc(cls.__doc__ or "")).partition("\nRaises:\n")
        arguments = "\n".join(said[name] for name in signature(cls).parameters if name in said)
        cls.__doc__ = f"{own.rstrip()}\n\nArgs:\n{arguments}\n{raises}{errors}".strip()

    def __call__(self, *inputs: Any, **keywords: Any) -> Any:
        """The model's outputs, as `engine.model(...)` returns them: loops written for DeepSpeed call the engine."""
        return self.model(*inputs, **keywords)


def _completed(cls: type) -> Signature:
    """A class's signature: what an `__init__` passes on as `*arguments, **others` is what the next class's takes."""
    own: list[Parameter] = []
    for each in cls.__mro__:
        if "__init__" not in vars(each):
            continue
        _, *taken = signature(vars(each)["__init__"]).parameters.values()
        if not any(parameter.kind is Parameter.VAR_POSITIONAL for parameter in taken):
            more = [taken.pop()] if own else []  # its own keywords stay last
            return Signature([*taken, *own, *more])
        own = [parameter for parameter in taken if parameter.kind is Parameter.KEYWORD_ONLY] + own
    return Signature(own)
