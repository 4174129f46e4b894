"""The player of steps in Chromium: keys, words for screen readers, a phone, dark and light, no network."""

import csv
import functools
import re
from collections import defaultdict
from pathlib import Path

import chromium
import numpy as np
import pytest
from player_pages import PAGES

from hvdlab.course.player import Message, Player, Step
from hvdlab.exercises import lab03_noise_ball_player as noise_ball
from hvdlab.exercises.lab04_ring_player import show_deadlock
from hvdlab.launch import TimeUp
from hvdlab.launch.local import Place

axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="run `make setup`")

LABS = Path(__file__).parents[2] / "labs"
SHIPPED = {
    "right": "ring", "noise ball": "noise_ball", "negotiation": "negotiation", "growth": "growing_batch"
}  # fmt: skip
CHARTS = ["noise ball", "negotiation", "growth"]
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


@functools.cache
def page_of(name: str) -> str:
    """Return the page of a right ring, of a wrong one, of a deadlock, or of a chart."""
    if name in SHIPPED:
        return PAGES[f"_static/{SHIPPED[name]}.html"]().page()
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


@pytest.mark.parametrize("name", ["right", "wrong", "deadlock", *CHARTS])
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
        assert page.locator("svg *:not(clipPath *, [clip-path] *), pre, li").evaluate_all(inside)
        found = axe.Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        page.keyboard.press("ArrowRight")


# --- charts: what is drawn against what is recorded ---

PLACES = """() => {
  const at = element => {
    const box = element.getBoundingClientRect();
    return [(box.left + box.right) / 2, (box.top + box.bottom) / 2, box.left, box.right];
  };
  const all = selector => [...document.querySelectorAll(selector)];
  const texts = all("svg[role=img] text.axis").map(each => [each.textContent, ...at(each)]);
  const shape = kind => all(`[clip-path] .${kind}.new`).map(each => [each.className.baseVal, ...at(each)]);
  return {texts, dots: shape("dot"), crosses: shape("cross"), bars: shape("bar")};
}"""  # fmt: skip


def scales(texts):
    """Return functions from pixels to the numbers of both axes, from the positions of the ticks' texts."""
    ticks = [(float(text), x, y) for text, x, y, *_ in texts if re.fullmatch(r"-?[\d.]+", text)]
    lowest = max(y for _, _, y in ticks)
    across = [(x, value) for value, x, y in ticks if y > lowest - 3]
    up = [(y, value) for value, _, y in ticks if y <= lowest - 3]
    return [np.poly1d(np.polyfit(*zip(*pairs, strict=True), 1)) for pairs in (across, up)]


