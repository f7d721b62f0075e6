"""By what damage within a file shows: safetensors checks sizes, and a number that is a little off loads."""

import json
import zlib
from collections.abc import Mapping

import torch


def sum_of(value: torch.Tensor | str) -> int:
    """The checksum of a tensor's bytes, or of a text's."""
    if isinstance(value, str):
        return zlib.crc32(value.encode())
    # As bytes first: numpy does not know every dtype.
    return zlib.crc32(value.cpu().reshape(-1).view(torch.uint8).numpy().data)


def check_sums(name: str, found: Mapping[str, torch.Tensor | str], sums: str | None) -> None:
    """Raises ValueError unless what was found in the file `name` is what was written; an older file has no sums."""
    try:
        written = json.loads(sums or "{}")
        damaged = [key for key, expected in written.items() if key not in found or sum_of(found[key]) != expected]
    except (ValueError, AttributeError):  # no JSON, or no object
        damaged = ["sums"]
    if damaged:
        raise ValueError(f"{damaged[0]!r} in {name} is damaged: copy it again, or load an earlier checkpoint")
