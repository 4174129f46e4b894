"""Random inputs of the calculators, and what hvdlab and the solutions of the labs compute for them.

`FORMULAS` has for each calculator: a function that draws an input, the function of the course, which returns
numbers, and a JavaScript function that returns the same numbers from labs/calculators/NAME.js.
"""

import numpy as np
import pytest
from lab_functions import solution

from hvdlab.noise_scale import steps_to_goal
from hvdlab.scaling import ALGORITHMS, Cluster, Link
from hvdlab.scaling.memory import (
    CHECKPOINTING,
    OPTIMIZERS,
    PRECISIONS,
    Plan,
    Transformer,
    training_memory,
)
from hvdlab.scaling.pipeline import SCHEDULES, bubble, most_held, simulate


def between(random_, least, most):
    """Return a number that is random on a logarithmic scale."""
    return float(np.exp(random_.uniform(np.log(least), np.log(most))))


def memory_input(r):
    tensor, pipeline = r.choice((1, 2, 4, 8)), r.choice((1, 1, 2, 3, 5, 8))
    heads = r.choice((1, 2, 3, 5)) * tensor
    return {
        "parameters": between(r, 1e6, 1e12), "layers": r.randint(pipeline, 130), "heads": heads,
        "hiddenSize": heads * r.choice((32, 64, 128)), "vocabulary": r.randint(2, 300_000),
        "ranks": tensor * pipeline * r.randint(1, 100), "tensor": tensor, "pipeline": pipeline,
        "zeroStage": r.randint(0, 3), "precision": r.choice(list(PRECISIONS)),
        "optimizer": r.choice(list(OPTIMIZERS)), "sequence": r.randint(1, 100_000),
        "microBatch": r.randint(1, 64), "microBatches": r.randint(1, 64),
        "checkpointing": r.choice(CHECKPOINTING), "sequenceParallel": r.random() < 0.5,
        "fusedAttention": r.random() < 0.5,
    }  # fmt: skip


def network_and_plan(x):
    network = Transformer(
        x["parameters"], x["layers"], x["hiddenSize"], x["heads"], x["vocabulary"]
    )
    return network, Plan(
        x["ranks"], x["tensor"], x["pipeline"], x["zeroStage"], x["precision"], x["optimizer"],
        x["sequence"], x["microBatch"], x["microBatches"], x["checkpointing"],
        x["sequenceParallel"], x["fusedAttention"],
    )  # fmt: skip


def memory_expected(x):
    network, plan = network_and_plan(x)
    stages = [training_memory(network, plan, stage) for stage in range(plan.pipeline)]
    batch = plan.data * plan.micro_batch * plan.micro_batches
    return [batch, max(each.total for each in stages), *(part for each in stages for part in each)]


MEMORY_SCRIPT = """input => {
  const result = memory(input);
  return [result.globalBatch, result.largest.total,
    ...result.stages.flatMap(each => [each.weights, each.gradients, each.state, each.activations])];
}"""


def scaling_input(r):
    return {
        "gradientBytes": between(r, 1e3, 1e11), "compute": between(r, 1e-3, 10),
        "overlap": r.choice((0, 1, r.random())), "perHost": r.choice((1, 2, 4, 8)),
        "networkLatency": between(r, 1e-7, 1e-3), "networkBandwidth": between(r, 1e8, 1e12),
        "insideLatency": between(r, 1e-7, 1e-4), "insideBandwidth": between(r, 1e8, 1e12),
        "ranks": r.choice((1, 2, 3, r.randint(1, 64), r.randint(1, 10_000))),
    }  # fmt: skip


def scaling_expected(x):
    network = Link(x["networkLatency"], x["networkBandwidth"])
    inside = Link(x["insideLatency"], x["insideBandwidth"])
    step_efficiency, limit = solution(18, "step_efficiency"), solution(18, "limit")
    found = []
    for algorithm in ALGORITHMS:

        def communication(ranks, algorithm=algorithm, **better):
            cluster = Cluster(network._replace(**better), x["perHost"], inside._replace(**better))
            return cluster.all_reduce(x["gradientBytes"], ranks, algorithm)

        def step(ranks, communication=communication, **better):
            seconds = communication(ranks, **better)
            return x["compute"] / step_efficiency(x["compute"], seconds, x["overlap"])

        n = x["ranks"]
        without = {"latency": step(n, latency=0), "bandwidth": step(n, bandwidth=np.inf)}
        name = limit(step(n), without)
        found += [communication(n), step(n), x["compute"] / step(n), x["compute"] / step(10_000)]
        found.append(["compute", "latency", "bandwidth"].index(name))
    return found


SCALING_SCRIPT = """input => ALGORITHMS.flatMap(name => {
  const each = scaling(input)[name];
  return [each.communication, each.step, each.efficiency, each.curve.at(-1).efficiency,
    ["compute", "latency", "bandwidth"].indexOf(each.limit)];
})"""


def batch_input(r):
    return {
        "bCrit": between(r, 1, 1e7), "sMin": between(r, 1, 1e7), "perGpu": r.randint(1, 4096),
        "speed": between(r, 1e-2, 1e6), "efficiency": r.uniform(0.01, 1), "price": r.uniform(0, 100),
        "ranks": r.choice((1, r.randint(1, 100_000))),
    }  # fmt: skip


def batch_expected(x):
    size = x["perGpu"] * x["ranks"]
    speed = x["ranks"] * x["speed"] * (x["efficiency"] if x["ranks"] > 1 else 1)
    steps, examples, saved = solution(6, "scaling_law")(size, x["sMin"], x["bCrit"])
    hours = solution(18, "hours_to_goal")(speed, size, x["sMin"], x["bCrit"])
    assert steps == pytest.approx(float(steps_to_goal(size, x["sMin"], x["bCrit"])))
    return [
        size,
        steps,
        examples,
        saved,
        hours,
        hours * x["ranks"],
        hours * x["ranks"] * x["price"],
    ]


BATCH_SCRIPT = """input => {
  const each = batch(input);
  return [each.batch, each.steps, each.examples, each.saved, each.hours, each.gpuHours, each.cost];
}"""


def pipeline_input(r):
    return {
        "schedule": r.choice(SCHEDULES), "stages": r.randint(1, 9), "microBatches": r.randint(1, 12),
        "forward": r.uniform(0.5, 2), "backward": r.uniform(0.5, 4),
    }  # fmt: skip


def pipeline_expected(x):
    p = x["stages"]
    passes = simulate(x["schedule"], p, x["microBatches"], x["forward"], x["backward"])
    held = [most_held(passes, stage) for stage in range(p)]
    times = sorted((each.stage, each.start, each.end, each.micro_batch) for each in passes)
    end = max(each.end for each in passes)
    return [end, bubble(passes, p), *held, *(number for row in times for number in row)]


PIPELINE_SCRIPT = """input => {
  const { passes, time, bubble, held } = pipeline(input);
  const rows = passes.map(each => [each.stage, each.start, each.end, each.microBatch]);
  rows.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  return [time, bubble, ...held, ...rows.flat()];
}"""

FORMULAS = {
    "memory": (memory_input, memory_expected, MEMORY_SCRIPT),
    "scaling": (scaling_input, scaling_expected, SCALING_SCRIPT),
    "batch": (batch_input, batch_expected, BATCH_SCRIPT),
    "pipeline": (pipeline_input, pipeline_expected, PIPELINE_SCRIPT),
}
