"""Why your own training hangs: the rank and the line that the hang comes from.

    torchrun --nproc-per-node 4 -m zerolab.why --timeout 60 train.py ...

While it runs, each rank notes which collective it is in, and a separate thread reports which line it is at. A process
next to the ranks prints a sentence when a rank waits for others that do not move. For a run that hung without it, use
the flight recorder's dumps, as far as they go: `zerolab why dump-rank0 dump-rank1`.
"""
