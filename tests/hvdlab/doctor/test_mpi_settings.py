"""The user's settings of Open MPI, and the search for the one with which two ranks fail."""

import os
import subprocess
from pathlib import Path

import pytest

from hvdlab.doctor import mpi_settings
from hvdlab.doctor.checks import allreduce
from hvdlab.doctor.mpi_settings import Setting
from hvdlab.doctor.run_programs import ask, probe


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home folder, and no settings in the environment."""
    for name in list(os.environ):
        if name.startswith(mpi_settings.PREFIXES):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def test_settings_are_variables_and_lines_of_files(home, monkeypatch):
    assert mpi_settings.settings() == []
    monkeypatch.setenv("OMPI_MCA_pml", "ucx")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")  # not a setting
    text = "# mine\n  btl = tcp,self\n\nodd\nmtl=psm2\n"
    file = write(home / ".openmpi/mca-params.conf", text)
    found = mpi_settings.settings()
    assert found == [
        Setting("OMPI_MCA_pml", "ucx"),
        Setting("btl", "tcp,self", ".openmpi/mca-params.conf"),
        Setting("mtl", "psm2", ".openmpi/mca-params.conf"),
    ]
    assert found[0].seen() == "OMPI_MCA_pml=ucx"
    assert found[1].seen() == "btl=tcp,self in ~/.openmpi/mca-params.conf"
    with mpi_settings.only(found[1:2]) as variables:
        assert "OMPI_MCA_pml" not in variables
        copy = Path(variables["HOME"], ".openmpi/mca-params.conf")
        assert copy.read_text(encoding="utf-8") == "btl = tcp,self\n"
    assert found[0].fix() == "unset OMPI_MCA_pml"
    subprocess.run(["sh", "-c", found[1].fix()], check=True, timeout=60)
    assert mpi_settings.settings() == [found[0], found[2]]
    assert "# mine\n" in file.read_text()


@pytest.mark.parametrize("culprits", [{3}, {0}, {6}, {1, 2}, {0, 6}])
def test_the_settings_with_which_ranks_fail_are_found(culprits):
    suspects = [Setting(f"OMPI_MCA_{number}", "1") for number in range(7)]
    wrong = {suspects[number] for number in culprits}
    tried = []

    def works(kept):
        tried.append(kept)
        return not wrong <= set(kept)

    found = mpi_settings.guilty(suspects, works)
    assert wrong <= set(found) and len(tried) <= 6
    if len(culprits) == 1:
        assert set(found) == wrong


@pytest.mark.mpi
@pytest.mark.parametrize("place", ["variable", pytest.param("file", marks=pytest.mark.thorough)])
def test_the_setting_of_a_cluster_is_named(place, home, monkeypatch):
    """With the real mpirun. The build of this environment has no UCX."""
    pytest.importorskip("horovod.torch")
    monkeypatch.setenv("OMPI_MCA_btl_tcp_if_include", "lo")  # which is innocent
    monkeypatch.setenv("PRTE_MCA_prte_local_tmpdir_base", str(home))
    if place == "variable":
        monkeypatch.setenv("OMPI_MCA_pml", "ucx")
    else:
        write(home / ".openmpi/mca-params.conf", "mpi_show_handle_leaks = 0\npml = ucx\n")
    outputs = ask({"torch": probe("torch")}, 100)
    answer = allreduce.allreduce({"tensorflow": outputs["torch"], **outputs}, 60)
    name = "OMPI_MCA_pml=ucx" if place == "variable" else "pml=ucx in ~/.openmpi/mca-params.conf"
    assert answer.state == "failure"
    assert answer.seen.startswith(f"with {name} two ranks fail, and without it they work: ")
    assert '{"' not in answer.seen  # the ranks' own reports
    if place == "variable":
        assert answer.fix == "unset OMPI_MCA_pml"
