"""The calculators in Chromium, from the file system and without a network: inputs, messages, layout."""

import re

import chromium
import numpy as np
import pytest

NAMES = ("cost", "memory", "kv_cache", "scaling", "batch", "pipeline")
PHONE = 360
each_page = pytest.mark.parametrize("name", NAMES)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    chromium.NEEDED,
]


def fill(page, name, value):
    page.locator(f"#{name}").fill(str(value))


CHANGES = {  # an input, a value in the unit of its field, and how it stands in the link
    "cost": ("utilization", "33"),
    "memory": ("microBatch", "3"),
    "kv_cache": ("sequence", "4321"),
    "scaling": ("networkBandwidth", "0.5"),
    "batch": ("bCrit", "777"),
    "pipeline": ("microBatches", "5"),
}


def drawn(page):
    """Return what the page shows: its charts, its sentence, its tables."""
    return page.locator(".chart, #result, #headline, .drawn tbody").evaluate_all(
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
    assert 80 <= len(text.split()) <= 220
    for words in ("What this page computes", "Source", "Left out:", "hvdlab."):
        assert words in text
    assert re.search(r"\b[Ll]abs? \d", text)


@pytest.mark.parametrize(
    ("name", "field", "value", "message"),
    [
        ("memory", "ranks", "60", "The number of GPUs must be a multiple of tensor x pipeline x context = "
         "8 x 4 x 1 = 32. Received: 60. Choose 32 or 64 GPUs."),
        ("memory", "context", "3", "divide the 8192 tokens of a sequence. Received: 3. Choose a degree"),
        ("memory", "expert", "2", "divide the 1 expert of a layer and the 2 data- and context-parallel"),
        ("memory", "parameters", "", "must be a number from 0.001 to 10,000 billion. Received: no number."),
        ("cost", "price", "-1", "must be empty, or a number from 0 to 1,000,000. Received: -1."),
        ("kv_cache", "kvHeads", "7", "divide the 64 query heads. Received: 7. Choose a number such as 4."),
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


def test_a_slider_has_no_impossible_value_and_the_page_says_so_about_a_link(visit):
    page = visit("pipeline", "#stages=99&microBatches=-3&backward=x")
    notice = page.locator("#notice")
    assert 'Stages cannot be "99". The page uses 16.' in notice.inner_text()
    assert "stages=16" in page.evaluate("location.hash")
    assert page.locator("#result").inner_text().startswith("The bubble is 93.8")  # 15 / 16
    assert page.locator("output").all_inner_texts() == ["16", "1", "2"]
    fill(page, "stages", 3)
    assert notice.is_hidden()


def test_a_button_copies_the_link(visit):
    page = visit("cost", permissions=["clipboard-read", "clipboard-write"])
    fill(page, "price", 2.5)
    page.get_by_role("button", name="Copy link").click()
    page.locator("#copied", has_text="Copied.").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == page.url
    assert "price=2.5" in page.url


def test_a_price_is_an_input_without_a_default(visit):
    page = visit("cost")
    assert page.locator("#price").input_value() == ""
    assert "no price" in page.locator("#result").inner_text()
    hours = page.evaluate("trainingCost({ ...COST_PUBLISHED[0].input, price: 2 })")
    assert hours["price"] == 2 * hours["gpuHours"]
    fill(page, "price", 2)
    assert "At 2 per GPU hour they cost" in page.locator("#result").inner_text()


def test_a_gpu_fits_only_with_the_margin_and_the_buffers(visit):
    page = visit("memory")
    for name, value in (("tensor", 1), ("pipeline", 1), ("sequence", 2048), ("margin", 20)):
        fill(page, name, value)
    page.locator("#zeroStage").select_option("3")
    page.locator("#checkpointing").select_option("full")
    *_, buffers, total = map(float, page.locator("#table td").all_inner_texts())
    assert 24 > total - buffers and 0.8 * 40 > total > 0.7 * 40
    assert "With 20\u00a0% of the memory kept free, this fits a GPU with 40 GB." in said(page)
    fill(page, "margin", 30)
    assert "this fits a GPU with 80 GB" in said(page)


def test_equal_algorithms_and_one_gpu_are_named_as_such(visit):
    page = visit("scaling")
    page.locator("#preset").select_option(label="ResNet-101, Pascal GPUs, 25 Gbit/s")
    assert "The algorithm makes no difference" in said(page)
    page.locator("#preset").select_option(label="ResNet-50, A100, strong scaling from 8 GPUs")
    assert "With the best of them, hierarchical and tree, the limit is fixed time." in said(page)
    page = visit("batch", "#ranks=1")
    assert said(page).startswith("1 GPU has a batch")
    assert page.locator("#headline").inner_text().startswith("1 GPU: ")


def said(page):
    return page.locator("#result").inner_text()


def test_bytes_per_parameter_follow_the_inputs(visit):
    page = visit("memory")

    def bytes_of(field, value):
        page.locator(f"#{field}").select_option(value)
        return page.locator("#bytes").inner_text()

    assert "2 + 2 + 12 = 16 (" in bytes_of("optimizer", "Adam")
    assert "leaves 2 + 1 + 6 = 9 on a GPU" in bytes_of("zeroStage", "2")
    assert "2 + 2 + 6 = 10 (" in bytes_of("optimizer", "8-bit Adam")
    assert "4 + 4 + 2 = 10 (" in bytes_of("precision", "float32")
    assert bytes_of("method", "QLoRA").startswith(
        "Bytes per parameter: 0.516 (4 outside the layers)"
    )


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
    table = np.array(rows)[:, 3:8]
    widths = np.array(bars).reshape(table.shape)
    np.testing.assert_allclose(widths / widths.sum(), table / table.sum(), rtol=0.01)


TYPED = {  # inputs that the visitor typed before he chooses a preset: some of them fit no preset
    "cost": [{}, {"price": "-1"}],
    "memory": [
        {},
        {"ranks": "1"},
        {"ranks": "512", "tensor": "16", "pipeline": "2", "context": "2", "expert": "16"},
        {"ranks": "384", "tensor": "3", "pipeline": "32"},
    ],
    "kv_cache": [{}, {"tensor": "64"}],
    "scaling": [{}, {"ranks": "1"}],
    "batch": [{}],
    "pipeline": [{}],
}


@each_page
def test_a_choice_from_a_list_never_ends_in_an_error(visit, name):
    """Choose each option of each list after each other one and after typed inputs."""
    page = visit(name)
    tried, errors = page.evaluate(
        """typed => {
          const form = document.getElementById("inputs"), problem = document.getElementById("problem");
          const errors = [];
          let tried = 0;
          const choose = (select, option) => {
            select.value = option.value;
            select.dispatchEvent(new Event("input", { bubbles: true }));
          };
          form.addEventListener("reset", (event) => event.stopImmediatePropagation(), true); // draws nothing
          for (const select of form.querySelectorAll("select")) {
            const isPreset = select.id === "preset";
            const options = [...select.options].filter((each) => !isPreset || each.value !== "-1");
            for (const before of options) for (const own of isPreset ? typed : [{}]) {
              form.reset();
              choose(select, before);
              for (const [field, value] of Object.entries(own)) form.elements[field].value = value;
              const start = [...form.elements].map((field) => [field, field.value]);
              for (const after of options) {
                for (const [field, value] of start) field.value = value;
                choose(select, after);
                tried += 1;
                if (problem.hidden && select.value === after.value) continue;
                errors.push([before.text, own, after.text, problem.textContent]);
              }
            }
          }
          return [tried, errors];
        }""",
        TYPED[name],
    )
    assert errors == []
    presets = page.locator("#preset option:not([value='-1'])").count()
    assert tried >= presets**2 * len(TYPED[name])


@pytest.mark.parametrize(
    ("name", "typed", "preset", "notice", "changed"),
    [
        ("memory", {}, "GPT-2, 1.5 billion",
         "Tensor-parallel degree set to 1, which divides 25 heads and 64 GPUs.", "tensor=1&pipeline=4"),
        ("memory", {"ranks": 20}, "GPT-2, 1.5 billion",
         "Tensor-parallel degree set to 5, which divides 25 heads and 20 GPUs.", "tensor=5&pipeline=4"),
        ("memory", {"ranks": ""}, "Llama 2, 7 billion", "GPUs set to 64, as at the start.", "ranks=64"),
        ("memory", {}, "Llama 3, 405 billion", "", "ranks=64&tensor=8&pipeline=4"),
        ("kv_cache", {}, "GPT-2, 1.5 billion",
         "Tensor-parallel degree (GPUs) set to 1, which divides 25 heads.", "tensor=1"),
        ("scaling", {"ranks": 2}, "ResNet-50, A100, strong scaling from 8 GPUs",
         "GPUs set to 8, the smallest number that the page predicts for this preset.", "ranks=8"),
    ],
)  # fmt: skip
def test_a_notice_names_the_inputs_that_a_preset_changes(
    visit, name, typed, preset, notice, changed
):
    page = visit(name)
    for field, value in typed.items():
        fill(page, field, value)
    page.locator("#preset").select_option(label=preset)
    assert page.locator("#notice").inner_text() == notice
    assert page.locator("#preset option:checked").inner_text() == preset
    assert changed in page.evaluate("location.hash")
    fill(page, "ranks" if name != "kv_cache" else "tensor", 8)
    assert page.locator("#notice").is_hidden()


def test_the_first_preset_fits_one_gpu_and_the_text_names_the_lines_of_the_chart(visit):
    page = visit("memory")
    text = page.locator("#sizes")
    assert "80\u00a0GB (A100 and H100)" in text.inner_text() and "H200" not in text.inner_text()
    page.locator("#preset").select_option(label="Llama 2, 7 billion, QLoRA on one GPU")
    assert said(page).startswith("The GPU needs ") and "this fits a GPU with 16 GB." in said(page)
    assert text.inner_text().endswith("data sheets: 16\u00a0GB (V100).")
    assert page.locator("#chart .limit").count() == 1
