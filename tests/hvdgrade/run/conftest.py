"""Folders for submissions that run as a user of their own."""

from pathlib import Path

import pytest


@pytest.fixture
def tmp_path(open_folder) -> Path:
    """Replace pytest's folder, which only its owner can enter."""
    return open_folder
