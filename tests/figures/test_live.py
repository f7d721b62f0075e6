"""A figure in a panel is complete from the first message that a browser gets of it."""

import comm
import plotly.graph_objects as go
import pytest
from comm.base_comm import BaseComm

from zerolab import what_fits
from zerolab.figures.live import LiveFigure


@pytest.fixture
def opened(monkeypatch):
    """What the browser is told of each widget as it is opened, by the widget's id."""
    states = {}

    class Told(BaseComm):
        def publish_msg(self, msg_type, data=None, **_):
            if msg_type == "comm_open":
                states[self.comm_id] = data["state"]

    monkeypatch.setattr(comm, "create_comm", Told)
    return states


def test_a_figure_is_told_of_with_its_bars_and_its_layout(opened):
    figure = LiveFigure(go.Figure(go.Bar(x=["ddp", "zero3"], y=[4, 1]), {"width": 860}))
    told = opened[figure.model_id]
    assert told["_widget_data"][0]["y"] == [4, 1]
    assert told["_widget_layout"]["width"] == 860


def test_the_planners_figure_is_told_of_with_its_bars_on_a_clear_ground(opened):
    told = opened[what_fits().figure.model_id]
    assert all(len(trace["y"]) for trace in told["_widget_data"])
    assert told["_widget_layout"]["paper_bgcolor"] == told["_widget_layout"]["plot_bgcolor"] == "rgba(0,0,0,0)"
