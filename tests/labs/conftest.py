import chromium
import pytest


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium for all tests of a file."""
    yield from chromium.started()
