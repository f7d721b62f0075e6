"""A comparison's rows as the lines of its tables: plain values in, plain values out."""

from typing import Any

from zerolab.recording.events import RankInfo
from zerolab.recording.memory import BOTH, HOST, beside_tensors, less


def summary(row: dict[str, Any]) -> dict[str, Any]:
    """A row as one line of numbers, without the terms that are zero."""
    state, formula = sum(row["state"].values()), sum(row["formula"].values())
    return {
        "stage": row["stage"],
        **row["state"],
        "state": state,
        "formula": formula,
        **{name: value for name, value in row["terms"].items() if value},
        "unexplained": state - formula - sum(row["terms"].values()),
        "sent a step": row["traffic"]["logical_bytes"],
        "first loss": row["losses"][0] if row["losses"] else None,  # a simulation has none
        "last loss": row["losses"][-1] if row["losses"] else None,
        "step_seconds": row["step_seconds"],
    }


def seconds_range(seconds: list[float] | None) -> dict[str, float]:
    """The fastest and the slowest step; empty where nothing was measured, as in a simulation."""
    return {"fastest_seconds": min(seconds), "slowest_seconds": max(seconds)} if seconds else {}


def sizes(rows: list[dict[str, Any]]) -> set[str]:
    """The columns that are bytes."""
    return {name for row in rows for name, value in row.items() if isinstance(value, int)}


def of_row(info: RankInfo) -> dict[str, Any]:
    """What a comparison's row has of a rank on a GPU, beyond what it has on a CPU."""
    if info.host_state is None:
        return {}
    figures = {"host_state": info.host_state, "host_peak": info.host_peak, "card": beside_tensors(info)}
    return {"device": info.device} | figures


def states(row: dict[str, Any], both: dict[str, Any]) -> list[dict[str, Any]]:
    """A line of a comparison, `both`, as three: the state on both devices, of which the formula speaks, and on each."""
    devices = {row["device"]: less(row["state"], row["host_state"]), HOST: row["host_state"]}
    apart = [{"device": device, **state, "state": sum(state.values())} for device, state in devices.items()]
    return [{"stage": row["stage"], "device": BOTH} | both, *apart]


def peaks(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The peak of a comparison's row: one line, and on a GPU one for each device."""
    peak, host = row["peak"], row.get("host_peak")
    line = {**peak, "peak": sum(peak.values())}
    if host is None:
        return [line]
    return [{"device": row["device"], **line, **row["card"]}, {"device": HOST, **host, "peak": sum(host.values())}]
