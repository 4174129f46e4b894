"""Who may do what: every route, every role, ids of others; forms of other origins; links and sessions."""

import re
import time

import pytest
import service_site
from service_site import FROM_OUR_PAGE, PEOPLE, ago
from starlette.routing import Mount, Route

from hvdgrade.service import access, app, live
from hvdgrade.service.models import LEARNER, Course, Identity, Member, Person, Token
from hvdgrade.service.server import now

ANYBODY = {"nobody", *PEOPLE}
SIGNED_IN, STAFF, AUTHOR = set(PEOPLE), {"tom", "ines"}, {"ada"}
MEMBERS = SIGNED_IN - {"oscar"}
# Who gets something else than "there is no such page", for things of the course "dl" and of Ada.
PAGES = {
    "GET /": SIGNED_IN,
    "GET /login": ANYBODY,
    "GET /a/{slug}": MEMBERS,
    "POST /a/{slug}": MEMBERS,
    "GET /board/{slug}": MEMBERS,
    "POST /board/{slug}": MEMBERS,
    "GET /s/{id}": AUTHOR | STAFF,
    "GET /s/{id}/report": AUTHOR | STAFF,
    "GET /s/{id}/script": AUTHOR | STAFF,
    "POST /s/{id}/appeal": AUTHOR | STAFF,  # staff are told that it is not theirs: 403
    "GET /i/{slug}": STAFF,
    "GET /i/{slug}/{part}": STAFF,
    "GET /i/{slug}/person/{id:int}": STAFF,
    "GET /i/{slug}/download/{format}": {"ines"},
    "POST /i/{slug}/download/{format}": {"ines"},
    "POST /i/{slug}/{action}": {"ines"},
    "GET /static/style.css": ANYBODY,
}
API = {
    "GET /api/submissions/{id}": {"ada", "tom", "ines", "gradescope"},
    "POST /api/claim": {"worker"},
    "POST /api/gradings/{id:int}/beat": {"worker"},
    "POST /api/gradings/{id:int}/result": {"worker"},
    "POST /api/gradings/{id:int}/back": {"worker"},
}
# Others have a test of their own: they end a session, stream, or take no name of anything.
ELSEWHERE = {
    "POST /login", "POST /logout", "GET /events", "POST /api/a/{slug}/submissions", "GET /healthz",
    "GET /metrics",
}  # fmt: skip


def routes(site) -> set[str]:
    found = [each for each in site.app.routes if not isinstance(each, Mount)]
    assert all(isinstance(each, Route) for each in found)
    return {f"{method} {each.path}" for each in found for method in each.methods - {"HEAD"}}


def test_every_route_is_in_the_tables(site):
    assert routes(site) == {*PAGES, *API, *ELSEWHERE}


def ask(site, route: str, who: str, **names: str):
    """Send a request with everything that the route needs but the right to use it."""
    method, path = route.split()
    for name, value in names.items():
        path = path.replace(f"{{{name}}}", value).replace(f"{{{name}:int}}", value)
    assert "{" not in path
    client = site.client(Accept="text/html", **FROM_OUR_PAGE)
    fields = {}
    if who != "nobody":
        client.cookies.set(access.COOKIE, site.secrets[who])
        fields["csrf"] = site.csrf(who)
    return client.request(method, path, data=fields if method == "POST" else None)


@pytest.fixture
def grading(site) -> dict[str, str]:
    """Return names of things of Ada, and make the others that each route needs."""
    site.change(board=True)
    id = site.graded("ada")
    names = {"slug": "cifar", "id": id, "part": "queue", "format": "csv", "action": "release"}
    return names


