"""The words of a verdict: one for each target, right or wrong, and why."""

from dataclasses import dataclass


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
