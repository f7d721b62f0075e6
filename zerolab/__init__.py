"""zerolab: real ranks train with DDP, ZeRO and FSDP inside a notebook; what they did is recorded and replayed.

    from zerolab import Cluster, Zero2, models

    Cluster              real processes below this one: run(fn) and record(fn) on every rank
    DDP Zero1 Zero2 Zero3    the engines: model, optimizer_cls, lr=...; then training_step(inputs, targets, loss_fn)
    TorchDDP TorchZero1 FSDP1 FSDP2 HSDP DeepSpeed0 to DeepSpeed3    other systems behind the same step
    Recording            what the ranks did: play(), table(), memory(), traffic(), explain(), save(), to_html()
    evaluation           marks what is not training in a loop of your own: a recording counts it in no step
    record               one recorded training of a named model, or of yours, under one stage
    compare, simulate    stages side by side, measured on real ranks, or simulated at any size: a Comparison
    explore, what_fits   panels: the stages under sliders, and what fits on which GPUs
    check, hint, hole, solution    an exercise: its verdict, its hints, what is left open, its answer
    examine, diagnose    a broken loop, recorded from outside, and what is wrong with it
    reveal               your guess beside what was measured
    expect_error         prints an error that a cell raises on purpose
    deepspeed_runs, deepspeed_estimate    DeepSpeed's recordings, live or as shipped, and its own arithmetic
    bytes_sent           what this process's own connections have sent
    Table                rows that print the same every time
    RankError, CollectiveHang    what a failed or a hanging rank raises
    catalog, engines, facts, figures, models, tables, theory    modules: published models and GPUs; the engines and
                         their collectives; claims in circulation; plots; the lessons' models and batches; formulas

Each name is imported when it is first used, so that `import zerolab` stays light.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from zerolab import moved as _moved

if _TYPE_CHECKING:
    from zerolab import catalog, engines, facts, figures, models, tables, theory
    from zerolab.comparison import Comparison, compare, record
    from zerolab.engines import DDP, Zero1, Zero2, Zero3
    from zerolab.engines.deepspeed import DeepSpeed0, DeepSpeed1, DeepSpeed2, DeepSpeed3
    from zerolab.engines.fsdp1 import FSDP1
    from zerolab.engines.fsdp2 import FSDP2, HSDP
    from zerolab.engines.torch_ddp import TorchDDP, TorchZero1
    from zerolab.exercises import check, diagnose, examine, hint, hole, solution
    from zerolab.figures.explore import explore
    from zerolab.figures.what_fits import what_fits
    from zerolab.lessons.deepspeed_runs import deepspeed_runs
    from zerolab.lessons.errors import expect_error
    from zerolab.lessons.predictions import reveal
    from zerolab.recording.recorder import evaluation
    from zerolab.recording.recording import Recording
    from zerolab.recording.wire import bytes_sent
    from zerolab.runtime.cluster import Cluster
    from zerolab.runtime.faults import CollectiveHang, RankError
    from zerolab.simulation.run import simulate
    from zerolab.tables import Table
    from zerolab.theory.systems import deepspeed_estimate

_HOMES = {
    name: home
    for home, names in {
        "comparison": "Comparison compare record",
        "engines": "DDP Zero1 Zero2 Zero3",
        "engines.deepspeed": "DeepSpeed0 DeepSpeed1 DeepSpeed2 DeepSpeed3",
        "engines.fsdp1": "FSDP1",
        "engines.fsdp2": "FSDP2 HSDP",
        "engines.torch_ddp": "TorchDDP TorchZero1",
        "exercises": "check diagnose examine hint hole solution",
        "figures.explore": "explore",
        "figures.what_fits": "what_fits",
        "lessons.deepspeed_runs": "deepspeed_runs",
        "lessons.errors": "expect_error",
        "lessons.predictions": "reveal",
        "recording.recorder": "evaluation",
        "recording.recording": "Recording",
        "recording.wire": "bytes_sent",
        "runtime.cluster": "Cluster",
        "runtime.faults": "CollectiveHang RankError",
        "runtime.magics": "load_ipython_extension",  # only IPython asks for it, by name
        "simulation.run": "simulate",
        "tables": "Table",
        "theory.systems": "deepspeed_estimate",
    }.items()
    for name in names.split()
}
_MODULES = ("catalog", "engines", "facts", "figures", "models", "tables", "theory")

__all__ = [
    "DDP",
    "FSDP1",
    "FSDP2",
    "HSDP",
    "Cluster",
    "CollectiveHang",
    "Comparison",
    "DeepSpeed0",
    "DeepSpeed1",
    "DeepSpeed2",
    "DeepSpeed3",
    "RankError",
    "Recording",
    "Table",
    "TorchDDP",
    "TorchZero1",
    "Zero1",
    "Zero2",
    "Zero3",
    "bytes_sent",
    "catalog",
    "check",
    "compare",
    "deepspeed_estimate",
    "deepspeed_runs",
    "diagnose",
    "engines",
    "evaluation",
    "examine",
    "expect_error",
    "explore",
    "facts",
    "figures",
    "hint",
    "hole",
    "models",
    "record",
    "reveal",
    "simulate",
    "solution",
    "tables",
    "theory",
    "what_fits",
]
__version__ = "0.1.0"

_moved.install()


def __getattr__(name: str) -> _Any:
    if name in _MODULES or name in _HOMES:
        from zerolab.waiting import waiting

        with waiting(f"importing {name} and what it needs"):  # on a busy box torch alone takes many seconds
            home = _import_module(f"zerolab.{_HOMES.get(name, name)}")
            return home if name in _MODULES else getattr(home, name)
    if name.startswith("_"):  # what Python and its tools ask of every module
        raise AttributeError(name)
    from zerolab.names import unknown

    raise AttributeError(f"zerolab: {unknown('name', name, __all__)}")


def __dir__() -> list[str]:
    return [*__all__, "__doc__", "__file__", "__name__", "__path__", "__version__"]
