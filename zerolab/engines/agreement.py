"""What all ranks must have alike: compared by messages of a few bytes, or sent by rank 0."""

import zlib
from collections.abc import Sequence
from itertools import zip_longest

import torch
import torch.distributed as dist
from torch import nn

from zerolab.engines.partition import FlatLayout
from zerolab.runtime.observers import within


@within(lambda observer: observer.comparing())
def check_same_on_all_ranks(values: Sequence[object], what: str) -> None:
    """Raises ValueError on every rank unless all ranks bring the same values; a collective of a few bytes."""
    if is_simulated(dist.get_backend()):  # the others are derived from this rank
        return
    text = "\n".join(str(value) for value in values)
    # 16 bytes are enough to agree on; the texts travel only when the ranks differ.
    mine = torch.tensor([len(text), zlib.crc32(text.encode())], device=communication_device())
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    if any(not torch.equal(mine, other) for other in everyone):
        places = zip_longest(*(text.split("\n") for text in gather_texts(text)), fillvalue="nothing")
        # The first difference alone: what comes after it is often its consequence.
        different = next(place for place in places if len(set(place)) > 1)
        shown = ", ".join(f"rank {rank}: {value}" for rank, value in enumerate(different))
        raise ValueError(f"{what} differ between ranks ({shown}): give every rank the same")


def check_same_layouts(layouts: Sequence[FlatLayout]) -> None:
    """Raises ValueError on every rank unless all ranks cut the same model into the same flats."""
    # Sizes first: a wrong size is the plainer message, and the usual mistake.
    check_same_on_all_ranks([layout.numel for layout in layouts], "the numbers of parameters in the model's flats")
    kinds = [f"{layout.name} of {layout.slots[0].name} in {layout.dtype}" for layout in layouts]
    check_same_on_all_ranks(kinds, "which parameters are frozen, and their groups and dtypes,")


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


def send_from_rank_0(tensor: torch.Tensor) -> None:
    """Gives a contiguous tensor rank 0's values on every rank. Collective."""
    # Codes as bytes: of whole numbers and of the narrow floating-point types a backend does not know every one.
    is_known = tensor.is_complex() or (tensor.is_floating_point() and tensor.itemsize > 1)
    dist.broadcast(tensor if is_known else tensor.view(torch.uint8), src=0)


@within(lambda observer: observer.comparing())
def take_maximum_over_ranks(number: torch.Tensor) -> None:
    """Makes a single number the largest that any rank has of it, in place; a collective of its few bytes."""
    if is_simulated(dist.get_backend()):
        return
    largest = number.to(communication_device())
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    number.copy_(largest)


@within(lambda observer: observer.comparing())
def gather_texts(mine: str) -> list[str]:
    """Every rank's text; sent as bytes, because nothing that comes from a network is unpickled. Collective."""
    text = mine.encode()
    length = torch.tensor([len(text)], device=communication_device())
    lengths = [torch.empty_like(length) for _ in range(dist.get_world_size())]
    dist.all_gather(lengths, length)
    longest = max(1, *(int(each) for each in lengths))  # nothing cannot be sent
    # all_gather wants tensors of one size; the lengths say where each text ends.
    padded = torch.frombuffer(bytearray(text.ljust(longest)), dtype=torch.uint8).to(communication_device())
    everyone = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(everyone, padded)
    return [bytes(each.tolist()[: int(count)]).decode() for each, count in zip(everyone, lengths, strict=True)]


def is_simulated(backend: str | None) -> bool:
    """Whether the other ranks do not exist: torch's fake group (`zerolab.simulation.fake`) sends nothing."""
    return str(backend).startswith("fake")


def communication_device() -> torch.device:
    """Where the default group's backend reads what a rank sends: NCCL on the GPU, gloo in main memory."""
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")


def agree(error: str, kind: type[Exception]) -> None:
    """Raises the first rank's error on all of them, so that none waits for another. Collective."""
    for text in gather_texts(error):
        if text:
            raise kind(text)
