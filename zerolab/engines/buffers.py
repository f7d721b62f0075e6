"""What a module keeps beside its parameters: alike on all ranks at first, each rank's own from then on."""

import torch
import torch.distributed as dist
from torch import nn

from zerolab.engines.agreement import communication_device


def start_from_rank_0(model: nn.Module) -> None:
    """Gives the buffers of `model` rank 0's values on every rank, as torch DDP does when it is made. Collective.

    What a rank's own batches make of them afterwards, running statistics say, stays with the rank, as in FSDP.
    """
    for buffer in model.buffers():
        if buffer.layout is torch.strided and not buffer.is_quantized:
            sent = buffer.detach().to(communication_device()).contiguous().view(-1)
            dist.broadcast(sent.view(torch.uint8), src=0)  # as bytes: a backend does not know every type
            received = sent.view(buffer.shape)
            # Mostly it is the buffer itself that has been sent. One that was made by expand() cannot be written to.
            if received.data_ptr() != buffer.data_ptr() and not torch.equal(received.to(buffer.device), buffer):
                buffer.copy_(received)
