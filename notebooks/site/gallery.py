"""Write the gallery of results: a chart for each claim, drawn from its results file by the browser.

A page contains the rows that were measured, and Vega-Lite aggregates them, so no number is written by hand.
"""

import csv
import json
import re
from pathlib import Path

import charts
import lab_cards
import vl_convert
import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RESULTS = ROOT / "labs/results"
SCRIPTS = "".join(
    f'<script src="{name}"></script>'
    for name in ("vega.js", "gallery_data.js", "../_static/gallery.js")
)
LICENCE = "/* Vega and Vega-Lite, BSD 3-Clause Licence: ../_static/vega_licence.txt */"


def write(folder: Path) -> None:
    """Write the pages of the gallery.

    Args:
        folder: to write to, one folder below the top of the site.
    """
    folder.mkdir()
    claims, public = _claims_and_charts()
    (folder / "index.md").write_text(_page(claims), encoding="utf-8")
    (folder / "large_scale.md").write_text(_large_scale_page(public), encoding="utf-8")


def write_scripts(folder: Path) -> None:
    """Write the scripts that the built pages load: Vega-Lite, and the charts with their rows.

    Args:
        folder: that of the built pages.
    """
    claims, public = _claims_and_charts()
    data = {
        "config": charts.CONFIG,
        "charts": {
            f"chart-{identifier(each['title'])}": {
                "rows": each["results"],
                "spec": each.get("spec") or charts.spec(each, _rows(each["results"])),
            }
            for each in claims + public
        },
        "tables": {name: _table(name) for name in {each["results"] for each in claims + public}},
    }
    script = f"const GALLERY = {json.dumps(data, sort_keys=True)};\n"
    (folder / "gallery_data.js").write_text(script, encoding="utf-8")
    bundle = vl_convert.javascript_bundle()
    (folder / "vega.js").write_text(f"{LICENCE}\n(() => {{ {bundle} }})();\n", encoding="utf-8")


def _claims_and_charts():
    texts = ((HERE / name).read_text("utf-8") for name in ("claims.yaml", "large_scale.yaml"))
    return map(yaml.safe_load, texts)


def identifier(title: str) -> str:
    """Return a title as the name of an element."""
    return re.sub(r"\W+", "-", title.lower()).strip("-")


def _text(name):
    """Return the rows of a results file as text, without its comments."""
    lines = (RESULTS / f"{name}.csv").read_text("utf-8").splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("#"))


def _rows(name):
    return list(csv.DictReader(_text(name).splitlines()))


def _table(name):
    """Return the data of a chart: the rows of a results file, and which of its columns are numbers."""
    rows = _rows(name)
    numbers = [column for column in rows[0] if all(_is_number(row[column]) for row in rows)]
    return {
        "values": _text(name),
        "format": {"type": "csv", "parse": dict.fromkeys(numbers, "number")},
    }


def _is_number(text):
    try:
        return not text or float(text) is not None
    except ValueError:
        return False


def _head(name):
    """Return what the comments of a results file say: command, machine, date and so on."""
    lines = (RESULTS / f"{name}.csv").read_text("utf-8").splitlines()
    return dict(line[2:].split(": ", 1) for line in lines if re.match(r"# \w+: ", line))


def effect(claim: dict) -> tuple[str, str, str, str] | None:
    """Return effect, measurement, number of runs and published result from labs/README.md, or None."""
    wanted = claim.get("row") or f"`{claim['results']}`"
    for line in (ROOT / "labs/README.md").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and cells[0] == str(claim["lab"]) and wanted in cells[1]:
            return tuple(cells[1:])
    if "row" in claim:
        raise ValueError(
            f"claims.yaml: labs/README.md has no effect of lab {claim['lab']}: {wanted}"
        )
    return None


def _page(claims):
    """Return the page with the charts of the course's own measurements."""
    topics = dict.fromkeys(each["topic"] for each in claims)
    buttons = "".join(
        f'<button type="button" data-topic="topic-{identifier(topic)}" aria-pressed="false">{topic}</button>'
        for topic in topics
    )
    lines = [
        "---\nhtml_theme.sidebar_secondary.remove: true\n---\n# Results",
        f"{len(claims)} measured effects of the labs. Your browser draws each chart from the rows of its "
        "results file. A point is a mean or a median, and the line through it is the spread over the runs. "
        "Point at it, or move to it with the Tab key, to read both. A diamond is the prediction of a "
        "formula. [Conditions of the measurements](../labs/README.md). [Public results of data "
        "centres](large_scale.md) continue where two cores end.",
        f'<div class="topics" role="group" aria-label="Topics"><button type="button" data-topic="" '
        f'aria-pressed="true">All</button>{buttons}</div>',
        '<div class="gallery">',
        *map(_claim, claims),
        "</div>",
        SCRIPTS,
        "```{toctree}\n:hidden:\n\nlarge_scale\n```",
    ]
    return "\n\n".join(lines) + "\n"


def _claim(claim):
    """Return the section of a claim: its chart, and next to it what was measured, published, and how."""
    head, row = _head(claim["results"]), effect(claim)
    lab = f"[](../notebooks/{lab_cards.name_of(claim['lab'])}.ipynb)"
    facts = []
    if row:
        facts += [
            ("Effect", row[0]),
            ("Measured", f"{row[1]} (n = {row[2]})" if row[2] else row[1]),
        ]
        facts += [("Published", row[3])] if row[3] else []
    facts += [("Lab", lab), ("Command", f"`{head['command']}`")]
    facts += [("Machine", f"{head['machine']}, {head['date']}")]
    facts += [
        ("Rows", f"{{download}}`{claim['results']}.csv <../labs/results/{claim['results']}.csv>`")
    ]
    return "\n".join(
        [
            f":::{{div}} claim topic-{identifier(claim['topic'])}",
            f"<h2>{claim['title']}</h2>",
            "",
            _place(claim["title"]),
        ]
        + [f"\n{name}\n: {text}" for name, text in facts]
        + [":::"]
    )


def _place(title):
    """Return the element into which the browser draws a chart."""
    name = f"chart-{identifier(title)}"
    return f'<div class="chart" id="{name}" role="group" aria-label="Chart: {title}"></div>\n'


def _large_scale_page(public):
    """Return the page with the public results of data centres."""
    lines = [(HERE / "large_scale.md").read_text("utf-8")]
    for chart in public:
        lines += [f"## {chart['title']}", chart["text"], _place(chart["title"])]
    lines.append(
        f"{SCRIPTS}\n\n## Licence and names\n\n"
        "```{include} ../labs/results/scaling_records/README.md\n"
        ':start-after: "## Licence, changes and name"\n:end-before: "## How the rows"\n'
        ":relative-docs: LICENSE\n```"
    )
    return "\n\n".join(lines) + "\n"
