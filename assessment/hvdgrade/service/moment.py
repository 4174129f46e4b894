"""A moment that a person writes: a date, a time of day and a time zone."""

import datetime
import re
import zoneinfo

from hvdgrade import HvdgradeError

EXPECTED = 'write for example "2026-12-01 23:59 Europe/Berlin" or "2026-12-01T23:59+01:00"'
LOCAL = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d)?)\s*(.*)", re.ASCII)


class NoMoment(HvdgradeError):
    """A text does not name one moment. The message says why in one sentence."""


def moment(text: str) -> datetime.datetime:
    """Return the moment in UTC that a text names.

    Raises:
        NoMoment: it has no time zone, or names no moment, or two because the clocks are set back.
    """
    try:
        return _read(text)
    except (AttributeError, ValueError, OverflowError):  # the last: beyond the year 9999 in UTC
        raise NoMoment(f"{text!r} is no date and time: {EXPECTED}.") from None


def _read(text: str) -> datetime.datetime:
    """Return the moment that `moment` returns, with the errors of the standard library for other texts."""
    local, zone = LOCAL.fullmatch(text.strip()).groups()
    if not zone or zone[0] in "+-" or zone == "Z":
        found = datetime.datetime.fromisoformat(local + zone)
        if found.tzinfo is None:
            raise NoMoment(f"{text!r} has no time zone: {EXPECTED}.")
        return found.astimezone(datetime.UTC)
    wall = datetime.datetime.fromisoformat(local)
    try:
        first = wall.replace(tzinfo=zoneinfo.ZoneInfo(zone))
    except (zoneinfo.ZoneInfoNotFoundError, OSError):  # OSError: the name of a folder
        raise NoMoment(f"{zone!r} is no time zone of this machine: {EXPECTED}.") from None
    second = first.replace(fold=1)
    if first.utcoffset() == second.utcoffset():
        return first.astimezone(datetime.UTC)
    if first.astimezone(datetime.UTC).astimezone(first.tzinfo).replace(tzinfo=None) != wall:
        raise NoMoment(
            f"{text!r} does not exist, because the clocks are set forward: choose another time."
        )
    offsets = " or ".join(each.isoformat()[-6:] for each in (first, second))
    raise NoMoment(
        f"{text!r} is twice, because the clocks are set back: write {offsets} in place of {zone}."
    )
