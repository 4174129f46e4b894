"""Which module may import which other module, read from the source with `ast`."""

import ast
import sys
from pathlib import Path

import pytest

from hvdgrade import profiles

ROOT = Path(__file__).parents[2]
LABS, GRADER = ROOT / "labs/hvdlab", ROOT / "assessment/hvdgrade"
FRAMEWORKS = {"torch", "tensorflow", "keras", "tf_keras", "horovod", "mpi4py"}

# Module -> what it may import in addition to the standard library. Names of our modules are exact.
ALLOWED = {
    "hvdlab": set(),
    "hvdlab.arguments": set(),
    "hvdlab.record": {"hvdlab.probe_mode"},
    "hvdlab.assessment_networks": {"hvdlab.record"},
    "hvdlab.probe_mode": set(),
    "hvdlab.script_analysis.functions": set(),
    "hvdlab.script_analysis.ast_helpers": set(),
    "hvdlab.script_analysis.bindings": {
        "hvdlab.script_analysis.functions",
        "hvdlab.script_analysis.ast_helpers",
    },
    "hvdlab.script_analysis.script": {
        "hvdlab.script_analysis.bindings",
        "hvdlab.script_analysis.functions",
        "hvdlab.script_analysis.ast_helpers",
    },
    "hvdlab.script_analysis.rate_scaling": {
        "hvdlab.script_analysis.script",
        "hvdlab.script_analysis.ast_helpers",
    },
    "hvdlab.script_analysis.gpu_choice": {
        "hvdlab.script_analysis.bindings",
        "hvdlab.script_analysis.script",
        "hvdlab.script_analysis.ast_helpers",
    },
    "hvdlab.script_analysis.rank_guards": {
        "hvdlab.script_analysis.functions",
        "hvdlab.script_analysis.script",
    },
    "hvdlab.system.command_name": set(),
    "hvdlab.system.gpu_assignment": set(),
    "hvdlab.system.hardware": set(),
    "hvdlab.system.open_mpi": set(),
    "hvdlab.launch.host_watch": {"hvdlab.launch.hosts"},
    "hvdlab.schedules": set(),
    "hvdlab.reference": {"numpy"},
    "hvdlab.noise_scale": {"numpy"},
    "hvdlab.scaling": {"hvdlab.scaling.cost_model"},
    "hvdlab.scaling.cost_model": {"numpy"},
    "hvdlab.scaling.published": {"hvdlab.scaling.cost_model"},
    "hvdlab.scaling.__main__": {"rich", "hvdlab.scaling.published"},
    "hvdlab.course.loss_landscape": {"numpy"},
    "hvdlab.launch": {"psutil", "hvdlab.system.hardware", "hvdlab.system.open_mpi"},
    "hvdlab.launch.function_on_ranks": {"hvdlab.launch"},
    "hvdlab.system.slurm_job": set(),
    "hvdlab.launch.hosts": {"psutil", "hvdlab.launch"},
    "hvdlab.launch.launchers.base": {"psutil"},
    "hvdlab.launch.launchers.mpirun": {
        "hvdlab.launch.hosts",
        "hvdlab.launch",
        "hvdlab.launch.launchers.base",
        "hvdlab.system.open_mpi",
    },
    "hvdlab.launch.launchers.torchrun": {
        "hvdlab.launch.hosts",
        "hvdlab.launch",
        "hvdlab.launch.launchers.base",
    },
    "hvdlab.launch.launchers.srun": {
        "hvdlab.launch.hosts",
        "hvdlab.launch",
        "hvdlab.launch.launchers.base",
        "hvdlab.launch.launchers.torchrun",
    },
    "hvdlab.launch.plan": {
        "hvdlab.system.slurm_job",
        "hvdlab.launch.hosts",
        "hvdlab.launch",
        "hvdlab.system.hardware",
        "hvdlab.launch.launchers.mpirun",
        "hvdlab.launch.launchers.torchrun",
        "hvdlab.launch.launchers.srun",
    },
    "hvdlab.launch.rank_output": set(),
    "hvdlab.launch.preflight": {
        "hvdlab.launch.hosts",
        "hvdlab.launch",
        "hvdlab.launch.launchers.base",
        "hvdlab.system.open_mpi",
        "hvdlab.launch.plan",
    },
    "hvdlab.launch.command": {
        "hvdlab.launch.hosts",
        "hvdlab.launch",
        "hvdlab.launch.host_watch",
        "hvdlab.launch.plan",
        "hvdlab.launch.rank_output",
        "hvdlab.launch.preflight",
    },
    "hvdlab.cli": set(),
    "hvdlab.course.experiment": {"pandas", "rich", "hvdlab.system.hardware"},
    "hvdlab.course.figures": {"pandas", "matplotlib"},
    "hvdlab.data.batches": {"numpy", "hvdlab.probe_mode"},
    "hvdlab.data": {"numpy", "hvdlab.data.batches", "hvdlab.system.command_name"},
    "hvdlab.data.instructions": {"huggingface_hub", "hvdlab.data"},
    "hvdlab.data.download": {"hvdlab.data", "hvdlab.system.command_name"},
    "hvdlab.data.synthetic": {"numpy", "hvdlab.data", "hvdlab.data.download"},
    "hvdlab.check.catalogue": set(),
    "hvdlab.check.instrument": {
        "hvdlab.check.source_facts",
        "hvdlab.script_analysis.rank_guards",
        "hvdlab.script_analysis.functions",
        "hvdlab.script_analysis.script",
        "hvdlab.script_analysis.ast_helpers",
    },
    "hvdlab.check.fingerprints": set(),
    "hvdlab.check.run_events": set(),
    "hvdlab.check.source_facts": {
        "hvdlab.script_analysis.gpu_choice",
        "hvdlab.script_analysis.rate_scaling",
        "hvdlab.script_analysis.rank_guards",
        "hvdlab.script_analysis.script",
        "hvdlab.script_analysis.ast_helpers",
    },
    "hvdlab.check.event_log": {"hvdlab.check.fingerprints"},
    "hvdlab.check.diagnosis": {
        "hvdlab.check.rules.devices",
        "hvdlab.check.rules.settings",
        "hvdlab.check.rules.training",
        "hvdlab.check.catalogue",
        "hvdlab.check.run_events",
        "hvdlab.check.source_facts",
    },
}
GRADER_ALLOWED = {
    "hvdlab",
    "hvdlab.data",
    "hvdlab.probe_mode",
    "hvdlab.record",
    "hvdlab.assessment_networks",
    "hvdlab.script_analysis.bindings",
    "hvdlab.script_analysis.functions",
    "hvdlab.script_analysis.script",
    "hvdlab.script_analysis.ast_helpers",
    "hvdlab.script_analysis.rank_guards",
    "hvdlab.script_analysis.rate_scaling",
    "hvdlab.script_analysis.gpu_choice",
    "hvdlab.hints",
    "hvdlab.hints.learning",
    "hvdlab.launch",
    "hvdlab.system.hardware",
    "hvdlab.system.open_mpi",
    "numpy",
    "psutil",
    "rich",
    "jinja2",
    "submitit",
    "jupyter_core",
    "jupyter_server",
    "tornado",
}
# Modules of `hvdlab gpu` that run outside the processes of its parts.
GPU_REPORT_WITHOUT_FRAMEWORK = (
    "against command data findings gpu_use machine markdown parts processes results runner".split()
)
# Modules that the judging modules import, and that do not judge: wording, the choice of the sandbox, cleanup.
NO_JUDGES = "cgroup cleanup export folders printed profile report sandbox"


