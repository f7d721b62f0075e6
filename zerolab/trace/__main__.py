"""`python -m zerolab.trace`: runs a script as Python would, and records some of its steps."""

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import record as report_to_torchrun

from zerolab.runtime import script
from zerolab.trace import recording


@report_to_torchrun  # so that its summary shows the error of the rank that failed first
def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the script or module with what follows it as its arguments."""
    parser = argparse.ArgumentParser(
        prog="torchrun ... -m zerolab.trace", description="Records some steps of a training script, as it is."
    )
    parser.add_argument("--steps", type=_steps, default=(2, 4), metavar="A:B", help="the first and the last (2:4)")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="in a folder that all ranks see")
    parser.add_argument("--times-only", action="store_true", help="no bytes of memory, and hardly slower")
    parser.add_argument("--fingerprints", action="store_true", help="of tensors and batches, too: for `zerolab diff`")
    options = script.parse(parser, arguments)
    how = {"times_only": options.times_only, "fingerprints": options.fingerprints}
    with ExitStack() as block:
        try:
            block.enter_context(recording(options.out, options.steps, **how))
        except ValueError as error:
            parser.error(str(error))
        script.run(options)


def _steps(text: str) -> tuple[int, int]:
    first, _, last = text.partition(":")
    try:
        steps = int(first), int(last or first)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no pair of steps: write 2:4, the first and the last") from error
    if not 1 <= steps[0] <= steps[1]:
        raise argparse.ArgumentTypeError(f"{text!r} has no steps: the first is 1, and the last not before the first")
    return steps


if __name__ == "__main__":
    main()
