"""Write the report as Markdown: a summary, then a section with tables for each part that has results.

Parts without a result share one sentence below the summary, which gives the reasons.
"""

import dataclasses
from collections.abc import Iterable

from hvdlab.gpu_report.results import (
    Check,
    Comparison,
    Fact,
    Measurement,
    PartResult,
    Report,
    State,
)

READING = """\
How to read the tables. A *check* compares results with an independent calculation: "largest difference" must
not exceed "allowed". A *measurement* gives the median of n samples, and the range from the smallest to the
largest one; "compared with" names another row of the same table, and "ratio" divides this row by that one."""


def text(report: Report) -> str:
    """Return the text of gpu.md."""
    lines = [report.headline, ""]
    if not report.gpu:
        lines += ["# GPU report, without a GPU", ""]
    lines += [
        f"Made {report.created} by `hvdlab gpu`"
        + (f", commit {report.commit}" if report.commit else "")
        + f", in {report.seconds:.0f} s of at most {report.budget_seconds:g} s.",
        "",
        "| part | result | seconds | limit | ranks | reason |",
        "|---|---|---:|---:|---:|---|",
        *(_summary(part) for part in report.parts if _has_results(part)),
        "",
        *_without_results(report),
        READING,
        "",
    ]
    if report.against:
        lines += _comparison(report)
    for part in report.parts:
        if _has_results(part) or part.output:
            lines += _section(part)
    return "\n".join(lines)


def _has_results(part: PartResult) -> bool:
    return part.state in (State.OK, State.WRONG) or bool(part.measurements)


def _without_results(report: Report) -> list[str]:
    why: dict[tuple[State, str], list[str]] = {}
    for part in report.parts:
        if not _has_results(part):
            why.setdefault((part.state, part.reason), []).append(f"`{part.name}`")
    if not why:
        return []
    groups = (
        f"{', '.join(names)} ({_emphasis(state)}{reason and ': ' + reason})"
        for (state, reason), names in why.items()
    )
    return [f"Without a result: {'; '.join(groups)}.", ""]


def _summary(part: PartResult) -> str:
    ran = part.seconds > 0
    return _row(
        f"[{part.title}](#{part.name})",
        _emphasis(part.state),
        f"{part.seconds:.0f}" if ran else "",
        f"{part.limit_seconds:.0f}",
        part.ranks,
        part.reason,
    )


def _emphasis(state: State) -> str:
    good = (State.OK, State.SKIPPED, State.WAITING, State.RUNNING)
    return str(state) if state in good else f"**{state}**"


def _section(part: PartResult) -> list[str]:
    lines = [f"## {part.name}", "", f"**{part.title}.** {part.question}", ""]
    if part.state != State.OK:
        lines += [f"Result: {_emphasis(part.state)}. {part.reason}".rstrip(), ""]
    if use := part.gpu_use:
        lines += [
            f"GPU while it ran (nvidia-smi, {use.samples} samples): {use.utilisation_percent:.0f} % busy and "
            f"{use.clock_mhz:.0f} MHz in the median; at most {use.power_watts_max:.0f} W, "
            f"{use.temperature_celsius_max:.0f} °C, {use.memory_mib_max:.0f} MiB in use.",
            "",
        ]
    for title, findings in _tables(part):
        lines += [f"**{title}**", ""] * bool(title)
        lines += [*_table(findings), ""]
    if part.output:
        lines += [
            "Last lines of its output:",
            "",
            *(f"    {line}" for line in part.output.splitlines()),
            "",
        ]
    return lines


def _tables(part: PartResult) -> Iterable[tuple[str, list]]:
    """Return (title, findings) of each table, in the order in which they were first reported."""
    tables: dict[tuple, list] = {}
    for one in part.findings:
        tables.setdefault((type(one), one.table), []).append(one)
    return ((title, found) for (_, title), found in tables.items())


