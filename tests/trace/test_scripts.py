"""Scripts of the kinds that people have are recorded on gloo as they are, and drawn."""

import importlib.util
from collections import Counter

import pytest
from launching import SCRIPTS, launch, losses, passes, traced

from zerolab.difference.compare import compare
from zerolab.player import page
from zerolab.recording.recording import Recording

BLOCKS = ["root", "layers.0", "layers.1", "layers.2"]
LLAMA = ["root", "model.layers.0", "model.layers.1"]
ADAPTED = "base_model.model.model.layers"

# Of each: its arguments, the modules whose forwards a step has, in order, the collectives of step 3 by unit, and the
# bytes an element of parameters, gradients and optimizer state on one of two ranks; DeepSpeed's masters are state.
DDP = 4, 4, 8
KINDS = {
    "gpt": ([], 2 * ["root", "h.0", "h.1"], {("all_reduce", None): 1}, DDP),
    "buckets": ([], ["root", *[f"module.{unit}" for unit in BLOCKS[1:]]], {("all_reduce", None): 4}, DDP),
    "cnn": (
        [],
        ["root", "conv", "bn", "layer1", "layer2", "fc"],
        # The batch norms' buffers, the gradients, and how many of the scores were right.
        {("broadcast", None): 2, ("all_reduce", None): 2},
        (4, 4, 4),
    ),
    "finetune": (
        ["FOLDER"],
        2 * LLAMA,
        {("broadcast", None): 1, ("all_reduce", None): 2, ("all_gather", None): 3},
        DDP,
    ),
    "accelerated": ([], 2 * BLOCKS, {("all_reduce", None): 3}, DDP),
    "lit": (["FOLDER"], None, None, DDP),
    "lora": (
        [],
        ["root", f"{ADAPTED}.0", f"{ADAPTED}.1"],
        {
            ("all_gather", "root frozen"): 1,
            ("all_gather", f"{ADAPTED}.0"): 2,
            ("all_gather", f"{ADAPTED}.1"): 2,
            ("reduce_scatter", f"{ADAPTED}.0"): 1,
            ("reduce_scatter", f"{ADAPTED}.1"): 1,
        },
        None,
    ),
    "ds 1": (["1"], BLOCKS, {("all_reduce", None): 2, ("all_gather", None): 1}, (4, 2, 6)),
    "ds 3": (
        ["3"],
        BLOCKS,
        {("all_gather", None): 1, ("reduce_scatter", None): 1, ("all_reduce", None): 1},
        (2, 2, 6),
    ),
    "rank0": (["FOLDER"], BLOCKS, {("broadcast", None): 2, ("all_reduce", None): 1}, DDP),
}

# What the player says of those whose model state lies where nobody tells, and how many chapters its walk has.
SAID = {
    "gpt": ("Forward: every rank has all parameters and computes on its own batch, so nothing is sent.", 8),
    "finetune": ("After the update: the ranks gather what is no parameter, such as their losses.", 8),
    "lora": (
        "Update: each rank updates only the 1/2 that it owns, so it needs optimizer state for that part alone.",
        9,
    ),
    "ds 1": ("Backward, last unit first: each gradient is added up over all ranks.", 0),
    "ds 3": ("Before the first step: what each rank keeps was not recorded.", 0),
}
STORY = """() => {
  const { story, walk } = window.zerolabPlayers[0];
  return [story.acts.map((_, i) => story.tell(i)), walk.chapters.length];
}"""


@pytest.fixture(scope="module", params=KINDS)
def kind(request, tmp_path_factory, require):
    """A script that has run twice, as it is and recorded: its name, the two processes and the recording."""
    name = request.param.split()[0]
    for package, where in {"lit": ("lightning", "test"), "ds": ("deepspeed", "deepspeed")}.items():
        if name == package:
            require(importlib.util.find_spec(where[0]), where[0], f"pip install 'zerolab[{where[1]}]'")
    folder = tmp_path_factory.mktemp(name)
    arguments = [folder if each == "FOLDER" else each for each in KINDS[request.param][0]]
    plain = launch(SCRIPTS / f"{name}.py", *arguments)
    done = traced(folder / "run.json", f"{name}.py", *arguments)
    assert done.returncode == 0, done.stderr
    return request.param, plain, done, Recording.load(folder / "run.json")


def test_it_trains_as_if_nobody_looked(kind):
    _, plain, done, _ = kind
    assert losses(done) == losses(plain)
    assert len(losses(done)) > 4


def test_its_modules_and_collectives_have_their_names(kind):
    name, _, _, recording = kind
    _, forwards, collectives, _ = KINDS[name]
    for rank in range(2):
        done = passes(recording, 2, rank)
        if collectives is not None:
            assert [unit for _, op, unit in done if op == "forward"] == forwards
            # At a barrier rank 0 has ended its step with an evaluation, and the other has not.
            not_sent = ("forward", "backward", "step", "barrier")
            assert Counter((op, unit) for _, op, unit in done if op not in not_sent) == collectives
        assert sum(op == "step" for _, op, _ in done) == 1


def test_its_model_state_is_known_to_the_byte(kind):
    name, _, _, recording = kind
    each = KINDS[name][3]
    numel = sum(unit.numel for unit in recording.units)
    for rank in recording.ranks if each else ():
        counters = rank.info.step_counters
        assert rank.state == dict(
            zip(("parameters", "gradients", "optimizer_state"), (n * numel for n in each), strict=True)
        ) | {"optimizer_state": each[2] * numel + counters}


def test_each_event_has_its_line_in_the_file_of_the_user(kind):
    _, _, _, recording = kind
    ours = {path.name for path in SCRIPTS.iterdir()}
    for rank in recording.ranks:
        for event in rank.events:
            if event.step and event.kind in ("module", "collective", "optimizer"):
                assert event.source is not None
                assert recording.sources[event.source.id].label in ours


@pytest.mark.slow
def test_it_is_drawn(kind, browser, tmp_path):
    name, _, _, recording = kind
    (tmp_path / "run.html").write_text(page(recording), encoding="utf-8")
    complaints = []
    tab = browser.new_page(viewport={"width": 1280, "height": 800})
    tab.on("console", lambda message: message.type == "error" and complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.goto((tmp_path / "run.html").as_uri() + "#view=all&events")
    drawn = [label["text"] for label in tab.evaluate("window.zerolabPlayers[0].labels()")["ownership"]]
    told, chapters = tab.evaluate(STORY)
    assert name not in SAID or SAID[name] in [(sentence, chapters) for sentence in told]
    for _ in range(40):
        tab.keyboard.press("ArrowRight")
    tab.close()
    assert complaints == []
    numel = sum(unit.numel for unit in recording.units)
    wide = [unit.name for unit in recording.units if unit.numel > numel / 10]
    # Without what the names of all have in common, which stands beside them once.
    assert [name for name in wide if not any(text and name.endswith(text) for text in drawn)] == []
    assert len(wide) > 1


@pytest.mark.slow
@pytest.mark.parametrize("script", ["finetune.py", "lit.py"])
def test_a_trainer_of_a_library_is_recorded_by_a_callback(script, tmp_path):
    done = launch(SCRIPTS / script, tmp_path, tmp_path / "run.json")
    assert done.returncode == 0, done.stderr
    recording = Recording.load(tmp_path / "run.json")
    assert (recording.info.steps, recording.info.first_step, len(recording.ranks)) == (3, 2, 2)
    assert not (tmp_path / "run.json.parts").exists()
    assert compare(tmp_path / "run.json", tmp_path / "run.json").steps == (2, 3, 4)  # fingerprints lie beside it
