"""A help text names no cause that the same report rules out, whatever the evidence is."""

import dataclasses
import itertools
import re

import pytest

from hvdgrade.evidence.observation import STOP_CAUSES, Probe
from hvdgrade.judge.check import CHECKS
from hvdgrade.submission.review import review
from hvdgrade.submission.script_facts import Place, ScriptFacts
from hvdlab.record import WEIGHTS as NETWORK
from hvdlab.record import is_statistic
from tests.helpers.judged_evidence import (
    RULES,
    STEPS,
    epochs,
    evidence,
    probed,
    run_check,
    run_of_probe,
    seen,
    verdict,
)

# What the graded runs of the submissions in tests/fixtures differ in.
TRAFFIC = {None: None, "none": 0, "once an epoch": 1, "every fourth": 25, "half": 50, "each": STEPS}
READING = {
    "shards": {},
    "the whole set": {"read": [50_000, 50_000], "shared": 1.0},
    "the same batches": {"same_order": 1.0, "coverage": 0.5},
    "unequal": {"read": [25_000, 24_000], "coverage": 0.98},
    "a third": {"coverage": 0.33, "read": [8_000, 8_000]},
    "nothing": {"read": [0, 0], "coverage": 0.0},
}
TRAINED = [name for name in NETWORK if not is_statistic(name)]
WEIGHTS = {"equal": {}, "different": {"difference": 0.5, "differs_at": "conv1.bias"}}
PROBES = {
    "equal": {"updates": 1.0},
    "apart": {"updates": 1.0, "distance": 0.5},
    "ranks apart": {"updates": 1.0, "replicas": 0.3, "differing_step": 5, "differing": TRAINED},
    "some layers apart": {
        "updates": 1.0,
        "replicas": 0.3,
        "differing_step": 5,
        "differing": ["conv1.bias"],
    },
}
IMPORTS = [
    ("horovod.torch",),
    ("torch.distributed",),
    ("mpi4py.MPI",),
    ("hvdlab.keras.horovod",),
    ("lightning.pytorch",),
    ("torch",),
]


def reports():
    """Every combination of the kinds of evidence, with its report: (the evidence in words, report).

    The libraries take turns, and all of them come with each kind of traffic.
    """
    kinds = itertools.product(TRAFFIC, READING, WEIGHTS, PROBES, (0.8, 0.6))
    turns = itertools.cycle([*IMPORTS, IMPORTS[-1]])
    for (traffic, reading, weights, probe, accuracy), imports in zip(kinds, turns, strict=False):
        changes = {"train_accuracy": accuracy, **READING[reading], **WEIGHTS[weights]}
        # In the probe float64 takes twice the bytes, unless something rounds the gradients.
        apart = run_of_probe(*[2.0 if traffic != "half" else 0.5] * 24)
        result = verdict(
            seen(rounds=TRAFFIC[traffic]),
            epochs(**changes),
            15.0,
            imports,
            Probe(seen={"apart": apart, "together": apart}),
            **PROBES[probe],
        )
        yield (traffic, reading, weights, probe, imports[0].split(".")[0]), result


# A cause, and the evidence that rules it out: (traffic, reading, weights, probe, library) -> bool.
RULED_OUT = {
    "as many steps as a single process": lambda t, r, w, p, lib: r == "shards",
    "averages weights now and then:": lambda t, r, w, p, lib: p != "ranks apart",
    "averages weights now and then instead": lambda t, r, w, p, lib: (
        p != "equal" or t in (None, "half", "each")
    ),
    "averages different layers": lambda t, r, w, p, lib: p != "some layers apart",
    "averages weights after the optimizer's step": lambda t, r, w, p, lib: p != "apart",
    "averages less often than in every fourth step": lambda t, r, w, p, lib: t == "none",
    "the gradients are not averaged": lambda t, r, w, p, lib: t in ("every fourth", "half", "each"),
    "never imports": lambda t, r, w, p, lib: lib != "torch" or t not in (None, "none"),
    "begin with different weights": lambda t, r, w, p, lib: w == "equal",
    "has no effect on their weights": lambda t, r, w, p, lib: t in ("none", "once an epoch"),
    "rounds the gradients": lambda t, r, w, p, lib: t != "half",
    "the grader does not count": lambda t, r, w, p, lib: t != "none" or w != "equal",
    "cuts out its own part of the training set: give Batches the whole set, because": (
        lambda t, r, w, p, lib: r == "the whole set"
    ),
    "DistributedOptimizer": lambda t, r, w, p, lib: lib in ("mpi4py", "lightning"),
    "DistributedDataParallel": lambda t, r, w, p, lib: lib != "torch",
    "comm.Allreduce": lambda t, r, w, p, lib: lib != "mpi4py",
    "hvd.rank()": lambda t, r, w, p, lib: lib in ("mpi4py", "lightning"),
}


