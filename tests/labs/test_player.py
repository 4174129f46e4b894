"""The player of steps in Chromium: keys, words for screen readers, a phone, dark and light, no network."""

import re
from pathlib import Path

import chromium
import pytest

from hvdlab.course.player import TEMPLATE, Message, Player, Step
from hvdlab.exercises.lab04_ring_player import show_deadlock
from hvdlab.launch import TimeUp
from hvdlab.launch.local import Place

axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="run `make setup`")

RING = Path(__file__).parents[2] / "labs/slides/_static/ring.html"
CODE = (
    "def both_send_first(comm):",
    "    comm.Send(np.zeros(131_072), dest=1 - comm.rank)",
    "    </script>",
)
WRONG = Step(
    "Step 1 of 1",
    ("Rank 0 sends chunk 0 (value 1) to rank 1, which adds it to its chunk 1: the wrong chunk.",),
    (("1", "2"), ("10", "21")),
    (Message(0, 1, start=0, into=1, length=1, label="1", wrong=True),),
)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    chromium.NEEDED,
]


def page_of(name: str) -> str:
    """Return the page of a right ring, of a wrong one, or of a deadlock."""
    if name == "right":
        steps = re.search("const PLAYER = .*", RING.read_text(encoding="utf-8"))[0]
        template = TEMPLATE.read_text(encoding="utf-8")
        return template.replace("const PLAYER = null; // STEPS", steps)
    if name == "wrong":
        return Player("A <wrong> ring", (WRONG, WRONG), (0, 1, 2)).page()
    places = tuple(Place(rank, "is in `comm.Send`", CODE, 1) for rank in range(2))
    return show_deadlock(TimeUp("time is up", places)).page()


@pytest.fixture
def visit(browser, tmp_path):
    """Return a function that opens a page without a network. No page may complain or ask for a network."""
    contexts, complaints = [], []

    def note(request):
        if not request.url.startswith(("file:", "data:", "about:srcdoc")):
            complaints.append(request.url)

    def open_page(text, **options):
        contexts.append(browser.new_context(offline=True, **options))
        page = contexts[-1].new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", note)
        path = tmp_path / "page.html"
        path.write_text(text, encoding="utf-8")
        page.goto(path.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def said(page) -> str:
    return page.locator("[aria-live=polite]").inner_text()


def test_keys_and_the_slider_move_the_step(visit):
    page = visit(page_of("right"))
    assert said(page).startswith("Start") and page.locator("#back").is_disabled()
    for key, title in (
        ("ArrowRight", "Step 1 of 6"),
        ("ArrowRight", "Step 2 of 6"),
        ("ArrowLeft", "Step 1 of 6"),
        ("End", "Result"),
        ("ArrowRight", "Result"),
        ("Home", "Start"),
    ):
        page.keyboard.press(key)
        assert page.locator("#title").inner_text() == title
    page.locator("#slider").focus()
    page.keyboard.press("ArrowRight")  # one step, not one of the slider and one of the page
    assert page.locator("#slider").get_attribute("aria-valuetext") == "Step 1 of 6"
    page.locator("#slider").fill("3")
    assert "Rank 1 sends chunk 3 (value 4044) to rank 2, which adds it." in said(page)
    label = page.locator("svg[role=img]").get_attribute("aria-label")
    assert label.startswith("Rank 0 holds 1, 2222, 3303, 4004. Rank 1 holds 11,")
    assert page.locator("svg .arrow").count() == 4
    sent = page.locator("svg .sent").evaluate_all("all => all.map(each => each.textContent)")
    assert sent == ["3303", "4044", "111", "2220"]
    page.locator("#next").focus()
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    page.keyboard.press("Tab")
    assert page.evaluate(outline) == "solid"


def test_space_plays_the_steps_unless_the_reader_wants_no_motion(visit):
    page = visit(page_of("right"))
    page.keyboard.press("Space")
    assert page.locator("#play").inner_text() == "Pause"
    page.wait_for_function("document.getElementById('title').textContent === 'Step 2 of 6'")
    page.keyboard.press("Space")
    assert page.locator("#play").inner_text() == "Play"
    assert page.evaluate("timer") is None
    assert page.locator(".arrow").first.evaluate("e => getComputedStyle(e).animationName") == "draw"
    page = visit(page_of("right"), reduced_motion="reduce")
    page.keyboard.press("Space")
    assert page.evaluate("timer") is None and said(page).startswith("Step 1 of 6")
    assert page.locator("#play").is_hidden()
    assert page.locator(".arrow").first.evaluate("e => getComputedStyle(e).animationName") == "none"


def test_a_chunk_that_is_added_to_another_one_is_marked(visit):
    page = visit(page_of("wrong"))
    assert page.locator("h1").inner_text() == "A <wrong> ring"
    assert page.locator("g.wrong .arrow").count() == 1
    assert page.locator("rect.bad").count() == 1
    x = "e => e.x.baseVal.value"
    cells = page.locator("rect.cell")
    assert page.locator("rect.bad").evaluate(x) == cells.nth(3).evaluate(x)  # rank 1, chunk 1
    assert "the wrong chunk" in page.locator("li.alarm").inner_text()


def test_a_deadlock_shows_the_line_of_each_rank_side_by_side(visit):
    page = visit(page_of("deadlock"), viewport={"width": 1000, "height": 560})
    lines = page.locator("pre .waits")
    assert lines.all_inner_texts() == [f"2 {CODE[1]}"] * 2
    one, other = (lines.nth(n).bounding_box() for n in range(2))
    assert one["y"] == other["y"] and one["x"] + one["width"] <= other["x"]
    assert page.locator("h2").all_inner_texts() == [
        "Rank 0 waits in line 2",
        "Rank 1 waits in line 2",
    ]
    assert "Rank 1 waits in line 2: comm.Send(np.zeros(131_072), dest=1 - comm.rank)" in said(page)
    assert page.locator("#controls").is_hidden()


@pytest.mark.parametrize("name", ["right", "wrong", "deadlock"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 564, 1000])
def test_a_page_fits_and_is_accessible(visit, name, scheme, width):
    page = visit(
        page_of(name),
        viewport={"width": width, "height": 700},
        color_scheme=scheme,
        reduced_motion="reduce",
    )
    light = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert light == (scheme == "light")
    for _ in range(3):
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        sizes = page.locator("svg text").evaluate_all(
            "all => all.map(e => parseFloat(getComputedStyle(e).fontSize) * e.getCTM().a)"
        )
        assert min([12, *sizes]) >= 12
        inside = "all => all.every(e => e.getBoundingClientRect().right <= innerWidth)"
        assert page.locator("svg *, pre, li").evaluate_all(inside)
        found = axe.Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        page.keyboard.press("ArrowRight")


def test_the_frame_of_a_notebook_needs_no_kernel_and_cannot_reach_the_notebook(visit):
    player = Player("A ring", (WRONG, WRONG), (0, 1, 2))
    page = visit(f"<!DOCTYPE html><title>lab</title>{player._repr_html_()}")
    assert page.locator("iframe").get_attribute("title") == "A ring"
    frame = page.frames[1]
    frame.locator("#next").click()
    assert frame.locator("#slider").input_value() == "1"
    blocked = "() => { try { return parent.document.title; } catch (e) { return e.name; } }"
    assert frame.evaluate(blocked) == "SecurityError"


def test_the_page_that_is_written_is_the_page_that_is_shown(tmp_path):
    player = Player("A ring", (WRONG,), (0, 1, 2))
    player.write(tmp_path / "ring.html")
    assert (tmp_path / "ring.html").read_text(encoding="utf-8") == player.page()
