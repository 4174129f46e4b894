"""Which folder may import which, read from the source with `ast`, also inside functions."""

import ast
import importlib
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {"hvdlab": ROOT / "labs", "hvdgrade": ROOT / "assessment"}
FRAMEWORKS = {"torch", "tensorflow", "keras", "tf_keras", "horovod", "mpi4py"}

# Folder or module of hvdlab -> the folders and modules of hvdlab, and the packages of others, that it may
# import. "frameworks" stands for FRAMEWORKS and the packages that build on them.
HVDLAB = {
    "": "",
    "system": "",
    "probe_mode": "",
    "record": "probe_mode",
    "schedules": "",
    "reference": "numpy",
    "noise_scale": "numpy",
    "arguments": "",
    "variants": "",
    "faults": "variants",
    "assessment_networks": "record",
    "recordable": "assessment_networks",
    "scaling": "numpy rich",
    "script_analysis": "",
    "mistakes": "",
    "trace": "",
    "hints": "mistakes script_analysis",
    "data": "record system probe_mode arguments numpy huggingface_hub rich",
    "launch": "system arguments psutil mpi4py",
    "torch": (
        "data record recordable probe_mode schedules noise_scale system assessment_networks numpy "
        "tokenizers frameworks"
    ),
    "keras": (
        "data record recordable probe_mode schedules noise_scale system assessment_networks numpy "
        "frameworks"
    ),
    "check": "trace launch record script_analysis mistakes system arguments cli numpy psutil rich frameworks",
    "doctor": "system launch data torch keras arguments cli numpy rich psutil frameworks",
    "bench": (
        "torch keras launch data record scaling system arguments assessment_networks reference "
        "numpy pandas psutil rich matplotlib timm pytorch_optimizer frameworks"
    ),
    "gpu_report": (
        "bench torch keras launch data record system arguments assessment_networks reference schedules "
        "noise_scale cli numpy psutil rich frameworks"
    ),
    "course": (
        "data launch record noise_scale schedules torch keras system numpy pandas rich matplotlib IPython "
        "PIL nbformat ipykernel ipywidgets frameworks"
    ),
    "exercises": (
        "check trace course faults hints mistakes launch data noise_scale record reference schedules "
        "script_analysis torch keras variants scaling system numpy pandas rich psutil matplotlib frameworks"
    ),
    "jupyter": "course jupyter_server tornado",
    "run_command": "launch check system",
    "cli": "doctor run_command check faults data bench course gpu_report system",
}
# The same for hvdgrade. A name that begins with "hvdlab" belongs to hvdlab.
HVDGRADE = {
    "": "hvdlab",
    "record_limits": "hvdlab.assessment_networks",
    "profiles": "record_limits",
    "result_document": "hvdgrade pydantic typing_extensions",
    "submission": "hvdlab.hints hvdlab.mistakes hvdlab.script_analysis",
    "sandbox": "record_limits hvdlab hvdlab.system psutil landlock",  # Sandbox.furnish copies landlock.py
    "output": "submission rich",
    "evidence": (
        "profiles submission output record_limits hvdlab.data hvdlab.record hvdlab.probe_mode "
        "hvdlab.assessment_networks hvdlab.torch hvdlab.keras numpy torch"
    ),
    "report": (
        "output result_document profiles submission sandbox evidence "
        "judge hvdgrade hvdlab.mistakes hvdlab.system rich jinja2 markdown_it"
    ),
    "run": (
        "sandbox evidence submission profiles record_limits hvdlab.launch hvdlab.data hvdlab.mistakes "
        "hvdlab.system hvdlab.assessment_networks hvdlab.probe_mode hvdlab.torch hvdlab.keras psutil numpy "
        "frameworks"
    ),
    "judge": "evidence profiles submission hvdlab.assessment_networks hvdlab.probe_mode hvdlab.record",
    "grade": (
        "run evidence judge report result_document sandbox output submission profiles "
        "hvdlab.data hvdlab.mistakes hvdlab.system hvdlab.assessment_networks hvdlab.probe_mode psutil"
    ),
    "batch": (
        "report result_document output submission profiles sandbox run hvdgrade hvdlab.arguments hvdlab.data "
        "hvdlab.system psutil submitit rich yaml"
    ),
    "worker": (
        "batch report result_document output profiles sandbox hvdgrade hvdlab.arguments hvdlab.data "
        "hvdlab.system httpx"
    ),
    "export": "batch report result_document output",
    "service": (
        "batch report result_document profiles output sandbox submission export hvdgrade sqlalchemy alembic "
        "starlette jinja2 markupsafe jwt httpx cryptography pydantic"
    ),
    "serve": "service hvdgrade sqlalchemy starlette uvicorn",
    "db": "service hvdgrade sqlalchemy",
    "course": "service db output profiles sandbox hvdgrade hvdlab.arguments sqlalchemy",
    "token": "service db hvdgrade hvdlab.arguments sqlalchemy",
    "submit": "",
    "platform": "submit sandbox output hvdgrade hvdlab.arguments jinja2 client door",  # copies in a kit
    "certificate": "batch report result_document output hvdgrade matplotlib cryptography",
    "quiz": "output hvdgrade hvdlab.arguments hvdlab.course markdown_it",
    "labs": (
        "batch export report result_document output submission hvdgrade hvdlab.arguments hvdlab.course "
        "jinja2 pydantic typing_extensions"
    ),
    "doctor": "sandbox run evidence output hvdgrade hvdlab hvdlab.system psutil rich",
    "jupyter": (
        "profiles submission sandbox run hvdlab.system psutil tornado jupyter_core jupyter_server"
    ),
    "run_command": (
        "grade report result_document output profiles sandbox submission hvdlab.arguments hvdlab.system rich"
    ),
    "cli": (
        "run_command output batch export platform submit serve worker certificate quiz labs course token "
        "db doctor hvdlab.system"
    ),
}
TABLES = {"hvdlab": HVDLAB, "hvdgrade": HVDGRADE}
RUN_OUR_SOURCE = {  # edits of functions of this package, and its packed modules in a hand-out
    "hvdlab.exercises.harness.function_exercise", "hvdlab.course.packed",
}  # fmt: skip
# `python -m hvdlab.doctor` runs in an environment without packages, so these import only the standard library
# at their top.
NEED_NOTHING = ("hvdlab.doctor", "hvdlab.system", "hvdlab.cli", "hvdlab.arguments")
# Modules of `hvdlab gpu` that run inside a process with a framework.
GPU_REPORT_WITH_FRAMEWORK = set(
    "exchange_times facts fast_training formulas ghost_batch_norm grading images_per_second marked_tests "
    "measuring nccl_shared networks operations optimizer_steps precision same_answer step_times training "
    "world bounds __init__".split()
)