def modules(package: Path, name: str) -> dict[str, Path]:
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = [name, *path.relative_to(package).with_suffix("").parts]
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


def imports(path: Path, everywhere: bool = True) -> set[str]:
    """Return the modules that a file imports; with everywhere=False only at its top level."""
    tree = ast.parse(path.read_text())
    nodes = ast.walk(tree) if everywhere else tree.body
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            ours = {name for name in whole if name in ALL}
            found.update(ours or {node.module})
    return {name for name in found if name.split(".")[0] not in sys.stdlib_module_names}


ALL: dict[str, Path] = {}
ALL = {**modules(LABS, "hvdlab"), **modules(GRADER, "hvdgrade")}


@pytest.mark.parametrize("name", ALLOWED)
def test_base_modules_import_only_allowed_modules(name):
    roots = {
        wanted if wanted.startswith("hvdlab") else wanted.split(".")[0]
        for wanted in imports(ALL[name])
    }
    assert roots <= ALLOWED[name]


def test_torch_and_keras_packages_do_not_import_each_other():
    for name, path in ALL.items():
        roots = {wanted.split(".")[0] for wanted in imports(path)}
        ours = imports(path)
        if name.startswith("hvdlab.torch"):
            assert not roots & {"keras", "tensorflow", "tf_keras"}, name
            assert not any(wanted.startswith("hvdlab.keras") for wanted in ours), name
        if name.startswith("hvdlab.keras"):
            assert not any(wanted.startswith("hvdlab.torch") for wanted in ours), name
            if not name.endswith("_torch"):
                assert "torch" not in roots, name
            if name.rpartition(".")[2] not in ("_horovod_tensorflow", "_gpus_tensorflow", "data"):
                assert "tensorflow" not in roots, name


