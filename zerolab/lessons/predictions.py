"""A guess before each measurement: `reveal` puts the two side by side.

A number is easier to remember once you have guessed it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from zerolab import catalog
from zerolab.comparison import record
from zerolab.facts.evidence import bytes_a_parameter, passes
from zerolab.lessons import folding, progress
from zerolab.names import check_known
from zerolab.recording.recording import Recording

NO_GUESS = "No guess yet. Put a number in place of None, run that cell and this one again, and compare."


@dataclass(frozen=True, slots=True)
class Prediction:
    """A question with a measured answer."""

    unit: str  # what the numbers count
    most: int  # where the scale ends on which a guess is drawn
    measure: Callable[[Recording], float]  # reads the answer from a recording
    stage: str  # what to record when the lesson's own recording is not handed in


def _sent_in_megabytes(recording: Recording) -> float:
    return recording.sent / 1e6


def _share_of_parameters(recording: Recording) -> float:
    """The most parameters that rank 0 held at any event of the last step, in percent of the model's bytes in fp32."""
    return 100 * recording.highest("parameters") / (4 * recording.num_params)


def _parameters_on_an_a100(recording: Recording) -> float:
    """Billions of parameters whose model state, at the measured bytes per parameter, fills an A100 of 80 GB."""
    return catalog.gpu("a100").memory_bytes / 1e9 / bytes_a_parameter(recording)


def _sent_for_each_byte(recording: Recording) -> float:
    """Bytes that rank 0 sends in an all-reduce, per byte of the reduced tensor."""
    reductions = [event for event in recording.ranks[0].events if event.op == "all_reduce" and event.logical_bytes]
    return float(reductions[-1].logical_bytes / (4 * reductions[-1].numel))


def _held_more_than_once(recording: Recording) -> float:
    """Percent of all ranks' model state beyond a single copy."""
    sizes = [sum(rank.state.values()) for rank in recording.ranks]
    # The fullest rank holds one whole copy; under DDP all ranks do.
    return 100 * (1 - max(sizes) / sum(sizes))


def _reductions_under_way(recording: Recording) -> float:
    """The most reductions of the last step that were under way on rank 0 at the same time."""
    under_way: set[int] = set()
    most = 0
    for event in recording.ranks[0].events:
        if event.step == recording.info.steps and event.op == "reduce_scatter":
            if event.kind == "collective":
                under_way.add(event.seq)
            # The parent of a wait is the exchange that it ends, in whatever order they end.
            elif event.kind == "wait" and event.parent is not None:
                under_way.discard(event.parent)
            most = max(most, len(under_way))
    return float(most)


PREDICTIONS = {
    "00-ddp-state": Prediction("bytes a parameter", 32, bytes_a_parameter, "ddp"),
    "01-a100-full": Prediction("billion parameters", 20, _parameters_on_an_a100, "ddp"),
    "02-all-reduce": Prediction("bytes sent for each byte", 6, _sent_for_each_byte, "ddp"),
    "03-copies": Prediction("% of all model state", 100, _held_more_than_once, "ddp"),
    "04-zero1-state": Prediction("bytes a parameter", 32, bytes_a_parameter, "zero1"),
    "04-zero1-traffic": Prediction("passes of the model", 8, passes, "zero1"),
    "05-zero2-state": Prediction("bytes a parameter", 32, bytes_a_parameter, "zero2"),
    "05-zero2-peak": Prediction("kB at the highest moment", 6000, lambda run: sum(run.peak.values()) / 1e3, "zero2"),
    "05-zero2-accumulated": Prediction("passes of the model", 8, passes, "zero2"),
    "06-zero3-state": Prediction("bytes a parameter", 32, bytes_a_parameter, "zero3"),
    "06-zero3-traffic": Prediction("passes of the model", 8, passes, "zero3"),
    "07-fsdp2-traffic": Prediction("passes of the model", 8, passes, "fsdp2"),
    "08-deepspeed2-traffic": Prediction("passes of the model", 8, passes, "deepspeed-2"),
    "09-under-way": Prediction("reductions under way", 6, _reductions_under_way, "zero2"),
    "10-ddp-bf16": Prediction("bytes a parameter", 32, bytes_a_parameter, "ddp"),
    "11-seven-billion": Prediction("GB of model state", 120, lambda run: sum(run.state.values()) / 1e9, "zero3"),
    "12-zero3-whole": Prediction("% of the parameters", 150, _share_of_parameters, "zero3"),
    "14-units-sent": Prediction("MB that rank 0 sends in a step", 16, _sent_in_megabytes, "fsdp2"),
    "15-muon-state": Prediction("bytes a parameter", 32, bytes_a_parameter, "muon-replicated"),
    "16-gather-sent": Prediction("MB that rank 0 sends in a step", 4, _sent_in_megabytes, "zero3-8bit"),
    "18-lora-sent": Prediction("MB that rank 0 sends in a step", 2, _sent_in_megabytes, "zero3"),
}


def reveal(prediction_id: str, guess: float | None, recording: Recording | None = None) -> None:
    """Measures what you have guessed, and prints guess, measurement and their ratio; without a guess, a fixed line.

    Args:
        prediction_id: a key of `PREDICTIONS`.
        guess: a number, or None.
        recording: the lesson's recording of what was asked; None makes one now (`gpt-tiny`, 4 ranks on the CPU).

    Raises:
        ValueError: an unknown id. A guess that is not a number is answered with a line of text.
    """
    check_known("prediction", prediction_id, PREDICTIONS)
    prediction = PREDICTIONS[prediction_id]
    if guess is None:
        print(NO_GUESS)
        if recording is not None:
            _offer(prediction, recording)
        return
    number = progress.number_of(guess)
    if number is None or not math.isfinite(number):
        said = number if number == math.inf else guess  # an int beyond all floats may have too many digits to write
        print(f"Your guess is {said!r}: write a plain number, such as 12 or 7.5.")
        return
    if recording is None:
        recording = record(prediction.stage, world_size=4, model="gpt-tiny", steps=2, device="cpu")
    measured = prediction.measure(recording)
    # Only the guess is kept: the file is about what a person did.
    progress.note_guess(prediction_id, number)
    print(f"guess     {number:,.2f} {prediction.unit}")
    print(f"measured  {measured:,.2f} {prediction.unit}")
    print(f"ratio     {number / measured:.2f}" if measured else "ratio     -")


def _offer(prediction: Prediction, recording: Recording) -> None:
    """Shows, below a slider to guess with, the measured number folded, as a bar on the same scale.

    It needs no kernel: whoever reads the lesson on a page can guess, too. The handle begins at 0: a browser would put
    it into the middle, where some of the answers are.
    """
    measured = prediction.measure(recording)
    marks = "".join(f"<span>{prediction.most * part / 4:g}</span>" for part in range(5))
    bar = f"width: {100 * measured / prediction.most:.2f}%; height: 12px; background: #0072b2"
    folding.show(
        '<div style="max-width: 460px">'
        f'<label>Your guess, in {prediction.unit}: <input type="range" min="0" max="{prediction.most}" value="0" '
        'step="any" style="width: 100%; margin: 4px 0"></label>'
        f'<div style="display: flex; justify-content: space-between; padding: 0 4px" aria-hidden="true">{marks}</div>'
        '<details><summary>What was measured</summary><div style="padding: 4px 8px 0">'
        f'<div style="{bar}"></div></div>{measured:,.2f} {prediction.unit}</details></div>',
        "(a slider to guess with, and what was measured, folded)",
    )
