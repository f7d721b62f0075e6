"""`%%ranks`: a cell that runs on every rank, in a namespace that the ranks keep from cell to cell."""

from typing import Any

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, magics_class


@magics_class
class RanksMagics(Magics):
    """The magics that a notebook has once zerolab is imported."""

    @cell_magic
    def ranks(self, line: str, cell: str) -> None:
        """Run the cell on every rank; `%%ranks 0,2` on these only. The value of a last expression is printed."""
        # Not at the top: `import zerolab` brings the magic, and must not wait for torch.
        from zerolab.runtime.cells import run_cell
        from zerolab.runtime.cluster import most_recent

        shell = self.shell
        if shell is None:
            raise UsageError("%%ranks needs a notebook or an IPython session")
        cluster = most_recent() or _make_cluster(shell.user_ns)
        chosen = _chosen(line, cluster.world_size)
        # IPython's own file name for this cell, so that an error on a rank names it `cell [3]` like any other.
        filename = shell.compile.cache(cell, shell.execution_count)
        try:
            compile(cell, filename, "exec")  # a syntax error must not cost the ranks their state
        except SyntaxError:
            shell.showsyntaxerror(filename)
            if any(line.lstrip().startswith(("!", "%")) for line in cell.splitlines()):
                print("ranks run plain Python: no %magics and no !commands; subprocess.run starts a program")
            return
        cluster._call("run", run_cell, (cell, filename), {}, chosen)  # `run` is for all ranks


def load_ipython_extension(shell: InteractiveShell) -> None:
    """What `import zerolab` does in a notebook, and `%load_ext zerolab`."""
    shell.register_magics(RanksMagics)


def _make_cluster(user_ns: dict[str, Any]) -> Any:
    from zerolab.runtime.cluster import Cluster

    cluster = Cluster()
    name = next(name for name in ("cluster", "ranks_cluster", "_ranks_cluster") if name not in user_ns)
    user_ns[name] = cluster
    print(f"no cluster was open: made {name} = {cluster!r}")
    return cluster


def _chosen(line: str, world_size: int) -> list[int]:
    """The ranks that `0,2` names; all of them for an empty line."""
    if not line.strip():
        return list(range(world_size))
    try:
        ranks = sorted({int(part) for part in line.split(",")})
    except ValueError:
        raise UsageError(f"%%ranks {line.strip()}: give ranks such as %%ranks 0,2, or nothing for all") from None
    wrong = [rank for rank in ranks if not 0 <= rank < world_size]
    if wrong:
        raise UsageError(f"%%ranks {line.strip()}: there is no rank {wrong[0]}; this cluster has 0 to {world_size - 1}")
    return ranks