def test_no_report_names_a_cause_that_it_rules_out():
    named, texts = set(), 0
    for kind, result in reports():
        for check in result.checks:
            texts += bool(check.help)
            assert bool(check.help) == (check.state in ("fail", "partial")), (kind, check)
            for words, ruled_out in RULED_OUT.items():
                if words in check.help:
                    named.add(words)
                    assert not ruled_out(*kind), (kind, check.id, check.help)
    assert named == set(RULED_OUT) and texts > 1000


@pytest.mark.parametrize("cause", STOP_CAUSES)
@pytest.mark.parametrize("code", [None, 137, 139])
def test_every_end_of_a_run_has_causes_that_fit_it(cause, code):
    for weights in (seen().weights, seen().weights[:1], []):
        run = seen(stop_cause=cause, exit_code=code, weights=weights)
        given = evidence(run, epochs() if len(weights) > 1 else [])
        help = run_check("ran", given).help
        assert "(3)" not in help
        for words, possible in {
            "the batch is too large": cause == "out_of_memory",
            "too little memory": cause == "killed" and code != 139,
            "a library below Python": cause == "killed" and code == 139,
            "unequal numbers of steps": cause == "hang" and len(weights) < 2,
            "ends before its first epoch": cause == "ended" or len(weights) == 1,
            "compilation": cause == "timeout",
        }.items():
            assert words not in help or possible, (cause, code, help)


def late(first: float, later: float, budget=60.0, **more):
    """The help of a run of three epochs that reaches the target too late."""
    weights = [
        dataclasses.replace(
            seen().weights[0], rank=rank, epoch=epoch, seconds=first + epoch * later
        )
        for rank in range(2)
        for epoch in range(3)
    ]
    three = [dataclasses.replace(epochs()[0], epoch=epoch, **more) for epoch in range(3)]
    return run_check("targets", evidence(seen(weights=weights), three, pass_seconds=20.0)).help


@pytest.mark.parametrize(
    "first, later, more, words",
    [
        (47, 12, {}, "the first epoch is the slow one (47 s, a later epoch 12 s)"),
        (31, 0, {}, "the first epoch is the slow one"),  # both arrived between two looks
        (31, 30, {}, "(1) the batch of a rank is small"),
        (31, 30, {"batch_size": 1024}, "(1) the accuracy needs too many epochs"),
        (31, 20, {}, "Likely cause: the accuracy needs too many epochs"),  # as fast as calibrated
        (31, 30, {"shared": 1.0}, "(1) each rank makes as many steps"),
    ],
)
def test_the_help_of_a_late_run_follows_from_its_epochs(first, later, more, words):
    assert words in late(first, later, **more)


@pytest.mark.parametrize(
    "line, name",
    [
        ("hvd.DistributedOptimizer(o, compression=hvd.Compression.fp16)", "Compression.fp16"),
        ("hvd.DistributedOptimizer(o, compression=hvd.Compression.none)", None),
        ("model.register_comm_hook(None, default_hooks.bf16_compress_hook)", "bf16_compress_hook"),
        ("model.register_comm_hook(state, powerSGD.powerSGD_hook)", "powerSGD_hook"),
        ("# Compression.fp16", None),
    ],
)
def test_names_the_line_of_a_compression(line, name):
    facts = review(f"import torch\n{line}\n".encode()).facts
    assert facts.compression == (Place(2, name) if name else None)


def test_every_check_that_fails_names_its_causes_in_one_form():
    form = re.compile(r"Likely causes: \(1\) [^;].*?; \(2\) .*|Likely cause: .*", re.DOTALL)
    assert set(CHECKS) == set(RULES.points)
    for _, result in reports():
        for check in result.checks:
            assert not check.help or form.search(check.help), check.help


def test_facts_that_no_measurement_refutes_stay_the_first_cause():
    given = evidence(probe=probed(distance=0.3))
    facts = ScriptFacts(frozenset({"horovod.torch"}), sum_loss=Place(3, "reduction=sum"))
    help = run_check("equivalence", dataclasses.replace(given, script=facts)).help
    assert help.startswith("Likely causes: (1) line 3 (reduction=sum) sums over the images")
