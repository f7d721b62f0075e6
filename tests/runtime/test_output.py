import ctypes
import io
import os
import re
import sys
import time
import warnings
from importlib.util import find_spec

import printed_lines
import psutil
import pytest
import torch.distributed as dist

from zerolab.runtime import screen as terminal
from zerolab.runtime.output import HOLD, SHOWN, Output
from zerolab.runtime.screen import LONGEST_LINE, Screen


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


def screen(text):
    """What one sees: a carriage return goes back to the start of the line, and what follows is written over it."""
    lines = []
    for line in text.split("\n"):
        seen = ""
        for part in line.split("\r"):
            seen = part + seen[len(part) :]
        lines.append(seen.rstrip())
    return lines


def test_of_a_progress_bar_the_last_state_is_shown(capsys):
    output = Output()
    output.feed(0, b"\r 10%\r 50%\r100%\n\rpart\r")
    output.finish()
    assert screen(capsys.readouterr().out) == ["[rank 0] 100%", "[rank 0] part", ""]


def test_a_progress_bar_moves_and_stays_below_the_lines_that_come_meanwhile(capsys, monkeypatch):
    monkeypatch.setattr("zerolab.runtime.output.REDRAW", 0)
    monkeypatch.setattr(terminal, "RETURN", 0)
    output, seen = Output(), ""
    steps = [
        (0, b"\r 10%|#", ["[rank 0]  10%|#"]),
        (0, b"\r 50%|#####", ["[rank 0]  50%|#####"]),
        (1, b"\r 40%|####", ["[rank 0]  50%|#####"]),
        (1, b"\n", ["[rank 1]  40%|####", "[rank 0]  50%|#####"]),
        (1, b"a\n", ["[rank 1]  40%|####", "[rank 1] a", "[rank 0]  50%|#####"]),
        (0, b"\r 9", ["[rank 1]  40%|####", "[rank 1] a", "[rank 0]  9"]),
        (0, b"\r100%\n", ["[rank 1]  40%|####", "[rank 1] a", "[rank 0] 100%", ""]),
    ]
    for rank, data, expected in steps:
        output.feed(rank, data)
        output.tick()
        seen += capsys.readouterr().out
        assert screen(seen) == expected
    output.finish()
    assert capsys.readouterr().out == ""


def test_bars_below_each_other_are_told_from_lines():
    seen, found = Screen(), []
    for data in (
        b"\r outer 0",
        b"\n\r inner 0\x1b[A",  # a bar below: down, and up again
        b"\n\r inner 1\x1b[A\r outer 1",
        b"\n\n\r third 0\x1b[A\x1b[A",
        b"\n\r        \x1b[A",
    ):
        assert seen.feed(data) == []
        found.append([bar.decode().strip() for bar in seen.bars])
    assert found == [
        ["outer 0"],
        ["outer 0", "inner 0"],
        ["outer 1", "inner 1"],
        ["outer 1", "inner 1", "third 0"],
        ["outer 1", "third 0"],
    ]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_what_tqdm_writes_of_two_bars_and_a_line_between_ends_as_lines_however_its_bytes_arrive(size, require):
    require(find_spec("tqdm"), "tqdm", "pip install 'zerolab[test]'")
    from tqdm import tqdm

    written = io.StringIO()
    with tqdm(total=2, desc="outer", file=written, mininterval=0) as outer:
        for step in range(2):
            for _ in tqdm(range(3), "inner", file=written, mininterval=0, position=1, leave=False):
                pass
            tqdm.write(f"step {step}", file=written)
            outer.update()
    data, seen, lines = written.getvalue().encode(), Screen(), []
    assert b"\x1b[A" in data
    for start in range(0, len(data), size):
        lines += seen.feed(data[start : start + size])
    first, second, last = [line.decode().strip() for line in lines + seen.rest()]
    assert (first, second, last[:12]) == ("step 0", "step 1", "outer: 100%|")


def test_a_bar_that_was_left_downwards_is_a_line_when_nobody_has_come_back_for_a_while(monkeypatch):
    seen = Screen()
    assert seen.feed(b"\r 100%\n") == seen.settle() == []
    monkeypatch.setattr(terminal, "RETURN", 0)
    assert seen.settle() == [b" 100%"]
    assert seen.feed(b"a line\n") == [b"a line"]