def find_modules() -> dict[str, Path]:
    modules = {}
    for package, root in PACKAGES.items():
        for path in sorted((root / package).rglob("*.py")):
            name = ".".join(path.relative_to(root).with_suffix("").parts)
            modules[name.removesuffix(".__init__")] = path
    return modules


MODULES = find_modules()


def imports(path: Path, inside_functions: bool = True) -> set[str]:
    """Return the modules that a file imports, without those of the standard library."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = set()
    for node in ast.walk(tree) if inside_functions else tree.body:
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            submodules = {f"{node.module}.{alias.name}" for alias in node.names} & MODULES.keys()
            names |= submodules
            if len(submodules) < len(node.names):
                names.add(node.module)
    return {name for name in names if name.split(".")[0] not in sys.stdlib_module_names}


def folder(module: str) -> str:
    """Return "hvdlab.torch" for hvdlab.torch.noise."""
    return ".".join(module.split(".")[:2])


def in_dependency_order(graph: dict[str, set[str]]) -> list[str]:
    """Return the names so that each one imports only earlier ones; raise CycleError if it is impossible."""
    return list(TopologicalSorter(graph).static_order())


def allowed(module: str) -> set[str]:
    package, _, name = folder(module).partition(".")
    words = set(TABLES[package][name].split())
    if "frameworks" in words:
        words |= FRAMEWORKS | {"axonn", "deepspeed", "lightning", "litgpt", "torchao", "tqdm"}
    ours = {word if word.startswith("hvd") else f"{package}.{word}" for word in words}
    return ours | words


def test_every_folder_is_in_the_tables_and_every_row_is_a_folder():
    found = {folder(module) for module in MODULES}
    rows = {f"{p}.{name}".removesuffix(".") for p, table in TABLES.items() for name in table}
    assert found == rows


@pytest.mark.parametrize("module", MODULES)
def test_imports_only_what_the_table_of_its_folder_allows(module):
    for name in imports(MODULES[module]):
        if folder(name) in (folder(module), module.split(".")[0]):  # the base of all exceptions
            continue
        key = folder(name) if name in MODULES else name.split(".")[0]
        assert key in allowed(module), f"{module} imports {name}"


def test_hvdlab_never_imports_the_grader():
    for module, path in MODULES.items():
        if module.startswith("hvdlab"):
            assert not [name for name in imports(path) if name.startswith("hvdgrade")], module


def test_no_import_cycle_between_modules_nor_between_folders():
    modules = {
        module: (imports(path) & MODULES.keys()) - {module} for module, path in MODULES.items()
    }
    in_dependency_order(modules)
    folders: dict[str, set[str]] = {}
    for module, names in modules.items():
        if not module.endswith(
            ("__main__", ".cli")
        ):  # they start a command: who imports them runs it
            others = {folder(name) for name in names if not name.endswith(".cli")}
            folders.setdefault(folder(module), set()).update(others - {folder(module)})
    in_dependency_order(folders)
    folders["hvdlab.system"].add("hvdlab.exercises")
    with pytest.raises(CycleError):
        in_dependency_order(folders)


def test_torch_and_keras_halves_stay_apart():
    for module, path in MODULES.items():
        names = imports(path)
        roots = {name.split(".")[0] for name in names}
        last = module.rpartition(".")[2]
        if folder(module) == "hvdlab.torch":
            assert not roots & {"keras", "tensorflow", "tf_keras"}, module
            assert not any(folder(name) == "hvdlab.keras" for name in names), module
        if folder(module) == "hvdlab.keras":
            assert not any(folder(name) == "hvdlab.torch" for name in names), module
            assert "torch" not in roots or last.endswith("_torch"), module
            assert "tensorflow" not in roots or last.endswith("_tensorflow") or last == "data", (
                module
            )


def without_framework_at_the_top() -> list[str]:
    names = [
        "hvdlab.cli",
        "hvdgrade.cli",
        "hvdgrade.evidence.evaluate",
        *(m for m in MODULES if m.startswith(("hvdlab.check", "hvdlab.data", "hvdlab.launch"))),
        *(f"hvdlab.bench.{name}" for name in "command launch precision ranks throughput".split()),
        *(f"hvdlab.bench.{name}" for name in "exchange allreduce scaling".split()),
    ]
    gpu = [module for module in MODULES if folder(module) == "hvdlab.gpu_report"]
    return names + [m for m in gpu if m.split(".")[-1] not in GPU_REPORT_WITH_FRAMEWORK]


@pytest.mark.parametrize("module", without_framework_at_the_top())
def test_a_command_imports_no_framework_at_its_top(module):
    names = imports(MODULES[module], inside_functions=False)
    assert not {name.split(".")[0] for name in names} & FRAMEWORKS


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith(NEED_NOTHING)])
def test_the_doctor_starts_where_nothing_is_installed(module):
    names = imports(MODULES[module], inside_functions=False)
    assert all(name.startswith((*NEED_NOTHING, "hvdlab.probe_mode")) for name in names)
    if not module.endswith((".import_probe", ".two_rank_script")):  # these run in a child process
        roots = {name.split(".")[0] for name in imports(MODULES[module])}
        assert not roots & FRAMEWORKS


def test_the_grader_imports_no_framework_but_to_evaluate_and_to_calibrate():
    for module, path in MODULES.items():
        if module.startswith("hvdgrade") and ".calibration." not in module:
            roots = {name.split(".")[0] for name in imports(path)} & FRAMEWORKS
            assert not roots or (module, roots) == ("hvdgrade.evidence.accuracy", {"torch"}), module


@pytest.mark.parametrize(
    "package",
    [module for module, path in MODULES.items() if path.name == "__init__.py"],
)
def test_every_name_that_a_package_declares_can_be_imported(package):
    tree = ast.parse(MODULES[package].read_text(encoding="utf-8"))
    hands_on = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    declared = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    if package in PUBLIC:
        assert declared, f"{package} must declare __all__"
    if not declared:
        return
    for root in FRAMEWORKS & {name.split(".")[0] for node in hands_on for name in [node.module]}:
        pytest.importorskip(root)
    module = importlib.import_module(package)
    assert len(declared[0]) == len(set(declared[0]))
    for name in declared[0]:
        assert getattr(module, name) is not None


PUBLIC = {
    *("hvdlab.data", "hvdlab.launch", "hvdlab.scaling", "hvdgrade.export"),
    *("hvdlab.torch.optimizers", "hvdlab.keras.optimizers"),
}


def test_nobody_unpickles_or_asks_a_shell():
    scripts = {path.name: path for path in (ROOT / "labs").glob("*.py")}
    scripts |= {str(path.parent): path for path in (ROOT / "assessment").rglob("assessment.py")}
    for name, path in {**MODULES, **scripts}.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                words = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                assert words.get("shell") != "True", name
                assert words.get("allow_pickle") != "True", name
                called = ast.unparse(node.func)
                assert called not in ("eval", "pickle.load", "pickle.loads"), name
                assert called != "exec" or name in RUN_OUR_SOURCE, name
                if called == "torch.load":
                    assert words.get("weights_only") == "True", name
