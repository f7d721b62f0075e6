"""Figures in the player's words and colours, and the two panels that draw them from sliders.

flat         how matrices make a flat, number by number; who owns which rows of a recorded unit
frames       moments of a step side by side: who holds which part, and what travels to whom
plots        losses, loading, state by stage and against a card, memory against ranks, traffic against bandwidth, a plan
clocks       when a rank computes, waits and sends
chart        what all figures share: type, colours, fixed ids
explore      the panel that trains on real ranks
what_fits    the panel over the planner
"""

from zerolab.figures.chart import html
from zerolab.figures.clocks import two_clocks
from zerolab.figures.flat import FlatPicture, ShardPicture
from zerolab.figures.frames import Frames
from zerolab.figures.plots import loading, losses, memory_against_ranks, plan, stages, traffic_against_bandwidth, wall

__all__ = [
    "FlatPicture",
    "Frames",
    "ShardPicture",
    "html",
    "loading",
    "losses",
    "memory_against_ranks",
    "plan",
    "stages",
    "traffic_against_bandwidth",
    "two_clocks",
    "wall",
]
