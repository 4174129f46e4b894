"""What several tests of the grader need."""

import pytest

from hvdgrade import sandbox


@pytest.fixture(params=sandbox.TIERS)
def tier(request) -> str:
    """Each kind of walls that works here."""
    found = sandbox.tier(request.param)
    if not found.works:
        pytest.skip(f"{request.param} does not work here: {found.reason}")
    return request.param
