"""The calculators in Chromium, from the file system and without a network: numbers, inputs, messages, layout.

The formulas in JavaScript are compared with hvdlab and with the solutions of the labs for random inputs.
"""

import random
import re
from pathlib import Path

import chromium
import numpy as np
import pytest
from calculator_inputs import FORMULAS, memory_input, network_and_plan
from lab_functions import solution

from hvdlab.course.experiment import reference
from hvdlab.scaling import Link, published
from hvdlab.scaling.memory import training_memory

FOLDER = Path(__file__).parents[2] / "labs/calculators"
NAMES = ("memory", "scaling", "batch", "pipeline")
CASES, PHONE = 200, 360
each_page = pytest.mark.parametrize("name", NAMES)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    chromium.NEEDED,
]


@pytest.fixture
def visit(browser):
    """Return a function that opens a page without a network. No page may complain or ask for a network."""
    contexts, complaints = [], []

    def note(request):
        if not request.url.startswith(("file:", "data:")):
            complaints.append(request.url)

    def open_page(name, fragment="", **options):
        contexts.append(browser.new_context(offline=True, **options))
        page = contexts[-1].new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", note)
        page.goto(f"{FOLDER.as_uri()}/{name}.html{fragment}")
        page.locator(".chart svg").first.wait_for(state="attached")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def fill(page, name, value):
    page.locator(f"#{name}").fill(str(value))


# --- formulas ---------------------------------------------------------------------------------------


@each_page
def test_the_formulas_agree_with_those_of_the_course(visit, name):
    draw, expected, script = FORMULAS[name]
    r = random.Random(f"calculator {name}")
    inputs = [draw(r) for _ in range(CASES)]
    found = visit(name).evaluate(f"inputs => inputs.map({script})", inputs)
    for x, numbers in zip(inputs, found, strict=True):
        np.testing.assert_allclose(numbers, expected(x), rtol=1e-9, atol=1e-12, err_msg=str(x))


def test_a_split_is_refused_if_the_course_refuses_it(visit):
    r = random.Random(1)
    inputs = []
    for _ in range(CASES):
        x = memory_input(r) | {"ranks": r.randint(1, 60), "heads": r.choice((1, 2, 4, 8, 12))}
        inputs.append(x | {"layers": r.randint(1, 12)})
    page = visit("memory")
    refused = page.evaluate("inputs => inputs.map(input => memoryProblem(input) !== null)", inputs)
    assert {True, False} == set(refused)
    for x, no in zip(inputs, refused, strict=True):
        try:
            training_memory(*network_and_plan(x))
        except ValueError:
            assert no, x
        else:
            assert not no, x


# --- presets ----------------------------------------------------------------------------------------

# Key and value heads, and the width of the feed-forward network, of the networks that are not like GPT:
# Llama Team 2024, table 3.
LLAMA_3 = {8: (8, 14336), 70: (8, 28672), 405: (8, 53248)}


def test_the_presets_of_networks_have_the_parameters_of_their_shapes(visit):
    presets = visit("memory").evaluate("MEMORY_PRESETS")
    assert len(presets) >= 7
    for preset in presets:
        x = preset["values"]
        h, layers = x["hiddenSize"], x["layers"]
        if preset["name"].startswith("Llama 3"):
            kv, width = LLAMA_3[x["parameters"]]
            counted = layers * (2 * h * h * (1 + kv / x["heads"]) + 3 * h * width)
            counted += 2 * x["vocabulary"] * h
        else:
            counted = 12 * layers * h * h + (x["vocabulary"] + x["sequence"]) * h
        assert counted / 1e9 == pytest.approx(x["parameters"], rel=0.025), preset["name"]
        assert h % x["heads"] == 0 and preset["link"].startswith("https://")


def test_the_presets_of_lab_18_are_those_of_its_cluster(visit):
    cluster = published.pascal_cluster(*published.FITTED)
    presets = {
        each["name"]: each["values"] for each in visit("scaling").evaluate("SCALING_PRESETS")
    }
    for name in ("VGG-16", "ResNet-101"):
        network, x = published.NETWORKS[name], presets[f"{name}, Pascal GPUs, 25 Gbit/s"]
        assert x["gradientBytes"] * 1e6 == pytest.approx(4 * network.parameters, rel=0.005)
        assert x["compute"] / 1e3 == pytest.approx(network.compute, rel=0.005)
        assert Link(x["networkLatency"] / 1e6, x["networkBandwidth"] * 1e9) == cluster.network
        assert Link(x["insideLatency"] / 1e6, x["insideBandwidth"] * 1e9) == cluster.inside
        assert x["perHost"] == cluster.ranks_per_host
    resnet = visit("batch").evaluate("BATCH_PRESETS[0].values")
    assert resnet["speed"] == published.NETWORKS["ResNet-101"].images_per_second
    assert resnet["sMin"] == 90 * 1.28e6 / resnet["bCrit"]


