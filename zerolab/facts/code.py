"""Claims that published code makes by existing: each mistake rebuilt in a few lines of our own, and run."""

import torch
from torch import nn

from zerolab import models
from zerolab.engines.partition import partition
from zerolab.facts import mistakes
from zerolab.facts.evidence import MODEL, Evidence, Fact
from zerolab.facts.sources import BBIOON, MULTIPLE_GPUS, N1N

ODD = 71  # elements: no multiple of 2, 3 or 4


def zero1_of_any_model(evidence: Evidence) -> Fact:
    """Claim 6: the shard is a slice of padded parameters, the gradient a slice without padding."""
    # Only the last rank has padding; on all others the slices agree.
    *_, last = evidence.answers(mistakes.shard_of_padded_gradient_of_bare, ODD)
    even = evidence.answers(mistakes.shard_of_padded_gradient_of_bare, ODD + 1)
    gradient, shard, _ = last
    return Fact(
        claim="the ZeRO-1 class that is published, as a simplified one, trains any model",
        where=MULTIPLE_GPUS,
        measured=f"a parameter of {ODD} elements on {evidence.world_size} ranks: the last one has a gradient of "
        f"{gradient} for a shard of {shard}, and torch refuses it; of {ODD + 1} elements: "
        f"{'all accepted' if all(fits for *_, fits in even) else 'refused, too'}",
        verdict="false: only if N divides every parameter",
        borne_out=not last[2] and all(fits for *_, fits in even),
        how="its slicing in our own words, on the ranks",
    )


def zero3_that_trains(evidence: Evidence) -> Fact:
    """Claim 7: the first layer's backward hook is called before its weight has the gradient."""
    happened, went_through = evidence.answers(mistakes.release_in_the_modules_backward_hook)[0]
    return Fact(
        claim="the ZeRO-3 class that is published trains",
        where=MULTIPLE_GPUS,
        measured=f"in the first layer: {', '.join(happened)}, then {'no error' if went_through else 'an error'}: when "
        "the gradient arrives, the weight is a shard again",
        verdict="false: backward fails",
        borne_out=not went_through and "gradient" not in happened,
        how="its hooks in our own words, on the ranks",
    )


def swapping_data(evidence: Evidence) -> Fact:
    """Claim 8: autograd has a view of the weight, which keeps the memory."""
    found = evidence.answers(mistakes.release_by_swapping_data)[0]
    kept, later, freed = found.values()
    return Fact(
        claim="giving a parameter other data releases the gathered weight",
        where=MULTIPLE_GPUS,
        measured="memory still there: " + ", ".join(f"{when}: {_yes(there)}" for when, there in found.items()),
        verdict="false: autograd keeps it until backward",
        borne_out=kept and not later and not freed,
        how="a weak reference to the storage",
    )


def ceiling_division(_: Evidence) -> Fact:
    """Claim 9: without padding the last ranks get less or nothing, which is how FSDP2 shards rows too."""
    spans = mistakes.ceiling_spans(9, 8)
    sizes = [max(stop - start, 0) for start, stop in spans]
    outside = sum(start > 9 for start, _ in spans)
    chunks = [len(chunk) for chunk in torch.arange(9).chunk(8)]
    # The same nine elements in an engine's flat, beside the rounding.
    [flat] = partition(nn.Linear(9, 1, bias=False), 8)
    return Fact(
        claim="rounding the shard's size up, in simplified code, gives every rank its part",
        where=BBIOON,
        measured=f"9 elements on 8 ranks: {', '.join(map(str, sizes))}; {outside} spans begin past the end; "
        f"torch.chunk gives {len(chunks)} parts; padded to {flat.padded}: {flat.shard_numel} on each",
        verdict="half true: empty parts, as FSDP2 has them; a collective of equal parts needs padding",
        borne_out=0 in sizes and sizes[: len(chunks)] == chunks,
        how="its arithmetic beside torch.chunk and partition()",
    )


def an_import_that_fails(evidence: Evidence) -> Fact:
    """Claim 10: there is no such module, and one API over the other does not train."""
    # `fully_shard` is a function in torch.distributed.fsdp, not a module.
    missing = mistakes.how_import_fails("torch.distributed.fsdp.fully_shard")
    mixed = evidence.answers(mistakes.mix_the_two_fsdps)[0]
    return Fact(
        claim="FSDP2's fully_shard comes from a module of its own, and FSDP1 wraps the model on top",
        where=BBIOON,
        measured=f"the import: {missing or 'works'}; FSDP1 over FSDP2: {mixed or 'trains'}",
        verdict="false: neither works",
        borne_out=bool(missing) and bool(mixed),
        how="the import, and both APIs on the ranks",
    )


def fsdp1_with_offload(evidence: Evidence) -> Fact:
    """Claim 11: it pins memory for an accelerator."""
    failure = evidence.answers(mistakes.offload_with_fsdp1)[0]
    # Without an accelerator, only the failure can be observed.
    place, said = ("with", "true") if torch.cuda.is_available() else ("without", "open: not without an accelerator")
    return Fact(
        claim="FSDP1 with CPUOffload runs where the memory of the GPU is short",
        where=N1N,
        measured=f"{place} an accelerator: {failure or 'a step goes through'}",
        verdict=said,
        borne_out=bool(failure) != torch.cuda.is_available(),
        how="FSDP1 on the ranks",
    )


def a_loop_that_shards(evidence: Evidence) -> Fact:
    """Claim 18: one variable for all pieces, and a copy in addition to the parameters."""
    model = models.build(MODEL)
    whole = sum(parameter.numel() for parameter in model.parameters())
    piece = mistakes.keep_one_piece(model, evidence.world_size)
    # If the loop sharded anything, there would be less afterwards, not more.
    after = sum(parameter.numel() for parameter in model.parameters()) + piece.numel()
    return Fact(
        claim="the loop over the parameters that is published shards the model",
        where=BBIOON,
        measured=f"of {whole:,} elements it returns {piece.numel()}, where a shard has "
        f"{whole // evidence.world_size:,}; in memory afterwards: {after:,}",
        verdict="false: one piece of one parameter, and nothing is freed",
        borne_out=after > whole,
        how="its loop in our own words",
    )


def fsdp1_snippet(evidence: Evidence) -> Fact:
    """Claim 19: a missing import, and a size that wraps single layers."""
    # One line is enough: after its failure nothing else in the snippet runs.
    missing = mistakes.how_an_unknown_name_fails("functools.partial(int)")
    wrapped = evidence.answers(mistakes.wrapped_by_size, 10_000)[0]
    # "blocks.0" is a block, "blocks.0.mlp.0" one of its layers.
    blocks = [name for name in wrapped if name.count(".") == 1]
    return Fact(
        claim="the FSDP1 snippet that is published runs",
        where=N1N,
        measured=f"{missing or 'it runs'}; min_num_params=10000 wraps {len(wrapped)} modules of {MODEL}, "
        f"{len(blocks)} of them blocks",
        verdict="false: not until functools is imported",
        borne_out=bool(missing),
        how="a line of it in an empty file; its policy on the ranks",
    )


def _yes(there: bool) -> str:
    return "yes" if there else "no"
