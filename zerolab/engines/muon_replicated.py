"""Muon as DDP has it: every rank has every matrix whole, and all of them make the same update.

Memory a rank (fp32), with M elements in matrices and R in the rest: 4(M + R) parameters + 4(M + R) gradients, 4M
momentum and 8R Adam. Traffic a rank and step: 2(M + R) elements times (N-1)/N, as in DDP. The price is that nothing
becomes less with N: neither the momentum nor the Newton-Schulz iterations, for a matrix of m rows and n columns, m the
fewer, 5 times 4m^2 n + 2m^3 FLOPs. N ranks compute the same thing N times.
"""

from zerolab.engines.ddp import DDP
from zerolab.engines.matrices import Matrices


class MuonReplicated(Matrices, DDP):
    """DDP whose matrices Muon updates, on every rank."""

    stage = "muon-replicated"
