"""The bytes that a forward keeps for its backward: closed forms of the catalog's blocks, each term named. No torch.

They describe the modules that a simulation runs (`simulation.architectures`) on a GPU; a test compares each with the
recorder, to the byte. Korthikanti et al. 2022, arXiv 2205.05198, equation 1 counts the same way, with dropout, which
these models do not have.

Under tensor parallelism with sequence parallelism (arXiv 2205.05198, section 4.2) a rank keeps a part of everything
but the outputs of norms: all ranks multiply the whole of them with their parts of a matrix, and torch keeps what it
gathered for that, where Megatron gathers it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerolab.names import check_known
from zerolab.theory.forms import FP32_BYTES

if TYPE_CHECKING:
    from zerolab.catalog import Architecture

CHECKPOINTING = ("none", "selective", "block")
"""What backward recomputes of a block: nothing; all but attention and every second matrix multiplication (torchtitan's
"selective op"); or everything, so that only its input is kept."""
ATTENTION = ("fused", "math")
"""How attention is computed: in one kernel that never stores its matrix (flash, torch's SDPA), or step by step."""
NORMS = ("fused", "unfused")
"""How a Llama's norms are computed: in one kernel that keeps its input; or one operation after the other in fp32, as
written in Hugging Face's and Meta's Python, which keeps a copy of the input in fp32 and the result before the weight:
in any precision four more bytes for each number of a token."""
LOGITS = ("own", "fp32", "flash", "fused")
"""The logits at the loss: they stay in the model's precision; the model returns them in fp32; one kernel writes their
gradient beside them (flash-attn's cross-entropy); or they are never stored: a fused linear cross-entropy (Liger's)
makes a chunk of them at a time."""


def check_norms(shape: Architecture, norms: str) -> None:
    """Raises ValueError for kinds of norms that are unknown, or that the model does not have."""
    check_known("norms", norms, NORMS)
    if norms == "unfused" and shape.kind == "gpt":
        raise ValueError(f"norms is 'unfused', and {shape.name} has layer norms: choose norms='fused'")


def kept_by_a_block(
    shape: Architecture,
    rows: int,
    length: int,
    word: int,
    *,
    checkpointing: str = "none",
    attention: str = "fused",
    norms: str = "fused",
    tensor: int = 1,
) -> dict[str, int]:
    """Bytes that the forward of one block keeps, by name, for `rows` sequences of `length` tokens per rank.

    A number has `word` bytes, 2 in bf16; `tensor` ranks divide each matrix and, outside of them, each sequence.

    Returns:
        * `input`: the block's input, which the first norm keeps too.
        * `norms`: the second norm's input, the outputs of both, and their fp32 statistics per row, two of a layer norm;
          unfused, four more bytes for each number of both.
        * `attention`: queries, keys, values (copied where heads share them), and the output; in a Llama the cosines and
          sines of the rotation; fused, one fp32 number for each row of the attention matrix.
        * `attention_matrix`: only with "math", the output of the softmax, `heads * length` numbers per token.
        * `mlp`: the inputs and outputs of each function in it: eight widths, or four times `hidden`.
        * `matrices`: only with "selective", the results of every second matrix multiplication.

    Raises ValueError for an unknown checkpointing, attention or kind of norms, or one that the model does not have.
    """
    check_known("checkpointing", checkpointing, CHECKPOINTING)
    check_known("attention", attention, ATTENTION)
    check_norms(shape, norms)
    tokens, width = rows * length, shape.width
    found = {"input": word * width * tokens // tensor}
    if checkpointing == "block":
        return found
    # A fused kernel keeps the logsumexp of each row of its matrix, to compute the matrix again.
    of_attention = {"attention": FP32_BYTES * shape.heads * tokens // tensor if attention == "fused" else 0}
    if checkpointing == "selective":
        of_attention["attention"] += word * width * tokens // tensor
        # The first, the third and so on, in the order of the forward, as torchtitan does.
        every_second = 3 * width + 4 * width
        if shape.kind == "llama":  # of queries, keys, values, output, gate, up, down
            every_second = 2 * width + shape.kv_heads * width // shape.heads + shape.hidden
        return found | {"matrices": word * every_second * tokens // tensor} | of_attention
    of_attention["attention"] += 4 * word * width * tokens // tensor
    if shape.kind == "llama":
        # Half a head of each, for queries and for keys; the same for all rows.
        of_attention["attention"] += 2 * word * (width // shape.heads) * length
    if attention == "math":
        of_attention["attention_matrix"] = word * shape.heads * length * tokens // tensor
    numbers_a_row = (4 if shape.kind == "gpt" else 2) + 2 * width * (norms == "unfused")
    return found | {
        "norms": 2 * word * width * tokens + (word * width + numbers_a_row * FP32_BYTES) * tokens // tensor,
        **of_attention,
        "mlp": word * (8 * width if shape.kind == "gpt" else 4 * shape.hidden) * tokens // tensor,
    }


def kept_at_the_end(
    shape: Architecture, rows: int, length: int, word: int, *, norms: str = "fused", tensor: int = 1
) -> int:
    """Bytes that the last norm and the output keep: the input of each, and the norm's statistics per row.

    Raises ValueError for norms that are unknown, or that the model does not have.
    """
    check_norms(shape, norms)
    numbers_a_row = (2 if shape.kind == "gpt" else 1) + shape.width * (norms == "unfused")
    tokens = rows * length
    return word * shape.width * tokens + (word * shape.width + numbers_a_row * FP32_BYTES) * tokens // tensor


def at_the_loss(
    shape: Architecture,
    rows: int,
    length: int,
    word: int,
    logits: str = "own",
    *,
    tensor: int = 1,
    in_place: bool = False,
) -> tuple[int, int]:
    """Bytes of logits and tensors of their size: the most that exist at once, and what stays through backward.

    There are four: the logits, the logarithms of their softmax, and the gradients of both; with "flash" there are two,
    the logits and their gradient. The logits themselves stay as long as the training loop holds the model's output.
    With "fp32" all are in fp32, 16 bytes; where the loss casts what a model returns in 16 bits, they are 14. Each of
    `tensor` ranks has a part of the vocabulary.

    "fused" stores none, but computes the gradients of the output layer in forward: that of its input, which is then
    kept in place of the input, and that of its weight. Source: linkedin/Liger-Kernel,
    ops/fused_linear_cross_entropy.py.

    `in_place` is Megatron's own loss, in place of any but "fused": it casts the logits to fp32 and turns the copy into
    exponentials, probabilities and gradients, one after the other, and the loop gets the loss alone. Source:
    NVIDIA/Megatron-LM, core/tensor_parallel/cross_entropy.py.

    Raises ValueError for logits that are none of `LOGITS`.
    """
    check_known("logits", logits, LOGITS)
    numbers = shape.vocabulary * rows * length // tensor
    if logits == "fused":
        return _in_chunks(max(1, shape.vocabulary // tensor), shape.width, rows * length, word), 0
    if in_place:
        return (FP32_BYTES + (word if word < FP32_BYTES else 0)) * numbers, 0
    width = FP32_BYTES if logits == "fp32" else word
    return (2 if logits == "flash" else 4) * width * numbers, width * numbers


def _in_chunks(vocabulary: int, width: int, tokens: int, word: int) -> int:
    """Bytes of Liger's kernel: a chunk of the logits, the gradients of the output's input and weight, and a product.

    A chunk has as many tokens as make it about as large as the input. What it adds to the weight's gradient is a tensor
    of the weight's size, which in 16 bits exists in fp32 as well.
    """
    wanted = -(-tokens // -(-vocabulary // width))
    chunk = min(tokens, 1 << (wanted - 1).bit_length())
    return word * (tokens * width + chunk * vocabulary) + 2 * FP32_BYTES * vocabulary * width
