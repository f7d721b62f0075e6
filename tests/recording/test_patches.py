"""Functions are wrapped for a while, and somebody else's wrapper around ours outlives it."""

from types import SimpleNamespace

from zerolab.recording.patches import replace


def noting(name, heard):
    """A wrapper that notes each call."""

    def wrapper(original, *args):
        heard.append(name)
        return original(*args)

    return wrapper


def test_of_wrappers_that_end_in_any_order_the_others_go_on_and_at_last_the_original_is_back():
    class Base:
        def call(self, value):
            return value

    class Derived(Base):
        pass

    heard = []
    first, second = (replace(Derived, "call", noting(name, heard)) for name in ("first", "second"))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert (Derived().call(3), heard) == (3, ["second"])
    second.__exit__(None, None, None)
    assert "call" not in vars(Derived)
    assert Derived.call is Base.call


def test_a_wrapper_that_a_script_has_put_around_ours_stays_and_ours_is_no_longer_asked():
    owner, heard, counted = SimpleNamespace(call=abs), [], []
    with replace(owner, "call", noting("ours", heard)):
        below = owner.call
        owner.call = mine = lambda value: counted.append(value) or below(value)
        assert owner.call(-1) == 1
    assert owner.call is mine
    assert (owner.call(-2), heard, counted) == (2, ["ours"], [-1, -2])
