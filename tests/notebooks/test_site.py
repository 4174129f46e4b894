"""The site: every link and picture exists, it needs no network, and its pages work in Chromium and for axe.

The tests build the site once, with the outputs of the two labs that run in seconds.
"""

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
from bs4 import BeautifulSoup

from hvdlab.course.experiment import reference
from hvdlab.course.large_batch_tables import best_rates, tuned

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: run `make setup`")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="run `make setup`")

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
FOREIGN = re.compile(r"""(url\(|@import)\s*["']?https?:""")
RUN = ["01_why_many_gpus", "02_gradient_descent"]
PHONE = 360  # pixels
READ_BY_AXE = """
    index labs reference labs/calculators/README installation slides instructors grader commands/hvdlab_run
    notebooks/02_gradient_descent notebooks/solutions/02_gradient_descent notebooks/12_ddp_and_sharding
    labs/README labs/glossary assessment/README api/hvdlab.schedules
    try/index try/memory try/ring results/index results/large_scale mistakes/index 404
""".split()
# What a page has drawn: pictures without pixels, formulas without a box or with an error, and its width.
DRAWN = """() => {
    for (const hidden of document.querySelectorAll("details")) hidden.open = true;
    const box = e => e.getBoundingClientRect();
    return {
        pictures: [...document.images].filter(i => !i.naturalWidth).map(i => i.src.slice(0, 99)),
        formulas: [...document.querySelectorAll("math")]
            .filter(m => !box(m).width || m.querySelector("merror")).map(m => m.textContent),
        width: document.documentElement.scrollWidth,
        scrolled: [...document.querySelectorAll(".bd-article-container")]
            .map(a => a.scrollWidth).filter(w => w > document.documentElement.clientWidth),
    };
}"""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not os.access(CHROMIUM, os.X_OK), reason=f"needs {CHROMIUM}"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Return the folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    done = make_site("--out", "html", "--run", *RUN, cwd=folder, timeout=800)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return folder / "html"


