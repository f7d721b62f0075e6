"""What ranks printed, rank by rank: whether lines of several are shown as one is a matter of milliseconds."""

import re

_LABEL = re.compile(r"\[ranks? (\d+(?:-\d+|(?:, \d+)*))((?:, late from cell \[\d+\])?)\] (.*)")


def by_rank(printed):
    """The lines, each label of several ranks written out; lines of ranks in a row are in the order of the ranks."""
    lines, pending = [], []
    for line in printed.splitlines():
        label = _LABEL.fullmatch(line)
        if label is None:
            lines, pending = lines + [line for _, line in sorted(pending, key=lambda one: one[0])] + [line], []
        else:
            pending += [(rank, f"[rank {rank}{label[2]}] {label[3]}") for rank in _ranks(label[1])]
    return lines + [line for _, line in sorted(pending, key=lambda one: one[0])]


def _ranks(text):
    first, _, last = text.partition("-")
    return range(int(first), int(last) + 1) if last else [int(rank) for rank in text.split(", ")]
