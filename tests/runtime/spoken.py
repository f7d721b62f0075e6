"""What ranks said, told apart by rank: whether lines of several were shown as one is a matter of milliseconds."""

import re

_LABEL = re.compile(r"\[ranks? (\d+(?:-\d+|(?:, \d+)*))((?:, late from cell \[\d+\])?)\] (.*)")


def apart(printed):
    """The lines, each label of several ranks written out; what ranks said in a row is in the order of the ranks."""
    lines, said = [], []
    for line in printed.splitlines():
        label = _LABEL.fullmatch(line)
        if label is None:
            lines, said = lines + [line for _, line in sorted(said, key=lambda one: one[0])] + [line], []
        else:
            said += [(rank, f"[rank {rank}{label[2]}] {label[3]}") for rank in _ranks(label[1])]
    return lines + [line for _, line in sorted(said, key=lambda one: one[0])]


def _ranks(text):
    first, _, last = text.partition("-")
    return range(int(first), int(last) + 1) if last else [int(rank) for rank in text.split(", ")]
