"""zerolab: real ranks train with DDP, ZeRO and FSDP inside a notebook; what they did is recorded and replayed.

    from zerolab import Cluster, Zero2, models

    Cluster              real processes below this one: run(fn) and record(fn) on every rank
    %%ranks              a cell that runs on every rank; a notebook knows it once this is imported
    DDP Zero1 Zero2 Zero3    the engines: model, optimizer_cls, lr=...; then training_step(inputs, targets, loss_fn)
    MuonReplicated MuonOwners MuonRows    Muon for matrices under DDP, under ZeRO-2 and under FSDP2
    AdamW8bit            AdamW with moments in 8 bits, an optimizer for these engines
    from_file            a model on the meta device whose values an engine reads, each rank what it owns
    TorchDDP TorchZero1 FSDP1 FSDP2 HSDP DeepSpeed0 to DeepSpeed3    other systems behind the same step
    Recording            what the ranks did: play(), table(), memory(), traffic(), explain(), save(), to_html()
    latest_checkpoint    the last whole one of those that engine.save_sharded has left in a folder
    evaluation           marks what is not training in a loop of your own: a recording counts it in no step
    record               one recorded training of a named model, or of yours, under one stage
    compare, simulate    stages side by side, measured on real ranks, or simulated at any size: a Comparison
    fit                  what your own model needs of each GPU, before it runs
    explore, what_fits   panels: the stages under sliders, and what fits on which GPUs
    check, hint, hole, solution    an exercise: its verdict, its hints, what is left open, its answer
    examine, diagnose    a broken loop, recorded from outside, and what is wrong with it
    reveal               your guess beside what was measured
    expect_error         prints an error that a cell raises on purpose
    deepspeed_runs, deepspeed_estimate    DeepSpeed's recordings, live or as shipped, and its own arithmetic
    bytes_sent           what this process's own connections have sent
    host_memory          what this process takes of main memory while a block runs
    Table                rows that print the same every time
    RankError, CollectiveHang    what a failed or a hanging rank raises
    catalog, engines, facts, figures, models, tables, theory    modules: published models and GPUs; the engines and
                         their collectives; claims in circulation; plots; the lessons' models and batches; formulas

Each name is imported when it is first used, so that `import zerolab` stays light.
"""

import ast as _ast
import sys as _sys
from importlib import import_module as _import_module
from pathlib import Path as _Path
from typing import Any as _Any

from zerolab import moved as _moved

# A stub, because a type checker cannot see what `__getattr__` imports; so the names stand there, and only there.
_HOMES = {
    alias.name: statement.module
    for statement in _ast.parse(_Path(__file__).with_suffix(".pyi").read_text("utf-8")).body
    if isinstance(statement, _ast.ImportFrom)
    for alias in statement.names
}

__all__ = list(_HOMES)
__version__ = "0.1.0"

_moved.install()


def __getattr__(name: str) -> _Any:
    if name == "load_ipython_extension":  # no public name: only IPython asks for it
        from zerolab.runtime.magics import load_ipython_extension

        return load_ipython_extension
    if name in _HOMES:
        from zerolab.runtime.interrupts import held_back
        from zerolab.runtime.waiting import waiting

        # On a busy box torch alone takes many seconds; Stop in the midst of it would leave half a torch, which cannot
        # be imported again.
        with waiting(f"importing {name} and what it needs"), held_back():
            home = _HOMES[name]
            return _import_module(f"zerolab.{name}") if home == "zerolab" else getattr(_import_module(home), name)
    if name.startswith("_"):  # what Python and its tools ask of every module
        raise AttributeError(name)
    from zerolab.names import unknown

    raise AttributeError(f"zerolab: {unknown('name', name, __all__)}")


def _bring_magics() -> None:
    """Makes `%%ranks` known where this is imported in a notebook."""
    # Asked of what is imported already: outside a notebook, IPython would take longer than all of this.
    find_shell = getattr(_sys.modules.get("IPython"), "get_ipython", None)
    if find_shell and (shell := find_shell()):
        __getattr__("load_ipython_extension")(shell)


_bring_magics()


def __dir__() -> list[str]:
    return [*__all__, "__doc__", "__file__", "__name__", "__path__", "__version__"]
