"""The two HTML pages agree with the results, fetch and run nothing, and escape a submission's strings."""

import ast
import copy
import io
import json
import os
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from hvdgrade.evidence.observation import STOP_CAUSES
from hvdgrade.output.text import plain
from hvdgrade.report import terminal
from hvdgrade.report.charts import bar_chart
from hvdgrade.report.pages import class_page, report_page
from hvdgrade.report.wording import ENDINGS

RESULTS = {
    path.stem: json.loads(path.read_text())
    for path in (Path(__file__).parents[2] / "fixtures" / "results").glob("*.json")
}
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
DRAWN = {"svg", "g", "rect", "line", "polyline", "circle", "text"}
TAGS = DRAWN | {
    *("html", "head", "meta", "title", "style", "body", "section", "article", "header", "footer"),
    *("h1", "h2", "h3", "p", "div", "span", "strong", "b", "bdi", "a", "code", "pre", "figure"),
    *("figcaption", "dl", "dt", "dd", "details", "summary", "table", "tr", "th", "td"),
    *("ul", "li", "em"),  # of the guide to failed checks
}
VOID = {"meta"}


class Page(HTMLParser):
    """Parse a page: its elements in order, its text, and whether its tags are balanced."""

    def __init__(self, text: str):
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.open, self.pieces, self.inside, self.style = [], [], [], ""
        self.feed(text)
        self.close()
        assert self.open == []
        self.text = " ".join(" ".join(self.pieces).split())

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        assert tag in DRAWN
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] == ["style"]:
            self.style += data
        else:
            self.pieces.append(data)
            if data.strip():
                self.inside.append((data, self.open[-1] if self.open else ""))

    def handle_comment(self, data):
        raise AssertionError(f"a comment: {data!r}")

    def all(self, tag: str, **wanted) -> list[dict]:
        return [a for t, a in self.elements if t == tag and wanted.items() <= a.items()]

    def shape(self) -> list:
        """Return the elements without the parts that may differ between harmless and hostile text."""
        return [(tag, sorted(attributes)) for tag, attributes in self.elements]


def result(name: str, **changes) -> dict:
    return copy.deepcopy(RESULTS[name]) | changes


def check_harmless(page: Page) -> None:
    assert {tag for tag, _ in page.elements} <= TAGS
    assert page.all("meta", content=POLICY)[0]["http-equiv"] == "Content-Security-Policy"
    for tag, attributes in page.elements:
        for name, value in attributes.items():
            assert not name.startswith("on") and name not in (
                "src",
                "srcset",
                "action",
                "xlink:href",
            )
            if name == "href":
                assert tag == "a" and value.startswith("reports/") and "/" not in value[8:]
            assert name != "style"
    assert "url(" not in page.style and "@import" not in page.style


def everything(name: str) -> tuple[Page, Page]:
    documents = [result(other) for other in RESULTS if other != name] + [result(name)]
    return Page(report_page(result(name))), Page(class_page(documents))


@pytest.mark.parametrize("name", RESULTS)
def test_pages_are_valid_and_harmless(name):
    for page in everything(name):
        check_harmless(page)
        assert page.text.count("None") == 0


# --- content ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "title", "reason"),
    [
        ("pass", "Pass", "2 consecutive epochs after 50.7 s of 73.7 s"),
        ("fail", "Not passed yet", "not reached in 157.4 s"),
        ("hang", "Not passed yet", "No rank did any work for 25 s"),
        ("not_gradable", "Not gradable: no attempt lost", "not valid Python, line 12"),
        ("grader_fault", "A fault of the grader, not yours", "the evaluation took over 300 s"),
    ],
)
def test_the_verdict_comes_first_with_its_reason(name, title, reason):
    page = Page(report_page(result(name)))
    first = page.text.index(title)
    assert page.inside[0][0].startswith(title)  # the title of the browser's tab
    body = page.text[first + len(title) :]
    document = RESULTS[name]
    assert title in body and reason in body
    if document["score"] is not None:
        assert f"{document['score']} of {document['max_score']} points" in body
        assert body.index("points") < body.index(reason) < body.index("Checks")
    else:
        assert "points" not in body and "0 of" not in body


def test_a_grader_fault_or_an_ungradable_script_has_no_points():
    for name in ("not_gradable", "grader_fault"):
        text = Page(report_page(result(name))).text
        assert "points" not in text and "fail" not in text.lower()


