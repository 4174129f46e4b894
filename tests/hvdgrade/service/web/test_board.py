"""The leaderboard: who appears on it, in which place, and who decides."""

import pytest
from service_site import RESULTS
from sqlalchemy import select

from hvdgrade.service.models import BoardEntry, Event


def graded(site, who: str, seconds: float, **changes) -> None:
    """Hand in, and give a pass with so many seconds of a budget of 100 s."""
    site.submit(who)
    budget = RESULTS["pass"]["budget"] | {"seconds": 100.0}
    result = {"seconds_to_target": seconds, "budget": budget} | changes
    assert site.result(site.claim().json(), "pass", **result).status_code == 200


def appear(site, who: str, pseudonym: str) -> int:
    return site.post(who, "/board/cifar", pseudonym=pseudonym).status_code


def listed(site, reader: str = "ada") -> list[tuple[str, ...]]:
    """Return place, pseudonym and share of each line, as the page shows them."""
    page = site.browser(reader).get("/board/cifar").text
    rows = page[page.index("<tr>") : page.index("</table>")].split("</tr>")[1:]
    cells = [[cell.partition(">")[2] for cell in row.split("<td")[1:]] for row in rows]
    texts = [[cell.replace("<bdi>", "").partition("<")[0] for cell in row] for row in cells]
    return [tuple(row[:3]) for row in texts if len(row) > 1]


@pytest.fixture
def board(site):
    """Return a site with a leaderboard and results of three people: within 5 %, and far from it."""
    site.change(board=True)
    for who, seconds in (("tom", 104.0), ("ada", 80.0), ("bob", 83.9)):
        graded(site, who, seconds)
    return site


def test_only_those_who_chose_it_are_listed_and_close_results_share_a_place(board):
    assert listed(board) == []
    assert appear(board, "ada", "  Swift   fox ") == appear(board, "tom", "Owl") == 303
    assert listed(board) == [("1", "Swift fox", "80 %"), ("2", "Owl", "104 %")]
    assert appear(board, "bob", "<b>Hare</b>") == 303
    names = ("Swift fox", "&lt;b&gt;Hare&lt;/b&gt;", "Owl")
    assert listed(board) == [*zip("113", names, ("80 %", "83.9 %", "104 %"), strict=True)]
    assert "Ada" not in board.browser("bob").get("/board/cifar").text
    board.post("bob", "/board/cifar", button="leave")
    assert [line[1] for line in listed(board)] == ["Swift fox", "Owl"]
    graded(board, "tom", 70.0)  # with the same points, and so not what counts
    assert listed(board) == [("1", "Owl", "70 %"), ("2", "Swift fox", "80 %")]


def test_a_result_with_flags_or_points_of_staff_or_without_a_pass_is_not_listed(board):
    for who in ("ada", "bob", "tom"):
        appear(board, who, f"pseudonym of {who[0]}")
    flag = {"kind": "network", "line": 3, "text": "opens a connection"}
    before = listed(board)
    graded(board, "ada", 10.0, flags=[flag])
    graded(board, "bob", 10.0, verdict="fail", score=40.0)
    board.post("ines", "/i/cifar/regrade", which="all", reason="not applied")
    while (claimed := board.claim()).status_code == 200:
        board.result(claimed.json(), "pass", seconds_to_target=10.0, flags=[])
    assert listed(board) == before and len(before) == 3
    for who in ("ada", "bob", "tom"):
        about = {"person": board.ids[who], "points": "99", "reason": "agreed"}
        board.post("ines", "/i/cifar/override", **about)
    assert listed(board) == []


@pytest.mark.parametrize(
    ("pseudonym", "status"),
    [("", 400), ("x" * 41, 400), ("OWL", 409), ("o w l", 409), ("Tom", 409), ("Bob", 303)],
)
def test_a_pseudonym_looks_like_no_other_one_and_like_no_name_of_another(site, pseudonym, status):
    site.change(board=True)
    assert appear(site, "ada", "Owl") == 303
    assert appear(site, "bob", pseudonym) == status


def test_staff_remove_a_pseudonym_and_choose_none(board):
    appear(board, "ada", "Owl")
    ada = {"person": board.ids["ada"]}
    assert board.post("tom", "/i/cifar/unlist", **ada).status_code == 404  # not an instructor
    assert board.post("ines", "/i/cifar/unlist", **ada).status_code == 303
    assert board.scalar(select(BoardEntry)) is None
    assert board.scalar(select(Event.what)) == "remove from the leaderboard"
    board.post("ines", "/board/cifar", pseudonym="Chosen by staff", **ada)
    assert (
        board.scalar(select(BoardEntry.person_id)) == board.ids["ines"]
    )  # for herself, in any case


def test_there_is_none_without_the_setting_and_results_that_are_hidden_stay_hidden(board):
    appear(board, "ada", "Owl")
    board.change(released=False)
    assert "Results are not shown" in board.browser("bob").get("/board/cifar").text
    assert listed(board, "ines") == [("1", "Owl", "80 %")]
    board.change(board=False)
    assert board.browser("ada").get("/board/cifar").status_code == 404
    assert appear(board, "bob", "Hare") == 404
    assert "/board/cifar" not in board.browser("ada").get("/a/cifar").text
    for who, slug in (("oscar", "cifar"), ("ada", "foreign")):
        board.change("foreign", board=True)
        assert board.browser(who).get(f"/board/{slug}").status_code == 404