def test_bars_of_one_rank_stand_side_by_side_and_move_for_as_long_as_they_like(capsys, monkeypatch):
    monkeypatch.setattr("zerolab.runtime.output.REDRAW", 0)
    output, seen = Output([0, 1]), ""
    for step in range(2 * SHOWN // 500):
        output.feed(0, b"\r%500d\n\r inner\x1b[A" % step)
        seen = screen(seen + capsys.readouterr().out)[-1]
    assert seen.split() == ["[rank", "0]", str(step), "inner"], "it has not used up what a run may show"


def test_a_line_that_all_ranks_print_is_shown_once(capsys, monkeypatch):
    monkeypatch.setattr("zerolab.runtime.output.HOLD", 60)  # however slow this machine is
    output = Output([0, 1, 2])
    for rank in (2, 0, 1):
        output.feed(rank, f"epoch 1\nloss {rank}\nepoch 2\n".encode())
    output.finish()
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "[ranks 0-2] epoch 1"
    assert sorted(shown[1:-1]) == [f"[rank {rank}] loss {rank}" for rank in range(3)]
    assert shown[-1] == "[ranks 0-2] epoch 2"


def test_a_line_that_one_rank_alone_prints_first_keeps_the_others_together(capsys, monkeypatch):
    monkeypatch.setattr("zerolab.runtime.output.HOLD", 60)
    output = Output([0, 2])
    output.feed(0, b"same\n")
    output.feed(2, b"mine\nsame\n")
    output.finish()
    assert capsys.readouterr().out.splitlines() == ["[rank 2] mine", "[ranks 0, 2] same"]


def test_a_line_that_the_others_do_not_print_is_not_held_for_long(capsys):
    output = Output([0, 1])
    output.feed(0, b"only rank 0\n")
    assert capsys.readouterr().out == ""
    time.sleep(HOLD * 1.5)
    output.tick()
    assert capsys.readouterr().out == "[rank 0] only rank 0\n"


def test_in_a_stored_notebook_what_all_ranks_say_is_shown_once(capsys, monkeypatch):
    monkeypatch.setenv("ZEROLAB_STATIC", "1")
    output = Output([0, 1])
    for rank, data in ((1, b"a\nb\n"), (0, b"a\n"), (0, b"b")):
        output.feed(rank, data)
    output.finish()
    assert capsys.readouterr().out == "[ranks 0-1] a\n[ranks 0-1] b\n"


@pytest.mark.parametrize("static", ["0", "1"])
def test_what_goes_beyond_the_limit_is_counted_and_its_end_is_shown(capsys, monkeypatch, static):
    monkeypatch.setenv("ZEROLAB_STATIC", static)
    output = Output([0, 1])
    line = b"x" * 99 + b"\n"
    for _ in range(1000):
        output.feed(1, line * 100)
    output.feed(1, b"the end\n")
    output.feed(0, b"and rank 0\n")
    output.finish()
    shown = capsys.readouterr().out.splitlines()
    assert sum(map(len, shown)) < 1.1 * SHOWN
    sentence = next(text for text in shown if "left out" in text)
    left_out = int(re.search(r"\.\.\. ([\d,]+) bytes are left out here", sentence)[1].replace(",", ""))
    assert abs(left_out - (100 * 100_000 - SHOWN // 2)) < 200_000
    assert "[rank 1] the end" in shown
    assert shown.index("[rank 1] the end") > shown.index(sentence)
    assert "[rank 0] and rank 0" in shown


@pytest.mark.slow
def test_a_hundred_megabytes_of_prints_neither_block_nor_fill_memory(cluster, capsys):
    def flood():
        for _ in range(500):
            os.write(1 + dist.get_rank(), (b"y" * 99 + b"\n") * 1000)
        print("done")
        return dist.get_rank()

    before = psutil.Process().memory_info().rss
    assert cluster.run(flood) == [0, 1]
    assert psutil.Process().memory_info().rss - before < 30e6
    shown = capsys.readouterr().out
    assert len(shown) < 2 * SHOWN
    assert shown.count("left out") == 2
    assert {"[rank 0] done", "[rank 1] done"} <= set(shown.splitlines())


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
        assert printed_lines.by_rank(capsys.readouterr().out) == ["[rank 0] almost there", "[rank 1] almost there"]


ACTING = {
    "wipes, moves and rings": ("a\x1b[2J\x1b[10;10Hb\x08\x07\x0b", "ab"),
    "a title, a link, a question": ("\x1b]0;title\x07\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\\x1b[6n\x1bc", "link"),
    "in one character": ("\x9b2Ja\x9d0;title\x9cb", "ab"),
    "cut off": ("a\x1b[12", "a"),
    "a colour": ("\x1b[1;38;5;3mgold\x1b[0m and \x1b[4mmore\x1b[m", "\x1b[1;38;5;3mgold\x1b[0m and \x1b[4mmore\x1b[m"),
    "a colour without an end": ("\x1b[31mred", "\x1b[31mred\x1b[0m"),
    "tabs and other scripts": ("\tΨ π 日本", "\tΨ π 日本"),
}


@pytest.mark.parametrize(("text", "seen"), ACTING.values(), ids=ACTING)
def test_of_what_would_act_on_the_readers_terminal_only_colours_are_shown(capsys, text, seen):
    output = Output()
    output.feed(0, text.encode() + b"\n")
    output.finish()
    assert capsys.readouterr().out == f"[rank 0] {seen}\n"
