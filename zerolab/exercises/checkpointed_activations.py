"""Activations with checkpoints.

A model is a row of blocks. Plain training keeps all activations of all blocks until backward. With checkpointing,
blocks are put into segments: of a segment only the input of its first block is kept, and when backward comes to the
segment its forward runs again and all activations of its blocks are there until its backward is done. Write a function
that finds the most bytes of activations during backward. It gets

* `blocks`: how many blocks the model has;
* `segment`: how many blocks a segment has, at least 1; the last segment may have fewer;
* `input_bytes`: the bytes of one block's input;
* `inside_bytes`: the bytes of all activations of one block, its input not among them.

Backward goes from the last segment to the first. When a segment is done, its own input is freed, too. Nothing runs on
ranks: `check` calls your function with numbers that it draws.

Targets:

* the right number of bytes, for each of sixteen drawn inputs;
* with segments of one block it is one input a block, and one block's inside.
"""

import random
from typing import Any

from zerolab.exercises import FunctionTargets, Wrong


def checkpointed_activations(blocks: int, segment: int, input_bytes: int, inside_bytes: int) -> int:
    """The largest sum, over segments, of the inputs kept so far and of everything inside one segment."""
    highest = 0
    for kept, first in enumerate(range(0, blocks, segment), start=1):
        size = min(segment, blocks - first)
        inside = size * inside_bytes + (size - 1) * input_bytes
        highest = max(highest, kept * input_bytes + inside)
    return highest


def draw(dice: random.Random) -> dict[str, Any]:
    """Up to 24 blocks, segments of up to 6, a block whose inside is larger than its input."""
    input_bytes = dice.randrange(1, 100) * 1000
    return {
        # Mostly no multiple of the segment: the last one is shorter, and often not the highest.
        "blocks": dice.randrange(1, 25),
        "segment": dice.randrange(1, 7),
        "input_bytes": input_bytes,
        "inside_bytes": input_bytes * dice.randrange(1, 20),
    }


edges = (
    lambda blocks, segment, **_: segment > blocks > 1,
    lambda blocks, segment, **_: segment == blocks > 1,
    lambda blocks, segment, **_: 1 < segment < blocks and blocks % segment == 0,
    lambda blocks, segment, **_: segment < blocks and blocks % segment != 0,
    lambda blocks, segment, **_: segment == 1 < blocks,
    lambda blocks, segment, **_: blocks == 1 and segment == 1,
    lambda blocks, segment, **_: blocks == 1 < segment,
)
solution = checkpointed_activations
hole = "find the highest moment of backward"
look_for = "Each row is one call. Longer segments keep fewer inputs, and have more inside."
targets = FunctionTargets(draw=draw, edges=edges, tries=16)
hints = (
    "While backward is in the segment number `k` (from 1), the inputs of the segments 1 to `k` are there.",
    "Inside the segment there are the activations of each of its blocks, and the inputs of all of them but the first.",
    "The last segment may be short, so the highest moment can be in the one before it: take the largest.",
)
wrong = (
    Wrong(says="takes the last segment for a whole one", replace="min(segment, blocks - first)", by="segment"),
    Wrong(
        says="forgets the inputs of the blocks inside a segment",
        replace="size * inside_bytes + (size - 1) * input_bytes",
        by="size * inside_bytes",
    ),
    Wrong(
        says="keeps an input for every block, not for every segment",
        replace="kept * input_bytes + inside",
        by="blocks * input_bytes + size * inside_bytes",
    ),
    Wrong(says="counts only the kept inputs", replace="kept * input_bytes + inside", by="kept * input_bytes"),
    Wrong(
        says="keeps everything, as if nothing were checkpointed",
        whole="""
def checkpointed_activations(blocks, segment, input_bytes, inside_bytes):
    return blocks * (input_bytes + inside_bytes)
""",
    ),
    Wrong(
        says="looks only at the last segment, although a whole one before it may be higher",
        replace="highest = max(highest, kept * input_bytes + inside)",
        by="highest = kept * input_bytes + inside",
    ),
    Wrong(
        says="recomputes one block of a segment; all of its blocks are there at once",
        replace="size * inside_bytes + (size - 1) * input_bytes",
        by="inside_bytes",
    ),
    Wrong(
        says="counts the kept input of a segment's first block once more among what is recomputed",
        replace="(size - 1) * input_bytes",
        by="size * input_bytes",
    ),
)
