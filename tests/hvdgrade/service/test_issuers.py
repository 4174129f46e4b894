"""Tokens of a CI at the real routes, what a launch of an LMS stores, and the tables of the configuration."""

import datetime
import json
import socket
import threading
import time

import httpx
import jwt
import pytest
import uvicorn
from cryptography.hazmat.primitives.asymmetric import rsa
from lms import CLAIM, SCORE
from local_server import serving
from sqlalchemy import select

from hvdgrade.service import hub, people, poster
from hvdgrade.service.app import application
from hvdgrade.service.configuration import BadConfig, HubTable, read
from hvdgrade.service.database import connect, transaction
from hvdgrade.service.hub import Hub, User
from hvdgrade.service.issuers import issuers_of
from hvdgrade.service.lti import Launch, read_launch
from hvdgrade.service.models import (
    Assignment,
    Base,
    Course,
    Grade,
    Identity,
    LineItem,
    Member,
    Person,
    Post,
    Submission,
)
from hvdgrade.service.server import Settings

pytestmark = pytest.mark.slow  # each test starts a server
NOW = datetime.datetime(2026, 3, 2, 12, tzinfo=datetime.UTC)
HERE = "https://grade.example.edu"
KEY = rsa.generate_private_key(65537, 2048)
PEOPLE = {1: "instructor", 2: "learner", 3: "learner"}


@pytest.fixture
def engine(tmp_path):
    """A course with an instructor and two learners; 2 is a repository, and 1 and 3 are users of GitLab."""
    engine = connect(f"sqlite:///{tmp_path}/service.db")
    Base.metadata.create_all(engine)
    with transaction(engine) as session:
        course = Course(id=1, slug="ml")
        session.add(Assignment(id=1, slug="hw1", course=course))
        session.add_all([Person(id=number) for number in PEOPLE])
        session.flush()
        for number, role in PEOPLE.items():
            session.add(Member(course_id=1, person_id=number, role=role))
        session.add(Identity(issuer="github:65", subject="octo-org/hw1-ada", person_id=2))
    yield engine
    engine.dispose()


@pytest.fixture
def platform():
    """A server of keys; its address is the issuer."""
    public = jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key(), as_dict=True) | {"kid": "k"}
    body = json.dumps({"keys": [public]}).encode()
    with serving(lambda *_: (200, {}, body)) as url:
        yield url


@pytest.fixture
def client(engine, platform):
    table = {
        "ci": [
            {"kind": "github", "issuer": f"{platform}/gh", "owner": "65"},
            {"kind": "gitlab", "issuer": f"{platform}/gl"},
        ]
    }
    host = platform.removeprefix("http://")
    with transaction(engine) as session:
        for person, login in ((1, "teacher"), (3, "bob")):
            session.add(Identity(issuer=f"gitlab:{host}", subject=login, person_id=person))
    issuers = issuers_of(read(table), HERE, {})
    assert issuers.login() == "" and issuers.routes() == []
    settings = Settings(address=HERE, proofs=issuers.proofs())
    config = uvicorn.Config(application(engine, settings), log_config=None)
    server, listener = uvicorn.Server(config), socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    with httpx.Client(
        base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=60
    ) as client:
        yield client
    server.should_exit = True
    thread.join(30)


def token(platform, **claims) -> dict:
    now = int(time.time())
    claims = {"aud": HERE, "sub": "job", "iat": now, "exp": now + 300} | claims
    return {"Authorization": f"Bearer {jwt.encode(claims, KEY, 'RS256', {'kid': 'k'})}"}


def of_github(platform, repository="Octo-Org/hw1-ada", owner="65"):
    return token(platform, iss=f"{platform}/gh", repository=repository, repository_owner_id=owner)


def of_gitlab(platform, login):
    return token(platform, iss=f"{platform}/gl", user_login=login, namespace_path=login)


def hand_in(client, headers, key="k1"):
    headers = headers | {"Idempotency-Key": key}
    return client.post("/api/a/hw1/submissions", content=b"print(1)", headers=headers)


