"""An opened file in the browser: what it lacks is said, and no sentence makes it up."""

import made
import pytest
from tabs import Complaints

from zerolab import Recording

pytestmark = pytest.mark.browser


@pytest.fixture
def show(tabs, tmp_path):
    """Opens files as a page; gives the page and the player's sentence for each event."""
    complaints, tab = Complaints(), tabs.take(height=900)
    complaints.listen(tab.on)

    def show(*paths):
        Recording.open(*paths).to_html(tmp_path / "page.html")
        tab.goto((tmp_path / "page.html").as_uri())
        player = "window.zerolabPlayers[0]"
        tab.evaluate(f"{player}.tellEvents(true)")
        said = tab.evaluate(f"{player}.events.map((_, at) => ({player}.goto(at), {player}.state().caption))")
        return tab, said

    yield show
    complaints.listen(tab.remove_listener)
    tabs.give_back(tab)
    assert complaints == []


def test_a_trace_says_where_it_comes_from_and_what_is_not_in_it(show, tmp_path):
    tab, said = show(*(made.write(tmp_path / f"t{r}.json", made.trace(made.nccl_bars(), r)) for r in (0, 1)))
    assert "from a trace of torch.profiler" in tab.locator(".zl-facts").inner_text()
    tab.locator(".zl-lacks summary").click()
    assert "bytes of memory, and who holds what" in tab.locator(".zl-lacks ul").inner_text()
    gathers = [sentence for sentence in said if "gathered layers.0" in sentence]
    assert gathers
    assert all("it sent 128 bytes" in sentence and "of GPU time" in sentence for sentence in gathers)


def test_a_collective_of_which_the_size_is_unknown_is_not_said_to_send_nothing(show, tmp_path):
    bars = [bar for bar in made.nccl_bars() if bar["name"] != "record_param_comms" and bar["cat"] != "kernel"]
    group = {"pg_name": "0", "ranks": [0, 1]}
    shared = {"backend": "nccl", "rank": 0, "world_size": 2, "pg_config": [group]}
    _, said = show(made.write(tmp_path / "t0.json", made.trace(bars, distributedInfo=shared)))
    sized = [sentence for sentence in said if "its size was not recorded" in sentence]
    assert len(sized) == 4
    assert not any("0 bytes" in sentence or "0 elements" in sentence for sentence in said)


def test_a_dump_of_a_hang_says_what_had_not_ended(show, tmp_path):
    entries = [made.entry(1), made.entry(2, state="started")]
    _, said = show(made.write(tmp_path / "rank0.pickle", made.dump(entries, world_size=2)))
    assert said[-1] == "Rank 0 asked for all reduce #2 of 128 elements: it had not ended when the dump was made."


def test_a_snapshot_opens_with_its_bytes_and_claims_nothing_else(show, tmp_path):
    tab, said = show(made.write(tmp_path / "rank0.pickle", made.snapshot()))
    assert tab.evaluate("window.zerolabPlayers[0].shown") == "memory"
    assert said[-1] == "Rank 0: 2,560 bytes are allocated, of all tensors together"
    assert "holds everything" not in tab.locator("body").inner_text()
