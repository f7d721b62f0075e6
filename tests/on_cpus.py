"""What a simulation is given to act as real ranks do here: over gloo, with torch's operations of a CPU."""

from zerolab import catalog
from zerolab.simulation.costs import Hardware

CPU = Hardware(catalog.gpu("h100"), catalog.link("infiniband-ndr"), on_gpu=False)
"""Norms are several operations, Adam updates one tensor after the other, shards are not padded for NCCL's copies."""