def test_every_check_shows_its_evidence_and_advice():
    for name in ("pass", "fail", "hang"):
        page = Page(report_page(result(name)))
        for check in RESULTS[name]["checks"]:
            for field in ("title", "rationale", "help"):
                assert check[field] in page.text
            assert f"{check['points']} of {check['max_points']} points" in page.text


def test_likely_mistakes_and_failed_checks_come_before_everything_else():
    page = Page(report_page(result("fail")))
    heads = [piece for piece, inside in page.inside if inside == "h2"]
    assert heads[:4] == ["Likely mistakes", "Failed checks", "Accuracy against time", "Checks"]
    failed = page.text[page.text.index("Failed checks") : page.text.index("Accuracy against time")]
    for check in RESULTS["fail"]["checks"]:
        assert (check["rationale"] in failed) == (check["state"] in ("fail", "partial"))
    assert "hvdlab check -np" not in page.text  # it has found something already
    assert "hvdlab check -np 2" in Page(report_page(result("hang", hints=[]))).text
    assert "Failed checks" not in Page(report_page(result("pass"))).text


def test_a_fast_run_with_unshared_work_shows_that_the_speed_was_reached():
    document = result("fail", verdict="fail")
    for check in document["checks"]:
        if check["id"] == "targets":
            check |= {"state": "pass", "points": check["max_points"]}
    assert "The accuracy was reached in time, but" in Page(report_page(document)).text


def test_the_plot_shows_each_number_at_its_position():
    document = RESULTS["fail"]
    page = Page(report_page(document))
    # Read the scales from their labels, then the marks, without the computations of the drawing code.
    shown = {piece: float(tick(page, piece)["y"]) - 4 for piece in ("0.00", "1.00")}
    seconds = {piece: float(tick(page, piece)["x"]) for piece in ("0", "100")}
    for mark, entry in zip(page.all("circle")[:-1], document["timeline"], strict=True):
        height = (float(mark["cy"]) - shown["0.00"]) / (shown["1.00"] - shown["0.00"])
        when = 100 * (float(mark["cx"]) - seconds["0"]) / (seconds["100"] - seconds["0"])
        assert height == pytest.approx(entry["train_accuracy"], abs=0.002)
        assert when == pytest.approx(entry["seconds"], abs=0.5)
    (budget,) = page.all("line", **{"class": "limit"})
    when = 100 * (float(budget["x1"]) - seconds["0"]) / (seconds["100"] - seconds["0"])
    assert when == pytest.approx(document["budget"]["seconds"], abs=0.5)
    heights = {
        round((float(a["y1"]) - shown["0.00"]) / (shown["1.00"] - shown["0.00"]), 2)
        for a in [a for a in page.all("line") if a["class"].startswith("target")]
    }
    assert heights == {0.75, 0.70}


def tick(page: Page, label: str) -> dict:
    """Return the attributes of the text element of a drawing whose text is `label`."""
    return next(a for a, text in texts(page) if text == label)


def texts(page: Page) -> list[tuple[dict, str]]:
    pieces = [piece for piece, inside in page.inside if inside == "text"]
    return list(zip(page.all("text"), pieces, strict=True))


def test_hints_are_next_to_their_lines():
    source = "\n".join(f"line_{i} = '<b>{i}</b>'" for i in range(1, 90)).encode()
    page = Page(report_page(result("fail"), source))
    for hint in RESULTS["fail"]["hints"]:
        assert squeezed(hint["text"]) in squeezed(page.text)
        if hint["line"]:
            assert f"line {hint['line']} " in page.text
            assert f"line_{hint['line']} = '<b>{hint['line']}</b>'" in page.text
    assert "the whole script" in page.text
    assert "if hvd.rank() == 0:" in [piece for piece, inside in page.inside if inside == "code"]
    odd = result("fail", hints=[{"line": 1, "topic": "x", "text": "one ` <b>"}])
    assert "one ` <b>" in Page(report_page(odd)).text


def squeezed(text: str) -> str:
    return "".join(text.replace("`", "").split())


def test_only_the_instructor_sees_flags():
    document = result("fail", flags=[{"kind": "native code", "text": "Line 3 imports ctypes."}])
    assert "ctypes" not in report_page(document)
    assert "Line 3 imports ctypes." in Page(class_page([document])).text


