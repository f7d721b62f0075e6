"""`python -m zerolab.why`: runs a script as Python would, and says of a hang which rank and line it comes from."""

import argparse
import math
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import record as report_to_torchrun

from zerolab.runtime import script
from zerolab.why.rank import watched


@report_to_torchrun  # so that its summary shows the error of the rank that failed first
def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the script or module with what follows it as its arguments."""
    parser = argparse.ArgumentParser(
        prog="torchrun ... -m zerolab.why", description="Runs a training script as it is, and says why it hangs."
    )
    waits = "that a rank may wait for others that do not move (60)"
    parser.add_argument("--timeout", type=_seconds, default=60.0, metavar="SECONDS", help=waits)
    kept = "for the ranks' notes, and what was said: `zerolab why FOLDER` says it again (zerolab-why)"
    parser.add_argument("--out", type=Path, default=Path("zerolab-why"), metavar="FOLDER", help=kept)
    parser.add_argument("--end", action="store_true", help="end the ranks when they hang")
    options = script.parse(parser, arguments)
    with ExitStack() as block:
        try:
            options.out.mkdir(parents=True, exist_ok=True)
            block.enter_context(watched(options.out, options.timeout, end=options.end))
        except OSError as error:
            parser.error(
                f"{str(options.out)!r} cannot be a folder for the ranks' notes: {error.strerror}; name another"
            )
        script.run(options)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not (seconds > 0 and math.isfinite(seconds)):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds: write 60, for a minute")
    return seconds


if __name__ == "__main__":
    main()
