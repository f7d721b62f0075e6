"""Decorated functions, and types that pickle knows by name: those of a notebook travel, or are refused by name."""

import pickle
import sys
import types

import pytest

NOTEBOOK = """
import dataclasses, enum, functools, os, typing
from os import environ
from safetensors import safe_open

@functools.cache
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)

@functools.lru_cache(maxsize=3)
def last(n):
    return n

@functools.singledispatch
def size(value):
    return 1

@size.register(list)
def _(value):
    return sum(size(part) for part in value)

class Model:
    def __init__(self, width):
        self.width = width

    @functools.cached_property
    def params(self):
        return Model.scale(self.width)

    @functools.cache
    def scale(width):
        return width * width

    @functools.singledispatchmethod
    def kind(self, value):
        return "anything"

    @kind.register
    def _(self, value: int):
        return "a number"

P = typing.ParamSpec("P")
R = typing.TypeVar("R")
Rank = typing.NewType("Rank", int)

def same(function: typing.Callable[P, R]) -> typing.Callable[P, R]:
    @functools.wraps(function)
    def inner(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs)
    return inner

@same
def next_rank(rank: Rank) -> Rank:
    return Rank(rank + 1)

def first(values: list[R]) -> R:
    return values[0]

known = Model(3)
known.params

@dataclasses.dataclass(frozen=True, slots=True)
class Sizes:
    params: int
    width: int = 4

@dataclasses.dataclass(slots=True)
class Batch:
    rows: list
    length: int = 4

class Long(Batch):
    __slots__ = "more"

class Colour(enum.Enum):
    __slots__ = ()
    RED = 1

class Missing:
    def __reduce__(self):
        return "MISSING"

MISSING = Missing()
"""
if sys.version_info >= (3, 12):
    NOTEBOOK += """
type Numbers = list[float]
type Pair[T] = tuple[T, T]

class Net[T]:
    parts: Pair[T]

    def first(self, values: Numbers) -> T:
        return values[0]

def swapped[T](pair: Pair[T]) -> Pair[T]:
    return pair[::-1]
"""


@pytest.fixture
def notebook(monkeypatch):
    """Evaluates an expression where a kernel would: in a module `__main__`, in which pickle finds every name."""
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec(NOTEBOOK, main.__dict__)  # noqa: S102  # pickle must take it for a notebook's
    return lambda expression: eval(expression, main.__dict__)  # noqa: S307


CALLS = {
    "a cache that calls itself": ("lambda: fib(30)", 832040),
    "the cached function itself": ("functools.partial(fib, 10)", 55),
    "a cache arrives empty": ("lambda: (last(1), last.cache_info().hits, last.cache_info().maxsize)", (1, 0, 3)),
    "singledispatch": ("lambda: (size([1, [2, 3]]), size(1))", (3, 1)),
    "the dispatcher itself": ("functools.partial(size, [1, 2])", 2),
    "methods": ("lambda: (Model(2).params, Model.scale(3), Model(1).kind(1), Model(1).kind(''))",
                (4, 9, "a number", "anything")),
    "a property that is known already": ("lambda: known.__dict__", {"width": 3, "params": 9}),
    "types in annotations": ("lambda: next_rank(3)", 4),
    "a type variable in annotations": ("lambda: first([3])", 3),
    "a type variable itself": ("lambda: R.__name__", "R"),
    "a name of a type": ("lambda: Rank.__module__ + '.' + Rank.__name__", "__main__.Rank"),
    "the rank's own environment": ("lambda: environ['RANK']", "0"),
    "a class that says it is a builtin": ("lambda: (safe_open.__module__, hasattr(safe_open, 'get_slice'))",
                                          ("builtins", True)),
    "a dataclass": ("lambda: dataclasses.astuple(Sizes(3))", (3, 4)),
}  # fmt: skip
if sys.version_info >= (3, 12):
    CALLS |= {
        "an alias in annotations": ("lambda: Net().first([3.0])", 3.0),
        "an alias itself": ("lambda: (str(Pair[int]), str(Numbers.__value__))", ("Pair[int]", "list[float]")),
        "a function's own type variables": ("lambda: swapped((1, 2))", (2, 1)),
    }


@pytest.mark.parametrize(("expression", "result"), CALLS.values(), ids=CALLS)
def test_what_pickle_would_send_by_a_name_of_the_notebook_travels_as_what_it_is(one, notebook, expression, result):
    notebook("last(1), fib(3)")
    assert one.run(notebook(expression)) == [result]


def test_what_has_slots_has_them_on_the_ranks_too_and_comes_back(one, notebook):
    ((on_rank, batch, long, colour),) = one.run(
        notebook(
            "lambda: ([hasattr(each, '__dict__') for each in (Batch([]), Long([]))], Batch([3]), Long([]), Colour.RED)"
        )
    )
    assert on_rank == [hasattr(each, "__dict__") for each in notebook("(Batch([]), Long([]))")] == [False, False]
    assert batch == notebook("Batch([3])")
    assert type(long) is notebook("Long")
    assert colour is notebook("Colour.RED")


def test_a_cached_function_comes_back_from_a_rank(one, notebook):
    (back,) = one.run(notebook("lambda: fib"))
    assert back(12) == 144


def test_anything_else_that_goes_by_a_name_of_the_notebook_is_refused_before_it_is_sent(one, notebook):
    before = one.run(notebook("os.getpid"))
    with pytest.raises(TypeError, match=r"because of MISSING, which <lambda> uses\. It is sent by its name"):
        one.run(notebook("lambda: MISSING"))
    assert one.run(notebook("os.getpid")) == before


def test_a_module_that_can_be_called_travels_as_a_name():
    import cloudpickle

    import zerolab

    assert pickle.loads(cloudpickle.dumps(zerolab.recording)) is zerolab.recording  # noqa: S301  (its own bytes)