def test_shows_bytes_and_steps_if_they_are_known():
    page = Page(report_page(result("pass")))
    assert "steps" in page.text and "261" in page.text
    assert page.text.count("354.6 MB") == 3  # in each epoch; the counter runs through all epochs
    document = result("pass")
    for entry in document["timeline"]:
        entry |= {"steps": None, "bytes_on_wire": None}
    text = Page(report_page(document)).text
    above = text[: text.index("Checks")]
    assert " steps " not in above and " sent " not in above


def test_shows_the_stages_of_the_grading_if_they_are_known():
    stages = {"preparing": 0.4, "calibrating": 15.3, "running": 77.9, "probing": "<b>", "new": 5}
    document = result("pass")
    assert "Of these" not in report_page(document)
    document["resources"]["stages"] = stages
    assert "15.3 s to measure this machine, 77.9 s for the run</" in report_page(document)
    document["resources"]["stages"] = ["15.3"]
    assert "Of these" not in report_page(document)


@pytest.mark.parametrize(
    "calibration, run, said, budget",
    [
        (None, None, None, None),
        (
            {"fraction": 0.33},
            {"fraction": 0.002},
            "33% of the processor time in the calibration; 0%",
            "33%",
        ),
        (
            {"fraction": 0.004},
            {"fraction": 0.5},
            "0% of the processor time in the calibration; 50%",
            None,
        ),
        (
            None,
            {"fraction": None, "unknown": "<i>no</i>"},
            "not measured in the run: <i>no</i>",
            None,
        ),
        ("<b>", {"fraction": "<b>"}, None, None),
    ],
)
def test_says_what_other_programs_took(calibration, run, said, budget):
    document = result("pass")
    document["budget"]["other_work"], document["resources"]["other_work"] = calibration, run
    console = Console(file=io.StringIO(), width=400)
    terminal.show(document, console)
    page = Page(report_page(document))
    check_harmless(page)
    for text, title in (
        (page.text, "Taken by other programs"),
        (console.file.getvalue(), "Other programs took"),
    ):
        assert (title in text) == (said is not None)
        assert said is None or said in text
        less = "less the 33% of the processor time that other programs took meanwhile"
        assert (less in text) == (budget is not None)


def test_the_end_of_the_output_is_what_the_ranks_printed():
    document = result("fail")
    assert "Fatal Python error" in document["output"].splitlines()[-1]
    document["output"] += """
--------------------------------------------------------------------------
prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-node-7538@1,0]
   Exit code:    1
--------------------------------------------------------------------------
"""
    console = Console(file=io.StringIO(), width=400)
    terminal.show(document, console)
    assert "Fatal Python error" in console.file.getvalue()
    assert "prterun detected" not in console.file.getvalue()
    document["output"] = "mpirun could not start"
    terminal.show(document, console)
    assert "mpirun could not start" in console.file.getvalue()


@pytest.mark.parametrize("cause", STOP_CAUSES)
def test_every_end_of_a_run_has_its_own_sentence(cause):
    document = result("pass")
    document["resources"]["stop_cause"] = cause
    assert [end for end, said in ENDINGS.items() if said == ENDINGS[cause]] == [cause]
    assert ENDINGS[cause] in Page(report_page(document)).text


def test_says_that_data_are_synthetic():
    document = result("pass")
    assert "Synthetic" not in Page(report_page(document)).text
    document["grader"]["data"] = "synthetic CIFAR-10"
    assert "Synthetic data." in Page(report_page(document)).text
    assert "synthetic" in Page(class_page([document, result("fail")])).text


def test_shows_repetitions_near_the_threshold():
    runs = [
        {"seconds_to_target": 50.7, "budget": 51.0, "verdict": "pass"},
        {"seconds_to_target": None, "budget": 50.1, "verdict": "fail"},
        {"seconds_to_target": 49.9, "budget": 50.4, "verdict": "pass"},
    ]
    text = Page(report_page(result("pass", runs=runs))).text
    assert "Run again, to be sure" in text and "not reached" in text and "50.4" in text
    assert "Run again" not in Page(report_page(result("pass", runs=runs[:1]))).text


# --- the class --------------------------------------------------------------------------------------


def a_class() -> list[dict]:
    """Return the results of seven submissions."""
    made = []
    for i, (name, score) in enumerate(
        [("pass", 100), ("pass", 100), ("fail", 42), ("fail", 55), ("hang", 0)]
        + [("not_gradable", None), ("grader_fault", None)]
    ):
        document = result(name, score=score)
        document["submission"] |= {"id": f"s{i}", "student": f"Student {'gfedcba'[i]}"}
        made.append(document)
    return made