def _table(findings: list) -> list[str]:
    if isinstance(findings[0], Fact):
        return ["| what | value | expected |", "|---|---|---|", *map(_fact, findings)]
    if isinstance(findings[0], Check):
        return [
            "| check | device | dtype | compared with | values | median difference | largest difference "
            "| allowed | result |",
            "|---|---|---|---|---:|---:|---:|---:|---|",
            *map(_check, _one_row_for_types(findings)),
        ]
    return [
        "| row | what | device | dtype | unit | n | median | range | compared with | ratio |",
        "|---:|---|---|---|---|---:|---:|---:|---|---:|",
        *(_measurement(number, one, findings) for number, one in enumerate(findings, 1)),
    ]


def _fact(one: Fact) -> str:
    wrong = "" if one.ok else " **(different)**"
    return _row(one.name, one.value, one.expected + wrong)


def _check(one: Check) -> str:
    result = ("ok" if one.ok else "**wrong**") + (f": {one.note}" if one.note else "")
    return _row(
        one.what, one.device, one.dtype, one.expected, f"{one.n:,}",
        _difference(one.median), _difference(one.largest), f"{one.limit:.1g}", result,
    )  # fmt: skip


def _one_row_for_types(checks: list[Check]) -> Iterable[Check]:
    """Yield the rows: checks that are fine and differ only in their type share one row."""
    rows: dict[tuple, list[Check]] = {}
    for one in checks:
        attributes = (one.what, one.device, one.expected, one.limit, one.note)
        rows.setdefault(attributes if one.ok else (id(one),), []).append(one)
    for alike in rows.values():
        yield dataclasses.replace(
            alike[0],
            dtype=", ".join(one.dtype for one in alike),
            n=sum(one.n for one in alike),
            median=max(one.median or 0.0 for one in alike) if alike[0].ok else alike[0].median,
            largest=max(one.largest or 0.0 for one in alike) if alike[0].ok else alike[0].largest,
        )


def _difference(value: float | None) -> str:
    return "none" if value is None else "0" if value == 0 else f"{value:.1e}"


def _measurement(row: int, one: Measurement, table: list[Measurement]) -> str:
    low_to_high = f"{number(one.low)} .. {number(one.high)}"
    peer = next(
        (i for i, other in enumerate(table, 1) if f"{other.what}, {other.dtype}" == one.peer), None
    )
    ratio = "" if one.ratio is None else f"{one.ratio:.2f}"
    return _row(
        row, one.what, one.device, one.dtype, one.unit, f"{one.n:,}", number(one.median), low_to_high,
        f"row {peer}" if peer else one.peer, ratio,
    )  # fmt: skip


def _comparison(report: Report) -> list[str]:
    lost = sum(one.lost for one in report.comparisons)
    lines = [
        "## Compared with the older report",
        "",
        f"Older report: {report.against}. Of {len(report.comparisons)} measurements that both reports have, "
        f"{lost} lost more than both ranges explain. A ratio divides the new median by the old one.",
        "",
        "| part | measurement | unit | now: n, median, range | before: n, median, range | ratio | |",
        "|---|---|---|---:|---:|---:|---|",
    ]
    ordered = sorted(report.comparisons, key=lambda one: not one.lost)  # losses come first
    return [*lines, *map(_compared, ordered), ""]


def _compared(one: Comparison) -> str:
    def cell(of: Measurement) -> str:
        return f"{of.n}, {number(of.median)}, {number(of.low)} .. {number(of.high)}"

    worse = "**lost**" if one.lost else ""
    return _row(
        one.part, one.what, one.unit, cell(one.now), cell(one.before), f"{one.ratio:.2f}", worse
    )


def number(value: float) -> str:
    """Return a number with about three digits; a whole number of three or more digits keeps all of them."""
    size = abs(value)
    places = 0 if size >= 100 or size == 0 else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:,.{places}f}" if size >= 0.01 or size == 0 else f"{value:.1e}"


def _row(*cells: object) -> str:
    texts = (str(cell).replace("|", "/").replace("\n", " ") for cell in cells)
    return f"| {' | '.join(texts)} |"
