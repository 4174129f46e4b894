"""The numbers of the calculators against hvdlab, the solutions of the labs, and published trainings.

The formulas in JavaScript run in Chromium, for random inputs.
"""

import random
import re
from pathlib import Path

import chromium
import numpy as np
import pytest
from calculator_inputs import FORMULAS, memory_input, network_and_plan, network_of
from lab_functions import solution

from hvdlab.course.experiment import reference
from hvdlab.scaling import published
from hvdlab.scaling.memory import training_memory

CASES = 200
CALCULATORS = Path(__file__).parents[2] / "labs/calculators"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    chromium.NEEDED,
]


# --- formulas ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMULAS)
def test_the_formulas_agree_with_those_of_the_course(visit, name):
    draw, expected, script = FORMULAS[name]
    r = random.Random(f"calculator {name}")
    inputs = [draw(r) for _ in range(CASES)]
    found = visit(name).evaluate(f"inputs => inputs.map({script})", inputs)
    for x, numbers in zip(inputs, found, strict=True):
        numbers = np.array(numbers, float)  # playwright makes integers of large numbers
        np.testing.assert_allclose(numbers, expected(x), rtol=1e-9, atol=1e-12, err_msg=str(x))


def test_a_split_is_refused_if_the_course_refuses_it(visit):
    r = random.Random(1)
    inputs = []
    for _ in range(CASES):
        x = memory_input(r) | {"ranks": r.randint(1, 60), "heads": r.choice((1, 2, 4, 8, 12))}
        x |= {
            "layers": r.randint(1, 12),
            "kvHeads": r.choice((1, 1, 1, 3)),
            "sequence": r.randint(1, 9),
        }
        inputs.append(x | {"expertsPerToken": r.randint(1, 8), "expert": r.choice((1, 1, 2, 3))})
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


def test_the_presets_of_networks_have_the_parameters_of_their_shapes(visit):
    presets = visit("memory").evaluate("NETWORKS")
    assert len(presets) >= 10
    for preset in presets:
        x = preset["values"]
        tied = preset["name"].startswith(("BERT", "GPT"))
        counted = network_of(x).counted_parameters(tied)
        if tied:
            counted += x["sequence"] * x["hiddenSize"]  # position embeddings
        assert counted / 1e9 == pytest.approx(x["parameters"], rel=0.025), preset["name"]
        assert preset["link"].startswith("https://")


def test_the_presets_of_lab_18_are_those_of_its_cluster(visit):
    cluster = published.pascal_cluster(*published.FITTED)
    presets = {
        each["name"]: each["values"] for each in visit("scaling").evaluate("SCALING_PRESETS")
    }
    for name in ("VGG-16", "ResNet-101"):
        network, x = published.NETWORKS[name], presets[f"{name}, Pascal GPUs, 25 Gbit/s"]
        assert x["gradientBytes"] * 1e6 == pytest.approx(4 * network.parameters, rel=0.005)
        assert x["compute"] / 1e3 == pytest.approx(network.compute, rel=0.005)
        reached = x["networkBandwidth"] * 1e9 * x["networkEfficiency"] / 100
        assert x["networkLatency"] / 1e6 == cluster.network.latency
        assert reached == pytest.approx(cluster.network.bandwidth)
        assert x["insideLatency"] / 1e6 == cluster.inside.latency
        assert (
            x["insideBandwidth"] * 1e9 == cluster.inside.bandwidth and x["insideEfficiency"] == 100
        )
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


# --- published numbers ------------------------------------------------------------------------------

PUBLISHED = {  # the rows of a page, and the largest errors that it may show: of all rows, and the median
    "cost": ("COST_PUBLISHED", 0.10, 0.02),
    "memory": ("MEMORY_PUBLISHED", 0.35, 0.10),
    "kv_cache": ("KV_PUBLISHED", 0.08, 0.01),
    "scaling": ("SCALING_PUBLISHED", 0.30, 0.06),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_numbers_have_a_source_and_the_page_shows_the_error_of_each(visit, name):
    rows_name, largest, middle = PUBLISHED[name]
    page = visit(name)
    rows = page.evaluate(rows_name)
    assert len(rows) >= 10
    errors = [row["predicted"] / row["published"] - 1 for row in rows]
    assert max(map(abs, errors)) <= largest and np.median(np.abs(errors)) <= middle
    assert all(row["source"] and row["link"].startswith("https://") for row in rows)
    shown = page.locator("#published tr").evaluate_all(
        "all => all.map(row => row.children[1].textContent)"
    )
    numbers = [float(re.sub("[^0-9.-]", "", each.replace("\u2212", "-"))) for each in shown]
    np.testing.assert_allclose(numbers, 100 * np.array(errors), atol=0.051)
    readme = (CALCULATORS / "README.md").read_text("utf-8").replace("\n  ", " ")
    assert page.locator("#errors").inner_text().replace("\u00a0", " ") in readme


def test_the_predictions_of_published_trainings_are_those_of_the_course(visit):
    for row in visit("cost").evaluate("COST_PUBLISHED"):
        _, _, hours, days, _ = FORMULAS["cost"][1](row["input"])
        seconds = 86400 * days
        speed = row["input"]["tokens"] / seconds
        expected = {"GPU hours": hours, "days": days, "s": seconds, "tokens/s": speed}
        assert row["predicted"] == pytest.approx(expected[row["unit"]]), row["name"]
    for row in visit("memory").evaluate("MEMORY_PUBLISHED"):
        network, plan = network_and_plan(row["input"])
        stages = [training_memory(network, plan, i).total for i in range(plan.pipeline)]
        assert row["predicted"] == pytest.approx(max(stages) / 1e9), row["name"]


def test_the_published_efficiencies_are_those_of_the_course_and_of_the_shipped_rows(visit):
    page = visit("scaling")
    runs = reference("scaling_records/results").set_index("id")
    for _, _, first, few, batch, speed, _, rows in page.evaluate("RECORD_ROWS"):
        for run, ranks, size, images in [[first, few, batch, speed], *rows]:
            row = runs.loc[run, ["accelerators", "batch", "examples_per_second"]]
            assert [ranks, size, images] == pytest.approx(row.tolist(), rel=1e-4), run
    for network, megabytes, speed, *efficiencies in page.evaluate("HOROVOD_ROWS"):
        theirs = published.NETWORKS[network]
        assert megabytes * 1e6 == pytest.approx(4 * theirs.parameters, rel=0.005)
        assert speed == theirs.images_per_second
        assert efficiencies == pytest.approx(list(published.PUBLISHED[network].values()))
