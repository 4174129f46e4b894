"""What several tests of the grader need."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvdgrade.sandbox import tiers


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Return an empty folder that every user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="hvdlab-tests-") as place:
        Path(place).chmod(0o755)
        yield Path(place)


@pytest.fixture(params=tiers.TIERS)
def tier(request) -> str:
    """Return each isolation level that works on this machine."""
    return one_that_works(request.param)


STRONGEST, *BETWEEN, WEAKEST = tiers.TIERS


@pytest.fixture(
    params=[STRONGEST, *(pytest.param(t, marks=pytest.mark.thorough) for t in BETWEEN), WEAKEST]
)
def outer_tier(request) -> str:
    """The same for what processes do: by default with a world of their own, and without."""
    return one_that_works(request.param)


def one_that_works(tier: str) -> str:
    found = tiers.tier(tier)
    if not found.works:
        pytest.skip(f"{tier} does not work here: {found.reason}")
    return tier