def test_a_job_hands_in_and_reads_for_its_person(client, engine, platform):
    answer = hand_in(client, of_github(platform))
    assert answer.status_code == 201
    url = f"/api/submissions/{answer.json()['id']}"
    assert client.get(url, headers=of_github(platform)).status_code == 200
    with transaction(engine) as session:
        submission = session.scalars(select(Submission)).one()
        assert (submission.person_id, submission.door) == (2, "github")
    assert hand_in(client, of_github(platform)).status_code == 200  # repeated
    # Neither another learner nor an instructor's job, which the code of others may have started.
    for login in ("bob", "Teacher"):
        assert client.get(url, headers=of_gitlab(platform, login)).status_code == 404
        assert hand_in(client, of_gitlab(platform, login), login).status_code == 201


def test_says_why_a_job_is_refused(client, platform):
    for headers, status, words in (
        (of_github(platform, owner="66"), 401, "does not belong to 65"),
        (of_github(platform, "octo-org/hw1-eve"), 403, "Nobody here is Octo-Org/hw1-eve"),
        (of_gitlab(platform, "eve"), 403, "Nobody here is eve at gitlab:"),
        ({"Authorization": "Bearer a.b.c"}, 401, "not a signed token"),
        ({"Authorization": "Bearer abc"}, 401, "unknown"),
    ):
        answer = hand_in(client, headers)
        assert answer.status_code == status and words.lower() in answer.json()["error"].lower()


# --- launches ---------------------------------------------------------------------------------------


def claims(**changes) -> dict:
    endpoint = {"scope": [SCORE], "lineitem": "https://lms/items/1"}
    return {
        "iss": "https://lms", "sub": "s-1", "aud": "c-1", "name": "Ada", "email": "Ada@Example.edu",
        f"{CLAIM}version": "1.3.0", f"{CLAIM}deployment_id": "d",
        f"{CLAIM}target_link_uri": "https://hub/services/hvdgrade/launch/hw1/",
        "https://purl.imsglobal.org/spec/lti-ags/claim/endpoint": endpoint,
    } | changes  # fmt: skip


ENDPOINT = "https://purl.imsglobal.org/spec/lti-ags/claim/endpoint"


def test_reads_a_launch():
    launch = Launch(
        "https://lms", "s-1", "c-1", "Ada", "ada@example.edu", "hw1", "https://lms/items/1"
    )
    assert read_launch(claims()) == launch
    assert read_launch(claims(aud=["c-2", "c-1"], azp="c-1")) == launch
    assert read_launch(claims(aud=["c-1"])) == launch
    custom = {f"{CLAIM}custom": {"assignment": "hw2"}}
    assert read_launch(claims(**custom)).slug == "hw2"
    assert read_launch(claims(**{f"{CLAIM}target_link_uri": "https://hub/a/launch"})).slug is None
    for endpoint in ({"lineitem": "https://lms/items/1"}, {"scope": [SCORE]}, None, []):
        assert read_launch(claims(**{ENDPOINT: endpoint})).line_item is None
    for other in (
        None,
        "x",
        {},
        claims(sub=None),
        claims(sub=""),
        {"access_token": "of another login"},
    ):
        assert read_launch(other) is None


def remember(engine, person, client="c-1", **changes):
    with transaction(engine) as session:
        launch = read_launch(claims(**changes))
        people.remember_launch(session, launch, person, client, "https://lms/token")


def item_of(engine):
    with transaction(engine) as session:
        item = session.get(LineItem, 1)
        return item and item.url


def another(url):
    return {ENDPOINT: {"scope": [SCORE], "lineitem": url}}


def test_who_may_set_the_column_of_the_gradebook(engine):
    remember(engine, 2, client="c-2")  # a launch for another registration
    with transaction(engine) as session:
        session.add(Person(id=9))
    remember(engine, 9)  # no member of the course
    remember(engine, 2, **{f"{CLAIM}target_link_uri": "https://hub/launch/missing"})
    assert item_of(engine) is None
    remember(engine, 2)
    assert item_of(engine) == "https://lms/items/1"
    remember(engine, 3, **another("https://lms/items/2"))
    assert item_of(engine) == "https://lms/items/1"
    remember(engine, 1, **another("https://lms/items/2"))
    assert item_of(engine) == "https://lms/items/2"


