"""The clinic: broken answers are run on purpose, looked at from outside, and diagnosed before they are fixed."""

import dataclasses
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from zerolab.exercises.harness.exercise import Exercise, load
from zerolab.exercises.harness.onranks import Arguments, RankTargets, trial
from zerolab.exercises.harness.plain import plain
from zerolab.exercises.harness.reference import run_reference
from zerolab.exercises.harness.testbed import Noted, Setup
from zerolab.exercises.harness.training import TrainingTargets
from zerolab.exercises.harness.trials import RunConfig, train
from zerolab.lessons import progress
from zerolab.lessons.errors import without_volatile
from zerolab.tables import Table

if TYPE_CHECKING:
    from zerolab.recording.recording import Recording
    from zerolab.runtime.cluster import Cluster

SEED = 13  # the same patient for everybody, so that a lesson can speak of what it shows
SECONDS = 20.0
EQUAL = 1e-6  # as far apart as weights under SGD may be and still count as the same


@dataclass(frozen=True, slots=True)
class Patient:
    """A broken answer that was run: what can be seen of it without reading it.

    Attributes:
        exercise_id: the exercise that fixes it.
        recording: of a run, in the first ward under Adam; of one that hung, what the ranks had recorded by then.
        noted: of a run under SGD, what was seen on each rank; empty if it hung, and in the second ward.
        setup: the model and the batches that it got; None in the second ward.
        arguments: in the second ward what each rank got.
    """

    exercise_id: str
    recording: "Recording"
    noted: tuple[Noted, ...] = ()
    setup: Setup | None = None
    arguments: tuple[Any, ...] = ()

    def play(self) -> Any:
        """The player over the run, opened at a telling moment."""
        from zerolab.player import Player

        events = sorted((e.t_end, e.rank, e.seq, e) for rank in self.recording.ranks for e in rank.events)
        telling = _case(self.exercise_id).telling
        found = [number for number, (_, _, _, event) in enumerate(events) if telling(event)]
        return Player(self.recording, event=found[-1] if found else -1)

    def beside_one_process(self) -> Table:
        """How far each rank's weights are in the end from those of one process that reads the rows of all ranks.

        Of the second ward; ValueError in the first, and of one that hung.
        """
        targets = _case(self.exercise_id).targets
        if self.setup is not None or not isinstance(targets, RankTargets):
            raise ValueError(f"{self.exercise_id} is beside DDP: call beside_ddp()")
        if self.recording.results is None:
            raise ValueError(f"{self.exercise_id} hangs: no rank has returned a model")
        rows: list[dict[str, str | int]] = []
        for rank, (weights, _) in enumerate(self.recording.results):
            wanted = plain(targets.wanted(list(self.arguments), rank))
            rows.append({"rank": rank, "at the end": _apart(float(np.abs(weights - wanted).max()))})
        return Table(rows, "weights of each rank beside those of one process, at most 1e-6 apart or not")

    def beside_ddp(self) -> Table:
        """How far each rank's parameters are from DDP's after each step, on the same batches under SGD.

        Of the first ward; ValueError in the second, and of one that hung.
        """
        if self.setup is None:
            raise ValueError(f"{self.exercise_id} is beside one process: call beside_one_process()")
        if not self.noted:
            raise ValueError(f"{self.exercise_id} hangs: no rank has parameters to set beside DDP's")
        reference = run_reference(self.setup, self.recording.world_size)
        rows = []
        for rank, noted in enumerate(self.noted):
            row: dict[str, str | int] = {"rank": rank}
            for step, pieces in enumerate(noted.weights):
                wanted = reference.weights[step]
                apart = max(float(np.abs(mine - wanted[at : at + len(mine)]).max()) for at, mine in pieces)
                row[f"step {step + 1}"] = _apart(apart)
            rows.append(row)
        return Table(rows, "parameters of each rank beside DDP's, at most 1e-6 apart or not")


