"""A change of code that can change a verdict must raise `rules_version` in assessment/profiles.toml.

A batch keeps the results of a class only as long as the rules stay the same. The file rules_version.json
holds the version of the rules and a fingerprint of the code that decides verdicts. After raising the version:

    python tests/hvdgrade/test_rules_version.py
"""

import ast
import hashlib
import json
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECORDED = Path(__file__).with_name("rules_version.json")
PROFILES = ROOT / "assessment/profiles.toml"
# Files and folders whose code decides verdicts, together with the thresholds in profiles.toml.
JUDGING = (
    *(f"assessment/hvdgrade/{name}" for name in ("evidence", "judge", "run", "grade.py")),
    *(f"assessment/hvdgrade/sandbox/{name}.py" for name in ("sandbox", "drop_privileges")),
    *(f"assessment/hvdgrade/sandbox/{name}.py" for name in ("mounts", "gpu_access")),
    *(f"assessment/hvdgrade/submission/{name}.py" for name in ("script", "inspect_source")),
    *("assessment/hvdgrade/submission/find_script.py", "assessment/hvdgrade/record_limits.py"),
    *(f"labs/hvdlab/{name}.py" for name in ("probe_mode", "record", "recordable")),
    *("labs/hvdlab/assessment_networks.py", "labs/hvdlab/torch/recorded_module.py"),
    *(f"labs/hvdlab/data/{name}.py" for name in ("batches", "epoch_record", "files")),
    *(
        f"labs/hvdlab/{framework}/{name}.py"
        for framework in ("keras", "torch")
        for name in ("models", "recorder", "wide_resnet", "measure_speed", "device")
    ),
)
# Files of these folders that only clean up or are displayed.
NOT_JUDGING = {"orphans.py", "captured_output.py"}


def judging_files() -> list[Path]:
    places = [ROOT / name for name in JUDGING]
    files = [f for place in places for f in (place.rglob("*.py") if place.is_dir() else [place])]
    return sorted(file for file in files if file.name not in NOT_JUDGING)


def code(source: str) -> str:
    """Return a program without comments, docstrings, annotations and the places of its lines."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = node.body[1:] or [ast.Pass()]
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        if isinstance(node, ast.arg):
            node.annotation = None
    return ast.dump(tree)


def fingerprint() -> str:
    parts = [f"{file.name}: {code(file.read_text(encoding='utf-8'))}" for file in judging_files()]
    return hashlib.sha256("\n".join(sorted(parts)).encode()).hexdigest()


def version() -> int:
    return tomllib.loads(PROFILES.read_text(encoding="utf-8"))["common"]["rules_version"]


def test_a_change_of_judging_code_raises_the_version():
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    assert recorded == {"rules_version": version(), "code": fingerprint()}, (
        "the code that decides verdicts has changed: raise rules_version in assessment/profiles.toml, "
        f"then run `python {Path(__file__).relative_to(ROOT)}`"
    )


@pytest.mark.parametrize("path", judging_files(), ids=lambda path: path.stem)
def test_comments_and_docstrings_do_not_count_and_code_does(path):
    source = path.read_text(encoding="utf-8")
    assert code(source + "\n# a comment\n") == code(source)
    assert code(source + "\nlimit = 7\n") != code(source)


def test_every_judging_file_exists():
    assert len(judging_files()) > 30 and all(file.is_file() for file in judging_files())
    assert all((ROOT / name).exists() for name in JUDGING)


if __name__ == "__main__":
    before = json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else {}
    if before and before["code"] != fingerprint() and version() <= before["rules_version"]:
        sys.exit(f"raise rules_version in {PROFILES} above {before['rules_version']} first")
    after = {"rules_version": version(), "code": fingerprint()}
    RECORDED.write_text(json.dumps(after, indent=1) + "\n", encoding="utf-8")