def test_the_class_page_counts_the_results():
    page = Page(class_page(a_class()))
    tiles = [piece.strip() for piece, inside in page.inside if inside == "b"]
    assert tiles == ["2", "3", "1", "1"]  # pass, fail, not gradable, grader fault
    assert "7 submissions" in page.text
    assert "3 never reached it" in page.text
    bars = page.all("rect", **{"class": "bar"})
    counts = [int(t) for a, t in texts(page) if "class" not in a and t.isdigit()]
    assert len(bars) == len(counts) and sorted(counts) == sorted([1, 1, 1, 2] + [2])
    assert "Median 55" in page.text


def test_bars_count_the_values_between_their_edges():
    chart = bar_chart([0, 9.9, 10, 42, 100, 100], width=10, first=0, last=100, unit="{:.0f}")
    assert [bar["count"] for bar in chart["bars"]] == [2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 2]
    tenths = bar_chart([0.3, 0.7, 1.0, 9], width=0.1, first=0, last=1.4, unit="{:.1f}", limit=1)
    full = {round(i * 0.1, 1) for i, bar in enumerate(tenths["bars"]) if bar["count"]}
    assert full == {0.3, 0.7, 1.0, 1.4}
    assert tenths["limit"] == pytest.approx(tenths["bars"][10]["edge"])
    assert tenths["bars"][-1]["text"] == "1.4+"


def test_students_are_sorted_by_name_and_linked():
    page = Page(class_page(a_class()))
    names = [piece for piece, inside in page.inside if inside == "bdi"]
    assert names == sorted(names) and len(names) == 7
    assert [a["href"] for a in page.all("a")] == [f"reports/s{i}.html" for i in range(6, -1, -1)]


def test_links_point_to_the_files_of_a_batch():
    document = result("pass", batch={"name": "Zo_~0123", "key": "k"})
    document["submission"]["id"] = "Zoë/../x"
    page = Page(class_page([document], [("Zo_~0123", "gone/?#x", 0.91)]))
    assert [a["href"] for a in page.all("a")] == [
        "reports/Zo_~0123.html",
        "reports/gone%2F%3F%23x.html",
        "reports/Zo_~0123.html",
    ]
    assert "91%" in page.text and "gone/?#x" in page.text


def test_lists_only_the_first_of_many_pairs():
    page = Page(class_page([], [(f"s{i}", "t", 1.0) for i in range(250)]))
    assert len(page.all("a")) == 400 and "And 50 more pairs." in page.text


def test_shows_where_points_were_lost():
    page = Page(class_page(a_class()))
    cells = [piece.strip() for piece, inside in page.inside if inside == "td"]
    ran = cells.index("every rank runs and records")
    assert cells[ran + 1 : ran + 3] == ["4", "1"]  # passes, then fails; empty cells have no text
    meters = [a["aria-label"] for a in page.all("svg", **{"class": "meter"})]
    assert meters[0] == "20 %"  # one of the five that were graded
    assert meters[4] == "50 %"  # partial points in two of four; the fifth was skipped


def test_warns_the_instructor():
    documents = a_class()
    documents[0]["grader"]["rules_sha256"] = "other"
    documents[1]["grader"]["sandbox"]["network_isolated"] = False
    documents[1]["grader"]["hardware"] = "another one"
    documents[2]["flags"] = documents[3]["flags"] = [{"line": 3, "what": "a large literal"}]
    text = Page(class_page(documents, warnings=["Disk nearly full."])).text
    for said in (
        "Not all were graded in the same way",
        "graded on different machines",
        "open to 1 of 5",
        "2 hold something to look at",
        "Disk nearly full.",
    ):
        assert said in text
    assert "1 ended in a fault of the grader" in text


def test_gives_no_warning_for_what_did_not_run():
    documents = a_class()
    for document in documents[5:]:
        document["grader"] |= {
            "rules_sha256": "older",
            "hardware": "a login node",
            "data": "synthetic",
        }
    text = Page(class_page(documents)).text
    for said in ("same way", "different machines", "network was open", "synthetic"):
        assert said not in text
    # Words about how the submissions were graded.
    assert "login node" not in text and "not run" not in text


