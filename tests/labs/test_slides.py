"""Every deck has the slides, notes and pictures of a talk. Each slide fits the screen and is in the PDF."""

import base64
import importlib.util
import re
import subprocess
import sys
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import chromium
import player_pages
import pytest
from sphinx.errors import SphinxError

from hvdlab.course.player import Player, Step

LABS = Path(__file__).parents[2] / "labs"
DECKS = sorted((LABS / "slides").glob("[0-9][0-9]_*.md"))
each_deck = pytest.mark.parametrize("deck", DECKS, ids=lambda path: path.stem)

FEWEST, MOST = 10, 20  # slides
TALK = range(30, 46)  # minutes
LEAST_WORDS_OF_ALT = 10
# A slide counts if it shows a picture, a chart, a player, or at least three lines of code.
LEAST_COUNTED, COUNTED_LABS, LEAST_LINES = 2 / 3, range(1, 9), 3

PICTURE = re.compile(r"!\[([^\]]*)\]\((?:\.\./)?pictures/([a-z0-9_]+)\.svg\)")
NOTES = re.compile(r"^```\{revealjs-notes\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
ITEM = re.compile(r"^\* ([^$`\[{\n]+)$", re.MULTILINE)  # without formulas, code and links
CHART = re.compile(r'src="data:image/svg\+xml;base64,([^"]+)"')
SVG_TEXT = re.compile(r"<!-- (.*?) -->")  # Matplotlib writes its texts as comments, too
FRAME = re.compile(r'<iframe [^>]*src="([^"]+)"')
HEADING = re.compile(r"^##? (.+)$", re.MULTILINE)

# What each slide must keep to: its content ends above BOTTOM, and letters have SMALLEST pixels.
WIDTH, HEIGHT, BOTTOM, SMALLEST = 1280, 720, 700, 14
SMALLEST_IN_PICTURES = 12  # pixels, see test_pictures.py
MEASURE = """async () => {
  await document.fonts.ready;
  await Promise.all([...document.images].map(image => image.decode()));
  return Reveal.getSlides().map(slide => {
    const {h, v} = Reveal.getIndices(slide);
    Reveal.slide(h, v);
    const parts = [...slide.children].filter(part => !part.matches("aside"));
    const inside = [...slide.querySelectorAll("*")].filter(part => !part.closest("aside"));
    const scales = [...slide.querySelectorAll("img")].map(image => Math.min(
      image.offsetWidth / image.naturalWidth, image.offsetHeight / image.naturalHeight));
    const lines = [...slide.querySelectorAll("pre code:not(.fragment)")].map(code =>
      code.querySelectorAll("tr").length || code.textContent.trim().split("\\n").length);
    return [slide.querySelector("h1, h2").textContent,
            Math.max(...parts.map(part => part.getBoundingClientRect().bottom)),
            Math.max(...inside.map(part => part.getBoundingClientRect().right)),
            Math.min(1e9, ...scales),
            slide.querySelectorAll("img, iframe").length,
            Math.max(0, ...lines)];
  });
}"""


@dataclass(frozen=True)
class Slide:
    """A slide in the source of a deck.

    Args:
        heading: its title.
        body: what the room sees, in Markdown.
        notes: what the lecturer says; None if there are none.
    """

    heading: str
    body: str
    notes: str | None


@dataclass(frozen=True)
class Drawn:
    """A slide on a screen of 1280 x 720 pixels.

    Args:
        heading: its title.
        bottom: where its content ends, in pixels from above.
        right: where its content ends, in pixels from the left.
        scale: of its smallest picture, relative to the size at which the picture was drawn.
        pictures: how many pictures, charts and players it has.
        lines: of its longest block of code.
    """

    heading: str
    bottom: float
    right: float
    scale: float
    pictures: int
    lines: int


def slides(deck: Path) -> list[Slide]:
    """Return the slides of a deck in their order."""
    text = deck.read_text(encoding="utf-8")
    code = [range(*match.span()) for match in CODE.finditer(text)]
    starts = [
        match
        for match in HEADING.finditer(text)
        if not any(match.start() in each for each in code)  # a comment in code is no heading
    ]
    ends = [match.start() for match in starts[1:]] + [len(text)]
    found = []
    for start, end in zip(starts, ends, strict=True):
        content = text[start.end() : end]
        notes = NOTES.search(content)
        body = NOTES.sub("", content)
        found.append(Slide(start[1], body, " ".join(notes[1].split()) if notes else None))
    return found


def test_there_are_decks_and_each_belongs_to_a_lab():
    assert DECKS
    assert [deck.stem for deck in DECKS if not (LABS / f"{deck.stem}.py").exists()] == []


@each_deck
def test_a_deck_has_the_slides_of_a_talk(deck):
    found = slides(deck)
    assert FEWEST <= len(found) <= MOST
    questions = [slide for slide in found if "{container} question" in slide.body]
    assert [slide.heading for slide in questions] == ["Question for the room"]
    headings = [slide.heading for slide in found]
    assert headings.count("What you do in the lab") == 1 and headings[-1] == "Summary"
    assert len(re.findall(r"^\* ", found[-1].body, re.MULTILINE)) <= 5


@each_deck
def test_every_slide_has_notes_and_their_minutes_add_up(deck):
    first, *others = slides(deck)
    talk = re.match(r"Talk: (\d+) minutes\.", first.notes or "")
    assert talk and int(talk[1]) in TALK
    minutes = [re.match(r"\((\d+) min\) \w", slide.notes or "") for slide in others]
    without = [slide.heading for slide, found in zip(others, minutes, strict=True) if not found]
    assert without == []
    assert sum(int(found[1]) for found in minutes) == int(talk[1])


@each_deck
def test_a_deck_shows_the_pictures_of_its_lab(deck):
    shown = PICTURE.findall(deck.read_text(encoding="utf-8"))
    assert [name for _, name in shown if not (LABS / f"pictures/{name}.svg").exists()] == []
    short = [name for alt, name in shown if len(alt.split()) < LEAST_WORDS_OF_ALT]
    assert short == [], "describe these pictures for people who cannot see them"
    assert deck.read_text(encoding="utf-8").count("![") == len(shown)
    of_lab = {n for _, n in PICTURE.findall((LABS / f"{deck.stem}.py").read_text(encoding="utf-8"))}
    assert of_lab - {name for _, name in shown} == set()


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return the folder of the decks as HTML."""
    folder = tmp_path_factory.mktemp("slides")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "-b",
        "revealjs",
        LABS / "slides",
        folder,
    ]
    ended = subprocess.run(command, timeout=300, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return folder


@pytest.mark.mpi
@pytest.mark.slow
def test_a_build_writes_the_pages_that_slides_show_in_a_frame(built):
    decks = [(built / f"{deck.stem}.html").read_text(encoding="utf-8") for deck in DECKS]
    shown = [page for deck in decks for page in FRAME.findall(deck)]
    assert sorted(shown) == sorted(player_pages.PAGES)
    assert [page for page in shown if not (built / page).is_file()] == []


def test_a_player_without_a_result_ends_the_build(monkeypatch, tmp_path):
    nothing = Player("A ring", (Step("Deadlock", ("No rank reaches its next line.",)),))
    monkeypatch.setattr(player_pages, "PAGES", {"ring.html": lambda: nothing})
    with pytest.raises(SphinxError, match="ring.html: No rank reaches its next line"):
        player_pages._write(SimpleNamespace(outdir=tmp_path), None)


@pytest.mark.slow
def test_charts_show_no_results_of_a_learner(built):
    decks = [(built / f"{deck.stem}.html").read_text(encoding="utf-8") for deck in DECKS]
    charts = [base64.b64decode(chart).decode() for deck in decks for chart in CHART.findall(deck)]
    assert charts
    assert [word for chart in charts for word in SVG_TEXT.findall(chart) if "your" in word] == []


@pytest.mark.browser
@pytest.mark.slow
@chromium.NEEDED
@each_deck
def test_every_slide_fits_on_the_screen(deck, built, browser):
    page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
    page.set_default_timeout(60_000)
    messages, requests = [], []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto((built / f"{deck.stem}.html").as_uri())
    page.wait_for_function("window.Reveal && Reveal.isReady()")
    drawn = [Drawn(*values) for values in page.evaluate(MEASURE)]
    page.close()
    assert len(drawn) == len(slides(deck))
    assert [slide for slide in drawn if slide.bottom > BOTTOM or slide.right > WIDTH] == []
    small = [slide for slide in drawn if slide.scale * SMALLEST_IN_PICTURES < SMALLEST]
    assert small == [], "give these pictures the whole slide"
    counted = [slide for slide in drawn if slide.pictures or slide.lines >= LEAST_LINES]
    if int(deck.stem[:2]) in COUNTED_LABS:
        others = [slide.heading for slide in drawn if slide not in counted]
        assert len(counted) >= LEAST_COUNTED * len(drawn), f"text and tables only: {others}"
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    assert messages == []


@pytest.mark.browser
@pytest.mark.slow
@chromium.NEEDED
def test_presenters_see_the_notes_and_the_steps_of_code(built, browser):
    headings = [slide.heading for slide in slides(LABS / "slides/05_horovod.md")]
    page = browser.new_page()
    page.goto(f"{built.as_uri()}/05_horovod.html#/{headings.index('Edit 6: sharding')}")
    for _ in range(2):
        page.keyboard.press("Space")
    marked = page.locator(".present code.current-fragment .highlight-line").all_inner_texts()
    assert [line.strip("+ ").partition("=")[0] for line in marked] == ["seed"]
    with page.expect_popup() as opened:
        page.keyboard.press("s")
    opened.value.get_by_text("(2 min) Three arguments change.").wait_for(timeout=30_000)
    page.close()


@pytest.fixture(scope="module")
def printing():
    """Return the module that prints decks for the site, notebooks/site/print_slides.py."""
    path = LABS.parent / "notebooks/site/print_slides.py"
    spec = importlib.util.spec_from_file_location("print_slides", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def print_in_thread(printing, folder):
    """Print the decks of a folder; a thread has one Playwright, and this one has that of `browser`."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(printing.print_slides, folder).result()


@pytest.fixture(scope="module")
def printed(built, printing):
    """Return the folder of the decks as PDF."""
    print_in_thread(printing, built)
    return built


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.timeout(900)
@chromium.NEEDED
@each_deck
def test_the_pdf_has_a_page_with_the_text_of_each_slide(deck, printed):
    pypdf = pytest.importorskip("pypdf", reason="needs pypdf: run `make setup`")
    pages = [page.extract_text() for page in pypdf.PdfReader(printed / f"{deck.stem}.pdf").pages]
    found = slides(deck)
    assert len(pages) == len(found)
    for page, slide in zip(pages, found, strict=True):
        assert letters(slide.heading) in letters(page)
        missing = [item for item in ITEM.findall(slide.body) if letters(item) not in letters(page)]
        assert missing == [], slide.heading


def letters(text: str) -> str:
    """Return only the letters and digits of a text: a PDF has ligatures, other spaces, and no marks."""
    return re.sub(r"[\W_]", "", unicodedata.normalize("NFKC", text))


@pytest.mark.browser
@chromium.NEEDED
def test_a_pdf_with_too_few_pages_is_an_error(tmp_path, printing):
    script = (
        "window.Reveal = {getTotalSlides: () => 3}; document.dispatchEvent(new Event('pdf-ready'))"
    )
    (tmp_path / "01_deck.html").write_text(f"<p>one page</p><script>{script}</script>")
    message = "01_deck.pdf has 1 pages, but the deck has 3 slides"
    with pytest.raises(printing.MissingPages, match=message):
        print_in_thread(printing, tmp_path)
