"""Random inputs of the calculators, and what hvdlab and the solutions of the labs compute for them.

`FORMULAS` has for each calculator: a function that draws an input, the function of the course, which returns
numbers, and a JavaScript function that returns the same numbers from labs/calculators/NAME.js.
"""

import numpy as np
import pytest
from lab_functions import solution

from hvdlab.noise_scale import steps_to_goal
from hvdlab.scaling import ALGORITHMS, Cluster, Link, step_compute
from hvdlab.scaling.memory import (
    CHECKPOINTING,
    METHODS,
    OPTIMIZERS,
    PRECISIONS,
    Plan,
    Transformer,
    training_memory,
)
from hvdlab.scaling.pipeline import SCHEDULES, bubble, most_held, simulate
from hvdlab.scaling.training_cost import token_flops, training_cost
from hvdlab.scaling.transformer import kv_cache_bytes


def between(random_, least, most):
    """Return a number that is random on a logarithmic scale."""
    return float(np.exp(random_.uniform(np.log(least), np.log(most))))


def shape_input(r, tensor):
    kv_heads = r.choice((1, 2, 3, 5)) * tensor
    heads = kv_heads * r.choice((1, 1, 2, 4))
    size = r.choice((32, 64, 128))
    experts = r.choice((1, 1, 1, 4, 8))
    x = {
        "layers": r.randint(8, 130), "heads": heads, "kvHeads": kv_heads, "hiddenSize": heads * size,
        "headSize": r.choice((0, 0, 64, 128)), "feedForward": r.randint(1, 60_000),
        "gated": r.randint(0, 1), "experts": experts, "expertsPerToken": r.randint(1, experts),
        "vocabulary": r.randint(2, 300_000),
    }  # fmt: skip
    most = 3 * x["layers"] * experts * x["hiddenSize"] * x["feedForward"]
    return x | {"parameters": between(r, 1e6, 1e12) + (most if experts > 1 else 0)}


def memory_input(r):
    tensor, pipeline = r.choice((1, 2, 4, 8)), r.choice((1, 1, 2, 3, 5, 8))
    shape, context = shape_input(r, tensor), r.choice((1, 1, 2, 4))
    expert = r.choice((1, shape["experts"]))
    return shape | {
        "ranks": tensor * pipeline * context * expert * r.randint(1, 100), "tensor": tensor,
        "pipeline": pipeline, "context": context, "expert": expert,
        "zeroStage": r.randint(0, 3), "precision": r.choice(list(PRECISIONS)),
        "optimizer": r.choice(list(OPTIMIZERS)), "sequence": context * r.randint(1, 30_000),
        "microBatch": r.randint(1, 64), "microBatches": r.randint(1, 64),
        "checkpointing": r.choice(CHECKPOINTING), "sequenceParallel": r.random() < 0.5,
        "fusedAttention": r.random() < 0.5, "fusedLoss": r.random() < 0.5,
        "method": r.choice(METHODS), "loraRank": r.randint(1, 256),
    }  # fmt: skip


def network_of(x):
    return Transformer(
        x["parameters"], x["layers"], x["hiddenSize"], x["heads"], x["vocabulary"], x["kvHeads"],
        x["feedForward"], bool(x["gated"]), x["headSize"] or None, x["experts"], x["expertsPerToken"],
    )  # fmt: skip


def network_and_plan(x):
    return network_of(x), Plan(
        x["ranks"], x["tensor"], x["pipeline"], x["zeroStage"], x["precision"], x["optimizer"],
        x["sequence"], x["microBatch"], x["microBatches"], x["checkpointing"],
        x["sequenceParallel"], x["fusedAttention"], x["context"], x["expert"], x["fusedLoss"],
        x["method"], x["loraRank"],
    )  # fmt: skip


def memory_expected(x):
    network, plan = network_and_plan(x)
    stages = [training_memory(network, plan, stage) for stage in range(plan.pipeline)]
    batch = plan.data * plan.micro_batch * plan.micro_batches
    return [batch, max(each.total for each in stages), *(part for each in stages for part in each)]


MEMORY_SCRIPT = """input => {
  const result = memory(input);
  return [result.globalBatch, result.largest.total,
    ...result.stages.flatMap(each => PARTS.map(part => each[part]))];
}"""


def cost_input(r):
    return {
        "parameters": between(r, 1e6, 1e13), "tokens": between(r, 1e6, 1e14),
        "layers": r.choice((0, r.randint(1, 200))), "hiddenSize": r.randint(1, 30_000),
        "sequence": r.randint(0, 100_000), "gpus": r.randint(1, 100_000), "peak": between(r, 1e9, 1e16),
        "utilization": r.uniform(0.01, 1), "lost": r.choice((0, r.uniform(0, 0.9))),
        "price": r.choice((None, r.uniform(0, 100))),
    }  # fmt: skip


def cost_expected(x):
    shape = x["layers"], x["hiddenSize"], x["sequence"]
    cost = training_cost(
        x["parameters"], x["tokens"], x["gpus"], x["peak"], x["utilization"], layers=shape[0],
        hidden_size=shape[1], sequence=shape[2], lost=x["lost"], price=x["price"],
    )  # fmt: skip
    return [
        token_flops(x["parameters"], *shape),
        *cost[:3],
        -1 if cost.price is None else cost.price,
    ]


