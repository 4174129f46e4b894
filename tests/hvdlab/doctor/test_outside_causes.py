"""Imports that fail because of something outside of the environment. The imports are real."""

import subprocess
import sys
from pathlib import Path

import pytest

from hvdlab.doctor import outside_causes
from hvdlab.doctor.answers import ProgramOutput
from hvdlab.doctor.checks import software
from hvdlab.doctor.run_programs import ask, probe

FINE = ProgramOutput(0, '{"version": "1"}', "")


@pytest.fixture(autouse=True)
def clean(monkeypatch, tmp_path):
    """Start in an empty folder, without variables of this machine."""
    for name in outside_causes.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def found(name: str) -> ProgramOutput:
    """Return the output of a probe, after what is outside was looked for."""
    outputs = {**dict.fromkeys(outside_causes.IMPORTS, FINE), **ask({name: probe(name)}, 100)}
    assert outputs[name].code != 0 and not outputs[name].answer()  # so there is something to find
    return {**outputs, **outside_causes.find(outputs, 100)}[name]


def write(path: Path, text: str = "raise ImportError('of another Python')\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("source", ["PYTHONPATH", "the current folder", "both"])
@pytest.mark.parametrize(("name", "module"), [("mpi4py", "mpi4py"), ("data", "numpy")])
def test_the_file_that_breaks_an_import_is_named(source, name, module, tmp_path, monkeypatch):
    folder = Path.cwd() if source == "the current folder" else tmp_path / "other"
    file = write(folder / f"{module}.py")
    if source != "the current folder":
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "other"))
    if source == "both":
        write(Path.cwd() / f"{module}.py")
    if source == "PYTHONPATH":
        monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere")  # which is innocent
    output = found(name)
    assert output.answer()  # what the environment itself has
    answer = software.shadowing({name: output})
    assert answer == output.outside and answer.state == "failure" and "pip" not in answer.fix
    what = {"data": "NumPy"}.get(name, name)
    assert f" makes the import of {what} fail, which works without it: ImportError" in answer.seen
    if source == "both":
        assert " (the current folder or PYTHONPATH) " in answer.seen
        return
    assert answer.seen.startswith(f"{file} ({source}) ")
    if source == "PYTHONPATH":
        assert answer.fix == "unset PYTHONPATH"
        monkeypatch.delenv("PYTHONPATH")
    else:
        assert answer.fix == f"mv {file} {file.with_name(f'my_{module}.py')}"
        subprocess.run(["sh", "-c", answer.fix], check=True, timeout=60)
    assert ask({name: probe(name)}, 100)[name].answer()


def test_a_variable_that_names_a_wrong_library_is_named(monkeypatch):
    monkeypatch.setenv("MPI4PY_LIBMPI", "/nowhere/libmpi.so")
    answer = found("mpi4py").outside
    assert answer.seen.startswith("MPI4PY_LIBMPI makes the import of mpi4py fail")
    assert answer.fix == "unset MPI4PY_LIBMPI"


def test_a_library_of_another_compiler_is_named(tmp_path, monkeypatch):
    file = write(tmp_path / "lib" / "libstdc++.so.6", "of another compiler")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(file.parent))
    answer = found("data").outside  # NumPy needs the C++ library
    assert answer.seen.startswith(f"{file} (LD_LIBRARY_PATH) makes the import of NumPy fail")
    assert answer.fix == "unset LD_LIBRARY_PATH"


def test_a_broken_environment_is_not_blamed_on_the_shell(tmp_path, monkeypatch):
    """A package that is not installed is missing with and without PYTHONPATH."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    base = Path(sys.base_prefix, "bin", Path(sys.executable).resolve().name)
    monkeypatch.setattr(sys, "executable", str(base))
    if ask({"mpi4py": probe("mpi4py")}, 100)["mpi4py"].answer():
        pytest.skip("the base interpreter has mpi4py")
    output = found("mpi4py")
    assert output.outside is None and "No module named 'mpi4py'" in output.err


@pytest.mark.slow
def test_an_old_package_of_an_environment_module_is_named(tmp_path, monkeypatch):
    """As with a module that puts the packages of another Python into PYTHONPATH."""
    pytest.importorskip("torch")
    file = write(tmp_path / "site-packages" / "typing_extensions.py", "Literal = None\n")
    monkeypatch.setenv("PYTHONPATH", str(file.parent))
    output = found("torch")
    assert "error" not in output.answer()["horovod"]
    assert output.outside.seen.startswith(f"{file} (PYTHONPATH) makes the import of torch fail")
    assert output.outside.fix == "unset PYTHONPATH"
