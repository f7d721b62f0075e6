"""Where a tensor's bytes lie: nearly always in one storage, but some kinds of tensors have several, or show none.

While anybody watches its operations, autograd copies sparse gradients that it else would keep as they are. The copies
are there and count, so the peak of a recorded backward may be one sparse gradient higher than if nobody watched.
"""

from collections.abc import Callable

import torch
from torch.utils._python_dispatch import _disable_current_modes

_ROWS = torch.Tensor.crow_indices, torch.Tensor.col_indices, torch.Tensor.values
_COLUMNS = torch.Tensor.ccol_indices, torch.Tensor.row_indices, torch.Tensor.values
_PARTS: dict[torch.layout, tuple[Callable[[torch.Tensor], torch.Tensor], ...]] = {
    torch.sparse_coo: (torch.Tensor._indices, torch.Tensor._values),  # without the underscore, only coalesced ones have
    torch.sparse_csr: _ROWS,
    torch.sparse_bsr: _ROWS,
    torch.sparse_csc: _COLUMNS,
    torch.sparse_bsc: _COLUMNS,
}


def parts_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that one without a storage consists of: a sparse one's indices and values; empty for other kinds.

    oneDNN keeps what `to_mkldnn` makes in memory of its own, and a tensor that functorch passes into a function stands
    for another, whose operations are seen.
    """
    # A wrapper may have a sparse layout, and cannot be asked for indices.
    if tensor.layout not in _PARTS or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return []
    # Looking is not part of the run, nor of what functorch transforms: that would wrap the parts.
    with _disable_current_modes(), torch._C._DisableFuncTorch():
        return [part(tensor) for part in _PARTS[tensor.layout]]


def storages_of(tensor: torch.Tensor) -> list[torch.UntypedStorage]:
    """All storages that a tensor has: one, or those of its parts."""
    try:
        return [tensor.untyped_storage()]
    except NotImplementedError:
        return [part.untyped_storage() for part in parts_of(tensor)]
