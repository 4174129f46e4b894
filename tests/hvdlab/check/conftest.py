"""A folder of its own for each test, and what is read of a correct script that is changed in places."""

import pytest

from hvdlab.check.static import read

SCRIPT = """\
import horovod.torch as hvd
hvd.init()
optimizer = SGD(model.parameters(), lr=0.1 * hvd.size())
optimizer = hvd.DistributedOptimizer(optimizer)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
for batch in loader:
    optimizer.step()
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def facts(tmp_path):
    """Return a function (*(old, new)) -> Facts."""

    def of(*changes):
        text = SCRIPT
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "script.py").write_text(text)
        return read(tmp_path / "script.py")

    return of
