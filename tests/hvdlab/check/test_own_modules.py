"""Scripts that consist of several files, and scripts that start their ranks themselves."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("horovod.torch", reason="needs Horovod: run `make setup`")

TRAIN = """\
import horovod.torch as hvd
import torch
from torch import nn
from loops import train
from parts.model import make

def main():
    hvd.init()
    torch.manual_seed(hvd.rank())
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size())
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    train(model, optimizer)

main()
"""
LOOPS = """\
import torch
import horovod.torch as hvd

def train(model, optimizer):
    g = torch.Generator().manual_seed(hvd.rank())
    for epoch in range(100):
        for step in range(1000):
            optimizer.zero_grad()
            model(torch.randn(4, 8, generator=g)).square().mean().backward()
            optimizer.step()
"""
MODEL = """\
from torch import nn

def make():
    return nn.Linear(8, 1)
"""
SPAWNS = """\
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

def rank_main(rank):
    dist.init_process_group("gloo", rank=rank, world_size=2)

if __name__ == "__main__":
    mp.spawn(rank_main, nprocs=2)
"""


def check(script: Path) -> subprocess.CompletedProcess:
    command = [
        sys.executable,
        "-m",
        "hvdlab.check",
        "--json",
        script.with_name("found.json"),
        script,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=script.parent)


@pytest.mark.mpi
@pytest.mark.slow
def test_loops_of_the_scripts_own_modules_end_early_and_other_files_are_named(tmp_path):
    script = tmp_path / "script" / "train.py"
    elsewhere = f"import sys\nsys.path.append({str(tmp_path)!r})\n"
    files = {
        "script/train.py": elsewhere + TRAIN,
        "script/loops.py": LOOPS,
        "parts/model.py": MODEL,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    ended = check(script)
    found = json.loads((tmp_path / "script" / "found.json").read_text())
    assert (ended.returncode, found["format"], found["steps"]) == (1, "hvdlab-check/1", 16)
    (finding,) = found["findings"]
    line = files["script/train.py"].splitlines()[finding["line"] - 1].strip()
    assert finding["id"] == "no-broadcast" and line.startswith("optimizer = hvd.Distributed")
    assert found["note"] == (
        f"{tmp_path}/parts/model.py is not in the script's folder, so mistakes in it have no line"
    )


@pytest.mark.mpi
@pytest.mark.slow
def test_a_script_that_starts_its_ranks_itself_is_told_at_once(tmp_path):
    (tmp_path / "train.py").write_text(SPAWNS)
    ended = check(tmp_path / "train.py")
    line = SPAWNS.splitlines().index("    mp.spawn(rank_main, nprocs=2)") + 1
    assert ended.returncode == 2
    assert f"train.py, line {line}: the script starts its ranks itself" in ended.stderr
