"""Turns measurements into the table on the screen, the JSON file and the targets. Measures nothing."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.staging import TRANSPORTS, Measurement

if TYPE_CHECKING:
    from pathlib import Path

#: Least rate of the SQL transport as a multiple of the server's alone.
SERVER_TARGETS = {
    "W1": 0.75,
    "W2": 0.6,
    "W3": 0.65,
    "W4": 1.3,
    "W5": 0.5,
    "W6": 0.6,
    "W7": 0.6,
    "W8": 0.6,
}
#: The same as a multiple of pg_recvlogical's, for the workloads that have such a target.
CLIENT_TARGETS = {"W1": 4.0, "W2": 1.5, "W3": 8.0, "W4": 2.5, "W5": 3.0}
#: Least rate of the walsender transport as a multiple of pg_recvlogical's.
WALSENDER_TARGET = 0.9
PEAK_TARGET_MIB = 512
#: Least rows per second of the decoder alone, on one core.
DECODER_TARGETS = {"W1": 2_000_000, "W2": 500_000}
#: Least speed of the initial copy as a multiple of psql's, by psql's form.
COPY_TARGETS = {"psql_text": 1.0, "psql_binary": 0.7}
#: Of the table of taxi trips.
COPY_CPU_TARGET = 900_000
COPY_PEAK_TARGET_MIB = 256
#: Least speed of apply as a multiple of the bare MERGE's, on a table of 100 M rows.
APPLY_TARGETS = {"10k": 15.0, "10k recent": 15.0, "1M": 4.0}


@dataclass(frozen=True, slots=True)
class Verdict:
    """One target and what was measured."""

    case: str
    target: str
    wanted: float
    measured: float
    met: bool


def staging_case(rows: int, measured: dict[str, Measurement]) -> dict[str, Any]:
    """The figures of one workload by contender, as they stand in the JSON file."""
    rates = {name: rows / one.seconds for name, one in measured.items()}
    case: dict[str, Any] = {"rows": rows}
    for name, one in measured.items():
        case[name] = {
            "rows_per_s": rates[name],
            "rows_per_cpu_s": rows / one.cpu_seconds if one.cpu_seconds else None,
            "rows_per_cpu_s_with_server": with_server(rows, one),
            "peak_mib": one.peak_mib,
            "seconds": one.seconds,
            "ratio_to_pg_recvlogical": ratio(rates, name, "pg_recvlogical"),
            "ratio_to_server": ratio(rates, name, "server"),
        }
    return case


def with_server(rows: int, one: Measurement) -> float | None:
    """Rows per CPU second of reader and server together: what other load on the machine changes least."""
    if not one.server_cpu_seconds:
        return None
    return rows / (one.server_cpu_seconds + (one.cpu_seconds or 0))


def ratio(rates: dict[str, float], name: str, other: str) -> float | None:
    """How many times as fast; None when the other did not take part."""
    return rates[name] / rates[other] if other in rates else None


def verdicts(result: dict[str, Any]) -> list[Verdict]:
    """Every target that the run has a figure for."""
    found: list[Verdict] = []

    def least(case: str, target: str, wanted: float, measured: float | None) -> None:
        if measured is not None:
            found.append(Verdict(case, target, wanted, measured, measured >= wanted))

    for name, case in result["staging"].items():
        if sql := case.get("sql"):
            if name in CLIENT_TARGETS:
                measured = sql["ratio_to_pg_recvlogical"]
                least(f"{name} sql", "x pg_recvlogical", CLIENT_TARGETS[name], measured)
            least(f"{name} sql", "x server alone", SERVER_TARGETS[name], sql["ratio_to_server"])
        if walsender := case.get("walsender"):
            measured = walsender["ratio_to_pg_recvlogical"]
            least(f"{name} walsender", "x pg_recvlogical", WALSENDER_TARGET, measured)
        for transport in TRANSPORTS:
            if transport in case:
                peak = case[transport]["peak_mib"]
                met = peak < PEAK_TARGET_MIB
                label = f"{name} {transport}"
                found.append(Verdict(label, "MiB at most", PEAK_TARGET_MIB, peak, met))
    for name, case in result.get("decoder", {}).items():
        least(f"decoder {name}", "rows/s", DECODER_TARGETS[name], case["rows_per_s"])
    for name, case in result.get("large", {}).items():
        peak = case["peak_mib"]
        met = peak < PEAK_TARGET_MIB
        found.append(Verdict(f"5 GB {name}", "MiB at most", PEAK_TARGET_MIB, peak, met))
    for name, case in result.get("copy", {}).items():
        for psql, wanted in COPY_TARGETS.items():
            least(f"copy {name}", f"x {psql}", wanted, case[psql]["times_as_slow_as_ours"])
        if name == "trips":
            least(f"copy {name}", "rows/CPU s", COPY_CPU_TARGET, case["copy"]["rows_per_cpu_s"])
        peak = case["copy"]["peak_mib_per_connection"]
        met = peak < COPY_PEAK_TARGET_MIB
        found.append(Verdict(f"copy {name}", "MiB/connection", COPY_PEAK_TARGET_MIB, peak, met))
    for name, case in result["apply"].items():
        least(f"apply {name}", "x bare MERGE", APPLY_TARGETS[name], case["ratio_to_merge"])
    return found


def table(result: dict[str, Any]) -> str:
    """Everything side by side, for a terminal."""
    lines = [
        (
            f"{'case':<5} {'reader':<15} {'rows/s':>11} {'rows/CPU s':>11} {'with server':>11}"
            f" {'peak MiB':>9} {'x pg_recvlogical':>17} {'x server':>9}"
        )
    ]
    for name, case in result["staging"].items():
        for reader, one in ((key, value) for key, value in case.items() if key != "rows"):
            lines.append(
                f"{name:<5} {reader:<15} {number(one['rows_per_s'])} {number(one['rows_per_cpu_s'])}"
                f" {number(one['rows_per_cpu_s_with_server'])}"
                f" {number(one['peak_mib'], 9)} {fraction(one['ratio_to_pg_recvlogical'], 17)}"
                f" {fraction(one['ratio_to_server'], 9)}"
            )
    if result.get("copy"):
        lines += [
            "",
            f"{'copy of':<7} {'reader':<12} {'rows/s':>11} {'rows/CPU s':>11} {'seconds':>9}",
        ]
    for name, case in result.get("copy", {}).items():
        for reader, one in ((key, value) for key, value in case.items() if isinstance(value, dict)):
            lines.append(
                f"{name:<7} {reader:<12} {number(one['rows_per_s'])} {number(one['rows_per_cpu_s'])}"
                f" {one['seconds']:>9.2f}"
            )
    if result["apply"]:
        lines += ["", f"{'apply':<10} {'seconds':>9} {'bare MERGE':>11} {'times as fast':>14}"]
    for name, one in result["apply"].items():
        lines.append(
            f"{name:<10} {one['seconds']:>9.2f} {one['merge_seconds']:>11.2f}"
            f" {one['ratio_to_merge']:>14.2f}"
        )
    if result["apply"]:
        lines.append(
            "The targets of apply are set for a table of 100 M rows, which this one has at scale 1."
        )
    lines += ["", f"{'target':<16} {'':<17} {'wanted':>8} {'measured':>11}"]
    for each in result["targets"]:
        lines.append(
            f"{each['case']:<16} {each['target']:<17} {each['wanted']:>8g} {each['measured']:>11,.2f}"
            f"  {'met' if each['met'] else 'MISSED'}"
        )
    return "\n".join(lines)


def number(value: float | None, width: int = 11) -> str:
    """A whole number with separators, or a dash."""
    return f"{'-' if value is None else f'{value:,.0f}':>{width}}"


def fraction(value: float | None, width: int) -> str:
    """A ratio with two decimals, or a dash."""
    return f"{'-' if value is None else f'{value:.2f}':>{width}}"


def finish(result: dict[str, Any], path: Path) -> dict[str, Any]:
    """Add the verdicts and write the JSON file."""
    complete = {**result, "targets": [dataclasses.asdict(each) for each in verdicts(result)]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(complete, indent=1) + "\n")
    return complete
