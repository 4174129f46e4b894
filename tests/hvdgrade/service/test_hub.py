"""A real JupyterHub in front of the service, with a simulated LMS as its login, in a real browser.

The simulator (tests/helpers/lms.py) is strict; the hub, its proxy and ltiauthenticator are those of others.
"""

import datetime
import time

import chromium
import httpx
import jupyterhub_run
import pytest
from exported import result
from lms import Lms
from local_server import serving
from sqlalchemy import select

from hvdgrade.service import access, grades
from hvdgrade.service.database import reading, transaction
from hvdgrade.service.models import (
    Assignment,
    Event,
    Identity,
    LineItem,
    Member,
    Person,
    Post,
    Submission,
)

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: run `make setup`")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    chromium.NEEDED,
    pytest.mark.skipif(not jupyterhub_run.PROXY.exists(), reason=jupyterhub_run.MISSING),
]
WAIT_S = 120
SCRIPT = "print('a script of {}')\n"


@pytest.fixture(scope="module")
def lms():
    lms = Lms({"ada": "Ada Lovelace", "bob": "Bob", "teacher": "Teacher"})
    with lms.serving():
        yield lms


@pytest.fixture(scope="module")
def hub(tmp_path_factory, lms):
    folder = tmp_path_factory.mktemp("hub")
    page = (
        200,
        {"Content-Type": "text/html", "Cross-Origin-Opener-Policy": "same-origin"},
        b"<p>evil",
    )
    with serving(lambda *_: page) as evil, jupyterhub_run.running(folder, lms, evil) as hub:
        yield hub


@pytest.fixture(scope="module")
def browser():
    yield from chromium.started()


@pytest.fixture
def page_of(browser, hub, lms, request):
    """Return a function that opens the LMS's link as a user, in a browser of their own."""
    contexts = []

    def opened(user, path="/launch/hw1", **link):
        context = browser.new_context()
        context.set_default_timeout(WAIT_S * 1000)
        contexts.append(context)
        page = context.new_page()
        page.goto(lms.login_url(hub.login, user, hub.target(path), **link))
        return page

    yield opened
    for context in contexts:
        context.close()


def wait(condition, explain=lambda: ""):
    deadline = time.monotonic() + WAIT_S
    while not (found := condition()):
        assert time.monotonic() < deadline, explain()
        time.sleep(0.2)
    return found


def grade(hub, score):
    """Take the next grading as a worker does, by HTTP, and give a result of 100 points."""
    with transaction(hub.engine) as session:
        token = access.new_token(
            session, "worker", None, datetime.datetime.now(datetime.UTC), pool="default"
        )
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(headers=headers, timeout=120) as client:
        asked = {
            "slots_free": 1,
            "rules": {"cpu": "a" * 64},
            "tier": "namespaces",
            "name": "simulated",
        }
        claimed = client.post(f"{hub.service}/api/claim", json=asked)
        assert claimed.status_code == 200, claimed.text
        lease = claimed.json()
        document = result("x", score)
        document["submission"]["sha256"] = _sha256(hub, lease["submission"])
        sent = {"token": lease["token"], "document": document, "log": ""}
        answer = client.post(f"{hub.service}/api/gradings/{lease['grading']}/result", json=sent)
        assert answer.status_code == 200, answer.text


def _sha256(hub, submission):
    with reading(hub.engine) as session:
        return session.get(Submission, submission).sha256


def person_of(session, subject, issuer="hub") -> Person | None:
    identity = session.get(Identity, (issuer, subject))
    return identity and identity.person


def test_a_launch_of_the_lms_ends_at_the_assignment(hub, lms, page_of):
    page = page_of("bob")
    page.wait_for_url(f"{hub.service}/a/hw1")
    page.get_by_role("heading", name="Homework 1").wait_for()
    with reading(hub.engine) as session:
        person = person_of(session, "bob")
        assert (person.name, person.email) == ("Bob", "bob@example.edu")
        assert person_of(session, "bob", lms.url) == person
        assert [m.role for m in session.scalars(select(Member).filter_by(person_id=person.id))] == [
            "learner"
        ]
        item = session.scalars(select(LineItem)).one()
        assert (item.issuer, item.url) == (lms.url, lms.line_item())
        assert item.client_id == "client-1"
    cookies = {cookie["name"]: cookie for cookie in page.context.cookies()}
    session = cookies[access.COOKIE]
    assert session["httpOnly"] and session["path"] == "/services/hvdgrade"
    assert "hvdgrade_login" not in cookies


def test_a_page_without_a_session_asks_the_hub(hub, page_of):
    page = page_of("bob")
    page.wait_for_url(f"{hub.service}/a/hw1")
    page.context.clear_cookies(name=access.COOKIE)
    page.goto(f"{hub.service}/a/hw1")
    page.get_by_role("heading", name="Homework 1").wait_for()
    assert page.url == f"{hub.service}/a/hw1"