@pytest.mark.parametrize(
    ("preset", "network", "small", "large"),
    [
        ("ResNet-50 on ImageNet, A100", "ResNet-50", "r0795", "r0786"),
        ("GPT-3 from a checkpoint, H100", "GPT-3", "r1412", "r1403"),
    ],
)
def test_the_presets_of_public_runs_are_those_of_the_shipped_rows(
    visit, preset, network, small, large
):
    presets = {each["name"]: each["values"] for each in visit("batch").evaluate("BATCH_PRESETS")}
    points = reference("scaling_records/convergence_points").query("network == @network")
    batches, examples = points["batch"].values, points["examples"].values
    least, critical = solution(6, "fit_law")(batches, examples)
    runs = reference("scaling_records/results").set_index("id")
    speeds = (runs["examples_per_second"] / runs["accelerators"])[[small, large]]
    x = presets[preset]
    assert x["bCrit"] == pytest.approx(critical, rel=0.002)
    assert x["sMin"] == pytest.approx(least / critical, rel=0.002)
    assert x["speed"] == pytest.approx(speeds[small], rel=0.001)
    assert x["efficiency"] == pytest.approx(100 * speeds[large] / speeds[small], abs=0.5)


# --- pages ------------------------------------------------------------------------------------------

CHANGES = {  # an input, a value in the unit of its field, and how it stands in the link
    "memory": ("microBatch", "3"),
    "scaling": ("networkBandwidth", "0.5"),
    "batch": ("bCrit", "777"),
    "pipeline": ("microBatches", "5"),
}


def drawn(page):
    """Return what the page shows: its charts, its sentence, its tables."""
    return page.locator(".chart, #result, #headline, tbody").evaluate_all(
        "all => all.map(each => each.innerHTML)"
    )


@each_page
def test_an_input_changes_the_drawing_and_the_link_restores_it(visit, name):
    page = visit(name)
    before, (field, value) = drawn(page), CHANGES[name]
    fill(page, field, value)
    after = drawn(page)
    assert all(old != new for old, new in zip(before, after, strict=True)), "each part changes"
    fragment = page.evaluate("location.hash")
    assert f"{field}={value}" in fragment
    assert drawn(visit(name, fragment)) == after
    page.get_by_role("button", name="Reset").click()
    page.wait_for_function(
        "old => document.getElementById('result').innerHTML !== old", arg=after[1]
    )
    assert drawn(page) == before


@each_page
def test_a_screen_reader_gets_words_and_a_keyboard_reaches_all_inputs(visit, name):
    page = visit(name)
    assert page.locator("#result[aria-live=polite]").inner_text().count(" ") > 15
    for label in page.locator(".chart svg[role=img]").evaluate_all(
        "all => all.map(each => each.getAttribute('aria-label'))"
    ):
        assert len(label.split()) >= 15 and "undefined" not in label and "NaN" not in label
    names = page.locator("input, select").evaluate_all(
        "all => all.map(each => [each.id, each.labels.length])"
    )
    assert all(labels == 1 for _, labels in names)
    page.locator("nav a").last.focus()
    reached = []
    while "Reset" not in reached:
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("document.activeElement.id || document.activeElement.innerText")
        )
    assert [each for each in reached if each in dict(names)] == [each for each, _ in names]


