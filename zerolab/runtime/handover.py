"""What a rank is given when it starts. Imports nothing: the fork server watches the kernel before it loads torch."""

from typing import NamedTuple

WHERE, RECORDED = b"?", b"r"
"""What the side thread of a rank is asked: where its main thread stands, and what it has recorded so far."""

OWN_END = "ended itself: "
"""How the line begins in which a rank says why it ends itself, among what it writes as it crashes."""

CRASH: list[int] = []
"""In a rank, the file that it writes its Python stack to as it dies; elsewhere empty."""

NO_ROOM = (
    "the limit of processes and threads (`ulimit -u`, a container's pids limit) or of memory is reached: end others, "
    "or ask for fewer ranks"
)
"""What to do where the system starts no further process or thread."""


class Fds(NamedTuple):
    """What a rank inherits; none of it has a name in any folder."""

    commands: int  # functions in, results out
    lifeline: int  # questions to the side thread; its end is the rank's end
    output: int  # stdout and stderr
    crash: int  # the Python stack, written by faulthandler as the process dies
    board: int  # shared memory of the collective counter
    store: int  # the file through which the ranks find each other


class Setup(NamedTuple):
    """What the kernel tells a rank before it joins."""

    rank: int
    world_size: int
    gpus: tuple[int, ...]  # torch's numbers, assigned in turn; none: the CPU; fewer than ranks: shared
    backend: str  # of the process group
    environment: dict[str, str]
    folder: str
    path: list[str]
    cores: int
