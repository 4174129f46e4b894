"""Workers on other hosts than the server: over a network that is cut, and on a cluster that loses a node."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import slurm_cluster
import slurm_two_nodes
import two_hosts
from serve_process import address, started
from service_site import Site
from sqlalchemy import func, select
from started_worker import Started

from hvdgrade.service import database, queue
from hvdgrade.service.models import Grade, Grading, Worker
from hvdgrade.service.server import now

pytestmark = [pytest.mark.multihost, pytest.mark.mpi, pytest.mark.slow]
SOLUTION = Path(__file__).parents[3] / "assessment" / "solutions" / "torch" / "assessment.py"
# So that no request waits long for an answer that the cut network has lost.
SOON = """
from hvdgrade.worker import client, loop
client.ANSWER_SECONDS = client.CONNECT_SECONDS = 2.0
loop.BEAT_SECONDS, loop.CANNOT_SECONDS, loop.MOST_PAUSE_SECONDS = 0.5, 0.5, 1.0"""
SHORT_LEASES = """
from hvdgrade.service import app, queue
queue.LEASE_SECONDS, app.EXPIRE_S = 10, 0.2"""


class Hosts:
    """The server on host1, its class, and workers on both hosts, whose submissions have one mark."""

    def __init__(self, folder: Path, network: two_hosts.Network, site: Site, data: Path) -> None:
        self.folder, self.network, self.site = folder, network, site
        server = SimpleNamespace(url=site.url, token=site.tokens["worker"])
        self.near, self.far = (Started(folder / name, data, server) for name in ("near", "far"))
        self.near.mark = self.far.mark

    def hand_in(self, who: str, script: str) -> str:
        """Hand in by `hvdgrade submit` on host1, and return the id of the submission."""
        file = self.folder / "mine.py"
        file.write_text(script)
        command = [sys.executable, "-m", "hvdgrade.cli", "submit", file, "--server", self.site.url]
        answer = self.network.host1.run(
            *command, "--assignment", "cifar", HVDGRADE_TOKEN=self.site.tokens[who]
        )
        assert answer.returncode == 0, answer.stderr
        return answer.stderr.split(": submission ")[1].split(",")[0]

    def grading(self, id: str) -> tuple[str, str | None, int]:
        """Return the state of the only grading of a submission, its last worker, and its tries."""
        query = select(Grading.state, Worker.name, Grading.tries).where(Grading.submission_id == id)
        with self.site.transaction() as session:
            return tuple(
                session.execute(query.outerjoin(Worker, Grading.worker_id == Worker.id)).one()
            )

    def sleepers(self) -> int:
        """Return how many runs of `sleeper` exist."""
        return sum(process.name() == "sleep" for process in self.far.processes())


@pytest.fixture
def network(tmp_path):
    if reason := two_hosts.why_not():
        pytest.skip(reason)
    (tmp_path / "network").mkdir()
    with two_hosts.running(tmp_path / "network") as network:
        yield network


@pytest.fixture
def hosts(request, network, tmp_path, sample_folder):
    """The server with leases of ten seconds, or those that the test is parametrized with."""
    for name in ("server", "near", "far"):
        (tmp_path / name).mkdir()
    url = f"sqlite:///{tmp_path}/server/service.db"
    engine = database.connect(url)
    database.upgrade(engine)
    options = {
        "listen": f"{two_hosts.ADDRESSES['host1']}:8790",
        "before": getattr(request, "param", SHORT_LEASES),
        "host": network.host1,
    }
    with started(tmp_path / "server", "--no-worker", "--database", url, **options) as server:
        site = Site(engine, address(server), None)
        site.change(profile="dli", ranks=1)
        made = Hosts(tmp_path, network, site, sample_folder)
        yield made
        made.near.clear_up()
        made.far.clear_up()
    engine.dispose()


def test_a_cut_link_lets_another_worker_grade_and_counts_nothing_twice(hosts):
    network, near, far = hosts.network, hosts.near, hosts.far
    there = network.host2.run("ip", "route").stdout.split()
    assert "default" not in there and there[0] == "10.99.0.0/24"  # it reaches nothing else
    ada = hosts.hand_in("ada", far.sleeper(300))
    far.start("--workers", 1, before=SOON, host=network.host2)
    far.wait_for(lambda: hosts.sleepers() == 1)
    assert hosts.grading(ada) == ("leased", "host2", 1)
    network.cut("host2")
    near.start("--workers", 1, before=SOON, host=network.host1)
    near.wait_for(lambda: hosts.sleepers() == 2)  # the lease ran out, and the cut worker grades on
    assert hosts.grading(ada) == ("leased", "host1", 2)
    network.connect("host2")
    far.wait_for(lambda: "grading 1: lost" in far.said() and hosts.sleepers() == 1)
    assert far.files() == [] and hosts.grading(ada) == ("leased", "host1", 2)

    # Now the link is cut while the run ends, so that two workers have a result.
    bob = hosts.hand_in("bob", far.sleeper(3))
    far.wait_for(lambda: hosts.sleepers() == 2)
    network.cut("host2")
    far.wait_for(lambda: "grading 2: fail" in far.said())
    assert "results/grading-2.json" in far.files()
    with hosts.site.transaction() as session:
        queue.cancel(session, 1, now())
    near.wait_for(lambda: hosts.grading(bob) == ("done", "host1", 2))
    assert "grading 1: lost" in near.said()
    network.connect("host2")
    far.wait_for(lambda: "grading 2: lost" in far.said())
    assert far.files() == [] and hosts.grading(bob) == ("done", "host1", 2)
    assert hosts.site.scalar(select(func.count()).select_from(Grade)) == 1


@pytest.mark.thorough
@pytest.mark.grading
@pytest.mark.data
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("hosts", [""], indirect=True)
def test_the_reference_solution_passes_although_the_link_is_cut_for_a_while(
    hosts, real_cifar10_folder
):
    network, far = hosts.network, hosts.far
    far.data = real_cifar10_folder
    hosts.site.change(profile="cpu", ranks=2)
    ada = hosts.hand_in("ada", SOLUTION.read_text(encoding="utf-8"))
    far.start("-np", 2, host=network.host2)
    progress = select(Grading.progress)
    far.wait_for(lambda: "epoch 1," in hosts.site.scalar(progress), 600)
    network.cut("host2")
    far.wait_for(lambda: "is not reachable" in far.said())
    network.connect("host2")
    far.wait_for(lambda: hosts.grading(ada)[0] != "leased", 900)
    assert hosts.grading(ada) == ("done", "host2", 1)
    assert hosts.site.scalar(select(Grading.verdict)) == "pass"
    assert "is reachable again" in far.said()


@pytest.mark.thorough
@pytest.mark.slurm
@pytest.mark.parametrize("options", [(), ("--slurm-option", "no-requeue")])
def test_a_node_that_dies_loses_no_grading(hosts, tmp_path, options):
    """Slurm itself puts the job into its queue again, or the worker gives the grading back."""
    pytest.importorskip("submitit", reason="needs submitit: pip install submitit")
    if reason := slurm_cluster.why_not():
        pytest.skip(reason)
    network, near = hosts.network, hosts.near
    (tmp_path / "slurm").mkdir()
    with slurm_two_nodes.running(network, tmp_path / "slurm") as variables:

        def slurm(*command: str) -> str:
            answer = network.host1.run(*command, **variables)
            assert answer.returncode == 0, answer.stderr
            return answer.stdout

        slurm("scontrol", "update", "NodeName=host1", "State=DRAIN", "Reason=test")
        before = f"{SOON}\nfrom hvdgrade.batch import slurm\nslurm.LOST_SECONDS = 3"
        near.start("--slurm", "--workers", 2, *options, before=before, host=network.host1,
                   PATH=f"{Path(sys.executable).parent}:{two_hosts.SEARCH}", **variables)  # fmt: skip
        ada = hosts.hand_in("ada", near.sleeper(20))
        near.wait_for(lambda: hosts.sleepers() == 1)
        slurm("scontrol", "update", "NodeName=host1", "State=RESUME")
        network.cut("host2")
        for process in network.host2.processes():
            process.kill()
        near.wait_for(
            lambda: "host2 down" in slurm("sinfo", "--Node", "--noheader", "--format=%N %T")
        )
        if not options:
            job = slurm("squeue", "--noheader", "--format=%i").strip()
            slurm("scontrol", "update", f"JobId={job}", "StartTime=now")  # else in two minutes
        near.wait_for(lambda: hosts.grading(ada)[0] == "done", 200)
        assert hosts.grading(ada)[2] == (2 if options else 1)
        assert near.end() == 0 and near.files() == []