def make_site(*arguments, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, ROOT / "notebooks/site/make_site.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, **options)


@pytest.mark.parametrize("out", [".", "notes.txt"])
def test_a_build_replaces_nothing_but_a_site(out, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    done = make_site("--out", out, cwd=tmp_path, timeout=120)
    assert done.returncode == 2
    assert f"--out: {out} is not an empty folder and not a site" in done.stderr
    assert (tmp_path / "notes.txt").read_text() == "mine"


@functools.cache
def names(page: Path) -> set[str]:
    """Return the names that a link may point to."""
    return {element["id"] for element in parsed(page).find_all(id=True)}


@functools.cache
def parsed(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


def pages(site: Path) -> list[Path]:
    """Return every page; `_static` has templates of the theme, which no page links to."""
    return sorted(path for path in site.rglob("*.html") if "_static" not in path.parts)


def test_every_link_and_file_of_the_site_exists(site):
    missing = []
    for page in pages(site):
        elements = parsed(page).find_all(lambda element: element.get("href") or element.get("src"))
        addresses = {element.get("href") or element["src"] for element in elements}
        for address in addresses:
            link = urlsplit(address)
            if link.scheme:
                continue
            target = page.parent / unquote(link.path) if link.path else page
            target = target / "index.html" if target.is_dir() else target
            wanted = unquote(link.fragment) if target.suffix == ".html" else ""
            if not target.exists() or (wanted and wanted not in names(target)):
                missing.append(f"{page.relative_to(site)}: {address}")
    assert missing == []


def test_no_page_loads_anything_from_another_host(site):
    for page in pages(site):
        for element in parsed(page).find_all(["script", "link", "img", "iframe", "source"]):
            address = element.get("src") or element.get("href") or ""
            assert element.get("rel") == ["canonical"] or urlsplit(address).scheme in (
                "",
                "data",
            ), page
            if element.get("rel") == ["stylesheet"]:
                style = page.parent / unquote(urlsplit(address).path)
                assert not FOREIGN.search(style.read_text(encoding="utf-8")), style


def test_the_course_can_be_fetched_with_or_without_a_public_address(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "notebooks/site")
    import pages

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.count("git clone ADDRESS") == 1
    given = pages._with_address(readme, {"Repository": "https://example.org/course"}, tmp_path)
    assert "    git clone https://example.org/course course && cd course\n" in given
    assert "ADDRESS" not in given and not list(tmp_path.iterdir())
    given = pages._with_address(readme, {}, tmp_path)
    assert (
        "    tar xzf course.tar.gz && cd course\n    make lab " in given and "ADDRESS" not in given
    )
    with tarfile.open(tmp_path / "course.tar.gz") as archive:
        assert {"course/Makefile", "course/docker/setup.sh"} <= set(archive.getnames())


def test_no_link_shows_the_name_of_a_file(site):
    shown = [
        (str(page.relative_to(site)), link.text)
        for page in pages(site)
        for link in parsed(page).select("article a")
        if re.fullmatch(r"[\w/.-]+\.(md|html|ipynb)|README", link.text.strip())
    ]
    assert shown == []


def test_pages_name_the_version_and_no_folder_of_the_builder(site):
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    for page in pages(site):
        text = page.read_text(encoding="utf-8")
        assert f"{ROOT}/" not in text, page
        if "slides" not in page.parts and "calculators" not in page.parts:
            assert f"Course {version}" in parsed(page).select_one("footer .course-version").text, (
                page
            )


def test_a_second_build_takes_the_outputs_of_the_first(tmp_path):
    spec = importlib.util.spec_from_file_location("executed", ROOT / "notebooks/site/executed.py")
    executed = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(executed)
    ran = []
    for source, printed in (
        ("print(1 + 1)", "2\n"),
        ("print(1 + 1)", "2\n"),
        ("print(1 + 2)", "3\n"),
    ):
        cell = nbformat.v4.new_code_cell(source)  # with a new id
        executed.run({"sum": nbformat.v4.new_notebook(cells=[cell])}, tmp_path, ran.append)
        assert cell.outputs[0].text == printed
    assert ran == ["sum", "sum"]


def test_learners_see_the_outputs_and_not_the_solutions(site):
    learner, solved = (
        parsed(site / f"notebooks/{folder}02_gradient_descent.html")
        for folder in ("", "solutions/")
    )
    assert 'raise NotImplementedError("Lab 2, exercise 1' in learner.text
    assert "raise NotImplementedError" not in solved.text
    outputs = [len(page.select(".cell_output img")) for page in (learner, solved)]
    assert outputs[0] == outputs[1] > 5
    for picture in learner.select(".cell_output img, article img"):
        assert len(picture.get("alt", "").split()) >= 8, picture.get("src", "")[:80]
    assert len(learner.select("details.sd-dropdown")) >= 5  # answers of the self-check questions
    doors = learner.select("article a[href*='solutions/']")
    assert doors and all(link.find_parent("details") for link in doors)
    for page in pages(site):
        assert "BEGIN SOLUTION" not in page.read_text(encoding="utf-8"), page


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


def test_pages_draw_everything_offline_and_fit_a_phone(site, browser):
    context = browser.new_context(viewport={"width": PHONE, "height": 800}, offline=True)
    page, said = context.new_page(), []
    page.on("console", lambda m: said.append((page.url, m.text)) if m.type != "log" else None)
    page.on("pageerror", lambda error: said.append((page.url, str(error))))
    page.on("requestfailed", lambda request: said.append((page.url, request.url, request.failure)))
    faults, formulas = {}, 0
    for path in pages(site):
        if path.parent.name == "slides":
            continue  # tests/labs/test_slides.py
        page.goto(path.as_uri())
        drawn = page.evaluate(DRAWN)
        formulas += page.locator("math").count()
        wide = drawn.pop("width") > PHONE
        if wide or any(drawn.values()):
            faults[str(path.relative_to(site))] = {"wider than a phone": wide, **drawn}
    context.close()
    assert faults == {}
    # An icon is loaded after the page, and the next page may come first.
    assert [one for one in said if one[-1] != "net::ERR_ABORTED"] == []
    assert formulas > 1000


def test_the_search_finds_a_lab_without_a_server(site, browser):
    page = browser.new_context(offline=True).new_page()
    page.goto((site / "search.html").as_uri() + "?q=Remedies+for+large+batches")
    found = page.locator("ul.search li a", has_text="Remedies for large batches").first
    found.wait_for(timeout=30_000)
    page.locator("#search-results p.search-summary", has_text="Search finished").wait_for()
    links = [link.get_attribute("href") for link in page.locator("ul.search li a").all()]
    page.context.close()
    assert any("notebooks/07_large_batch_remedies" in link for link in links)
    assert [link for link in links if "/solutions/" in link] == []


def test_the_search_finds_the_cause_of_a_symptom_first(site, browser):
    page = browser.new_context(offline=True).new_page()
    page.goto((site / "search.html").as_uri() + "?q=my+script+hangs")
    page.locator("#search-results p.search-summary", has_text="Search finished").wait_for()
    links = [link.get_attribute("href") for link in page.locator("ul.search li a").all()]
    page.context.close()
    first = [urlsplit(link).path for link in links[:6]]
    assert "assessment/failed_checks.html" in first
    assert "mistakes/collective-on-some-ranks.html" in first


def test_a_calculator_keeps_its_inputs_in_the_address_of_the_site(site, browser):
    page = browser.new_context(offline=True).new_page()
    page.goto((site / "try/memory.html").as_uri() + "#parameters=13")
    calculator = page.frame_locator("iframe.whole-page")
    field = calculator.get_by_label("Parameters")
    sync_api.expect(field).to_have_value("13")
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    sync_api.expect(calculator.locator("html")).to_have_class(re.compile(r"\bdark\b"))
    field.fill("7")
    page.wait_for_url("**parameters=7&**")
    page.get_by_role("link", name="All calculators and players").click()
    sync_api.expect(page.get_by_role("heading", level=1)).to_contain_text("Try it in the browser")
    page.context.close()


def points(page, chart) -> list[str]:
    """Return what the points of a chart say to a screen reader, after it was scrolled into view."""
    place = page.locator(f"#{chart}")
    place.scroll_into_view_if_needed()
    found = place.locator(".mark-symbol.role-mark path[tabindex]")
    found.first.wait_for(state="attached")
    return [point.get_attribute("aria-label") for point in found.all()]


def test_the_gallery_draws_what_was_measured(site, browser):
    page, errors = browser.new_context(offline=True).new_page(), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda m: errors.append(m.text) if m.type in ("error", "warning") else None)
    page.goto((site / "results/index.html").as_uri())
    charts = [place.get_attribute("id") for place in page.locator(".chart").all()]
    assert len(charts) > 30
    said = {chart: points(page, chart) for chart in charts}
    assert [chart for chart, texts in said.items() if len(texts) < 2] == []
    # Compared with what the labs compute from the same files.
    names = ["SGD", "Adam", "AdamW", "LARS", "LARC", "LAMB", "NovoGrad", "Muon"]
    best = tuned(reference("large_batch_optimizers"), names).groupby("optimizer")["test_accuracy"]
    steps = best_rates(reference("steps_to_goal")).groupby("batch_size")["steps"]
    expected = {
        "chart-optimizers-for-a-large-batch": best,
        "chart-steps-to-a-goal-and-critical-batch-size": steps,
    }
    for chart, groups in expected.items():
        numbers = {
            re.search(r"(\S+): ", text)[1]: (float(re.search(r": ([\d.]+)", text)[1]), text)
            for text in said[chart]
        }
        assert numbers.keys() == {str(name) for name in groups.groups}
        for name, group in groups:
            number, text = numbers[str(name)]
            assert number == pytest.approx(group.mean(), rel=6e-3)
            assert f"mean of {len(group)}, standard deviation" in text
    page.locator("#chart-optimizers-for-a-large-batch path[tabindex]").first.focus()
    tip = page.locator("#vg-tooltip-element")
    sync_api.expect(tip).to_have_text(said["chart-optimizers-for-a-large-batch"][0])
    page.get_by_role("button", name="Pipelines").click()
    shown = [each for each in page.locator(".claim").all() if each.is_visible()]
    assert 0 < len(shown) < 6
    page.context.close()
    assert errors == []


def test_public_results_follow_the_choice_of_a_network(site, browser):
    page = browser.new_context(offline=True).new_page()
    page.goto((site / "results/large_scale.html").as_uri())
    before = points(page, "chart-training-against-the-batch-size")
    assert any("67,840" in text and "110 million images" in text for text in before)
    page.get_by_label("Network").select_option("BERT")
    page.locator(
        "#chart-training-against-the-batch-size path[aria-label*='sequences']"
    ).first.wait_for(state="attached")
    for chart in page.locator(".chart").all():
        assert len(points(page, chart.get_attribute("id"))) > 2
    page.context.close()


@pytest.mark.parametrize(
    ("scheme", "names", "options"),
    [
        ("light", READ_BY_AXE, {"resultTypes": ["violations"]}),
        # The pages are the same but for their colours, and these have all kinds of coloured parts.
        (
            "dark",
            [
                "index",
                "labs/calculators/README",
                "notebooks/02_gradient_descent",
                "api/hvdlab.schedules",
                "results/index",
            ],
            {"resultTypes": ["violations"], "runOnly": ["color-contrast", "link-in-text-block"]},
        ),
    ],
    ids=["light", "dark"],
)
def test_axe_finds_no_obstacle(site, browser, scheme, names, options):
    context = browser.new_context(offline=True, color_scheme=scheme)
    page, found = context.new_page(), []
    for name in names:
        page.goto((site / f"{name}.html").as_uri())
        for violation in axe.Axe().run(page, options=options).response["violations"]:
            nodes = [node["html"][:160] for node in violation["nodes"][:2]]
            found.append((name, violation["id"], violation["impact"], nodes))
    context.close()
    # "minor": the tables of pandas have a corner without a name.
    assert [each for each in found if each[2] != "minor"] == []
