"""What all kinds of targets share: which runs an answer must pass, how each is judged, and the words of a verdict."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from zerolab.exercises.harness.exercise import Exercise
    from zerolab.recording.recording import Recording

Judgement = tuple[str, str]
"""A target's name, and in a sentence what is wrong; an empty one if nothing is."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one target came to on one number of ranks; `why` says in a sentence what is wrong, and is empty if right.

    `world_size` is None where ranks mean nothing to the answer.
    """

    target: str
    world_size: int | None
    why: str = ""

    @property
    def right(self) -> bool:
        """Whether the target is reached."""
        return not self.why


@dataclass(frozen=True, slots=True)
class Run:
    """One run of an answer on all ranks of a cluster.

    Attributes:
        trial: what every rank calls, as `trial(answer, *arguments)`; it calls the answer.
        arguments: what `trial` gets beside the answer.
        judge: reads the judgements off the recording, in the order of the targets. They are taken one by one, up to
            the first miss: what comes after it would only be a consequence.
        picture: what `attempt.play()` shows of the recording.
        ours: what `trial` gets with our own answer, where that is run.
        aside: whose functions ran beside the answer, in a sentence; empty where none did.
    """

    trial: Callable[..., Any]
    arguments: tuple[Any, ...]
    judge: Callable[["Recording"], Iterator[Judgement]]
    picture: Callable[["Recording"], Any] = lambda recording: recording.play()
    ours: tuple[Any, ...] = ()
    aside: str = ""

    def verdicts(self, recording: "Recording", world_size: int | None) -> Iterator[Verdict]:
        """The verdicts on the run, up to the first miss."""
        # One by one: a generator judges the next target only if this one was reached.
        for target, why in self.judge(recording):
            yield Verdict(target, world_size, why)
            if why:
                return


@dataclass(frozen=True, kw_only=True)
class Targets:
    """What a right answer must reach; the kinds of exercises derive from it.

    Args:
        world_sizes: how many ranks, in the order in which they are tried; the first miss ends the check.
        forbids: what the answer may not call, beside the finished engines, as `"module:function"`.
        allows: modules of finished engines that it may use, because another thing is asked.
    """

    on_ranks: ClassVar[bool] = True  # whether the number of ranks means anything to the answer
    world_sizes: tuple[int, ...] = (2, 3, 1, 4)
    forbids: tuple[str, ...] = ()
    allows: tuple[str, ...] = ()

    def runs(self, exercise: "Exercise", world_size: int, seed: int, seconds: float) -> Iterator[Run]:
        """The runs on so many ranks, drawn from `seed`; each run of an answer may take `seconds`."""
        raise NotImplementedError


def report(verdicts: list[Verdict]) -> list[str]:
    """The verdicts as lines of text: a line for each number of ranks, and a sentence below for what is wrong."""
    lines = []
    # In the order in which they were tried: the miss stands last, next to its reason.
    for world_size in dict.fromkeys(verdict.world_size for verdict in verdicts):
        here = [verdict for verdict in verdicts if verdict.world_size == world_size]
        marks = ", ".join(f"{verdict.target} {'right' if verdict.right else 'WRONG'}" for verdict in here)
        where = f"on {world_size} {'rank' if world_size == 1 else 'ranks'}: " if world_size is not None else ""
        lines.append(f"{where}{marks}")
        lines += [f"    {verdict.why}" for verdict in here if verdict.why]
    return lines