def test_makes_a_page_for_an_empty_class():
    assert "0 submissions" in Page(class_page([])).text


# --- hostile text -----------------------------------------------------------------------------------

HOSTILE = [
    "<script>alert(1)</script>",
    "</pre></details></title></style></body><h1>PASS 100 of 100 points</h1>",
    "\"'><img src=x onerror=alert(1)>",
    "{{ 7 * 7 }}{% include '/etc/passwd' %}",
    "&lt;b&gt; &amp;amp; &#60;script&#62; <!-- --> <![CDATA[ ]]>",
    "javascript:alert(1)//https://example.org/x.png",
    "\u202eSSAP\u2066 \u200b\u200f\ufeff\u2028",
    "\x00\x07\x1b[31mred\x1b[0m\x9b\r\n\ud800\udfff\ufffe",
    "x" * 5000,
    "=cmd|' /C calc'!A0",
]
KEPT = {"status", "verdict", "state", "schema", "sha256"}


def filled(value, text: str, key: str = ""):
    """Return a result in which every string is `text`, except the words that control the page."""
    if isinstance(value, dict):
        return {name: filled(part, text, name) for name, part in value.items()}
    if isinstance(value, list):
        return [filled(part, text, key) for part in value]
    return text if isinstance(value, str) and value and key not in KEPT else value


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("name", RESULTS)
def test_hostile_text_is_escaped(name, hostile):
    source = "\n".join([hostile] * 100).encode("utf-8", "surrogatepass")
    shown = plain(hostile)
    expected = " ".join(shown.split())
    for make in (
        lambda text: report_page(filled(RESULTS[name], text), source),
        lambda text: class_page(
            [filled(RESULTS[name], text)], [(text, text, 1.0)], title=text, warnings=[text]
        ),
    ):
        page, calm = Page(make(hostile)), Page(make("calm"))
        check_harmless(page)
        assert page.shape() == calm.shape()
        assert page.text.count(expected) >= min(calm.text.count("calm"), 3) > 0
        assert "\u202e" not in page.text and "\x1b" not in page.text
        "".join(page.pieces).encode()  # no incomplete character is left


def test_cuts_long_output_at_its_beginning():
    output = (
        "beginning of it\n" + ("a long line " * 1000 + "\n") * 100 + "x\n" * 100 + "<b>last</b>\n"
    )
    text = report_page(result("fail", output=output))
    page = Page(text)
    assert len(text) < len(report_page(result("fail", output=""))) + 20_000
    assert "<b>last</b>" in page.text and "beginning of it" not in page.text
    assert "Only the last part is kept" in page.text
    document = ("line of text " * 9 + "\n") * 9999  # a result keeps 20,000 characters of it
    assert "Only the last part" in Page(report_page(result("fail", output=document[-20_000:]))).text
    short = Page(report_page(result("fail", output="one line\n")))
    assert "Only the last part" not in short.text and "1 line " in short.text


def places(value, path=()):
    """Yield the path to every part of a document."""
    yield from [path] if path else []
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in parts if isinstance(value, dict | list) else ():
        if isinstance(part, dict | list):
            yield from places(part, (*path, key))
        else:
            yield (*path, key)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fail", "not_gradable"])
def test_leaves_out_missing_parts(name):
    for path in places(RESULTS[name]):
        for lost in ("none", "gone"):
            document = result(name)
            *above, last = path
            holder = document
            for key in above:
                holder = holder[key]
            if lost == "none":
                holder[last] = None
            else:
                del holder[last]
            for text in (report_page(document, b"x = 1\n"), class_page([document])):
                page = Page(text)
                assert "None" not in page.text, path
    for text in (report_page({}), class_page([{}])):
        check_harmless(Page(text))


# --- in a browser -----------------------------------------------------------------------------------

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"


