"""The catalog's models as real modules, blocks and all, so that the engines can run them in a simulation.

Built on tensors without memory they take none; built normally they take all of it.
"""

import torch
from torch import nn
from torch.nn import functional

from zerolab.catalog import Architecture
from zerolab.models import GPT

ROTARY_BASE = 10000.0  # Su et al. 2021, arXiv 2104.09864, section 3.4.3


class Filled(GPT):
    """A GPT with one more parameter, `filler`, which brings Ψ to a round number and is trained, but changes nothing."""

    def __init__(self, *shape: int, filler: int) -> None:
        super().__init__(*shape)
        self.filler = nn.Parameter(torch.zeros(filler))

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """As for any GPT; the filler takes part, because without a gradient it would have no optimizer state."""
        embedded: torch.Tensor = super().embed(tokens) + 0 * self.filler.sum()
        return embedded


class GroupedAttention(nn.Module):
    """Llama's causal attention with rotary positions; several query heads may share one head of keys and values.

    Source: Ainslie et al. 2023, arXiv 2305.13245, for the sharing.
    """

    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, width // heads
        # Four matrices and not one for all three: keys and values are narrower where heads share them.
        self.queries = nn.Linear(width, width, bias=False)
        self.keys = nn.Linear(width, kv_heads * self.size, bias=False)
        self.values = nn.Linear(width, kv_heads * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, length, width] -> the same shape."""
        rows, length, _ = x.shape
        queries = rotate(self.queries(x).view(rows, length, self.heads, self.size))
        keys = rotate(self.keys(x).view(rows, length, self.kv_heads, self.size))
        values = self.values(x).view(rows, length, self.kv_heads, self.size)
        # Copied for each head that shares them, as Llama's released code does (`repeat_kv`): they are activations.
        if self.kv_heads < self.heads:
            keys = keys.repeat_interleave(self.heads // self.kv_heads, dim=2)
            values = values.repeat_interleave(self.heads // self.kv_heads, dim=2)
        # Rotated before heads and positions are swapped: attention's result is laid out like its queries, and so the
        # output matrix takes it as it is, where it would need a copy otherwise.
        mixed = functional.scaled_dot_product_attention(
            queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), is_causal=True
        )
        # As wide as the heads that are here: under tensor parallelism a rank has some of them.
        out: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(rows, length, -1))
        return out


class LlamaBlock(nn.Module):
    """Attention, then a gated MLP (Shazeer 2020, arXiv 2002.05202); both are added to what came in."""

    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.RMSNorm(width), GroupedAttention(width, heads, kv_heads)
        self.norm2 = nn.RMSNorm(width)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, length, width] -> the same shape."""
        attended: torch.Tensor = x + self.attention(self.norm1(x))
        normed = self.norm2(attended)
        changed: torch.Tensor = self.down(functional.silu(self.gate(normed)) * self.up(normed))
        return attended + changed


class Llama(nn.Module):
    """Tokens [rows, length] -> logits [rows, length, vocabulary]. Source: Touvron et al. 2023, arXiv 2302.13971."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        width, vocabulary = architecture.width, architecture.vocabulary
        shape = (width, architecture.heads, architecture.kv_heads, architecture.hidden)
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(LlamaBlock(*shape) for _ in range(architecture.depth))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits for every position; `tokens` is [rows, length] of int64."""
        x: torch.Tensor = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


def rotate(x: torch.Tensor) -> torch.Tensor:
    """Rotary positions (arXiv 2104.09864, section 3.4.2): [rows, length, heads, size] -> the same shape."""
    half = x.shape[-1] // 2
    # Made anew in each forward: it is small compared with what it rotates, and a buffer would be held all the time.
    exponents = torch.arange(half, device=x.device) / half
    angles = torch.arange(x.shape[1], device=x.device)[:, None, None] * ROTARY_BASE**-exponents
    cosines, sines = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    # Halves are rotated rather than neighbours, as in transformers; bytes and operations are the same.
    left, right = x[..., :half], x[..., half:]
    return torch.cat([left * cosines - right * sines, right * cosines + left * sines], dim=-1)


def build(architecture: Architecture) -> nn.Module:
    """The module of a published model, with torch's default weights: its shape is published, its values are not."""
    # Without `device=` or `dtype=`: the caller's context decides where and in which dtype it is built.
    if architecture.kind == "llama":
        return Llama(architecture)
    shape = (architecture.width, architecture.heads, architecture.depth, architecture.context, architecture.vocabulary)
    return Filled(*shape, filler=architecture.filler) if architecture.filler else GPT(*shape)
