"""A worker as a process of its own, and a server that keeps the contract."""

import pytest
from pool_server import PoolServer
from started_worker import Started


@pytest.fixture
def pool():
    """Return a server that keeps the contract with workers."""
    with PoolServer() as server:
        yield server


@pytest.fixture
def worker(tmp_path, sample_folder, pool):
    """Return a worker that can be started; end all its processes after the test."""
    started = Started(tmp_path, sample_folder, pool)
    yield started
    started.clear_up()