@pytest.mark.parametrize("who", ["nobody", *PEOPLE])
def test_pages_show_each_role_its_own_and_hide_the_rest_as_if_it_did_not_exist(site, grading, who):
    for route, allowed in PAGES.items():
        names = grading | ({"id": str(site.ids["ada"])} if "person" in route else {})
        names |= {"format": "canvas"} if route.startswith("POST /i/{slug}/download") else {}
        answer = ask(site, route, who, **names)
        if who in allowed:
            assert answer.status_code in (200, 303, 400, 403), (route, answer.text)
            continue
        assert answer.status_code == (401 if who == "nobody" else 404), route
        missing = names | {"slug": "nothing", "id": "0"}
        if "{" in route:
            nothing = ask(site, route, who, **missing)
            assert (nothing.status_code, nothing.text) == (answer.status_code, answer.text), route
        assert "Ada" not in answer.text or who == "ada"


@pytest.mark.parametrize("who", [None, *PEOPLE, "gradescope", "prairielearn", "away", "worker"])
def test_programs_see_only_their_own(site, who):
    sent = {"Hvdgrade-Learner": "ada@example.edu"}
    with site.transaction() as session:
        person = session.get(Person, site.ids["ada"])
        session.add(Identity(issuer="mail", subject=person.email, person_id=person.id))
    id = site.submit("gradescope", **sent).json()["id"]
    lease = site.claim().json()
    for route, allowed in API.items():
        method, path = route.split()
        path = path.replace("{id:int}", str(lease["grading"])).replace("{id}", id)
        answer = site.client(who).request(method, path, json={"token": "guessed"})
        if who in allowed:
            assert answer.status_code in (200, 204, 409, 422), route
        else:
            assert answer.status_code in (401, 404), route
            assert list(answer.json()) == ["error"]


def test_instructors_of_one_course_reach_nothing_of_another(site):
    """Forms name ids in their fields, too."""
    with site.transaction() as session:
        mine = session.get(Course, 2)
        session.add(Member(course_id=mine.id, person_id=site.ids["bob"], role=LEARNER))
    id = site.graded("ada")
    site.post("ada", f"/s/{id}/appeal", text="why?")
    site.post("ines", "/i/cifar/regrade", which="all", reason="x")
    ada = str(site.ids["ada"])
    fields = {
        "again": {"submission": id},
        "cancel": {"submission": id},
        "answer": {"appeal": "1", "state": "kept"},
        "post": {"post": "1", "button": "hold"},
        "apply": {"regrade": "1"},
        "undo": {"regrade": "1"},
        "override": {"person": ada, "points": "1", "reason": "x"},
        "extension": {"person": ada},
        "unlist": {"person": ada},
    }
    for action, sent in fields.items():
        assert site.post("oscar", f"/i/foreign/{action}", **sent).status_code == 404, action
        assert site.post("tom", f"/i/cifar/{action}", **sent).status_code == 404, action
        assert site.post("oscar", f"/i/cifar/{action}", **sent).status_code == 404, action


# --- other origins ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Sec-Fetch-Dest": "iframe"},
        {"Sec-Fetch-Dest": "image"},
        {"Sec-Fetch-Site": "", "Origin": "http://evil.example"},
        {"Sec-Fetch-Site": ""},
    ],
)
def test_a_form_of_another_origin_changes_nothing(site, headers):
    client = site.browser("ines", **headers)
    answer = client.post("/i/cifar/release", data={"csrf": site.csrf("ines"), "released": "no"})
    assert answer.status_code == 403
    assert client.post("/login", data={"token": "x"}).status_code == 403


def test_a_form_needs_the_secret_of_its_own_session(site):
    for csrf in ("", "x", "ä", site.csrf("tom")):
        answer = site.browser("ines").post("/i/cifar/release", data={"csrf": csrf})
        assert (answer.status_code, "too old" in answer.text) == (403, True)
    without = {"Sec-Fetch-Site": "", "Origin": site.url}  # a browser at an unencrypted address
    client = site.browser("ines", **without)
    sent = {"csrf": site.csrf("ines"), "released": "no"}
    assert client.post("/i/cifar/release", data=sent).status_code == 303
    token = site.client("ines", Accept="text/html", **FROM_OUR_PAGE)  # a token is no session
    assert token.post("/i/cifar/release", data=sent).status_code == 401