def test_staff_by_groups_of_the_hub(hub, page_of):
    page_of("teacher").wait_for_url(f"{hub.service}/a/hw1")
    with reading(hub.engine) as session:
        member = session.scalars(
            select(Member).filter_by(person_id=person_of(session, "teacher").id)
        ).one()
        assert member.role == "instructor"


def test_a_login_that_another_browser_began_is_refused(hub, page_of):
    """Somebody gives a victim the end of their own login, so that the victim hands in as them."""
    page = page_of("bob")
    page.wait_for_url(f"{hub.service}/a/hw1")
    cookies = "; ".join(f"{c['name']}={c['value']}" for c in page.context.cookies())
    url = f"{hub.service}/hub-login"
    while "/oauth_callback?" not in url:
        answer = httpx.get(url, headers={"Cookie": cookies}, timeout=60)
        url = str(answer.url.join(answer.headers["Location"]))
    answer = httpx.get(url, timeout=60)
    assert answer.status_code == 403 and access.COOKIE not in answer.cookies
    for cookie in ("", "x.y./", f"{url.partition('state=')[2][:5]}.v./"):
        assert httpx.get(url, cookies={"hvdgrade_login": cookie}, timeout=60).status_code == 403


@pytest.mark.parametrize("path", ["//evil.example", "https://evil.example", "/\\evil.example", "x"])
def test_the_login_leads_nowhere_else(hub, page_of, path):
    page = page_of("bob")
    page.wait_for_url(f"{hub.service}/a/hw1")
    page.goto(f"{hub.service}/hub-login?next={path}")
    assert page.url == f"{hub.service}/"


def test_from_a_hand_in_in_jupyterlab_to_the_gradebook(hub, lms, page_of, tmp_path):
    """Launch, hand in by the button, a result by a worker's requests, the score, then a changed one."""
    folder = hub.log.parent / "home/ada"
    folder.mkdir(parents=True)
    (folder / "assessment.py").write_text(SCRIPT.format("ada"))
    page = page_of("ada", "/launch/hw1")
    page.wait_for_url(f"{hub.service}/a/hw1")
    page.goto(f"{hub.address}/hub/spawn")
    page.wait_for_url("**/user/ada/**")
    page.goto(f"{hub.address}/user/ada/lab/tree/assessment.py")
    page.locator(".jp-Toolbar [data-jp-item-name=hand-in]").click()
    handed = page.locator(".hvdgrade-panel .handed")
    said = "Handed in: assessment.py is submission 1. It has place 1 in the queue."
    sync_api.expect(handed).to_contain_text(said, timeout=WAIT_S * 1000)
    with page.expect_popup() as popup:
        handed.get_by_role("link").click()
    popup.value.wait_for_url(f"{hub.service}/s/*")
    page.screenshot(path=tmp_path / "hand in.png")
    with reading(hub.engine) as session:
        submission = session.scalars(select(Submission)).one()
        assert submission.script.decode() == SCRIPT.format("ada")
        assert (submission.door, submission.person) == ("jupyterlab", person_of(session, "ada"))

    grade(hub, 70)
    wait(lambda: lms.score_of("ada") == 70, hub.log.read_text)
    first = lms.scores["1", "ada"][0]

    with transaction(hub.engine) as session:
        now = datetime.datetime.now(datetime.UTC)
        found = session.scalars(select(Assignment)).one()
        person = person_of(session, "ada")
        grades.override(session, found, person, 90.0, "teacher", "measured again", now)
    wait(lambda: lms.score_of("ada") == 90, hub.log.read_text)
    moments = [score["timestamp"] for score in lms.scores["1", "ada"]]
    assert moments == sorted(set(moments)) and len(moments) == 2

    # The LMS itself refuses the first score now. The service shows it where even the present time is too old.
    lms.scores["1", "ada"].append(first | {"timestamp": "2999-01-01T00:00:00Z"})
    with transaction(hub.engine) as session:
        found = session.scalars(select(Assignment)).one()
        person = person_of(session, "ada")
        now = datetime.datetime.now(datetime.UTC)
        grades.override(session, found, person, 80.0, "teacher", "again", now)

    def refused():
        with reading(hub.engine) as session:
            return session.execute(select(Post.score, Post.answer).filter_by(state="refused")).all()

    ((points, answer),) = wait(refused, hub.log.read_text)
    assert points == 80.0 and "there is a newer score" in answer


