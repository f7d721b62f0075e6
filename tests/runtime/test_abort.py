"""What C++ writes as it ends a process that did not catch its exception, of both standard libraries."""

import pytest

from zerolab.runtime.faults import why_aborted

SIZES = (
    "[enforce fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 66668 vs 668. Received data "
    "size doesn't match expected size. Is there a distributed collective mismatch in your code?"
)
IN_WORDS = (
    "gloo received 66,668 bytes where it expected 668, so the ranks passed tensors of different sizes. Give "
    "the same shape on all ranks, and give recv a tensor of the shape that is sent"
)
GNU = "a line\nterminate called after throwing an instance of '{}'\n  what():  {}\n"
LLVM = "libc++abi: terminating due to uncaught exception of type {}: {}\n"


@pytest.mark.parametrize("library", [GNU, LLVM], ids=["libstdc++", "libc++"])
def test_the_cause_of_an_abort_is_read_from_what_the_library_writes(library):
    assert why_aborted(library.format("gloo::EnforceNotMet", SIZES).encode()) == IN_WORDS
    assert why_aborted(library.format("std::bad_alloc", "\x1b[2Jstd::bad_alloc").encode()) == (
        "std::bad_alloc: std::bad_alloc"
    )
    assert len(why_aborted(library.format("c10::Error", "x" * 10_000).encode())) == 300


@pytest.mark.parametrize("said", ["rv != -1. -1 vs -1. epoll_ctl: Bad file descriptor", "nfds != -1. -1 vs -1"])
def test_gloo_whose_descriptors_were_closed_is_explained(said):
    words = f"[enforce fail at /src/gloo/transport/tcp/loop.cc:174] {said}"
    assert why_aborted(GNU.format("gloo::EnforceNotMet", words).encode()).startswith("descriptors over which")


def test_without_its_words_there_is_no_cause():
    assert why_aborted(b"") == ""
    assert why_aborted(b"terminated \xff\n") == ""
