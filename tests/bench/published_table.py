"""The table of docs/published-runs.md: what others have published beside what the closed forms say.

    python tests/bench/published_table.py          # writes it into the page

tests/bench/test_published_runs.py compares the page with it, to the letter.
"""

import sys
from pathlib import Path
from statistics import median

from zerolab.catalog import CONTEXT_BYTES, GIB
from zerolab.theory.moments import peak

sys.path.append(str(Path(__file__).parents[1]))  # where the published runs lie, beside the tests
from published_runs import PublishedRun, runs

PAGE = Path(__file__).parents[2] / "docs" / "published-runs.md"
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"
SHORT = {
    "mosaicml/llm-foundry": "MosaicML",
    "pytorch/torchtitan": "torchtitan",
    "foundation-model-stack/fms-fsdp": "fms-fsdp",
    "intelligent-machine-learning/dlrover": "ATorch",
    "gist chenyaofo/d4cd6a20ab4b95cb3a49491747e2139a": "chenyaofo",
    "karpathy/llm.c": "llm.c",
    "karpathy/nanoGPT": "nanoGPT",
}
COLUMNS = (
    "whose", "model", "GPUs", "rows x tokens", "recomputed", "kernels", "fitted",
    "published s", "predicted s", "off", "published GiB", "predicted GiB", "off ", "fits",
)  # fmt: skip

FAR, FAR_IN_BYTES = 0.25, 0.1
REASONS = {
    "torchtitan, seconds": "in March 2024 torch.compile spared a sixth to a fifth of the same commit's steps, where "
    "the constant for compiled kernels, fitted to later runs, spares nearly a third",
    "torchtitan": "what the allocator reserved was published, and what is allocated is predicted: see below the table",
    "llm.c": "the comment in its script asks for more than the A100's whole dense rate",
    "nanoGPT": "a rounded figure, evaluation and saving included, from before its attention was fused",
    "MosaicML": "on both cards it is much slower than with half the tokens a row, which attention does not explain: "
    "the model leaves eight cards next to no room",
    "chenyaofo": "what explains it, as far as it is known, stands below the table",
}
"""Why a source's runs are off by more than `FAR`, or `FAR_IN_BYTES`, as far as it is known."""


def off(predicted: float, published: float) -> float:
    """By which part of what was published the prediction is too long or too short."""
    return predicted / published - 1


def predicted_bytes(run: PublishedRun) -> float:
    """The most that a GPU holds, by the closed forms, CUDA's own bytes left out."""
    job, shape = run.job, run.job.shape
    keys_and_values = 2 * shape.depth * (shape.kv_heads or shape.heads) * shape.width // shape.heads
    cached = job.word * keys_and_values * job.rows * job.length
    return sum(peak(job, run.stage)[1].values()) + run.caches * cached


def predicted_to_fit(run: PublishedRun) -> bool:
    """Whether that and CUDA's own bytes fit on the card."""
    return predicted_bytes(run) + CONTEXT_BYTES <= run.job.gpu.memory_bytes


def timed(*, fitted: bool) -> list[float]:
    """By how much the seconds of one half are off, whichever way."""
    return [
        abs(off(run.predicted_seconds, run.seconds))
        for run in runs()
        if run.seconds is not None and run.used_for_fitting == fitted
    ]


def text() -> str:
    """The table, and its sums in words."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(_cells(run)) + " |" for run in runs()]
    return "\n".join([*_sums(), "", *lines, "", *_far(), ""])


def _far() -> list[str]:
    """The runs that the closed forms do not bring out, each with its reason."""
    found = []
    for run in runs():
        whose, job = SHORT[run.source], run.job
        ranks, batch = f"{job.world_size} {job.gpu.name}", f"{job.rows} x {job.length:,}"
        name = f"{whose}, {job.shape.name} on {ranks}, {batch}"
        if run.seconds is not None and abs(missed := off(run.predicted_seconds, run.seconds)) > FAR:
            why = REASONS.get(f"{whose}, seconds", REASONS[whose])
            found.append(f"* {name}, checkpointing {job.checkpointing}: {missed:+.0%} of the seconds; {why}.")
        if run.memory_bytes is not None and abs(missed := off(predicted_bytes(run), run.memory_bytes)) > FAR_IN_BYTES:
            found.append(f"* {name}, checkpointing {job.checkpointing}: {missed:+.0%} of the bytes; {REASONS[whose]}.")
    return [f"Seconds off by more than {FAR:.0%}, and bytes by more than {FAR_IN_BYTES:.0%}:", "", *found]


def _cells(run: PublishedRun) -> list[str]:
    job, micro = run.job, run.job.micro_batches
    rows = f"{job.rows} x {job.length:,}" + (f", {micro} times" if micro > 1 else "")
    predicted = run.predicted_seconds
    divided = job.tensor * job.context > 1  # published with Float8, for which there is no form
    seconds = ("-", "-" if divided else f"{predicted:.3g}", "-")
    if run.seconds is not None:
        seconds = (f"{run.seconds:.3g}", f"{predicted:.3g}", f"{off(predicted, run.seconds):+.0%}")
    held = predicted_bytes(run)
    memory = ("-", f"{held / GIB:.1f}", "-")
    if run.memory_bytes is not None:
        memory = (f"{run.memory_bytes / GIB:.1f}", f"{held / GIB:.1f}", f"{off(held, run.memory_bytes):+.0%}")
    fits = {True: "yes", False: "no"}
    verdict = fits[run.fits] if run.fits == predicted_to_fit(run) else f"{fits[run.fits]}, not predicted"
    kernels = job.kernels + (", hybrid" if job.sharding == "hybrid" else "")
    kernels += f", TP {job.tensor}" if job.tensor > 1 else f", CP {job.context}" if job.context > 1 else ""
    gpus = f"{job.world_size} {job.gpu.name}"
    fitted = "yes" if run.used_for_fitting else ""
    head = [SHORT[run.source], job.shape.name, gpus, rows, job.checkpointing, kernels, fitted]
    return [*head, *seconds, *memory, verdict]


def _sums() -> list[str]:
    fitted, held_out = timed(fitted=True), timed(fitted=False)
    known = [run for run in runs() if run.memory_bytes is not None]
    near = [run for run in known if abs(off(predicted_bytes(run), run.memory_bytes or 1)) <= 0.1]
    right = [run for run in runs() if run.fits == predicted_to_fit(run)]
    far = sum(error > 0.4 for error in fitted + held_out)
    seconds = (
        f"* **Seconds**: half of {len(fitted)} fitted runs are off by less than {median(fitted):.1%}, half of "
        f"{len(held_out)} that no constant has seen by less than {median(held_out):.1%}; more than 40 %: {far}."
    )
    memory = f"* **Memory**: {len(near)} of {len(known)} within 10 %."
    return [seconds, memory, f"* **Fits**: right in {len(right)} of {len(runs())}."]


def main() -> None:
    """Puts the table into the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + text() + END + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
