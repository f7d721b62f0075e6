"""What came of one check: its verdicts, and the recording of what ran."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from zerolab.exercises.harness.score import score
from zerolab.exercises.harness.targets import Verdict, report

NOTHING_RAN = "Nothing ran yet, so there is no picture."
BESIDE = "The first is yours, the second ours."


@dataclass(frozen=True, slots=True)
class Attempt:
    """One answer to an exercise, checked.

    Attributes:
        exercise_id: which exercise.
        verdicts: one for each target and number of ranks that was tried, in order.
        said: what else there is to say: why nothing ran, or why a rank failed.
        recording: of the run with the first miss, else of that on the most ranks; None if nothing ran to its end.
        picture: what `play` shows of the recording.
        ours: the recording of our answer on the same draws, once an answer on ranks has passed; else None.
        aside: whose functions ran beside the answer, in a sentence; empty where none did.
        seed: what the sizes and batches were drawn from; `check(..., seed=...)` repeats them.
    """

    exercise_id: str
    verdicts: tuple[Verdict, ...] = ()
    said: tuple[str, ...] = ()
    recording: Any = field(default=None, repr=False)
    seed: int | None = None
    picture: Callable[[Any], Any] = field(default=lambda recording: recording.play(), repr=False)
    ours: Any = field(default=None, repr=False)
    aside: str = ""

    @property
    def passed(self) -> bool:
        """Whether every target was judged and reached."""
        return bool(self.verdicts) and not self.said and all(verdict.right for verdict in self.verdicts)

    @property
    def ran(self) -> bool:
        """Whether ranks were started."""
        # A seed is drawn only when something is about to run.
        return self.seed is not None

    def __str__(self) -> str:
        lines = [*report(list(self.verdicts)), *self.said, *([self.aside] if self.aside else [])]
        if self.ours is not None:
            lines.append(str(score(self.recording, self.ours)))
        if self.passed:
            lines.append(f"{self.exercise_id}: passed.")
        elif self.ran:
            lines.append(
                f'{self.exercise_id}: not yet. hint("{self.exercise_id}") helps; seed={self.seed} repeats this.'
            )
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<attempt at {self.exercise_id}: {'passed' if self.passed else 'not passed'}>"

    def play(self) -> Any:
        """The player over what ran, beside ours once it has passed; of a plain function a table.

        A line of text if nothing ran.
        """
        # After a rank was killed there may be verdicts and no recording: text, so that the cell still works.
        if self.recording is None:
            print(NOTHING_RAN)
            return None
        if self.ours is None:
            return self.picture(self.recording)
        print(BESIDE)
        return self.recording.play(self.ours)
