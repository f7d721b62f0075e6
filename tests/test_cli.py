"""The command line: a sentence and status 2 for wrong use, whole files or none."""

import io
import json
import os
import signal
import subprocess
import sys
from inspect import signature
from pathlib import Path

import pytest
import torch

import zerolab
from zerolab import Cluster, catalog, cli, doctor
from zerolab.cli import training

ROW_KEYS = [
    "stage",
    "world_size",
    "num_params",
    "precision",
    "losses",
    "state",
    "peak",
    "formula",
    "terms",
    "traffic",
    "step_seconds",
    "ranks",
]


def test_help_names_every_command_without_importing_torch() -> None:
    code = "import sys; from zerolab.cli import _parser; print(_parser().format_help(), 'torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert all(f"    {name} " in out for name in ("lab", "doctor", "compare", "record", "play", "reset", "progress"))
    assert out.rstrip().endswith("False")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["compare", "--world-size", "0"], "world size is 0"),
        (["compare", "--world-size", "-3"], "world size is -3"),
        (["compare", "--stages", "ddp,zero4"], "unknown stage 'zero4': did you mean 'zero3', 'zero2' or 'zero1'?"),
        (["compare", "--stages", ""], "no stages were named: choose from ddp"),
        (["compare", "--stages", "ddp,zero1,,ddp"], "ddp is named 2 times: name each stage once"),
        (["simulate", "--stages", "zero3,zero3"], "zero3 is named 2 times: name each stage once"),
        (["record", "--stage", "zero3", "--out", "x.json", "--options", "prefech=2"], "did you mean 'prefetch'?"),
        (
            ["record", "--stage", "fsdp2", "--out", "x.json", "--options", "foo=2"],
            "unknown option of fsdp2 'foo': choose",
        ),
        (["compare", "--model", "gpt-5"], "unknown model 'gpt-5': choose one of mlp-odd"),
        (["compare", "--steps", "1"], "steps is 1: take at least 2"),
        (["compare", "--precision", "fp8"], "unknown precision 'fp8'"),
        (["compare", "--model", "mlp-odd", "--device", "tpu"], "tpu"),
        (["compare", "--options", "overlap"], "--options has 'overlap': write name=value, such as overlap=False"),
        (["compare", "--options", "prefetch=-1"], "prefetch is -1: give a whole number of units, 0 or more"),
        (["compare", "--stages", "ddp", "--options", "overlap=maybe"], "overlap is 'maybe': pass True or False"),
        (["compare", "--options", "precision=bf16"], "unknown option of ddp 'precision'"),
        (["compare", "--options", "replicate=bias"], "replicate is 'bias': pass a test of a parameter's name"),
        (["compare", "--options", "units=head"], "units is the string 'head': pass a list of module names"),
        (["compare", "--options", "param_groups=3"], "param_groups is 3: pass a list of"),
        (["simulate", "--json", "--out", "-"], "--out is '-', which only --json takes: name a file"),
        (
            ["compare", "--json", "a-zero1.json", "--out", "a.json"],
            "--json would overwrite 'a-zero1.json', which --out",
        ),
        (["simulate", "--out", "nowhere/run.json"], "cannot write 'nowhere/run.json': its folder does not exist"),
        (["compare", "--json", "nowhere/out.json"], "cannot write 'nowhere/out.json': its folder does not exist"),
        (["record", "--stage", "zero9", "--out", "run.json"], "unknown stage 'zero9'"),
        (["record", "--stage", "ddp", "--out", "."], "cannot write '.': it is a folder; name a file in it"),
        (["play", "missing.json"], "missing.json"),
        (["play", "."], "'.'"),
        (["progress", "missing.json"], "'missing.json' is no progress file that can be read"),
    ],
)
def test_wrong_use_gets_one_sentence_and_leaves_no_file(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 2
    out, err = capfd.readouterr()
    assert err.startswith("zerolab: ")
    assert sentence in err
    assert err.count("\n") == 1
    assert out == ""
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_flag_gets_the_usage_of_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["simulate", "--speed", "9"])
    err = capsys.readouterr().err
    assert "usage: zerolab simulate" in err
    assert "unrecognized arguments: --speed 9" in err


def test_a_flag_before_the_command_that_nothing_takes_is_refused_in_a_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--json", "progress"])
    assert caught.value.code == 2
    assert "unrecognized arguments: --json" in capsys.readouterr().err


def test_the_help_of_simulate_lists_what_the_catalog_has(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["simulate", "--help"])
    words = set(capsys.readouterr().out.replace(",", " ").split())
    assert {*catalog.ARCHITECTURES, *catalog.GPUS, *catalog.LINKS} <= words