@each_page
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_fits_a_phone_and_has_enough_contrast(visit, name, scheme):
    page = visit(name, viewport={"width": PHONE, "height": 700}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE
    sizes = page.locator(".chart text").evaluate_all(
        "all => all.map(each => parseFloat(getComputedStyle(each).fontSize))"
    )
    assert min(sizes) >= 12
    style = "name => getComputedStyle(document.documentElement).getPropertyValue(name)"
    colours = {each: luminance(page.evaluate(style, f"--{each}")) for each in
               "paper panel ink soft link alarm blue orange green purple".split()}  # fmt: skip
    assert (colours["paper"] > 0.5) == (scheme == "light")
    for letters in ("ink", "soft", "link", "alarm"):
        assert min(contrast(colours[letters], colours[each]) for each in ("paper", "panel")) >= 4.5
    for shape in ("blue", "orange", "green", "purple"):
        assert contrast(colours[shape], colours["paper"]) >= 2.9, shape


def luminance(colour):
    """Return the relative luminance of "#rrggbb" as WCAG 2 defines it."""
    parts = [int(colour.strip()[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def contrast(one, other):
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)


@each_page
def test_a_page_explains_itself(visit, name):
    text = visit(name).locator(".explanation").inner_text()
    assert 80 <= len(text.split()) <= 200
    for words in ("What this page computes", "Source", "Left out:", "hvdlab."):
        assert words in text
    assert re.search(r"\b[Ll]abs? \d", text)


@pytest.mark.parametrize(
    ("name", "field", "value", "message"),
    [
        ("memory", "ranks", "60", "The number of GPUs must be a multiple of tensor x pipeline = 8 x 4 = 32. "
         "Received: 60. Choose 32 or 64 GPUs."),
        ("memory", "tensor", "5", "The tensor-parallel degree must divide the 64 attention heads of a layer. "
         "Received: 5. Choose a degree such as 4."),
        ("memory", "pipeline", "100", "must be at most the number of layers, 80"),
        ("memory", "layers", "2.5", "Layers must be a whole number from 1 to 1,000. Received: 2.5."),
        ("scaling", "ranks", "0", "GPUs must be a whole number from 1 to 10,000. Received: 0."),
        ("scaling", "overlap", "101", "communication must be a number from 0 to 100 %. Received: 101."),
        ("batch", "sMin", "", "Minimum number of steps must be a number from 0.001 to"),
    ],
)  # fmt: skip
def test_an_impossible_input_gets_a_message_and_no_result(visit, name, field, value, message):
    page = visit(name)
    fill(page, field, value)
    problem = page.get_by_role("alert")
    assert message in problem.inner_text()
    assert page.locator(f"#{field}").get_attribute("aria-invalid") == "true"
    assert page.locator(f"#{field}").get_attribute("aria-describedby") == problem.get_attribute(
        "id"
    )
    assert page.locator("#result").inner_text() == page.locator("#headline").inner_text() == ""
    assert not page.locator(".chart").first.is_visible()
    page.get_by_role("button", name="Reset").click()
    page.locator("#headline").wait_for()
    assert page.locator("#problem").is_hidden() and page.locator("[aria-invalid]").count() == 0


def test_a_slider_has_no_impossible_value_not_even_in_a_link(visit):
    page = visit("pipeline", "#stages=99&microBatches=-3&backward=x")
    assert page.locator("#result").inner_text().startswith("The bubble is 93.8")  # 15 / 16
    assert page.locator("output").all_inner_texts() == ["16", "1", "2"]


@pytest.mark.parametrize(("name", "chart"), [("scaling", "#chart"), ("batch", "#gpu-hours")])
def test_a_click_in_a_chart_chooses_the_number_of_gpus(visit, name, chart):
    page = visit(name)
    before = drawn(page)
    box = page.locator(chart).bounding_box()
    page.locator(chart).click(position={"x": box["width"] / 3, "y": 100})
    ranks = int(page.locator("#ranks").input_value())
    assert 2 < ranks < 200 and drawn(page) != before
    assert f"ranks={ranks}" in page.evaluate("location.hash")


def test_a_preset_fills_the_inputs_and_own_values_leave_it(visit):
    page = visit("memory")
    assert page.locator("#preset option:checked").inner_text() == "Llama 3, 70 billion"
    page.locator("#preset").select_option(label="GPT-3, 175 billion")
    assert page.locator("#parameters").input_value() == "175"
    assert "Brown et al. 2020" in page.locator("#preset-source").inner_text()
    fill(page, "layers", 95)
    assert page.locator("#preset option:checked").inner_text() == "own values"
    assert page.locator("#preset-source").inner_text() == ""


def test_the_stages_of_the_chart_hold_what_the_table_says(visit):
    """Read the numbers of the drawn bars, and their widths in pixels."""
    page = visit("memory")
    rows = page.locator("#table tr").evaluate_all(
        "all => all.map(row => [...row.children].map(cell => Number(cell.textContent)))"
    )
    bars = page.locator("#chart .box").evaluate_all(
        "all => all.map(each => each.width.baseVal.value)"
    )
    table = np.array(rows)[:, 3:7]
    widths = np.array(bars).reshape(table.shape)
    np.testing.assert_allclose(widths / widths.sum(), table / table.sum(), rtol=0.01)
