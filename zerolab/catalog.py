"""Published models and hardware: what the closed forms and the simulation are applied to. Figures only, no torch.

They are read from data/catalog.toml, where every figure stands with its source. Sizes are bytes, rates bytes a second
or operations a second, GB is 1e9 and GiB 2**30. A link's bandwidth is that of one direction; makers often print both
directions added up, and then it is halved here. What cannot be found in print is an assumption and says so.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from zerolab.names import check_count, check_divides, check_known

GB, GIB, TERA = 1e9, 2**30, 1e12
KINDS = ("gpt", "llama")


@dataclass(frozen=True, slots=True)
class Architecture:
    """A published model by its shape: enough to build the real modules and to count every parameter.

    `kind` is "gpt" (layer norm, biases, output tied to the embedding) or "llama" (RMS norm, rotary positions, gated
    MLP of `hidden` units, `kv_heads` heads of keys and values, output not tied). `filler` is the size of one more
    parameter of the root unit, which brings a model to a round number. Where `kv_heads` of a "llama" is 0, each head
    has its own keys and values; a "gpt" has neither `hidden` nor `kv_heads`.

    Raises ValueError for an unknown kind, counts below 1, heads that do not divide the width, heads of keys and values
    that do not divide the heads, or a "llama" without `hidden`.
    """

    name: str
    kind: str
    width: int
    heads: int
    depth: int
    context: int
    vocabulary: int
    source: str
    hidden: int = 0
    kv_heads: int = 0
    filler: int = 0

    def __post_init__(self) -> None:
        check_known("kind of model", self.kind, KINDS)
        for what in ("width", "heads", "depth", "context", "vocabulary"):
            check_count(f"{what} of {self.name}", getattr(self, what))
        if self.filler:
            check_count(f"filler of {self.name}", self.filler)
        check_divides("heads", self.heads, self.width, "numbers of a token (width)")
        if self.kind != "llama":
            return
        check_count(f"hidden of {self.name}", self.hidden)
        # As in a configuration of Hugging Face: where nothing is said, no head shares its keys and values.
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        check_divides("kv_heads", self.kv_heads, self.heads, "heads")

    def checked_length(self, rows: int, length: int | None) -> int:
        """Tokens per sequence, None for the whole context. Raises ValueError for a batch that the model cannot take."""
        tokens = self.context if length is None else length
        # Rotary positions have no end; learned ones end with their table.
        most = self.context if self.kind == "gpt" else None
        if not rows >= 1 or rows % 1 or not tokens >= 1 or tokens % 1 or (most is not None and tokens > most):
            limit = f" to {most}" if most is not None else ""
            raise ValueError(f"a batch of {rows} x {tokens} tokens: {self.name} takes 1 row or more of 1{limit} tokens")
        return int(tokens)

    @property
    def num_params(self) -> int:
        """Ψ, every parameter counted once; a test compares it with the built module."""
        return self.depth * self.block_params + self.root_params

    @property
    def block_params(self) -> int:
        """Parameters of one block, the unit that travels together."""
        if self.kind == "gpt":  # attention 4 d² + 4 d, MLP 8 d² + 5 d, two norms of 2 d
            return 12 * self.width**2 + 13 * self.width
        # Queries and output are square; keys and values have fewer heads if several query heads share one.
        keys_values = 2 * self.width * (self.width // self.heads) * self.kv_heads
        return 2 * self.width**2 + keys_values + 3 * self.width * self.hidden + 2 * self.width

    @property
    def root_params(self) -> int:
        """Parameters of the root unit: embeddings, the last norm, the output, the filler."""
        if self.kind == "gpt":
            # The output is tied to the embedding and counts once; each learned position is a row.
            return (self.vocabulary + self.context + 2) * self.width + self.filler
        # Rotary positions have no parameters, and the output is a separate matrix.
        return (2 * self.vocabulary + 1) * self.width + self.filler


_FILE: dict[str, Any] = tomllib.loads(Path(__file__).with_name("data").joinpath("catalog.toml").read_text("utf-8"))


def _architecture(name: str, shape: dict[str, Any]) -> Architecture:
    shape["source"] = _FILE["sources"][shape["source"]]
    wanted = shape.pop("num_params", None)
    built = Architecture(name, **shape)
    return built if wanted is None else replace(built, filler=wanted - built.num_params)


ARCHITECTURES = {name: _architecture(name, shape) for name, shape in _FILE["models"].items()}
"""By name. `llama-70b` is Llama 2's, whose 7B and 13B have the shapes of Llama's and twice the context. Llama's paper
calls `llama-30b` 33B, after its 32.5 billion parameters; the released files say 30B. `llama3-8b` to `llama3-405b` are
Llama 3 and 3.1, which have the same shapes; 3.1 was trained further, on longer contexts."""


@dataclass(frozen=True, slots=True)
class Link:
    """A link between ranks: bytes per second in one direction, latency per message, and the source of both.

    Raises ValueError for a bandwidth that is not above 0, or negative seconds.
    """

    name: str
    bytes_per_second: float
    latency_seconds: float
    source: str

    def __post_init__(self) -> None:
        # Here, not where it is used: a link of your own is refused where you make it.
        if not 0 < self.bytes_per_second < float("inf"):
            raise ValueError(
                f"the bandwidth of {self.name} is {self.bytes_per_second!r} bytes a second: it must be above 0 "
                "(50 GB/s is 50e9, 50 GiB/s is 50 * 2**30)"
            )
        if not self.latency_seconds >= 0:
            raise ValueError(f"a message over {self.name} takes {self.latency_seconds!r} seconds: give 0 or more")


LINKS = {name: Link(name, **figures) for name, figures in _FILE["links"].items()}


@dataclass(frozen=True, slots=True)
class Gpu:
    """One accelerator: bytes of memory, dense operations per second by precision, bytes per second, and its link.

    `memory_bytes` is the most that a process can have, as torch reports it (`torch.cuda.mem_get_info`), CUDA's own
    `CONTEXT_BYTES` included: less than `nvidia-smi` says, and not what is printed on the box. `flops["bf16"]` and
    `flops["fp16"]` are the tensor cores' dense 16-bit rate, `flops["fp32"]` the plain fp32 rate; V100 has no bf16.
    """

    name: str
    memory_bytes: float
    flops: dict[str, float]
    memory_bytes_per_second: float
    link: str
    source: str

    def rate(self, precision: str) -> float:
        """Dense operations per second in a precision. Raises ValueError for one that the GPU does not have."""
        if precision not in self.flops:
            raise ValueError(f"{self.name} has no {precision}: take {' or '.join(sorted(self.flops))}")
        return self.flops[precision]


CONTEXT_BYTES = 0.5 * GIB
"""What CUDA and its kernels take of a GPU besides torch's tensors. In OutOfMemoryErrors the process has 139.20 GiB and
torch 2.05 + 136.64 of them (H200), or 168.34 and 167.64 (B200), or 14.25 and 13.76 (A100). Without NCCL's buffers."""


def _gpu(name: str, *, gib: float, tflops: dict[str, float], gb_per_second: float, link: str, source: str) -> Gpu:
    flops = {precision: rate * TERA for precision, rate in tflops.items()}
    if "bf16" in flops:
        flops["fp16"] = flops["bf16"]  # through the same units at the same rate
    return Gpu(name, gib * GIB, flops, gb_per_second * GB, link, source)


GPUS = {name: _gpu(name, **figures) for name, figures in _FILE["gpus"].items()}

Entry = TypeVar("Entry", Architecture, Gpu, Link)


def architecture(name: str) -> Architecture:
    """The published model called `name`. Raises ValueError with the nearest names."""
    return _find(ARCHITECTURES, name, "model")


def gpu(name: str) -> Gpu:
    """The accelerator called `name`. Raises ValueError with the nearest names."""
    return _find(GPUS, name, "GPU")


def link(name: str) -> Link:
    """The link called `name`. Raises ValueError with the nearest names."""
    return _find(LINKS, name, "link")


def _find(entries: dict[str, Entry], name: str, what: str) -> Entry:
    check_known(what, name, entries)
    return entries[name]
