"""Claims that published code makes implicitly: each mistake is rebuilt in a few lines of our own, and run."""

import torch
from torch import nn

from zerolab import models
from zerolab.engines.partition import partition
from zerolab.facts import mistakes
from zerolab.facts.evidence import MODEL, Evidence, Finding

ODD = 71  # elements: no multiple of 2, 3 or 4


def zero1_of_any_model(evidence: Evidence) -> Finding:
    """Claim 6: the shard is a slice of padded parameters, the gradient a slice without padding."""
    # Only the last rank has padding; on all others the slices agree.
    *_, last = evidence.answers(mistakes.shard_with_padding_and_gradient_without, ODD)
    even = evidence.answers(mistakes.shard_with_padding_and_gradient_without, ODD + 1)
    gradient, shard, _ = last
    return Finding(
        measured=f"a parameter of {ODD} elements on {evidence.world_size} ranks: the last one has a gradient of "
        f"{gradient} for a shard of {shard}, and torch refuses it; of {ODD + 1} elements: "
        f"{'all accepted' if all(fits for *_, fits in even) else 'refused, too'}",
        borne_out=not last[2] and all(fits for *_, fits in even),
    )


def zero3_that_trains(evidence: Evidence) -> Finding:
    """Claim 7: the first layer's backward hook is called before its weight has the gradient."""
    happened, went_through = evidence.answers(mistakes.release_in_the_modules_backward_hook)[0]
    return Finding(
        measured=f"in the first layer: {', '.join(happened)}, then {'no error' if went_through else 'an error'}: when "
        "the gradient arrives, the weight is a shard again",
        borne_out=not went_through and "gradient" not in happened,
    )


def swapping_data(evidence: Evidence) -> Finding:
    """Claim 8: autograd has a view of the weight, which keeps the memory."""
    found = evidence.answers(mistakes.release_by_swapping_data)[0]
    kept, later, freed = found.values()
    return Finding(
        measured="memory still there: "
        + ", ".join(f"{when}: {'yes' if there else 'no'}" for when, there in found.items()),
        borne_out=kept and not later and not freed,
    )


def ceiling_division(_: Evidence) -> Finding:
    """Claim 9: without padding the last ranks get less or nothing, which is how FSDP2 shards rows too."""
    spans = mistakes.ceiling_spans(9, 8)
    sizes = [max(stop - start, 0) for start, stop in spans]
    outside = sum(start > 9 for start, _ in spans)
    chunks = [len(chunk) for chunk in torch.arange(9).chunk(8)]
    # The same nine elements in an engine's flat, beside the rounding.
    [flat] = partition(nn.Linear(9, 1, bias=False), 8)
    return Finding(
        measured=f"9 elements on 8 ranks: {', '.join(map(str, sizes))}; {outside} spans begin past the end; "
        f"torch.chunk gives {len(chunks)} parts; padded to {flat.padded}: {flat.shard_numel} on each",
        borne_out=0 in sizes and sizes[: len(chunks)] == chunks,
    )


def an_import_that_fails(evidence: Evidence) -> Finding:
    """Claim 10: there is no such module, and one API over the other does not train."""
    # `fully_shard` is a function in torch.distributed.fsdp, not a module.
    missing = mistakes.failure_of_import("torch.distributed.fsdp.fully_shard")
    mixed = evidence.answers(mistakes.mix_the_two_fsdps)[0]
    return Finding(
        measured=f"the import: {missing or 'works'}; FSDP1 over FSDP2: {mixed or 'trains'}",
        borne_out=bool(missing) and bool(mixed),
    )


def fsdp1_with_offload(evidence: Evidence) -> Finding:
    """Claim 11: it pins memory for an accelerator."""
    failure = evidence.answers(mistakes.offload_with_fsdp1)[0]
    place = "with" if torch.cuda.is_available() else "without"
    return Finding(
        # The kind alone: a torch that is built for GPUs and finds none says it in other words.
        measured=f"{place} an accelerator: {failure.partition(':')[0] if failure else 'a step goes through'}",
        borne_out=bool(failure) != torch.cuda.is_available(),
        # Without an accelerator, only the failure can be observed.
        verdict=None if torch.cuda.is_available() else "open: not without an accelerator",
    )


def a_loop_that_shards(evidence: Evidence) -> Finding:
    """Claim 18: one variable for all pieces, and a copy in addition to the parameters."""
    model = models.build(MODEL)
    whole = sum(parameter.numel() for parameter in model.parameters())
    piece = mistakes.keep_one_piece(model, evidence.world_size)
    # If the loop sharded anything, there would be less afterwards, not more.
    after = sum(parameter.numel() for parameter in model.parameters()) + piece.numel()
    return Finding(
        measured=f"of {whole:,} elements it returns {piece.numel()}, where a shard has "
        f"{whole // evidence.world_size:,}; in memory afterwards: {after:,}",
        borne_out=after > whole,
    )


def fsdp1_snippet(evidence: Evidence) -> Finding:
    """Claim 19: a missing import, and a size that wraps single layers."""
    # One line is enough: after its failure nothing else in the snippet runs.
    missing = mistakes.failure_of_unknown_name("functools.partial(int)")
    wrapped = evidence.answers(mistakes.wrapped_by_size, 10_000)[0]
    # "blocks.0" is a block, "blocks.0.mlp.0" one of its layers.
    blocks = [name for name in wrapped if name.count(".") == 1]
    return Finding(
        measured=f"{missing or 'it runs'}; min_num_params=10000 wraps {len(wrapped)} modules of {MODEL}, "
        f"{len(blocks)} of them blocks",
        borne_out=bool(missing),
    )
