"""Published models and hardware: what the closed forms and the simulation are applied to. Figures only, no torch.

Every figure stands with its source. Sizes are bytes, rates bytes a second or operations a second, GB is 1e9 and GiB
2**30. A link's bandwidth is that of one direction; makers often print both directions added up, and then it is halved
here. What cannot be found in print is an assumption and says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TypeVar

GB, GIB, TERA = 1e9, 2**30, 1e12


@dataclass(frozen=True, slots=True)
class Architecture:
    """A published model by its shape: enough to build the real modules and to count every parameter.

    `kind` is "gpt" (layer norm, biases, output tied to the embedding) or "llama" (RMS norm, rotary positions, gated
    MLP of `hidden` units, `kv_heads` of keys and values, output of its own). `filler` parameters are added to the root
    unit, as one parameter of that name, where a round number is wanted and no shape gives it.
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

    def checked_length(self, rows: int, length: int | None) -> int:
        """Tokens a sequence, None for the whole context. Raises ValueError for a batch that the model cannot take."""
        tokens = self.context if length is None else length
        # Positions that are turned, as a Llama's, go on for ever; those that are learned end with their table.
        most = self.context if self.kind == "gpt" else None
        if not rows >= 1 or rows % 1 or not tokens >= 1 or tokens % 1 or (most is not None and tokens > most):
            limit = f" to {most}" if most is not None else ""
            raise ValueError(f"a batch of {rows} x {tokens} tokens: {self.name} takes 1 row or more of 1{limit} tokens")
        return int(tokens)

    @property
    def num_params(self) -> int:
        """Ψ, every parameter counted once; a test holds it against the built module."""
        return self.depth * self.block_params + self.root_params

    @property
    def block_params(self) -> int:
        """Parameters of one block, the unit that travels together."""
        if self.kind == "gpt":  # attention 4 d² + 4 d, MLP 8 d² + 5 d, two norms of 2 d
            return 12 * self.width**2 + 13 * self.width
        # Queries and the output are square; keys and values have fewer heads where several heads of queries share one.
        keys_values = 2 * self.width * (self.width // self.heads) * self.kv_heads
        return 2 * self.width**2 + keys_values + 3 * self.width * self.hidden + 2 * self.width

    @property
    def root_params(self) -> int:
        """Parameters of the root unit: embeddings, the last norm, the output, the filler."""
        if self.kind == "gpt":
            # The output is the embedding once more and counts once; positions are learned, a row each.
            return (self.vocabulary + self.context + 2) * self.width + self.filler
        # Rotary positions have no parameters, and the output is a matrix of its own.
        return (2 * self.vocabulary + 1) * self.width + self.filler


_GPT2 = (
    "Radford et al. 2019, Language Models are Unsupervised Multitask Learners, table 2; heads of 64 as released "
    "(karpathy/nanoGPT, model.py, from_pretrained: 12, 16, 20, 25 heads)"
)
_GPT3 = "Brown et al. 2020, arXiv 2005.14165, table 2.1"
# Llama's papers do not print the hidden units of the MLP. Its released code makes them of the width: two thirds of
# 4 width, for the 70B times 1.3, up to the next multiple; a test does the same.
_LLAMA = (
    "Touvron et al. 2023, arXiv 2302.13971, table 2; hidden units by the released llama/model.py with multiple_of 256 "
    "(params.json of the weights, as in tinygrad, examples/llama.py)"
)
_LLAMA2 = (
    "Touvron et al. 2023, arXiv 2307.09288, table 1 and appendix A.2.1; hidden units by the released llama/model.py, "
    "70B with multiple_of 4096, ffn_dim_multiplier 1.3 and n_kv_heads 8 (its params.json, as quoted in llama.cpp)"
)
_LLAMA3 = (
    "Llama team 2024, arXiv 2407.21783, table 3; 128,256 words as released (pytorch/torchtitan, "
    "torchtitan/models/llama3), 8,192 tokens as pre-trained (section 3.4.1)"
)
_ROUND = "GPT-2's block at a width and depth chosen here, so that the filler is small"


def _gpt2(name: str, width: int, depth: int) -> Architecture:
    return Architecture(name, "gpt", width, width // 64, depth, 1024, 50257, _GPT2)


def _round(name: str, num_params: int, width: int, depth: int) -> Architecture:
    """GPT-2's structure with exactly `num_params` parameters."""
    # Built twice: what is missing to the round number is known only once the rest has been counted.
    bare = Architecture(name, "gpt", width, width // 128, depth, 2048, 50257, _ROUND)
    return Architecture(
        name, "gpt", width, width // 128, depth, 2048, 50257, _ROUND, filler=num_params - bare.num_params
    )


def _llama(
    name: str, width: int, depth: int, hidden: int, *, kv_heads: int = 0, context: int = 2048, source: str = _LLAMA
) -> Architecture:
    # Heads of 128 in all of them; fewer of keys and values in Llama 2's 70B and in all of Llama 3.
    heads = width // 128
    return Architecture(name, "llama", width, heads, depth, context, 32000, source, hidden, kv_heads or heads)


def _llama3(name: str, width: int, depth: int, hidden: int) -> Architecture:
    return Architecture(name, "llama", width, width // 128, depth, 8192, 128256, _LLAMA3, hidden, kv_heads=8)


ARCHITECTURES = {
    architecture.name: architecture
    for architecture in (
        _gpt2("gpt2", 768, 12),
        _gpt2("gpt2-medium", 1024, 24),
        _gpt2("gpt2-large", 1280, 36),
        _gpt2("gpt2-xl", 1600, 48),
        _llama("llama-7b", 4096, 32, 11008),
        _llama("llama-13b", 5120, 40, 13824),
        _llama("llama-30b", 6656, 60, 17920),
        _llama("llama-65b", 8192, 80, 22016),
        _llama("llama2-7b", 4096, 32, 11008, context=4096, source=_LLAMA2),
        _llama("llama2-13b", 5120, 40, 13824, context=4096, source=_LLAMA2),
        _llama("llama-70b", 8192, 80, 28672, kv_heads=8, context=4096, source=_LLAMA2),
        _llama3("llama3-8b", 4096, 32, 14336),
        _llama3("llama3-70b", 8192, 80, 28672),
        _llama3("llama3-405b", 16384, 126, 53248),
        Architecture("gpt3-175b", "gpt", 12288, 96, 96, 2048, 50257, _GPT3),
        _round("7b", 7_000_000_000, 4736, 25),
        _round("7.5b", 7_500_000_000, 3456, 51),
        _round("128b", 128_000_000_000, 13184, 61),
        _round("1t", 1_000_000_000_000, 27136, 113),
    )
}
"""By name. `llama-70b` is Llama 2's; its 7B and 13B have the shapes of Llama's, and twice the context. Llama's paper
calls `llama-30b` 33B, after its 32.5 billion parameters; the released files say 30B. `llama3-8b` and its kin are
Llama 3 and 3.1: one shape, in the end trained on longer contexts."""


@dataclass(frozen=True, slots=True)
class Link:
    """What ranks talk through: bytes a second in one direction, seconds a message takes besides, and who says so.

    Raises ValueError for a bandwidth that is not above 0, or negative seconds.
    """

    name: str
    bytes_per_second: float
    latency_seconds: float
    source: str

    def __post_init__(self) -> None:
        # Here and not where it is used, so that a link of one's own is refused where it is made.
        if not 0 < self.bytes_per_second < float("inf"):
            raise ValueError(
                f"the bandwidth of {self.name} is {self.bytes_per_second!r} bytes a second: it must be above 0 "
                "(50 GB/s is 50e9, 50 GiB/s is 50 * 2**30)"
            )
        if not self.latency_seconds >= 0:
            raise ValueError(f"a message over {self.name} takes {self.latency_seconds!r} seconds: give 0 or more")


# What a step of a ring costs besides its bytes: NCCL's own model, src/graph/tuning.cc, the table of hardware latencies
# (hwLat, later hwLatencies), NVLINK and NET, ring, Simple. NET was 9.6 until 2.10, and is 14.0 since.
_NVLINK_SECONDS, _NETWORK_SECONDS = 3.4e-6, 14.0e-6
# Of NCCL over TCP between two nodes, as others measured it: 38 and 46 us for 8 bytes (NVIDIA/nccl-tests, issue 82,
# eth0), 54 us for 1 KB (uccl-project/uccl, pull request 638). One figure for all rates, because it is the kernel's.
_TCP_SECONDS = 50e-6
_INFINIBAND = (
    "InfiniBand Trade Association, roadmap: {}; the latency is that of a step in NCCL's model, src/graph/tuning.cc"
)
_ETHERNET = "{} of the MAC, headers not subtracted; the latency is that of NCCL over TCP as measured by others"

LINKS = {
    link.name: link
    for link in (
        Link("nvlink2", 150 * GB, _NVLINK_SECONDS, "NVIDIA V100 datasheet: 300 GB/s, six links, both directions"),
        Link("nvlink3", 300 * GB, _NVLINK_SECONDS, "NVIDIA A100 datasheet: 600 GB/s, both directions"),
        Link("nvlink-a800", 200 * GB, _NVLINK_SECONDS, "NVIDIA A800 datasheet: 400 GB/s, both directions"),
        Link("nvlink4", 450 * GB, _NVLINK_SECONDS, "NVIDIA H100 datasheet: 900 GB/s, both directions"),
        Link("nvlink5", 900 * GB, _NVLINK_SECONDS, "NVIDIA HGX B200 datasheet: 1.8 TB/s, both directions"),
        Link("infiniband-edr", 12.5 * GB, _NETWORK_SECONDS, _INFINIBAND.format("EDR 4x, 100 Gb/s")),
        Link("infiniband-hdr", 25 * GB, _NETWORK_SECONDS, _INFINIBAND.format("HDR 4x, 200 Gb/s")),
        Link("infiniband-ndr", 50 * GB, _NETWORK_SECONDS, _INFINIBAND.format("NDR 4x, 400 Gb/s")),
        Link("ethernet-10g", 1.25 * GB, _TCP_SECONDS, _ETHERNET.format("IEEE 802.3ae-2002: 10 Gb/s")),
        Link("ethernet-25g", 3.125 * GB, _TCP_SECONDS, _ETHERNET.format("IEEE 802.3by-2016: 25 Gb/s")),
        Link("ethernet-100g", 12.5 * GB, _TCP_SECONDS, _ETHERNET.format("IEEE 802.3ba-2010: 100 Gb/s")),
        Link("ethernet-400g", 50 * GB, _TCP_SECONDS, _ETHERNET.format("IEEE 802.3bs-2017: 400 Gb/s")),
    )
}


@dataclass(frozen=True, slots=True)
class Gpu:
    """One accelerator: bytes of memory, dense operations a second by precision, bytes a second, and its link.

    `memory_bytes` is what torch says a process can have at most (`torch.cuda.mem_get_info`), CUDA's own
    `CONTEXT_BYTES` included: never what is printed on the box, and less than `nvidia-smi` says. `flops["bf16"]` is the
    tensor cores' dense 16-bit rate (V100 has only fp16), `flops["fp32"]` the plain fp32 rate.
    """

    name: str
    memory_bytes: float
    flops: dict[str, float]
    memory_bytes_per_second: float
    link: str
    source: str


CONTEXT_BYTES = 0.5 * GIB
"""What CUDA and its kernels take of a GPU besides torch's tensors: an OutOfMemoryError says that the
process has 139.20 GiB and torch 2.05 + 136.64 of them (H200), or 168.34 and 167.64 (B200), or 14.25 and 13.76 (A100).
NCCL's buffers are not in it."""


def _gpu(name: str, memory: float, flops: tuple[float, float], bandwidth: float, *, link: str, source: str) -> Gpu:
    """GiB as torch reports them; TFLOP/s (bf16, fp32) and GB/s as printed in the datasheet."""
    # Where a datasheet prints the sparse rate only, the dense one is half of it, and the source says so.
    bf16, fp32 = flops
    source += f"; memory: the total capacity in torch's OutOfMemoryError, {memory:g} GiB"
    return Gpu(name, memory * GIB, {"bf16": bf16 * TERA, "fp32": fp32 * TERA}, bandwidth * GB, link, source)


GPUS = {
    gpu.name: gpu
    for gpu in (
        # In the order of their years: 2017, 2020, 2020, 2022, 2023, 2024.
        _gpu("v100", 31.74, (125, 15.7), 900, link="nvlink2", source="NVIDIA V100 datasheet, SXM2 32 GB"),
        _gpu("a100-40gb", 39.39, (312, 19.5), 1555, link="nvlink3", source="NVIDIA A100 datasheet, SXM4 40 GB"),
        _gpu("a100", 79.25, (312, 19.5), 2039, link="nvlink3", source="NVIDIA A100 datasheet, SXM4 80 GB"),
        _gpu("a800", 79.33, (312, 19.5), 2039, link="nvlink-a800", source="NVIDIA A800 datasheet, SXM4 80 GB"),
        _gpu(
            "h100",
            79.11,
            (989.5, 67),
            3350,
            link="nvlink4",
            source="NVIDIA H100 datasheet, SXM 80 GB; half of the sparse rate",
        ),
        Gpu(
            "h100-96gb",
            95 * GIB,
            {"bf16": 989.5 * TERA, "fp32": 67 * TERA},
            2400 * GB,
            "nvlink4",
            "torchtitan, benchmarks/llama3_h100_202412_torchtitan.md and pull request 800: HBM2e, 95 GiB, 500 W; the "
            "rates are those of the H100 SXM",
        ),
        _gpu(
            "h200",
            139.8,
            (989.5, 67),
            4800,
            link="nvlink4",
            source="NVIDIA H200 datasheet, SXM 141 GB; half of the sparse rate",
        ),
        _gpu(
            "b200",
            178.35,
            (2250, 75),
            7700,
            link="nvlink5",
            source="NVIDIA Blackwell datasheet, HGX B200, one GPU of 180 GB; half of the sparse rate",
        ),
    )
}

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
    if name in entries:
        return entries[name]
    # `llama_7B`, `Llama 7B` and `llama-7b` are one name to who types them, so they are told as near.
    wanted = re.sub(r"[\s_]+", "-", str(name).lower())
    near = get_close_matches(wanted, entries, n=3, cutoff=0.4) or list(entries)
    raise ValueError(f"the catalog has no {what} {name!r}; the nearest: {', '.join(near)}")
