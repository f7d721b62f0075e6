"""The player as a notebook sees it: what it shows, what it says, and what crosses to the browser."""

import gzip
import json
import subprocess
import sys
from base64 import b64decode

import pytest
from ipywidgets.embed import dependency_state
from showing import changed

from zerolab.player import Player, payload


def test_the_text_is_the_same_every_time(recording):
    first, second = repr(Player(recording)), repr(recording.play())
    every = recording.collectives
    counted = f"{len(every)} collectives ({sum(c.step > 0 for c in every)} in steps), 5 units"
    assert first == second == f"player: zero3 on 4 ranks, recorded: 2 training steps, {counted}"


def test_a_cell_gets_the_widget_and_the_text(recording):
    data, _ = recording.play()._repr_mimebundle_()
    assert set(data) == {"application/vnd.jupyter.widget-view+json", "text/plain"}
    assert data["text/plain"].startswith("player: zero3 on 4 ranks")


def test_in_an_exported_notebook_a_cell_gets_a_frame_that_needs_no_kernel(recording, monkeypatch):
    monkeypatch.setenv("ZEROLAB_PLAYER", "iframe")
    data, _ = recording.play()._repr_mimebundle_()
    assert set(data) == {"text/html", "text/plain"}
    assert data["text/html"].startswith("<iframe ")
    assert 'sandbox="allow-scripts"' in data["text/html"]
    assert 'loading="lazy"' in data["text/html"]
    player = recording.play(walk=True)
    player.goto(11)
    assert "data-address=&quot;event=12&amp;amp;walk=1&quot;" in player._repr_mimebundle_()[0]["text/html"]


def test_a_second_player_costs_a_saved_notebook_its_recording_and_no_code(recording):
    first, second = recording.play(), recording.play()
    assert second._code is first._code
    sent = second._told.get_state()["payload"]
    assert json.loads(gzip.decompress(b64decode(sent))) == json.loads(json.dumps(payload(recording)))
    saved = dependency_state([second], drop_defaults=False)
    models = {"view": second, "told": second._told, "code": second._code}
    sizes = {name: len(json.dumps(saved[model.model_id])) for name, model in models.items()}
    assert sizes["told"] < 70_000 < sizes["code"] < 150_000
    assert sizes["view"] < 4000


def test_goto_moves_the_trait_and_refuses_an_event_that_is_not_there(recording):
    player = recording.play()
    player.goto(12)
    assert player.event == 12
    events = len(recording.events)
    with pytest.raises(ValueError, match=f"goto got event {events}, but this recording has {events} events"):
        player.goto(events)
    with pytest.raises(ValueError, match="this recording has no events to go to"):
        changed(recording, ranks=[]).play().goto(0)


def test_state_is_empty_until_a_browser_has_drawn(recording):
    assert recording.play().state() == {}


@pytest.mark.slow
def test_a_page_needs_neither_anywidget_nor_torch_distributed():
    code = (
        "import sys; sys.modules['anywidget'] = None\n"
        "from zerolab.player import page\n"
        "try:\n    from zerolab.player import Player\n"
        "except ImportError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'zerolab[lab]'" in done.stdout


def test_a_notebook_reacts_to_the_current_event(recording):
    player = recording.play()
    assert player.current == {}
    assert len(player.events) == len(recording.events)
    seen = []
    player.observe(lambda change: seen.append(change["new"]), "current")
    player.goto(400)
    assert seen == [player.events[400]]
    assert seen[0]["index"] == 400
    assert seen[0]["source"] is None or ":" in seen[0]["source"]
