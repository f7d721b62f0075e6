"""Why a training of one's own hangs: the rank and the line that it comes from.

    torchrun --nproc-per-node 4 -m zerolab.why --timeout 60 train.py ...

While it runs, each rank notes in which collective it is, and says from a thread of its own at which line it stands. A
process beside them says a sentence when a rank waits for others that do not move. Of a run that has hung without it,
dumps of the flight recorder tell, as far as they go: `zerolab why dump-rank0 dump-rank1`.
"""
