"""Two pages for a browser: the report of one submission, and the instructor's page of a class.

    report_page(document, source)     one submission, for its author
    class_page(documents, similar)    all of them, for the instructor

Each page is one file. Its content security policy forbids it to load or to run anything. Text from a
submission is only data: `plain` removes characters that could disguise text, and Jinja escapes the rest.
"""

from collections import Counter
from functools import cache
from pathlib import Path
from statistics import median

from jinja2 import ChainableUndefined, Environment, FileSystemLoader

from hvdgrade.output.text import as_text, decimal, end_of, in_bytes, is_number, line_of, plain
from hvdgrade.report.budget import budget_rule, delay, other_work
from hvdgrade.report.charts import accuracy_chart, bar_chart
from hvdgrade.report.class_rows import error_line, told_apart
from hvdgrade.report.explanations import WHERE, explanation, page_of_mistake
from hvdgrade.report.wording import (
    OUTCOMES,
    file_of,
    graded_with,
    id_of,
    items,
    link,
    outcome,
    part,
    part_of_budget,
    run,
    sandbox,
    state,
    states_by_check,
    subtitle,
    warnings_of,
    why,
    with_sent,
)
from hvdgrade.result_document import CheckPart, ResultDocument

FAILED = ("fail", "partial", "error")  # states of checks that a page shows first


def report_page(document: ResultDocument, source: bytes | None = None) -> str:
    """Return the HTML page of one submission.

    Args:
        source: the submitted script. If it is given, each hint is shown next to its line. Default: None.
    """
    output = end_of(document.get("output"))
    document = plain(document)
    grader, resources = part(document, "grader"), part(document, "resources")
    timeline, budget = with_sent(items(document, "timeline")), part(document, "budget")
    late = delay(document)
    checks = [shown_check(check, late.explained) for check in items(document, "checks")]
    lines = [line.decode("utf-8", "replace") for line in (source or b"").splitlines()]
    hints = [
        hint
        | {
            "source": line_of(lines, hint.get("line")),
            "link": page_of_mistake(hint.get("mistake")),
        }
        for hint in items(document, "hints")
    ]
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            document=document | {"runs": items(document, "runs")},
            timeline=timeline,
            outcome=outcome(document),
            why=why(document),
            synthetic="synthetic" in str(grader.get("data")).lower(),
            chart=accuracy_chart(timeline, budget.get("seconds"), part(document, "targets")),
            budget_rule=budget_rule(budget),
            known={
                "steps": any(is_number(entry.get("steps")) for entry in timeline),
                "bytes": any(is_number(entry["sent"]) for entry in timeline),
            },
            late=late.text,
            failed=[check for check in checks if check["state"]["css"] in FAILED],
            passed=[check for check in checks if check["state"]["css"] == "pass"],
            skipped=[check for check in checks if check["state"]["css"] == "skipped"],
            hints=hints,
            run=run(resources, other_work(document)),
            sandbox=sandbox(grader),
            output=output,
        )
    )


def shown_check(check: CheckPart, delay_is_explained: bool) -> dict:
    """Return what the page of a submission shows of a check; a failed one gets its section of the guide."""
    shown = state(check.get("state"))
    title = check.get("title") or check.get("id") or "a check"
    help = WHERE.sub("", str(check.get("help") or ""))
    if help and delay_is_explained and check.get("id") == "targets":
        help = f"If the script is late again without other programs: {help}"
    return check | {
        "state": shown,
        "title": title,
        "help": help,
        "evidence": as_text(check.get("evidence")),
        "explanation": explanation(title) if shown["css"] in FAILED else None,
    }


def class_page(
    documents: list[ResultDocument],
    similar: list[tuple[str, str, float]] = (),
    *,
    title: str = "Assessment of the class",
    warnings: list[str] = (),
    reports: str = "reports",
) -> str:
    """Return the HTML page of all submissions, for the instructor.

    Args:
        warnings: sentences that the instructor must see, in addition to those of the page itself.
        reports: folder of the reports `NAME.html`, relative to the page.
    """
    links = {file_of(document): link(reports, file_of(document)) for document in documents}
    rows = [
        {
            "name": part(shown, "submission").get("student") or id_of(shown),
            "link": links[file_of(document)],
            "outcome": outcome(shown),
            "score": shown.get("score"),
            "seconds": shown.get("seconds_to_target"),
            "file": file_of(document),
            "why": "" if shown.get("verdict") == "pass" else why(shown),
            "error": "" if shown.get("verdict") == "pass" else error_line(document),
            "late": delay(shown).text,
            "flags": items(shown, "flags"),
            "left_out": part(shown, "submission").get("left_out") or [],
        }
        for document, shown in ((document, plain(document)) for document in documents)
    ]
    names = {row["file"]: str(row["name"]) for row in rows}
    apart = told_apart(names, {file_of(document): id_of(document) for document in documents})
    documents = [plain(document) for document in documents]
    return (
        environment()
        .get_template("class.html.j2")
        .render(
            title=plain(title),
            subtitle=subtitle(documents),
            **class_numbers(documents),
            warnings=[plain(warning) for warning in [*warnings, *warnings_of(documents)]],
            similar=[
                {
                    "one": names.get(one) or plain(one),
                    "other": names.get(other) or plain(other),
                    "one_apart": apart.get(one),
                    "other_apart": apart.get(other),
                    "one_link": links.get(one) or link(reports, one),
                    "other_link": links.get(other) or link(reports, other),
                    "percent": f"{similarity:.0%}",
                }
                for one, other, similarity in similar
            ],
            apart=apart,
            rows=sorted(rows, key=lambda row: str(row["name"]).casefold()),
            graded_with=graded_with(documents),
        )
    )


def class_numbers(documents: list[ResultDocument]) -> dict:
    """Return what the macros of class_parts.html.j2 show.

    Args:
        documents: the results, as `plain` returns them.
    """
    found = Counter(outcome(document)["word"] for document in documents)
    graded = [d for d in documents if d.get("status") == "graded" and is_number(d.get("score"))]
    scores = [100 * d["score"] / d["max_score"] for d in graded if is_number(d.get("max_score"), 1)]
    parts = [p for p in map(part_of_budget, graded) if p is not None]
    return {
        "tiles": [
            {"css": css, "sign": sign, "word": word, "count": found[word]}
            for css, sign, word, _ in OUTCOMES.values()
        ],
        "scores": scores and bar_chart(scores, width=10, first=0, last=100, unit="{:.0f}"),
        "median_score": median(scores) if scores else None,
        "times": parts and bar_chart(parts, width=0.1, first=0, last=1.4, unit="{:.1f}", limit=1.0),
        "never": len(graded) - len(parts),
        "checks": states_by_check(graded),
    }


@cache
def environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=ChainableUndefined,
        finalize=lambda value: "" if value is None else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"decimal": decimal, "bytes": in_bytes}
    return made
