"""What the page for hosts gives to paste is Python, and names what there is."""

import importlib
import re
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[2]


def test_the_hubs_configuration_names_what_there_is_and_deals_the_cards_out():
    (text,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "hosts.md").read_text("utf-8"), re.DOTALL)
    config = SimpleNamespace(Spawner=SimpleNamespace())
    exec(text.replace("/srv/zerolab", str(ROOT)), {"get_config": lambda: config})  # noqa: S102  the page's own text
    spawner = config.Spawner
    module, name = re.search(r"from ([\w.]+) import (\w+)", spawner.cmd[2]).groups()
    assert callable(getattr(importlib.import_module(module), name))
    (setting,) = spawner.args
    assert (Path(setting.partition("=")[2]) / "overrides.json").is_file()
    assert (Path(spawner.environment["JUPYTER_PATH"]) / "kernels" / "python3" / "kernel.json").is_file()
    assert (ROOT / "notebooks" / Path(spawner.default_url).name).is_file()
    cards = [spawner.environment["CUDA_VISIBLE_DEVICES"](SimpleNamespace(user=SimpleNamespace(id=k))) for k in range(8)]
    assert sorted(set(cards)) == ["0,1", "2,3", "4,5", "6,7"]
    assert cards[:4] == cards[4:]
