"""The pages in Chromium: from a link to an appeal, live, with hostile names and output, and read by axe."""

import chromium
import pytest
import service_site
from service_site import ago

from hvdgrade.service import access
from hvdgrade.service.models import Person
from hvdgrade.service.server import now

axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="run `make setup`")
sync_api = pytest.importorskip("playwright.sync_api", reason="run `make setup`")
expect = sync_api.expect

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600), chromium.NEEDED]
HOSTILE = "</title><script>alert(1)</script><img src=x onerror=alert(2)>"
SECONDS = 60_000  # for a page that waits, in milliseconds


@pytest.fixture(scope="module")
def browser():
    yield from chromium.started()


@pytest.fixture
def live_site(engine):
    with service_site.running(engine, claim_s=0.3) as site:
        yield site


class Tab:
    """A page that fails the test if anything in it runs that is not ours, or breaks its policy."""

    def __init__(self, browser, site, **options) -> None:
        self.site, self.wrong = site, []
        self.context = browser.new_context(timezone_id="Europe/Berlin", **options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(SECONDS)
        self.page.on("dialog", lambda dialog: (self.wrong.append("a dialog"), dialog.dismiss()))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", self._heard)

    def _heard(self, message) -> None:
        if message.type in ("error", "warning") and "404 (Not Found)" not in message.text:
            self.wrong.append(message.text)

    def sign_in(self, who: str) -> None:
        with self.site.transaction() as session:
            token = access.new_token(session, "link", self.site.ids[who], now(), ago(minutes=-9))
        self.page.goto(f"{self.site.url}/login?token={token}")
        self.page.get_by_role("button", name="Open the course").click()
        expect(self.page.get_by_role("heading", name="Assignments")).to_be_visible()

    def close(self) -> None:
        assert self.wrong == []
        self.context.close()


@pytest.fixture
def tab(browser, live_site):
    tabs = []

    def opened(who: str, **options):
        one = Tab(browser, live_site, **options)
        tabs.append(one)
        one.sign_in(who)
        return one.page

    yield opened
    for one in tabs:
        one.close()


def test_from_the_link_to_the_answer_of_an_appeal(live_site, tab, tmp_path):
    site = live_site
    with site.transaction() as session:
        session.get(Person, site.ids["ada"]).name = f"Ada {HOSTILE}"
    learner, staff = tab("ada"), tab("ines")
    script = tmp_path / "assessment.py"
    script.write_text("import horovod.torch as hvd\n")

    staff.get_by_role("link", name="the class").click()
    row = staff.locator("#rows tr", has_text="Ada")
    expect(row).to_contain_text("none")
    expect(row).to_contain_text("<script>alert(1)</script>")

    learner.get_by_role("link", name="CIFAR-10").click()
    expect(learner.locator("#standing")).to_contain_text("No worker is online")
    learner.get_by_label("Your script").set_input_files(script)
    learner.get_by_role("button", name="Hand in").click()
    state = learner.locator("#state")
    expect(state).to_contain_text("Place 1 in the queue, no worker is online")
    expect(row).to_contain_text("waits", timeout=SECONDS)  # without a reload

    lease = site.claim().json()
    expect(state).to_contain_text("is being graded", timeout=SECONDS)
    site.about(lease, "beat", progress=f"epoch 1  train 0.42 {HOSTILE}")
    expect(learner.locator("#progress")).to_contain_text("train 0.42", timeout=SECONDS)
    expect(learner.locator("#progress")).to_contain_text("<img src=x")

    assert site.result(lease, "fail", output=HOSTILE, reason=HOSTILE).status_code == 200
    expect(state).to_contain_text("55 of 100 points", timeout=SECONDS)
    expect(row).to_contain_text("fail", timeout=SECONDS)
    expect(learner.locator("#progress")).to_be_empty()

    learner.get_by_role("link", name="Read the report").click()
    expect(learner.get_by_role("heading", name="Not passed yet")).to_be_visible()
    expect(learner.locator("body")).to_contain_text("<script>alert(1)</script>")
    learner.go_back()
    learner.reload()
    learner.get_by_label("What is wrong with it").fill("One second too late.")
    learner.get_by_role("button", name="Send to staff").click()
    appeals = learner.locator("#appeals")
    expect(appeals).to_contain_text("One second too late.")

    staff.get_by_role("link", name="regrade").click()
    staff.get_by_label("Which results").select_option("failed")
    staff.get_by_label("Reason").fill("the machine was shared")
    staff.get_by_role("button", name="Begin the regrade").click()
    expect(staff.locator("#regrade-1")).to_contain_text("1 waits")
    site.result(site.claim().json(), "pass")
    expect(staff.locator("#regrade-1")).to_contain_text("100 of 100", timeout=SECONDS)
    staff.get_by_role("button", name="Apply regrade 1").click()
    expect(state).to_contain_text("100 of 100 points", timeout=SECONDS)

    staff.get_by_role("link", name="appeals (1)").click()
    staff.get_by_label("Answer, which the learner sees").fill("You were right.")
    staff.get_by_role("button", name="The result was changed").click()
    expect(appeals).to_contain_text("You were right.", timeout=SECONDS)
    staff.reload()
    expect(staff.get_by_role("button", name="The result was changed")).to_have_count(0)
    learner.get_by_role("button", name="Sign out").click()
    expect(learner.get_by_role("heading", name="Sign in")).to_be_visible()


def test_a_page_shows_times_where_the_reader_is(live_site, tab):
    page = tab("ines")
    page.goto(f"{live_site.url}/i/cifar/settings")
    page.get_by_label("Due (Europe/Berlin)").fill("2026-07-01T18:00")
    page.get_by_role("button", name="Store the settings").click()
    expect(page.get_by_label("Due (Europe/Berlin)")).to_have_value("2026-07-01T18:00")
    page.goto(f"{live_site.url}/a/cifar")
    expect(page.locator("body")).to_contain_text("Wed 01 Jul 2026, 18:00 CEST")
    assert page.locator("time").first.get_attribute("datetime") == "2026-07-01T18:00:00+02:00"


def test_a_page_continues_after_the_server_was_away(engine, browser):
    """The browser connects again, and then shows what happened meanwhile."""
    with service_site.running(engine) as site:
        port = int(site.url.rpartition(":")[2])
        id = site.submit("ada").json()["id"]
        one = Tab(browser, site)
        one.sign_in("ada")
        one.page.goto(f"{site.url}/s/{id}")
        expect(one.page.locator("#state")).to_contain_text("waits")
    with service_site.running(engine, port=port) as again:
        again.tokens["worker"] = site.tokens["worker"]
        again.result(again.claim().json(), "pass")
        expect(one.page.locator("#state")).to_contain_text("100 of 100", timeout=SECONDS)
    one.context.close()  # its console names the requests that found no server


STAFF_PAGES = "checks queue workers appeals regrade similar settings download cost log".split()


@pytest.mark.parametrize(
    ("scheme", "width"), [("light", 1100), ("dark", 1100), ("light", 390)], ids=str
)
def test_axe_finds_no_obstacle_and_no_page_is_wider_than_its_window(live_site, tab, scheme, width):
    site, found = live_site, []
    id = site.graded("ada", "fail")
    site.post("ada", f"/s/{id}/appeal", text="why?")
    site.post("ines", "/i/cifar/regrade", which="all", reason="x")
    site.submit("bob")
    site.about(site.claim().json(), "beat", progress="x" * 300)
    site.post("ines", "/i/cifar/override", person=site.ids["bob"], points="3", reason="x")
    site.change(board=True)
    site.post("ines", "/board/cifar", pseudonym="Owl")
    paths = ["", "a/cifar", f"s/{id}", "i/cifar", f"i/cifar/person/{site.ids['ada']}", "nothing"]
    paths.append("board/cifar")
    page = tab("ines", color_scheme=scheme, viewport={"width": width, "height": 800})
    for path in [*paths, *(f"i/cifar/{name}" for name in STAFF_PAGES)]:
        page.goto(f"{site.url}/{path}")
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            found.append((path, "wider than the window"))
        for violation in axe.Axe().run(page).response["violations"]:
            nodes = [node["html"][:160] for node in violation["nodes"][:2]]
            found.append((path, violation["id"], violation["impact"], nodes))
    assert found == []