def test_commands_import_no_framework_at_top_level():
    for name in (
        "hvdlab.cli",
        "hvdlab.data.command",
        "hvdlab.bench.command",
        "hvdlab.bench.launch",
        "hvdlab.bench.precision",
        "hvdlab.bench.ranks",
        "hvdlab.bench.throughput",
        "hvdlab.bench.exchange",
        "hvdlab.doctor.command",
        "hvdlab.bench.allreduce",
        "hvdlab.bench.scaling",
        *(f"hvdlab.gpu_report.{name}" for name in GPU_REPORT_WITHOUT_FRAMEWORK),
        *(
            name for name in ALL if name.startswith("hvdlab.check")
        ),  # modules that it must not import in a script's process
        "hvdgrade.cli",
        "hvdgrade.evidence.evaluate",
    ):
        top = {wanted.split(".")[0] for wanted in imports(ALL[name], everywhere=False)}
        assert not top & FRAMEWORKS, name


def test_the_doctor_starts_without_any_package():
    for name, path in ALL.items():
        if not name.startswith("hvdlab.doctor"):
            continue
        top = imports(path, everywhere=False)
        known = (
            "hvdlab.system.slurm_job",
            "hvdlab.doctor.answers",
            "hvdlab.system.hardware",
            "hvdlab.system.open_mpi",
            "hvdlab.system.command_name",
        )  # these modules need nothing, see above
        assert all(wanted.startswith(known) for wanted in top), name
        if name not in ("hvdlab.doctor.import_probe", "hvdlab.doctor.two_rank_script"):
            assert not {wanted.split(".")[0] for wanted in imports(path)} & FRAMEWORKS, name


def test_the_grader_does_not_import_the_training_packages():
    for name, path in ALL.items():
        if not name.startswith("hvdgrade") or ".calibration." in name:
            continue  # calibration scripts run like submissions
        for wanted in imports(path):
            ours = wanted.startswith("hvdgrade") or wanted.split(".")[0] in GRADER_ALLOWED - {
                "hvdlab"
            }
            evaluator = name == "hvdgrade.evidence.evaluate" and wanted in (
                "torch",
                "hvdlab.torch.models",
                "hvdlab.keras.models",
            )
            inside = (
                name == "hvdgrade.sandbox.drop_privileges" and wanted == "landlock"
            )  # hvdgrade is hidden in the sandbox
            allowed = ours or wanted in GRADER_ALLOWED or evaluator or inside
            assert allowed, f"{name} imports {wanted}"


def test_every_module_that_judges_belongs_to_the_rules():
    """A result is kept while the rules are unchanged.

    Modules that the rules import are rules too, or are listed here.
    """
    judges = {name for name, path in ALL.items() if path.resolve() in profiles.JUDGES}
    assert len(judges) == len(profiles.JUDGES)
    taken = {
        wanted
        for name in judges
        for wanted in imports(ALL[name])
        if wanted in ALL and wanted.startswith("hvdgrade.")
    }
    assert taken - judges == {f"hvdgrade.{name}" for name in NO_JUDGES.split()}


def test_hvdlab_does_not_import_hvdgrade():
    for name, path in ALL.items():
        if name.startswith("hvdlab"):  # modules that grade start the command `hvdgrade`
            assert not any(wanted.split(".")[0] == "hvdgrade" for wanted in imports(path)), name


def test_no_module_unpickles_or_starts_a_shell():
    scripts = {path.name: path for path in (ROOT / "labs").glob("*.py")}
    scripts |= {str(path.parent): path for path in (ROOT / "assessment").rglob("assessment.py")}
    for name, path in {**ALL, **scripts}.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                words = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                assert words.get("shell") != "True", name
                assert words.get("allow_pickle") != "True", name
                called = ast.unparse(node.func)
                assert called not in ("eval", "exec", "pickle.load", "pickle.loads"), name
                if called == "torch.load":
                    assert words.get("weights_only") == "True", name
