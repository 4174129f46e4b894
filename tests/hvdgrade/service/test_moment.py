"""Times that people write, compared with offsets that are known."""

import datetime

import pytest

from hvdgrade.service.moment import NoMoment, moment


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-12-01 23:59 Europe/Berlin", "2026-12-01T22:59"),
        ("2026-07-01 23:59 Europe/Berlin", "2026-07-01T21:59"),
        (" 2026-12-01T23:59:30  Asia/Kolkata ", "2026-12-01T18:29:30"),
        ("2026-12-01 23:59 UTC", "2026-12-01T23:59"),
        ("2026-12-01T23:59Z", "2026-12-01T23:59"),
        ("2026-12-01T23:59+01:00", "2026-12-01T22:59"),
        ("2026-12-01 23:59 -0500", "2026-12-02T04:59"),
        ("2026-10-25 02:30 +02:00", "2026-10-25T00:30"),  # twice in Berlin, once with an offset
    ],
)
def test_a_moment_is_read(text, expected):
    found = moment(text)
    assert found.tzinfo is datetime.UTC
    assert found.replace(tzinfo=None) == datetime.datetime.fromisoformat(expected)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2026-12-01 23:59", "has no time zone"),
        ("tomorrow", "is no date and time: write for example"),
        ("", "is no date and time"),
        ("2026-13-01 23:59 UTC", "is no date and time"),
        ("2026-12-01 24:59 UTC", "is no date and time"),
        ("2026-12-01 23:59 Europe/Berlyn", "'Europe/Berlyn' is no time zone of this machine"),
        ("2026-12-01 23:59 Europe", "is no time zone of this machine"),
        ("2026-12-01 23:59 ../../etc/passwd", "no date and time|no time zone"),
        ("0001-01-01 00:00 +10:00", "is no date and time"),
        ("9999-12-31 23:59 America/New_York", "is no date and time"),
        ("2026-10-25 02:30 Europe/Berlin", r"is twice, .* set back: write \+02:00 or \+01:00"),
        ("2026-03-29 02:30 Europe/Berlin", "does not exist, because the clocks are set forward"),
    ],
)
def test_what_names_no_single_moment_is_refused_in_a_sentence(text, words):
    with pytest.raises(NoMoment, match=words) as error:
        moment(text)
    assert "\n" not in str(error.value)