COST_SCRIPT = """x => {
  const each = trainingCost(x);
  return [tokenFlops(x.parameters, x.layers, x.hiddenSize, x.sequence), each.flops, each.gpuHours, each.days,
    each.price ?? -1];
}"""


def kv_cache_input(r):
    tensor = r.choice((1, 2, 4, 8, 16))
    return shape_input(r, tensor) | {
        "tensor": tensor, "number": r.choice((2, 1, 0.5)), "weight": r.choice((2, 1, 0.5)),
        "sequence": r.randint(1, 1_000_000), "sequences": r.randint(1, 1000),
        "gpuMemory": between(r, 1e9, 1e12), "margin": r.uniform(0, 0.5),
    }  # fmt: skip


def kv_cache_expected(x):
    network = network_of(x)
    tokens = x["sequence"] * x["sequences"]
    cache = kv_cache_bytes(network, tokens, x["number"], x["tensor"])
    weights = x["parameters"] * x["weight"] / x["tensor"]
    room = max(0, x["gpuMemory"] * (1 - x["margin"]) - weights)
    fits = room // kv_cache_bytes(network, 1, x["number"], x["tensor"])
    counts = network.counted_parameters(), network.counted_parameters(tied=True)
    return [cache, weights, fits, *counts, network.active_parameters()]


KV_CACHE_SCRIPT = """x => {
  const each = kvCache(x);
  return [each.cache, each.weights, each.tokensThatFit, countedParameters(x, x.experts),
    countedParameters(x, x.experts, true), countedParameters(x, x.expertsPerToken)];
}"""


def scaling_input(r):
    return {
        "gradientBytes": between(r, 1e3, 1e11), "compute": between(r, 1e-3, 10),
        "overlap": r.choice((0, 1, r.random())), "perHost": r.choice((1, 2, 4, 8)),
        "networkLatency": between(r, 1e-7, 1e-3), "networkBandwidth": between(r, 1e8, 1e12),
        "insideLatency": between(r, 1e-7, 1e-4), "insideBandwidth": between(r, 1e8, 1e12),
        "networkEfficiency": r.uniform(0.1, 1), "insideEfficiency": r.uniform(0.1, 1),
        "mode": r.choice(("weak", "strong")), "measuredRanks": r.randint(1, 64),
        "growth": between(r, 0.1, 100), "jitter": r.choice((0, r.uniform(0, 0.1))),
        "fixed": r.choice((0, r.uniform(0, 1e-3))),
        "ranks": r.choice((1, 2, 3, r.randint(1, 64), r.randint(1, 10_000))),
    }  # fmt: skip


def scaling_expected(x):
    network = Link(x["networkLatency"], x["networkBandwidth"] * x["networkEfficiency"])
    inside = Link(x["insideLatency"], x["insideBandwidth"] * x["insideEfficiency"])
    step_efficiency, limit = solution(18, "step_efficiency"), solution(18, "limit")
    strong, measured, found = x["mode"] == "strong", x["measuredRanks"], []

    def compute(ranks, fixed=x["fixed"], jitter=x["jitter"]):
        cluster = Cluster(network, jitter=jitter)
        seconds = x["compute"]
        if strong:
            seconds = step_compute(seconds, measured, ranks, fixed, x["growth"])
        return seconds * cluster.slowest(ranks) / cluster.slowest(measured)

    for algorithm in ALGORITHMS:

        def communication(ranks, algorithm=algorithm, **better):
            cluster = Cluster(network._replace(**better), x["perHost"], inside._replace(**better))
            return cluster.all_reduce(x["gradientBytes"], ranks, algorithm)

        def step(ranks, seconds=None, communication=communication, **better):
            seconds = compute(ranks) if seconds is None else seconds
            return seconds / step_efficiency(seconds, communication(ranks, **better), x["overlap"])

        n = x["ranks"]
        without = {
            "stragglers": step(n, compute(n, jitter=0)),
            "latency": step(n, latency=0),
            "bandwidth": step(n, bandwidth=np.inf),
        }
        if strong:
            without["fixed time"] = step(n, compute(n, fixed=0))
        ideal, ideal_most = (
            x["compute"] * (x["growth"] * measured / ranks if strong else 1)
            for ranks in (n, 10_000)
        )
        found += [communication(n), step(n), ideal / step(n), ideal_most / step(10_000)]
        found += [ideal / step(n) * n / measured, LIMITS.index(limit(step(n), without))]
    return found


LIMITS = "compute", "stragglers", "latency", "bandwidth", "fixed time"
SCALING_SCRIPT = """input => ALGORITHMS.flatMap(name => {
  const each = scaling(input)[name];
  return [each.communication, each.step, each.efficiency, each.curve.at(-1).efficiency, each.faster,
    ["compute", "stragglers", "latency", "bandwidth", "fixed time"].indexOf(each.limit)];
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
    "cost": (cost_input, cost_expected, COST_SCRIPT),
    "kv_cache": (kv_cache_input, kv_cache_expected, KV_CACHE_SCRIPT),
    "memory": (memory_input, memory_expected, MEMORY_SCRIPT),
    "scaling": (scaling_input, scaling_expected, SCALING_SCRIPT),
    "batch": (batch_input, batch_expected, BATCH_SCRIPT),
    "pipeline": (pipeline_input, pipeline_expected, PIPELINE_SCRIPT),
}