def test_a_page_opens_in_no_frame_and_a_script_gets_no_secret(site):
    for destination in ("iframe", "frame", "object", "image", "script"):
        answer = site.browser("ines", **{"Sec-Fetch-Dest": destination}).get("/i/cifar/settings")
        assert answer.status_code == 403
    cross = {"Sec-Fetch-Dest": "empty", "Sec-Fetch-Site": "same-site"}
    assert site.browser("ines", **cross).get("/i/cifar").status_code == 403
    secret = site.csrf("ines")
    assert secret in site.browser("ines").get("/i/cifar/settings").text
    fetched = site.browser("ines", **{"Sec-Fetch-Dest": "empty"}).get("/i/cifar/settings")
    assert fetched.status_code == 200 and secret not in fetched.text


def test_every_answer_has_the_headers_of_security(site):
    id = site.graded()
    for path in ("/", "/a/cifar", f"/s/{id}", "/nothing", "/login", "/static/live.js", "/healthz"):
        headers = site.browser("ada").get(path).headers
        policy = dict(each.split(" ", 1) for each in headers["Content-Security-Policy"].split("; "))
        assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == "'self'"
        assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
        assert headers["X-Content-Type-Options"] == "nosniff"
    report = site.browser("ada").get(f"/s/{id}/report").headers["Content-Security-Policy"]
    assert report.startswith("sandbox; default-src 'none'") and "script" not in report
    script = site.browser("ada").get(f"/s/{id}/script")
    assert script.headers["Content-Type"].startswith("text/plain")
    assert script.headers["Content-Security-Policy"] == "sandbox"


def test_no_page_has_a_script_or_a_style_in_itself(site):
    id = site.graded()
    pages = ["", *"checks queue workers appeals regrade similar settings download cost log".split()]
    paths = [f"/i/cifar/{page}".rstrip("/") for page in pages]
    for path in ["/", "/a/cifar", f"/s/{id}", f"/i/cifar/person/{site.ids['ada']}", *paths]:
        text = site.browser("ines").get(path).text
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", text), path
        assert re.findall(r"<script[^>]*>", text) == ['<script src="/static/live.js" defer>']


# --- links, sessions and limits -----------------------------------------------------------------------


def link(site, **columns) -> str:
    with site.transaction() as session:
        return access.new_token(session, "link", site.ids["ada"], now(), **columns)


def follow(site, token: str, **headers: str):
    client = site.client(Accept="text/html", **(FROM_OUR_PAGE | headers))
    assert client.get(f"/login?token={token}").status_code == 200  # looking at it uses nothing up
    return client, client.post("/login", data={"token": token})


def test_a_link_becomes_a_session_once(site):
    token = link(site, expires=ago(minutes=-15))
    client, answer = follow(site, token)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/")
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=lax" in cookie and "Secure" not in cookie
    assert "CIFAR-10" in client.get("/").text
    assert follow(site, token)[1].status_code == 403
    assert follow(site, link(site, expires=ago(seconds=1)))[1].status_code == 403
    assert follow(site, "guessed")[1].status_code == 403


def test_the_token_of_a_person_signs_in_and_those_of_programs_do_not(site):
    assert 'type="password"' in site.client(None, Accept="text/html").get("/login").text
    for _ in range(2):
        client, answer = follow(site, site.tokens["bob"])
        assert answer.status_code == 303 and "Bob" in client.get("/").text
    for who in ("gradescope", "worker"):
        assert follow(site, site.tokens[who])[1].status_code == 403
    assert follow(site, site.secrets["bob"])[1].status_code == 403


def test_a_link_without_an_end_works_on_this_machine_only(site):
    token = link(site)
    assert follow(site, token, Host="grade.example.edu")[1].status_code == 403
    assert follow(site, token, **{"X-Forwarded-For": "192.0.2.1"})[1].status_code == 403
    assert follow(site, token)[1].status_code == 303


