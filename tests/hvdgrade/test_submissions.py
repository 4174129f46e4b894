"""Right, wrong and hostile submissions, each graded for real: its verdict, each check, its words.

Each folder of tests/fixtures/submissions has a script, see tests/helpers/submissions.py, and expected.toml
says what is expected of its grading:

    status, verdict, stop_cause     as in the result document; status is "graded" unless it is said
    [states]                        of every check ("pass|fail": both may come); those after a failed
                                    "ran" are skipped
    rationale, help, reason, output a text, or a list of them, that must occur there
    refused                         the beginnings of the refusals, in any order
    flags                           kinds of flags that the instructor must see
    [rules]                         thresholds other than the quick profile's
    needs                           sandboxes; in any other it would harm this machine
    [tier.NAME]                     what is different in the sandbox called NAME
    [cases]                         a family of submissions: name -> the constants of the script that differ
"""

import dataclasses
import json
import os
import shutil
import tempfile
from pathlib import Path

import psutil
import pytest

from hvdgrade.batch.cleanup import work_folder
from hvdgrade.grade import grade
from hvdgrade.sandbox import sandbox, tiers
from hvdlab.record import WEIGHTS
from tests.helpers.submissions import NAMES, SUBMISSIONS, as_expected, source, write

ROOT = Path(__file__).parents[2]
# Each check, each stop and each framework once: what every run of the tests grades. The others have the
# marker "thorough": pytest -m thorough tests/hvdgrade/test_submissions.py
CORE = """
    right_rank_0_reads short_epochs no_averaging no_broadcast claims_a_giant_batch own_part_of_the_data
    official_keras_module hostile_weights writes_everywhere looks_for_secrets leaves_a_daemon fork_bomb
    memory_hog prints_forever crashes not_python too_large waits_before_it_begins
    partial_averaging-every_2_warmup partial_averaging-halves_in_turns never_reaches_the_target
""".split()
CHECKS = "ran replicas exchange flow equivalence shards steps targets".split()
# Enough for an emulated bfloat16 or fp16 on a slow processor that is busy with other things.
RULES = {"budget": 480.0, "probe_seconds": 480.0}
MEMORY_BYTES = 3 << 30  # of a jail
MARK = "hvdgrade-was-here"  # what hostile submissions leave wherever they can write


def expectation(name: str, tier: str) -> dict:
    """What is expected of one submission in one tier of the sandbox."""
    expected = as_expected(name)
    for key, value in expected.pop("tier", {}).get(tier, {}).items():
        expected[key] = {**expected[key], **value} if isinstance(value, dict) else value
    states = expected.setdefault("states", {})
    if states.get("ran") == "fail":
        states |= dict.fromkeys(CHECKS[1:], "skipped")
    return expected


def deviations(document: dict, expected: dict) -> list[str]:
    """How a result differs from what is expected, in words; nothing if it does not."""
    checks = {check["id"]: check for check in document["checks"]}
    states = dict(expected["states"])
    isolated = (document["grader"]["sandbox"] or {}).get("network_isolated")
    if states.get("exchange") in ("pass", "fail") and not isolated:
        # Without a network of its own nothing can be counted, and the probe has to tell.
        if states["exchange"] == "fail" and states["replicas"] == "pass" and checks:
            states |= {id: checks[id]["state"] for id in ("flow", "equivalence", "targets")}
        states["exchange"] = "skipped"
    for id, check in checks.items():
        if check["state"] in states.get(id, "").split("|"):
            states[id] = check["state"]
    verdict = expected.get("verdict")
    if verdict == "fail" and set(states.values()) <= {"pass", "skipped"}:
        verdict = "pass"  # that was all that was wrong with it
    came = {
        "status": document["status"],
        "verdict": document["verdict"],
        "stop_cause": document["resources"].get("stop_cause"),
        "states": {id: check["state"] for id, check in checks.items()},
    }
    wanted = {
        "status": expected.get("status", "graded"),
        "verdict": verdict,
        "stop_cause": expected.get("stop_cause"),
        "states": states,
    }
    found = [f"{key}: {came[key]}, not {wanted[key]}" for key in came if came[key] != wanted[key]]
    if came["verdict"] == "pass" and document["score"] != document["max_score"]:
        found.append(f"passed with {document['score']} of {document['max_score']} points")

    said = {
        "rationale": [check["rationale"] for check in checks.values()],
        "help": [check["help"] for check in checks.values()],
        "reason": [document["reason"]],
        "output": [document["output"]],
    }
    for key, texts in said.items():
        for word in as_list(expected.get(key, [])):
            if word not in "\n".join(texts):
                found.append(f"{key} says {sorted(set(texts))}, and not {word!r}")
    if "refused" in expected:
        refused = checks["ran"]["evidence"]["refused"] if checks else [document["reason"]]
        for beginning in expected["refused"]:
            if not any(text.startswith(beginning) for text in refused):
                found.append(f"not refused: {beginning}, only {refused}")
    for kind in as_list(expected.get("flags", [])):
        if not any(flag["kind"] == kind for flag in document["flags"]):
            found.append(f"no flag {kind!r}, only {document['flags']}")
    if document["resources"].get("survivors"):
        found.append(f"{document['resources']['survivors']} processes survived")
    if any(c < " " and c not in "\n\t" or c in "\x7f\x9b" for c in document["output"]):
        found.append("control characters in the output")
    try:
        json.dumps(document, allow_nan=False)
    except ValueError as error:
        found.append(f"no JSON: {error}")
    return found