def examine(cluster: "Cluster", exercise_id: str) -> Patient:
    """Runs the broken answer of an exercise on a cluster's ranks; of a hang, prints what the ranks report.

    Raises:
        ValueError: no such exercise, one that begins with a hole instead of a broken answer, or too few ranks.
        RankError: the answer failed in another way than by hanging.
    """
    targets = _case(exercise_id).targets
    if cluster.world_size < min(targets.world_sizes):
        fewest = min(targets.world_sizes)
        raise ValueError(f"{exercise_id} shows nothing on a rank that is alone: examine it on {fewest} ranks or more")
    if isinstance(targets, RankTargets):
        arguments = targets.draw(random.Random(SEED), cluster.world_size)
        recording = _recorded(cluster, _run_on_ranks, exercise_id, arguments)
        return Patient(exercise_id, recording, arguments=tuple(arguments))
    if not isinstance(targets, TrainingTargets):
        raise TypeError(f"{exercise_id} does not train, so there is nothing to record")
    setup = targets.setup(SEED, cluster.world_size)
    if setup.skippers:
        # One is enough for a picture, and the check has them all. The units are alike here: of some that are not, the
        # report would say what the picture shows.
        alike = setup.widths[:1] * len(setup.widths)
        setup = dataclasses.replace(setup, skippers=setup.skippers[1:2], widths=alike)
    configs = [RunConfig(targets.shape, optimizer, targets.stage) for optimizer in ("adam", "sgd")]
    recording = _recorded(cluster, _run_broken, exercise_id, setup, configs[0])
    hangs = recording.results is None
    noted = [] if hangs else cluster.run(_run_broken, exercise_id, setup, configs[1])
    return Patient(exercise_id, recording, tuple(noted), setup)


def diagnose(exercise_id: str, guess: int | None) -> None:
    """Prints what could be wrong, numbered; with a guess, what the picture says to that one.

    Raises ValueError as `examine` does; a guess that is no number of the list is answered with a line of text.
    """
    suspects = _case(exercise_id).suspects
    if guess is None:
        print("\n".join(f"{number}  {suspect.says}" for number, suspect in enumerate(suspects, 1)))
        print("Which one does the picture show? Put its number in place of None.")
        return
    number = progress.number_of(guess)
    if number is None or number not in range(1, len(suspects) + 1):
        said = number if number == math.inf else guess  # an int beyond all floats may have too many digits to write
        print(f"Your guess is {said!r}: write a plain number from 1 to {len(suspects)}.")
    else:
        progress.note_guess(f"13-{exercise_id}", number)
        suspect = suspects[int(number) - 1]
        print(f"{'Yes' if suspect.guilty else 'No'}: {suspect.reply}")


def _recorded(cluster: "Cluster", run: Callable[..., Any], *arguments: Any) -> "Recording":
    """The recording of a run; of one that hangs what there is up to there, and what the ranks report is printed."""
    from zerolab.runtime.faults import CollectiveHang, whereabouts

    try:
        return cluster.record(run, *arguments)
    except CollectiveHang as hang:
        # Not its first sentence: which of several waiting ranks is told first is chance.
        print(without_volatile(whereabouts(hang.mismatches, hang.standings)))
        if hang.recording is None:  # no rank could hand over what it has
            raise
        return cast("Recording", hang.recording)


def _case(exercise_id: str) -> Exercise:
    exercise = load(exercise_id)
    if not exercise.suspects:
        raise ValueError(f"{exercise_id} begins with a hole, not with a broken answer: there is nothing to examine")
    return exercise


def _apart(distance: float) -> str:
    return "equal" if distance <= EQUAL else f"{distance:.3f} apart"


def _run_on_ranks(exercise_id: str, arguments: Arguments) -> Any:
    """On a rank: runs the broken answer of the second ward."""
    targets: Any = load(exercise_id).targets
    return trial(_broken(exercise_id), arguments, targets.config(SECONDS))


def _run_broken(exercise_id: str, setup: Setup, config: RunConfig) -> Noted:
    """On a rank: runs the broken answer."""
    return train(_broken(exercise_id), setup, config, (), SECONDS)


def _broken(exercise_id: str) -> Callable[..., Any]:
    """The broken answer, with its text known to tracebacks and recordings."""
    return load(exercise_id).broken.made()
