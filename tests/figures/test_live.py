"""A figure in a panel is told to a browser whole, at first and whenever it changes."""

import gzip
import json
from base64 import b64decode

import comm
import ipywidgets
import plotly.graph_objects as go
import pytest
from comm.base_comm import BaseComm

from zerolab import what_fits
from zerolab.figures.live import LiveFigure


@pytest.fixture
def told(monkeypatch):
    """What a browser is told of each widget, message by message, by the widget's id."""
    states = {}
    ipywidgets.Widget.close_all()  # code that was sent before this test, too

    class Told(BaseComm):
        def publish_msg(self, msg_type, data=None, **_):
            states.setdefault(self.comm_id, []).extend([data["state"]] if "state" in (data or {}) else [])

    monkeypatch.setattr(comm, "create_comm", Told)
    return states


def bars(height):
    return go.Figure(go.Bar(x=["ddp", "zero3"], y=[height, 1]), {"width": 860})


def test_a_figure_is_told_whole_and_another_in_one_message(told):
    figure = LiveFigure(bars(4))
    figure.figure = bars(5)
    messages = [json.loads(state["figure"]) for state in told[figure._told.model_id]]
    assert [message["data"][0]["y"] for message in messages] == [[4, 1], [5, 1]]
    assert [message["layout"]["width"] for message in messages] == [860, 860]


def test_the_code_that_draws_is_sent_once_for_all_figures(told):
    figure = LiveFigure(bars(4))
    figure.figure = bars(5)
    again = LiveFigure(bars(6))
    assert again._code is figure._code
    assert len(told[figure._code.model_id]) == 1
    for state in (*told[figure._told.model_id], *told[again._told.model_id], *told[again.model_id]):
        assert len(json.dumps(state)) < 10_000  # plotly is 5 MB
    assert len(told[figure.model_id][0]["_esm"]) < 2500  # anywidget wants it ready in two seconds


def test_whoever_closes_all_widgets_is_sent_the_code_anew_with_the_next(told):
    first = LiveFigure(bars(4))
    ipywidgets.Widget.close_all()
    second = LiveFigure(bars(4))
    assert second._code is not first._code
    assert len(told[second._code.model_id]) == 1


def test_the_code_is_one_module_after_plotly(told):
    script = gzip.decompress(b64decode(LiveFigure(bars(4))._code.script)).decode()
    assert script.startswith("const module = ")
    assert script.rstrip().endswith("export default { render };")


def test_a_closed_figure_leaves_nothing_in_the_browser(told):
    figure = LiveFigure(bars(4))
    model = figure._told
    figure.close()
    assert (figure.comm, model.comm) == (None, None)


def test_the_planners_figure_is_told_of_with_its_bars_on_a_clear_ground(told):
    panel = what_fits()
    figure = json.loads(told[panel.bars._told.model_id][0]["figure"])
    assert all(len(trace["y"]) for trace in figure["data"])
    assert figure["layout"]["paper_bgcolor"] == figure["layout"]["plot_bgcolor"] == "rgba(0,0,0,0)"
