"""Makes anew the recordings of DeepSpeed that the package ships: python tools/deepspeed_recordings.py."""

from datetime import UTC, datetime
from importlib.metadata import version

from zerolab.files import write_json
from zerolab.lessons.deepspeed_runs import FOLDER, record_all

if __name__ == "__main__":
    for stage, recording in record_all().items():
        recording.save(FOLDER / f"{stage}.json")
    about = {"date": datetime.now(UTC).date().isoformat(), "deepspeed": version("deepspeed"), "torch": version("torch")}
    write_json(FOLDER / "about.json", about)