def test_sessions_end(site):
    assert site.browser("ada").get("/").status_code == 200
    assert site.post("ada", "/logout").status_code == 303
    assert site.browser("ada").get("/").status_code == 401
    with site.transaction() as session:
        session.get(Person, site.ids["bob"]).removed_at = now()
        for token in session.query(Token).filter_by(person_id=site.ids["tom"]):
            token.expires = ago(seconds=1)
    for who in ("bob", "tom"):
        assert site.browser(who).get("/").status_code == 401
        assert site.client(who).get("/api/submissions/x").status_code == 401


def test_a_cookie_of_an_encrypted_address_is_secure(engine):
    with service_site.running(engine, address="https://grade.example.edu") as site:
        answer = follow(site, link(site, expires=ago(minutes=-1)))[1]
        assert "Secure" in answer.headers["Set-Cookie"]


def test_guessed_links_are_counted_per_address(site):
    codes = [follow(site, "guessed")[1].status_code for _ in range(22)]
    assert codes[0] == 403 and codes[-1] == 429
    elsewhere = {"X-Forwarded-For": "192.0.2.7"}
    assert follow(site, "guessed", **elsewhere)[1].status_code == 403


def test_a_person_has_at_most_three_streams(site):
    headers = {"Sec-Fetch-Dest": "empty"}
    clients = [site.browser("ada", **headers) for _ in range(4)]
    streams = [client.stream("GET", "/events") for client in clients]
    opened = [stream.__enter__() for stream in streams[:3]]
    assert [each.status_code for each in opened] == [200] * 3
    with streams[3] as refused:
        assert refused.status_code == 429
    streams[0].__exit__(None, None, None)
    held = site.app.state.server.streams.count
    while held[site.ids["ada"]] > 2:
        time.sleep(0.05)
    with clients[3].stream("GET", "/events") as again:
        assert again.status_code == 200
    for stream in streams[1:3]:
        stream.__exit__(None, None, None)


def is_news(line):
    return line and line != ": still here"


def test_a_stream_says_only_that_something_changed(engine, monkeypatch):
    monkeypatch.setattr(app, "EXPIRE_S", 1000.0)  # it also tells what other processes changed
    monkeypatch.setattr(live, "QUEUE_SECONDS", (1.0, 2.0))
    headers = {"Sec-Fetch-Dest": "empty"}
    with (
        service_site.running(engine) as site,
        site.browser("ada", **headers).stream("GET", "/events") as hers,
        site.browser("bob", **headers).stream("GET", "/events") as his,
        site.browser("oscar", **headers).stream("GET", "/events") as theirs,
    ):
        lines = {name: each.iter_lines() for name, each in (("ada", hers), ("bob", his))}
        others = theirs.iter_lines()
        assert {next(each) for each in [*lines.values(), others]} == {"retry: 3000"}
        id = site.submit("ada").json()["id"]  # changes the queue, so that both hear of it
        for each in lines.values():
            assert next(filter(is_news, each)) == "data: changed"
        lease = site.claim().json()
        for each in lines.values():
            assert next(filter(is_news, each)) == "data: changed"
        site.about(lease, "beat", progress="epoch 1")  # is only hers
        assert next(filter(is_news, lines["ada"])) == "data: changed"
        assert site.status(id)["progress"] == "epoch 1"
        # A reader who heard nothing hears first that the stream is still there.
        assert next(filter(None, lines["bob"])) == ": still here"
        assert next(filter(None, others)) == ": still here"


def test_where_pages_of_learners_have_the_same_origin_there_are_no_staff_pages(engine):
    with service_site.running(engine, staff_pages=False) as site:
        assert site.browser("ines").get("/i/cifar").status_code == 404
        assert site.browser("ines").get("/a/cifar").status_code == 200
