"""Muon over FSDP2: a rank has some rows of each matrix, and an all-to-all makes matrices whole for their update.

Memory a rank (fp32), with M elements in matrices and R in the rest: 4(M + R)/N parameters + 4(M + R)/N gradients, 4M/N
momentum + 8R/N Adam; for the update it also has the matrices whole of which it is the owner. Traffic a rank and step:
FSDP2's 3(M + R) elements times (N-1)/N, but 2 for the root unit, and 2M(N-1)/N^2 to the owners and back.

The momentum is a sum element by element, so it stays in rows. What it makes of the gradient goes to the matrix's owner,
who orthogonalises it and sends everyone their rows: no work is done twice. (torchtitan, pull request 4060.)
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from zerolab.engines.fsdp2 import FSDP2
from zerolab.engines.matrices import Matrices, Together
from zerolab.engines.optimizer_state import local
from zerolab.engines.partition import ParamGroups
from zerolab.engines.placement import balanced, rows


class RowMuon(torch.optim.Optimizer):
    """`torch.optim.Muon`, with its keywords, for DTensors that are sharded by rows over all ranks."""

    def __init__(self, params: Iterable[Any], **keywords: Any) -> None:
        super().__init__(params, torch.optim.Muon([nn.Parameter(torch.empty(0, 0))], **keywords).defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Updates this rank's rows. Collective: every rank has gradients of the same matrices."""
        for group in self.param_groups:
            if not (matrices := [matrix for matrix in group["params"] if matrix.grad is not None]):
                continue
            mine = [self._with_momentum(matrix, group["momentum"], group["nesterov"]) for matrix in matrices]
            for matrix, direction in zip(matrices, _through_owners(matrices, mine, group), strict=True):
                local(matrix).mul_(1 - group["lr"] * group["weight_decay"]).add_(direction, alpha=group["lr"])

    def _with_momentum(self, matrix: torch.Tensor, momentum: float, nesterov: bool) -> torch.Tensor:
        """This rank's rows of what is to be made orthogonal."""
        gradient: torch.Tensor = local(matrix.grad)
        if not (state := self.state[matrix]):
            state["momentum_buffer"] = torch.zeros_like(matrix)
        buffer: torch.Tensor = local(state["momentum_buffer"]).lerp_(gradient, 1 - momentum)
        return gradient.lerp(buffer, momentum) if nesterov else buffer


def _through_owners(
    matrices: Sequence[torch.Tensor], mine: Sequence[torch.Tensor], keywords: dict[str, Any]
) -> list[torch.Tensor]:
    """Sends each matrix's rows to its owner, and brings this rank's rows of its direction back."""
    rank, everyone = dist.get_rank(), range(dist.get_world_size())
    owners = balanced([matrix.numel() for matrix in matrices], len(everyone))
    owned = [[place for place, owner in enumerate(owners) if owner == each] for each in everyone]
    # sizes[place][r]: how many elements of the matrix at this place rank r has.
    sizes = [[share.numel for share in rows([matrix.shape], len(everyone))] for matrix in matrices]
    arrive = [[sizes[place][each] for place in owned[rank]] for each in everyone]
    parts = _exchange([[mine[place] for place in places] for places in owned], arrive, mine[0])
    cut = [
        _direction(torch.cat(pieces).view(matrices[place].shape), keywords).view(-1).split(sizes[place])
        for place, pieces in zip(owned[rank], zip(*parts, strict=True), strict=True)
    ]
    arrive = [[sizes[place][rank] for place in places] for places in owned]
    back = _exchange([[pieces[each] for pieces in cut] for each in everyone], arrive, mine[0])
    found = dict(zip(chain(*owned), chain(*back), strict=True))
    return [found[place].view_as(part) for place, part in enumerate(mine)]


def _direction(whole: torch.Tensor, keywords: dict[str, Any]) -> torch.Tensor:
    """Where Muon moves a matrix with lr 1: `torch.optim.Muon` itself, from zero, without momentum and decay."""
    moved = nn.Parameter(torch.zeros_like(whole))
    moved.grad = whole
    kept = {name: keywords[name] for name in ("ns_coefficients", "ns_steps", "eps", "adjust_lr_fn")}
    torch.optim.Muon([moved], lr=1.0, weight_decay=0.0, momentum=0.0, nesterov=False, **kept).step()
    return moved.detach()


def _exchange(
    pieces: list[list[torch.Tensor]], arrive: list[list[int]], like: torch.Tensor
) -> list[list[torch.Tensor]]:
    """One all-to-all: `pieces[r]` go to rank r, and pieces of the sizes `arrive[r]` come from it."""
    sent = torch.cat([like.new_empty(0), *(piece.reshape(-1) for piece in chain(*pieces))])
    counts = [sum(piece.numel() for piece in of_rank) for of_rank in pieces]
    received = sent.new_empty(sum(chain(*arrive)))
    dist.all_to_all_single(received, sent, [sum(of_rank) for of_rank in arrive], counts)
    split = iter(received.split([*chain(*arrive)]))
    return [[next(split) for _ in of_rank] for of_rank in arrive]


class MuonRows(Matrices, FSDP2):
    """torch's FSDP2 whose matrices Muon updates, made whole by an all-to-all."""

    stage = "muon-rows"
    muon_cls = RowMuon

    def _make_optimizer(self, optimizer_cls: type, param_groups: ParamGroups, keywords: dict[str, Any]) -> Together:
        return self.together(self._groups(param_groups), optimizer_cls, keywords)