def test_scores_that_had_nowhere_to_go_are_sent(engine):
    """Grades from before the first launch; a person who came later; a column that was made again."""
    with transaction(engine) as session:
        for person in (2, 3):
            grade = Grade(assignment_id=1, person_id=person, changed=NOW, version=1)
            grade.score, grade.max_score = 50.0, 100.0
            session.add(grade)
    remember(engine, 2)
    with transaction(engine) as session:
        posts = {post.person_id: post for post in session.scalars(select(Post))}
        assert {post.state for post in posts.values()} == {"waiting"} and set(posts) == {2, 3}
        posts[2].state, posts[3].state, posts[3].answer = "sent", "refused", poster.NOBODY
    remember(engine, 3)
    assert states(engine) == {2: "sent", 3: "waiting"}
    remember(engine, 1, **another("https://lms/items/2"))
    assert states(engine) == {2: "waiting", 3: "waiting"}


def states(engine) -> dict:
    with transaction(engine) as session:
        return {post.person_id: post.state for post in session.scalars(select(Post))}


# --- users of the hub -------------------------------------------------------------------------------


def of_hub(**groups) -> Hub:
    return Hub("api", "t", "c", "/hub", "back", frozenset(), HubTable(course="ml", **groups))


def role_after(engine, a_hub, name, groups, launch=None):
    with transaction(engine) as session:
        person = hub.admit(session, a_hub, User(name, frozenset(groups)), launch)
        member = session.get(Member, (1, person))
        return person, member and member.role


def test_groups_decide_who_is_staff(engine):
    a_hub = of_hub(instructors=["staff"], tas=["help"])
    ada, role = role_after(engine, a_hub, "ada", ["staff", "help"])
    assert role == "instructor"
    assert role_after(engine, a_hub, "ada", ["help"]) == (ada, "ta")
    assert role_after(engine, a_hub, "ada", []) == (ada, "learner")
    assert role_after(engine, of_hub(learners=["ml"]), "eve", ["other"])[1] is None
    assert role_after(engine, of_hub(learners=["ml"]), "zoe", ["ml"])[1] == "learner"
    with transaction(
        engine
    ) as session:  # made staff by the roster, and the hub names no groups of staff
        session.get(Member, (1, ada)).role = "ta"
    assert role_after(engine, of_hub(), "ada", []) == (ada, "ta")


def test_a_user_of_the_hub_and_of_the_lms_is_one_person(engine):
    launch = read_launch(claims())
    with transaction(engine) as session:  # known from the roster by the id of the LMS
        session.add(Identity(issuer="https://lms", subject="s-1", person_id=2))
    assert role_after(engine, of_hub(), "ada", [], launch) == (2, "learner")
    assert role_after(engine, of_hub(), "ada", []) == (2, "learner")


# --- configuration ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "table, words",
    [
        (
            {"ci": [{"kind": "github", "issuer": "https://x", "owner": 65}]},
            "ci.0.owner = 65: input should be a valid string",
        ),
        (
            {"ci": [{"kind": "github", "issuer": "https://x", "key": "k"}]},
            "ci.0.key = 'k': ",
        ),
        ({"ci": [{"kind": "github"}]}, "ci.0.issuer: field required"),
        ({"ci": ["x"]}, "ci.0 = 'x': "),
        ({"ci": [{"kind": "github", "issuer": "https://x"}]}, "owner must be the number"),
        ({"lms": [{"issuer": "https://x"}]}, "lms.0.client: field required"),
        ({"lti_keys": []}, "lti_keys"),
        ({"hub": {"course": "ml", "tas": "x"}}, "hub.tas = 'x': input should be a valid frozenset"),
        ({"hub": {"course": "ml"}}, "JUPYTERHUB_API_TOKEN, JUPYTERHUB_API_URL"),
    ],
)
def test_a_wrong_table_is_explained(table, words):
    with pytest.raises(BadConfig, match=words):
        issuers_of(read(table), HERE, {})


def test_a_hub_elsewhere_needs_its_address():
    variables = {
        "JUPYTERHUB_API_TOKEN": "t",
        "JUPYTERHUB_API_URL": "http://127.0.0.1:8081/hub/api",
        "JUPYTERHUB_CLIENT_ID": "service-grader",
    }
    with pytest.raises(BadConfig, match="needs the hub's address"):
        issuers_of(read({"hub": {"course": "ml"}}), HERE, variables)
    table = {"hub": {"course": "ml", "url": "https://h/hub"}}
    made = issuers_of(read(table), HERE, variables).hub
    assert made.scopes == {"access:services", "access:services!service=grader"}
    assert made.authorize_url("s", "v").startswith("https://h/hub/api/oauth2/authorize?client_id=")
    assert "'t'" not in repr(made)
