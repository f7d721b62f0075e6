"""nbval's strict comparison of outputs, for those that JupyterLab has received."""

from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace

from nbval.plugin import IPyNbCell, coalesce_streams, get_sanitize_patterns, nocolors

from zerolab.figures.chart import PLOTLY

PATTERNS = Path(__file__).resolve().parents[1] / "nbval_sanitize.cfg"
WIDGET = "application/vnd.jupyter.widget-view+json"
PICTURE = "image/png"
# What nbval leaves out, and the data of figures, which a stored notebook has as a picture.
OVERLOOKED = (
    "metadata",
    "traceback",
    "prompt_number",
    "output_type",
    "name",
    "execution_count",
    WIDGET,
    PICTURE,
    PLOTLY,
)


class Comparison:
    """Stands for the cell of nbval that compares; `comparison_traceback` says what differs."""

    sanitize, compare_outputs = IPyNbCell.sanitize, IPyNbCell.compare_outputs
    colors = nocolors

    def __init__(self):
        patterns = dict(get_sanitize_patterns(PATTERNS.read_text()))
        self.parent = SimpleNamespace(skip_compare=OVERLOOKED, sanitize_patterns=patterns)

    def format_output_compare(self, key, left, right):
        self.comparison_traceback.append(f"{key} is\n{right}\nand stored is\n{left}")


def differences(stored, shown):
    """What differs between the code cells of two notebooks, by the number of the cell."""
    compared, found = Comparison(), {}
    cells = [[cell for cell in book.cells if cell.cell_type == "code"] for book in (stored, shown)]
    for number, (one, other) in enumerate(zip(*cells, strict=True), 1):
        was, now = (settled(cell.outputs) for cell in (one, other))
        if not compared.compare_outputs(now, was):
            found[number] = "\n".join(compared.comparison_traceback)
        elif pictures(now) != pictures(was):
            found[number] = f"{pictures(was)} pictures are stored, and {pictures(now)} were shown"
    return found


def settled(outputs):
    """Each stream in one piece, its lines ending as JupyterLab has them: a shell's end as a terminal's do."""
    streams = coalesce_streams(deepcopy(outputs))
    for output in streams:
        if output.output_type == "stream":
            output.text = output.text.replace("\r\n", "\n")
    return streams


def pictures(outputs):
    """How many outputs show a picture: a stored one, or a player or a figure that is alive."""
    return sum(bool({WIDGET, PLOTLY, PICTURE} & set(output.get("data", {}))) for output in outputs)