def test_tokens_of_the_hub(hub, page_of):
    """Only a token that the hub issued for this service hands in, and it never gets what staff see."""
    page = page_of("teacher")
    page.wait_for_url(f"{hub.service}/a/hw1")
    tokens = {}
    for name, scope in (("ours", "access:services!service=hvdgrade"), ("other", "read:users!user")):
        made = httpx.post(
            f"{hub.address}/hub/api/users/teacher/tokens",
            headers={"Authorization": f"token {hub.admin}"},
            json={"scopes": [scope]},
            timeout=60,
        )
        tokens[name] = made.json()["token"]
    codes = {}
    for name, token in {**tokens, "unknown": "0" * 32, "odd": "é"}.items():
        answer = httpx.post(
            f"{hub.service}/api/a/hw1/submissions",
            headers={"Authorization": f"Bearer {token}".encode(), "Idempotency-Key": f"k-{name}"},
            content=b"print(1)",
            timeout=60,
        )
        codes[name] = answer.status_code
    assert codes == {"ours": 201, "other": 401, "unknown": 401, "odd": 401}

    headers = {"Authorization": f"Bearer {tokens['ours']}"}
    with reading(hub.engine) as session:
        teacher = person_of(session, "teacher")
        ids = {s.person_id == teacher.id: s.id for s in session.scalars(select(Submission))}
    url = f"{hub.service}/api/submissions/"
    assert httpx.get(url + ids[True], headers=headers, timeout=60).status_code == 200
    if False in ids:
        assert httpx.get(url + ids[False], headers=headers, timeout=60).status_code == 404
    answer = httpx.get(f"{hub.service}/i/hw1", headers=headers, timeout=60)
    assert answer.status_code != 200


# What a page can try against `target`, the address of the service: read, send forms, show it in a frame or a
# window. Each result is what the page itself can see.
ATTACKS = """async (target) => {
    const found = [];
    const form = new URLSearchParams({released: "no", csrf: "x"});
    const steps = {
        read: () => fetch(`${target}/i/hw1`, {credentials: "include"}).then((a) => a.text()),
        post: () => fetch(`${target}/i/hw1/release`,
            {method: "POST", body: form, credentials: "include", mode: "no-cors"}).then((a) => a.text()),
        frame: () => new Promise((done) => {
            const frame = document.createElement("iframe");
            frame.onload = () => {
                try { done(frame.contentDocument.body.innerText); } catch (error) { done(""); }
            };
            frame.src = `${target}/i/hw1`;
            document.body.append(frame);
        }),
        script: () => new Promise((done) => {
            const script = document.createElement("script");
            script.onload = script.onerror = () => done("");
            script.src = `${target}/i/hw1`;
            document.body.append(script);
        }),
        submit: () => new Promise((done) => {
            const form = document.createElement("form");
            form.method = "post"; form.action = `${target}/i/hw1/release`; form.target = "sent";
            form.innerHTML = "<input name=released value=no><input name=csrf value=x>";
            const frame = document.createElement("iframe");
            frame.name = "sent";
            document.body.append(frame, form);
            frame.onload = () => done("");
            form.submit();
        }),
    };
    for (const [name, step] of Object.entries(steps)) {
        try { found.push([name, String(await step())]); } catch (error) { found.push([name, `${error}`]); }
    }
    return found;
}"""


@pytest.mark.parametrize("where", ["service", "own"])
def test_a_page_of_another_user_does_nothing_as_the_instructor(hub, page_of, where):
    """Of the instructor, who is signed in to both, a page on the hub's domain neither reads nor changes."""
    target, other = getattr(hub, where), page_of("teacher")
    other.wait_for_url(f"{hub.service}/a/hw1")
    other.goto(f"{target}/")
    sync_api.expect(other.locator("body")).to_contain_text("Homework 1")
    if where == "own":  # what is attacked is there, and the instructor herself can change it
        other.goto(f"{hub.own}/i/hw1/settings")
        other.locator("form[action$='/release'] button").first.wait_for()
    page = other.context.new_page()
    page.goto(hub.evil)
    with transaction(hub.engine) as session:
        session.scalars(select(Assignment)).one().released = True
    seen = page.evaluate(ATTACKS, target)
    assert [name for name, _ in seen] == ["read", "post", "frame", "script", "submit"]
    for name, text in seen:
        assert "Bob" not in text and "Release" not in text, (name, text)
    with page.expect_popup() as popup:
        page.evaluate("(target) => { window.opened = window.open(`${target}/i/hw1`) }", target)
    popup.value.wait_for_load_state()
    shown = page.evaluate(
        "() => { try { return opened.document.body.innerText } catch (error) { return '' } }"
    )
    assert "Bob" not in shown and "csrf" not in shown
    page.evaluate(
        """(target) => {
            document.body.innerHTML = `<form method=post action="${target}/i/hw1/release">
                <input name=released value=no><input name=csrf value=x></form>`;
            document.forms[0].submit();
        }""",
        target,
    )
    page.wait_for_url(f"{target}/**")
    with reading(hub.engine) as session:
        assert session.scalars(select(Assignment)).one().released
        assert session.scalars(select(Event).where(Event.what == "hide results")).all() == []