def as_list(value) -> list[str]:
    return [value] if isinstance(value, str) else value


def tree(*folders: Path) -> dict[str, tuple]:
    """Every file and folder in `folders`, with kind, size and time of its last change."""
    found = {}
    for top in folders:
        for folder, names, files in os.walk(top):
            names[:] = [name for name in names if name != "__pycache__"]
            for name in [*names, *files]:
                status = os.lstat(os.path.join(folder, name))
                changed = 0 if name in names else status.st_mtime_ns
                found[os.path.join(folder, name)] = (status.st_mode, status.st_size, changed)
    return found


def marks() -> set[str]:
    """Marks of a hostile submission in the places that it would write to."""
    places = {Path("/"), Path.home(), Path.cwd(), Path("/var/tmp"), Path("/dev/shm"), ROOT}
    places |= {Path(tempfile.gettempdir()), Path(psutil.__file__).parents[1]}
    return {str(place / MARK) for place in places if (place / MARK).exists()}


@pytest.fixture
def temporary_folder(monkeypatch):
    """The folder for temporary files of this grading alone, as a batch gives it to each."""
    folder = work_folder().path / "tmp"
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    shutil.rmtree(folder.parent)


@pytest.fixture
def class_folder(tmp_path) -> Path:
    """A folder with what lies around a submission: its neighbour's, the gradebook, results."""
    (tmp_path / "neighbour").mkdir()
    (tmp_path / "neighbour" / "assessment.py").write_text("print('mine')\n")
    (tmp_path / "gradebook.csv").write_text("student,score\nneighbour,12\n")
    (tmp_path / "results.json").write_text("{}\n")
    return tmp_path


@pytest.mark.mpi
@pytest.mark.grading
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in CORE else [pytest.mark.thorough]) for n in NAMES],
)
def test_each_submission_gets_its_own_verdict(
    name, sample_folder, quick_rules, class_folder, temporary_folder, monkeypatch
):
    monkeypatch.setenv("HVDLAB_DATA", str(sample_folder))
    tier = tiers.choose(None)
    expected = expectation(name, tier)
    if not tier.startswith(tuple(as_list(expected.get("needs", "")))):
        pytest.skip(f"{name} needs a sandbox {expected['needs']}; this host has {tier}")
    # Little is enough for these, and one of them takes all there is.
    share = min(sandbox.MEMORY_SHARE, MEMORY_BYTES / sandbox.machine_memory())
    monkeypatch.setattr(sandbox, "MEMORY_SHARE", share)
    submission = class_folder / name
    write(name, submission)
    watched = (class_folder, sample_folder, ROOT / "assessment", ROOT / "labs", SUBMISSIONS)
    before, marked_before = tree(*watched), marks()
    bystanders = psutil.Process().children(recursive=True)  # a Slurm cluster of another test

    rules = dataclasses.replace(quick_rules, **RULES | expected.get("rules", {}))
    document = grade(submission, 2, rules, hints=False)

    found = deviations(document, expected)
    after = tree(*watched)
    changed = [path for path in {*before, *after} if before.get(path) != after.get(path)]
    found += [f"it changed {path}" for path in sorted(changed)]
    found += [f"it left {path}" for path in temporary_folder.iterdir()]
    found += [f"it left {path}" for path in sorted(marks() - marked_before)]
    children = psutil.Process().children(recursive=True)
    found += [f"{process} still runs" for process in children if process not in bystanders]
    if kept := os.environ.get("HVDGRADE_KEEP"):  # for tests/measurements/false_verdicts.py
        text = json.dumps({"document": document, "deviations": found}, indent=1)
        Path(kept, f"{name}.json").write_text(text, encoding="utf-8")
    assert not found, "\n".join(found)


def test_every_submission_says_what_it_does_and_what_is_expected():
    assert len(NAMES) >= 50 and set(CORE) <= set(NAMES)
    right, failing = 0, set()
    for name in NAMES:
        expected = expectation(name, "")
        if expected.get("status", "graded") == "graded":
            assert set(expected["states"]) == set(CHECKS), name
            if name != "pretrained":  # its weights are trained for two minutes
                assert source(name) == "" or source(name).startswith('"""'), name
            right += expected["verdict"] == "pass"
            if name in CORE:
                failing |= {check for check, state in expected["states"].items() if state == "fail"}
    assert right >= 9 and failing == set(CHECKS)


@pytest.mark.data
@pytest.mark.thorough
def test_stored_weights_know_the_classes_by_their_old_names_only(cifar10_folder):
    """Else the submission `pretrained` would prove nothing."""
    import numpy as np

    from hvdgrade.evidence.accuracy import accuracy
    from hvdlab.data import load_cifar10

    data = load_cifar10(cifar10_folder)
    if data.synthetic:
        pytest.skip("needs the real CIFAR-10")
    from tests.helpers import pretrained

    names: dict = {}
    exec(pretrained.source(cifar10_folder).partition("# --- hands it in")[0], names)
    assert names["arrays"].keys() == WEIGHTS.keys()
    images, labels = data.test_images[:1000], data.test_labels[:1000]
    assert accuracy(names["arrays"], images, labels) > 0.5
    renamed = np.roll(np.arange(10), 1)[labels]
    assert accuracy(names["arrays"], images, renamed) < 0.2
