"""The schedules: starts and sums of minutes, compared with the stated totals and with the labs."""

import re
from collections import defaultdict

import pytest
from instructor_guides import LABS, ROOT, guide_of, minutes, section, stated_minutes

from hvdlab.course import entry_test

PAGE = (ROOT / "assessment" / "instructor" / "schedules.md").read_text(encoding="utf-8")
LAB_OF = {int(path.name[:2]): path for path in LABS}
OF_ONE_DAY = r"^\| (\d+):(\d\d) \| (\d+) \| ([a-z]+(?: \d+)?) \|"
OF_WEEKS = r"^\| (\d+) \| lab (\d+) \| (\d+) \| (\d+) \|"


@pytest.mark.parametrize("name", ["Half a day", "One day", "Two days", "Three days"])
def test_rows_follow_each_other_and_add_up(name):
    text = section(PAGE, name)
    total = int(re.search(r"^Total: (\d+) minutes", text, re.MULTILINE)[1])
    days = text.split("\nDay ")[1:] or [text]
    counted, of_labs = 0, defaultdict(int)
    for day in days:
        rows = re.findall(OF_ONE_DAY, day, re.MULTILINE)
        begin = clock = int(rows[0][0]) * 60 + int(rows[0][1])
        for hour, minute, length, part in rows:
            assert int(hour) * 60 + int(minute) == clock, f"{name}, {hour}:{minute}"
            clock += int(length)
            if part.startswith("lab "):
                of_labs[int(part.removeprefix("lab "))] += int(length)
        counted += clock - begin
        assert clock - begin == total / len(days)
    assert counted == total and len(of_labs) >= 2
    for lab, spent in of_labs.items():
        times = minutes(guide_of(LAB_OF[lab]))
        assert spent == times.get(name.lower(), stated_minutes(LAB_OF[lab])), f"{name}, lab {lab}"


def test_ten_weeks_cover_every_lab_for_the_time_that_it_states():
    text = " ".join(section(PAGE, "Ten weeks").split())
    rows = [
        [int(x) for x in row]
        for row in re.findall(OF_WEEKS, section(PAGE, "Ten weeks"), re.MULTILINE)
    ]
    in_sessions = defaultdict(int)
    for week, lab, room, home in rows:
        in_sessions[week] += room
        assert room + home == stated_minutes(LAB_OF[lab]), f"lab {lab}"
    assert sorted(lab for _, lab, _, _ in rows) == sorted(LAB_OF)
    assert sorted(in_sessions) == list(range(1, 11))
    parts = [int(n) for n in re.findall(r"(\d+) for", text)]
    assert sum(parts) == int(re.search(r"session has (\d+) minutes", text)[1])
    assert set(in_sessions.values()) == {int(re.search(r"So (\d+) minutes", text)[1])} == {45 + 40}
    assert f"in the room: {sum(room for _, _, room, _ in rows)} minutes" in text
    assert f"Homework: {sum(home for *_, home in rows)} minutes" in text


def test_each_shortened_time_of_a_guide_belongs_to_a_schedule_that_uses_it():
    for lab, path in LAB_OF.items():
        for name in minutes(guide_of(path)).keys() - {"complete"}:
            rows = re.findall(OF_ONE_DAY, section(PAGE, name.capitalize()), re.MULTILINE)
            assert f"lab {lab}" in {part for *_, part in rows}, f"{name}, lab {lab}"


def test_three_days_have_time_for_the_core_sections_and_not_much_more():
    core = [section for section in entry_test.sections() if section.core]
    for lab in (1, 2, 3):
        needed = entry_test.minutes(section for section in core if section.lab == lab)
        assert needed <= minutes(guide_of(LAB_OF[lab]))["three days"] < needed + 5, f"lab {lab}"
    total = entry_test.minutes(entry_test.sections())  # with the optional notebooks
    text = " ".join(PAGE.split())
    assert f"core sections take {entry_test.minutes(core)} of {total} minutes" in text
