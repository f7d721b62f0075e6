import ctypes
import os
import sys
import warnings

import torch.distributed as dist

from zerolab.runtime.output import LONGEST_LINE, Output


def test_lines_are_shown_as_soon_as_they_are_complete_with_their_rank_in_front(capsys):
    output = Output()
    output.feed(1, b"epoch 1, lo")
    assert capsys.readouterr().out == ""
    output.feed(0, b"epoch 1\n")
    output.feed(1, b"ss 2.3\nepoch 2\nend")
    assert capsys.readouterr().out == "[rank 0] epoch 1\n[rank 1] epoch 1, loss 2.3\n[rank 1] epoch 2\n"
    output.finish()
    assert capsys.readouterr().out == "[rank 1] end\n"


def test_in_a_stored_notebook_everything_is_shown_at_the_end_grouped_by_rank(capsys, monkeypatch):
    monkeypatch.setenv("ZEROLAB_STATIC", "1")
    output = Output()
    for rank, data in ((1, b"a\n"), (0, b"b\n"), (1, b"c\n"), (0, b"d")):
        output.feed(rank, data)
    assert capsys.readouterr().out == ""
    output.finish()
    assert capsys.readouterr().out == "[rank 0] b\n[rank 0] d\n[rank 1] a\n[rank 1] c\n"


def test_of_a_progress_bar_the_last_state_is_shown(capsys):
    output = Output()
    output.feed(0, b"\r 10%\r 50%\r100%\n\rpart\r")
    output.finish()
    assert capsys.readouterr().out == "[rank 0] 100%\n[rank 0] part\n"


def test_a_line_without_end_is_shown_in_pieces_and_bytes_that_are_no_text_do_no_harm(capsys):
    output = Output()
    output.feed(0, b"x" * (LONGEST_LINE + 1))
    assert len(capsys.readouterr().out) > LONGEST_LINE
    output.feed(0, b"\xff\xfe\n")
    assert capsys.readouterr().out == "[rank 0] \ufffd\ufffd\n"


def test_python_and_native_output_of_a_rank_arrive_in_the_order_it_was_written(cluster, capsys):
    def write():
        if dist.get_rank() == 0:
            print("from print")
            warnings.warn("from warnings", stacklevel=1)
            os.write(2, b"from native stderr\n")
            print("to stderr", file=sys.stderr)
            os.system("echo from a shell")  # noqa: S605
            ctypes.CDLL(None).puts(b"from native stdout")  # C may keep it in its own buffer until the function returns

    cluster.run(write)
    lines = [line for line in capsys.readouterr().out.splitlines() if "stacklevel" not in line]
    assert lines[0] == "[rank 0] from print"
    assert lines[1].endswith("UserWarning: from warnings")
    assert lines[2:] == [
        "[rank 0] from native stderr",
        "[rank 0] to stderr",
        "[rank 0] from a shell",
        "[rank 0] from native stdout",
    ]


def test_prints_before_an_error_are_shown(cluster, capsys):
    def fail():
        print("almost there")
        raise ValueError

    try:
        cluster.run(fail)
    except RuntimeError:
        assert sorted(capsys.readouterr().out.splitlines()) == ["[rank 0] almost there", "[rank 1] almost there"]