@pytest.mark.browser
@pytest.mark.skipif(not os.access(CHROMIUM, os.X_OK), reason=f"needs {CHROMIUM}")
def test_a_browser_fetches_and_runs_nothing_and_text_fits_the_page(tmp_path):
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="needs playwright: run `make setup`"
    )
    files = [tmp_path / "hostile.html", tmp_path / "report.html", tmp_path / "class.html"]
    files[0].write_text(report_page(filled(RESULTS["fail"], HOSTILE[2] + HOSTILE[0] + "W" * 3000)))
    files[1].write_text(report_page(result("fail")))
    files[2].write_text(class_page(a_class(), [("s0", "s1", 0.95)]))
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--headless", "--no-sandbox", "--disable-gpu"]
        )
        for file in files:
            for width in (400, 1200):
                page = browser.new_page(viewport={"width": width, "height": 800})
                asked, said = [], []
                page.on("request", lambda request, asked=asked: asked.append(request.url))
                page.on("console", lambda message, said=said: said.append(message.text))
                page.on("dialog", lambda dialog, said=said: said.append(dialog.message))
                page.goto(file.as_uri())
                assert asked == [file.as_uri()] and said == []
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                page.close()
        browser.close()


@pytest.mark.parametrize(
    "one, other",
    [
        ("Zo\u00eb", "Zoe\u0308"),  # NFC and NFD
        ("\ufb01nn", "finn"),  # a ligature
        ("Ada", "ada"),
        ("STRASSE", "stra\u00dfe"),
        ("Ada B", "Ada  B"),
        ("Ada B", "Ada\u00a0B"),
        ("Ada\u200bB", "Ada\u200eB"),  # both are replaced by U+FFFD
    ],
)
def test_students_whose_names_look_the_same_are_told_apart(one, other):
    documents = []
    for number, id in enumerate((one, other, "Bob")):
        document = result("fail", batch={"name": f"file{number}"})
        document["submission"] |= {"id": id, "student": id}
        documents.append(document)
    page = Page(class_page(documents, [("file0", "file1", 0.9), ("file1", "file2", 0.9)]))
    said = [piece for piece, inside in page.inside if inside == "p" and piece.startswith("id ")]
    assert "files file2" not in page.text
    for id, file, times in ((one, "file0", 2), (other, "file1", 3)):  # in the table and in pairs
        (remark,) = {line for line in said if line.endswith(f", files {file}")}
        assert said.count(remark) == times
        shown = " ".join(remark.split()).removeprefix("id ").removesuffix(f", files {file}")
        assert shown.isascii() and ast.literal_eval(shown) == id  # as a browser shows it


def test_names_that_differ_get_no_remark():
    assert ", files " not in Page(class_page(a_class())).text


TRACE = "".join(
    f"[1,1]<stderr>: {line}\n"
    for line in ("Traceback (most recent call last):", '  File "assessment.py"', "ValueError: <b>")
)


@pytest.mark.parametrize(
    "cause, help, output, shown",
    [
        ("crashed", "", TRACE + "[1,1]<stderr>: a later word\n", "rank 1 says: ValueError: <b>"),
        (
            "ended",
            "rank 1 says: KeyError: 'a. b'. Likely causes: (1) x. More: y",
            "",
            "rank 1 says: KeyError: 'a. b'",
        ),
        ("ended", "rank 1 says: KeyError: 3. More: y", "", "rank 1 says: KeyError: 3."),
        ("crashed", "run it", "[1,0]<stderr>: no data\n\n--- mpirun ---\n", "rank 0 says: no data"),
        ("killed", "", "[1,2]<stderr>:abort\n[1,0]<stdout>: epoch 1\n", "rank 2 says: abort"),
        ("crashed", "", "[1,0]<stderr>: [rank0]: boom\u202e", "rank 0 says: boom\ufffd"),
        ("crashed", "run it", "", ""),
        ("timeout", "", "[1,0]<stderr>: a warning\n", ""),
    ],
)
def test_the_class_page_shows_the_error_that_ended_a_submission(cause, help, output, shown):
    document = result("fail", output=output)
    document["resources"]["stop_cause"] = cause
    document["checks"][0] |= {"state": "fail", "help": help}
    page = Page(class_page([document]))
    assert [piece for piece, inside in page.inside if inside == "code"] == [shown] * bool(shown)


def test_students_with_the_same_name_have_separate_pages():
    twins = []
    for name in ("caf_xe9~1", "caf_xe9~2"):
        document = copy.deepcopy(RESULTS["pass"])
        document["submission"] |= {"id": "caf\\xe9", "student": "caf\\xe9"}
        document["batch"] = {"name": name}
        twins.append(document)
    page = class_page(twins, [("caf_xe9~1", "caf_xe9~2", 1.0)])
    for name in ("caf_xe9~1", "caf_xe9~2"):
        assert page.count(f'href="reports/{name}.html"') == 2  # in the table, and in the pair