def recorded(name):
    with (LABS / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def test_points_of_the_growing_batch_are_at_the_measured_numbers(visit):
    page = visit(page_of("growth"), viewport={"width": 1000, "height": 560})
    means = defaultdict(list)
    for row in recorded("results/batch_growth.csv"):
        means[row["plan"], int(row["epoch"])].append(
            (float(row["updates"]), float(row["test_accuracy"]))
        )
    for epoch in range(1, 11):
        places = page.evaluate(PLACES)
        x, y = scales(places["texts"])
        new = [(x(a), y(b)) for _, a, b, *_ in places["dots"]]
        for plan in ("lower the rate", "grow the batch"):
            wanted = np.mean(means[plan, epoch], axis=0)
            assert any(np.allclose(point, wanted, atol=(6, 3e-4)) for point in new), (plan, epoch)
        page.keyboard.press("ArrowRight")
    assert "595 updates so far" in said(page) and page.locator("text.label").count() == 2


def test_the_points_of_sgd_are_where_the_learner_was(visit):
    page = visit(page_of("noise ball"), viewport={"width": 1000, "height": 560})
    x, y = noise_ball.examples()
    rng, w, b, path = np.random.default_rng(1), 0.0, 18.0, []
    for _ in range(15):
        for n in rng.permutation(100):
            error = w * x[n] + b - y[n]
            w, b = w - 0.01 * 2 * error * x[n], b - 0.01 * 2 * error
            path.append((w, b))
    page.keyboard.press("ArrowRight")
    places = page.evaluate(PLACES)
    across, up = scales(places["texts"])
    new = [(across(a), up(b)) for _, a, b, *_ in places["dots"]]
    assert np.allclose(new, path[1099:1200], atol=0.03)


def test_the_events_of_horovod_are_at_their_times(visit):
    page = visit(page_of("negotiation"), viewport={"width": 1000, "height": 560})
    rows = recorded("slides/negotiation.csv")
    announced, reduced = set(), set()
    for _ in range(page.evaluate("PLAYER.steps.length")):
        places = page.evaluate(PLACES)
        x, _ = scales(places["texts"])
        near = 2 * (x(1) - x(0))  # two pixels
        heights = {
            text: y for text, _, y, *_ in places["texts"][::-1]
        }  # the rows come before the ticks
        for row in rows:
            begin, middle = float(row["start"]), heights[row["shape"]]
            end = begin + float(row["milliseconds"])
            marks = {"ready 0": places["dots"], "ready 1": places["crosses"]}.get(row["phase"], [])
            if any(abs(x(a) - begin) < near and abs(b - middle) < 3 for _, a, b, *_ in marks):
                announced.add((row["phase"], row["tensor"]))
            bars = [
                (x(left), x(right)) for name, *_, left, right in places["bars"] if "green" in name
            ]
            if row["phase"] == "all-reduce" and np.allclose([(begin, end)], bars or 1e9, atol=near):
                reduced.add(row["tensor"])
        page.keyboard.press("ArrowRight")
    assert announced == {
        (row["phase"], row["tensor"]) for row in rows if row["phase"].startswith("ready")
    }
    assert reduced == {row["tensor"] for row in rows}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_colours_of_a_chart_stand_out(visit, scheme):
    page = visit(page_of("negotiation"), color_scheme=scheme)
    style = "name => getComputedStyle(document.documentElement).getPropertyValue(name).trim()"

    def luminance(name):
        digits = page.evaluate(style, f"--{name}").lstrip("#")
        parts = [int(digits[k : k + 2], 16) / 255 for k in (0, 2, 4)]
        linear = [
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        ]
        return np.dot(linear, (0.2126, 0.7152, 0.0722))

    paper = luminance("paper")
    for name in ("blue", "orange", "green", "purple", "line", "ink"):
        light, dark = sorted((paper, luminance(name)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 3, name


@pytest.mark.parametrize("width", [390, 770, 1000])
def test_a_chart_fits_into_the_frame_of_a_notebook(visit, width):
    module = noise_ball.solution
    player = noise_ball.show_noise_ball(
        module.descend, module.noise_variance, *noise_ball.examples()
    )
    page = visit(
        f"<!DOCTYPE html><title>lab</title><body style='margin:0'>{player._repr_html_()}",
        viewport={"width": width, "height": 900},
    )
    frame = page.frames[1]
    for _ in range(3):
        assert frame.evaluate("document.documentElement.scrollHeight <= innerHeight")
        frame.evaluate("go(now + 6)")


def test_a_chart_draws_its_path_unless_the_reader_wants_no_motion(visit):
    motion = "e => getComputedStyle(e).animationName"
    for preference, name in (("no-preference", "draw"), ("reduce", "none")):
        page = visit(page_of("noise ball"), reduced_motion=preference)
        assert page.locator("path.path.new").evaluate(motion) == name


def test_a_recording_that_cannot_be_drawn_is_one_sentence(visit):
    variance = noise_ball.solution.noise_variance
    page = visit(
        noise_ball.show_noise_ball(lambda *_: None, variance, *noise_ball.examples()).page()
    )
    assert page.locator("li").all_inner_texts() == [
        "For batch size 1 and learning rate 0.01 descend must return 1,501 rows (w, b) or more. "
        "It returned None."
    ]
    assert page.locator("svg").count() == 0 and page.locator("#controls").is_hidden()


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
