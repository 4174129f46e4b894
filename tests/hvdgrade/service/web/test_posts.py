"""The page of the scores for an LMS: what it refused, in its words, and the two buttons."""

import datetime

import pytest
from sqlalchemy import select

from hvdgrade.service.models import Assignment, Grade, LineItem, Post

NOW = datetime.datetime(2026, 3, 2, 12, tzinfo=datetime.UTC)
WORDS = '404 {"error": "<b>User</b> is not enrolled"}'


@pytest.fixture
def posted(site):
    """Two versions of Ada's score, of which the LMS refused the second; return its id."""
    with site.transaction() as session:
        found = session.scalar(select(Assignment).filter_by(slug="cifar"))
        session.add(
            LineItem(
                assignment_id=found.id,
                issuer="https://lms.example",
                client_id="c",
                url="u",
                token_url="t",
            )
        )
        key = {"assignment_id": found.id, "person_id": site.ids["ada"]}
        session.add(Grade(**key, changed=NOW))
        session.flush()
        posts = [
            Post(**key, version=version, score=score, state=state, answer=answer)
            for version, score, state, answer in (
                (1, 41.0, "sent", ""),
                (2, 72.0, "refused", WORDS),
            )
        ]
        for post in posts:
            post.timestamp = post.next_at = NOW
            post.max_score = 100.0
        session.add_all(posts)
        session.flush()
        return str(posts[1].id)


def state_of(site, post):
    with site.transaction() as session:
        return session.get(Post, int(post)).state


def test_staff_see_what_the_lms_refused(site, posted):
    for who in ("ines", "tom"):
        text = site.browser(who).get("/i/cifar/posts").text
        assert "https://lms.example" in text and ">72" in text and ">41" not in text
        assert "&lt;b&gt;User&lt;/b&gt; is not enrolled" in text
        assert ("Send again" in text) == (who == "ines")


def test_an_instructor_holds_a_score_or_sends_it_again(site, posted):
    for button, code, state in (
        ("hold", 303, "held"),
        ("hold", 409, "held"),
        ("send", 303, "waiting"),
        ("send", 409, "waiting"),
        ("x", 409, "waiting"),
    ):
        assert site.post("ines", "/i/cifar/post", post=posted, button=button).status_code == code
        assert state_of(site, posted) == state
    assert site.post("tom", "/i/cifar/post", post=posted, button="hold").status_code == 404