def test_the_module_is_the_command() -> None:
    command = [sys.executable, "-m", "zerolab", "--version"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert out == f"zerolab {zerolab.__version__}\n"


PYTHON_ONLY = {"batches", "loss_fn", "progress", "hardware"}  # functions and tensors
FILES = {"json", "out"}  # in Python the result has them: rows, save()


@pytest.mark.parametrize("name", ["compare", "record", "simulate"])
def test_a_command_takes_what_its_function_takes(name: str) -> None:
    (commands,) = (action.choices for action in cli._parser()._actions if isinstance(action.choices, dict))
    flags = {action.dest: action for action in commands[name]._actions if action.dest != "help"}
    taken = {key: each for key, each in signature(getattr(zerolab, name)).parameters.items() if key not in PYTHON_ONLY}
    assert set(flags) - FILES == set(taken)
    for key, parameter in taken.items():
        assert flags[key].option_strings == [f"--{key.replace('_', '-')}"]
        if parameter.default is parameter.empty:
            assert flags[key].required
        else:
            default = ",".join(parameter.default) if key == "stages" else parameter.default
            assert flags[key].default == default, key


def test_json_and_out_are_the_same_flags_everywhere() -> None:
    (commands,) = (action.choices for action in cli._parser()._actions if isinstance(action.choices, dict))
    found = {
        name: {flag: each for flag, each in parser._option_string_actions.items() if flag in {"--json", "--out"}}
        for name, parser in commands.items()
    }
    jsons = [flags["--json"] for flags in found.values() if "--json" in flags]
    having = {name for name, flags in found.items() if "--json" in flags}
    assert having == {"compare", "simulate", "fit", "doctor", "progress", "why", "diff"}
    assert {(each.nargs, each.const, each.help, each.metavar) for each in jsons} == {
        ("?", Path("-"), jsons[0].help, "FILE")
    }
    outs = {name: flags["--out"] for name, flags in found.items() if "--out" in flags}
    assert {(each.nargs, each.type, each.metavar) for each in outs.values()} == {(None, Path, "FILE")}
    assert set(outs) == {"compare", "simulate", "record", "play", "open"}


def test_options_of_an_engine_come_as_keywords() -> None:
    assert training._options(["overlap=False", "prefetch=2", "sharding_strategy=SHARD_GRAD_OP"]) == {
        "overlap": False,
        "prefetch": 2,
        "sharding_strategy": "SHARD_GRAD_OP",
    }


def test_a_simulation_prints_json_alone_and_its_recording_is_saved_and_played(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run, page = tmp_path / "run.json", tmp_path / "run.html"
    flags = ["--stages", "zero3", "--model", "gpt-tiny", "--world-size", "2"]
    assert cli.main(["simulate", *flags, "--json", "--out", str(run)]) == 0
    said = capfd.readouterr()
    assert [row["stage"] for row in json.loads(said.out)] == ["zero3"]
    assert said.err == f"recorded in {run}; zerolab play shows one\n"
    assert cli.main(["play", str(run), "--no-open"]) == 0
    assert "simulated" in page.read_text(encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.html", "run.json"]
    rows = tmp_path / "run-zero3.json"  # the name of a recording only beside those of other stages
    assert cli.main(["simulate", *flags, "--json", str(rows), "--out", str(run)]) == 0


def test_a_bandwidth_is_bytes_a_second_as_in_python_and_gigabytes_still_work(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    seconds = []
    for bandwidth in ("5e9", "5"):
        flags = ["--stages", "zero3", "--model", "gpt-tiny", "--world-size", "16", "--bandwidth", bandwidth]
        assert cli.main(["simulate", *flags, "--json", str(tmp_path / "rows.json")]) == 0
        seconds.append(json.loads((tmp_path / "rows.json").read_text())[0]["step_seconds"])
    assert seconds[0] == seconds[1]
    said = capfd.readouterr()
    assert said.out.count("zero3") == 2
    assert said.err == (
        "zerolab: --bandwidth in GB a second is now --bandwidth 5e9, in bytes as in Python; the old form will be "
        "removed in the next edition\n"
    )


def test_compare_writes_the_rows_as_json(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    flags = ["--stages", "ddp,zero3", "--world-size", "2", "--model", "mlp-odd", "--steps", "2", "--device", "cpu"]
    assert cli.main(["compare", *flags, "--json", str(out)]) == 0
    rows = json.loads(out.read_text())
    assert [row["stage"] for row in rows] == ["ddp", "zero3"]
    assert all(list(row) == ROW_KEYS for row in rows)
    assert [rank["rank"] for rank in rows[0]["ranks"]] == [0, 1]
    assert all(set(rank) == {"rank", "state", "peak", "terms"} for rank in rows[0]["ranks"])
    assert set(rows[0]["traffic"]) == {"logical_bytes", "formula_bytes", "wire_bytes"}
    said = capfd.readouterr()
    assert "unexplained" in said.out
    assert said.err == "", "how far it is, only a terminal is told"
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_a_loss_that_is_no_finite_number_is_null_in_the_json(capfd: pytest.CaptureFixture[str]) -> None:
    flags = ["--stages", "ddp", "--world-size", "1", "--model", "mlp-odd", "--steps", "3", "--device", "cpu"]
    assert cli.main(["compare", *flags, "--json", "--options", "lr=1e30"]) == 0
    (row,) = json.loads(capfd.readouterr().out, parse_constant=pytest.fail)
    assert row["losses"][0] > 0
    assert row["losses"][2] is None


def test_a_command_runs_where_stdout_and_stderr_are_closed(tmp_path: Path) -> None:
    command = f"exec {sys.executable} -m zerolab progress --json {tmp_path}/out.json >&- 2>&-"
    assert subprocess.run(["sh", "-c", command], check=False).returncode == 0
    assert "exercises" in json.loads((tmp_path / "out.json").read_text())


def test_letters_that_a_terminal_does_not_have_are_written_by_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "hang.json"
    said.write_text(json.dumps({"ranks": [0], "lines": [""], "text": "rank 0 is at größe.py"}))
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii"))
    assert cli.main(["why", str(said)]) == 0
    assert written.getvalue() == b"rank 0 is at gr\\xf6\\xdfe.py\n"


def test_a_recording_can_be_made_and_turned_into_a_page(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run, page = tmp_path / "run.json", tmp_path / "page.html"
    flags = ["--stage", "zero2", "--world-size", "2", "--model", "mlp-odd", "--steps", "2", "--device", "cpu"]
    flags += ["--precision", "bf16", "--options", "overlap=False"]
    assert cli.main(["record", *flags, "--out", str(run)]) == 0
    assert cli.main(["play", str(run), "--out", str(page), "--no-open"]) == 0
    assert page.read_text(encoding="utf-8").lstrip().lower().startswith("<!doctype html")
    assert "events of 2 ranks" in capfd.readouterr().out
    assert cli.main(["play", str(run), "--out", f"{tmp_path}/../{tmp_path.name}/run.json", "--no-open"]) == 2
    assert "would overwrite the recording" in capfd.readouterr().err
    assert zerolab.Recording.load(run).info.precision == "bf16"


def test_json_takes_no_file_that_it_was_to_read_for_the_place_of_its_result(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    dumps = [tmp_path / f"nccl_trace_rank_{rank}" for rank in range(2)]
    for dump in dumps:
        dump.write_text("a dump")
    assert cli.main(["why", "--json", *map(str, dumps)]) == 2
    assert "_rank_0': give --json last, or a name that ends in .json" in capfd.readouterr().err
    assert dumps[0].read_text() == "a dump"


def test_a_recording_of_times_only_has_no_bytes(tmp_path: Path) -> None:
    flags = ["--stage", "ddp", "--world-size", "2", "--model", "mlp-odd", "--steps", "2", "--device", "cpu"]
    assert cli.main(["record", *flags, "--times-only", "--out", str(tmp_path / "run.json")]) == 0
    recording = zerolab.Recording.load(tmp_path / "run.json")
    assert recording.info.times_only
    assert not any(event.live for event in recording.events)


def test_what_is_printed_on_the_way_is_not_among_the_json(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: print("a rank's line") or {"ok": True})
    monkeypatch.setattr(doctor, "describe", repr)
    assert cli.main(["doctor", "--json"]) == 0
    assert capfd.readouterr() == ('{\n "ok": true\n}\n', "a rank's line\n")


def test_doctor_and_progress_answer_in_json(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["torch"]
    assert cli.main(["progress", "--json"]) == 0
    assert "exercises" in json.loads(capfd.readouterr().out)


def test_a_file_that_is_not_there_is_refused_before_torch_is_imported() -> None:
    code = (
        "import sys; from zerolab import cli\n"
        "print([cli.main([command, 'missing.json']) for command in ('play', 'open', 'why')], 'torch' in sys.modules)\n"
        "print([cli.main(['fit', 'no.py:make']), cli.main(['simulate', '--world-size', '0'])], 'torch' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "[2, 2, 2] False\n[2, 2] False\n"
    assert ended.stderr.count("zerolab: 'missing.json' does not exist: check the name") == 3


def test_what_a_run_has_left_is_read_where_there_is_no_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ["--stage", "zero2", "--model", "mlp-odd", "--steps", "2", "--fingerprints", "--out", "run.json"]
    subprocess.run([sys.executable, "-m", "zerolab", "record", "--world-size", "2", *made], cwd=tmp_path, check=True)
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "100")
    with Cluster(1, device="cpu") as cluster:
        (dump,) = cluster.run(torch._C._distributed_c10d._dump_fr_trace_json)
    (tmp_path / "dump0.json").write_bytes(dump)
    code = (
        "import sys; sys.modules['torch'] = None; from zerolab import cli\n"
        "print([cli.main(words.split()) for words in sys.argv[1:]])"
    )
    commands = ["play run.json --no-open", "diff run.json run.json", "open dump0.json --no-open", "why dump0.json"]
    ended = subprocess.run(
        [sys.executable, "-c", code, *commands], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.stdout.splitlines()[-1:] == ["[0, 0, 0, 0]"], ended.stderr
    assert (tmp_path / "run.html").exists()


@pytest.mark.parametrize("arguments", [["progress"], ["progress", "--json"]])
def test_a_reader_that_has_gone_ends_a_command_silently(arguments: list[str]) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    command = [sys.executable, "-m", "zerolab", *arguments]
    ended = subprocess.run(command, stdout=writes, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writes)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, "")
