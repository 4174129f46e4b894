"""What a worker does: claim gradings for its free slots, run them, beat for them, and send their results.

One thread does all of this in turns, except that a claim waits for its answer in a thread of its own. A
result stays in the spool until the server has it, so a server that is away delays it and loses nothing.
"""

import contextlib
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from hvdgrade import HvdgradeError, profiles
from hvdgrade.batch.progress import outcome
from hvdgrade.worker.client import Away, LeaseLost, Refused, Server, TokenRefused
from hvdgrade.worker.runs import ClusterJobs, Slots
from hvdgrade.worker.spool import BadLease, Lease, Spool, read_claim

TICK_SECONDS = 0.2
BEAT_SECONDS = 15.0  # a lease ends 60 s after the last beat
MOST_PAUSE_SECONDS = (
    15.0  # between two attempts to reach the server, so that a lease outlives its restart
)
CANNOT_SECONDS = 30.0  # before the next claim if this worker could not use the last answer


class Claim(threading.Thread):
    """A claim that waits for the server's answer. `answer` or `error` is set at its end."""

    def __init__(self, server: Server, facts: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self.server, self.facts = server, facts
        self.answer: dict | None = None
        self.error: HvdgradeError | None = None
        self.start()

    def run(self) -> None:
        """Ask the server."""
        try:
            self.answer = self.server.claim(self.facts)
        except HvdgradeError as error:
            self.error = error


class Worker:
    """A worker.

    Args:
        facts: what each claim tells the server about this worker.
        unfit: returns why this worker cannot run a grading, or "".
        least: isolation level below which nothing is graded.
        tell: prints a line.
        once: whether to end after one grading, or when none waits.
        drain: whether `stop` lets the running gradings finish.

    Attributes:
        unsent: gradings whose results the server does not have yet.
    """

    def __init__(
        self,
        server: Server,
        spool: Spool,
        runs: Slots | ClusterJobs,
        facts: dict[str, Any],
        unfit: Callable[[Lease], str],
        least: str,
        tell: Callable[[str], None],
        *,
        once: bool,
        drain: bool,
    ) -> None:
        self.server, self.spool, self.runs, self.facts = server, spool, runs, facts
        self.unfit, self.least, self.tell, self.once, self.drain = unfit, least, tell, once, drain
        self.unsent: list[Lease] = []
        self.beats: dict[Lease, float] = {}  # running grading -> when its next beat is due
        self.claim: Claim | None = None
        self.claims_end = self.stopped = self.finishing = False
        self.next_claim = self.next_try = self.pause = 0.0
        self.refused = ""

    def stop(self, *signal: object) -> None:
        """End soon. A second call ends also what a first one let finish. It can be a signal handler."""
        self.drain = self.drain and not self.stopped
        self.stopped = self.claims_end = True

    def work(self) -> None:
        """Work until `stop` is called or, with `once`, one grading is done.

        Raises:
            TokenRefused: the server does not accept the token.
        """
        try:
            self.resume()
            while not self.done():
                if self.stopped and not self.finishing:
                    self.finishing = True
                    self.tell("finishing what runs; another signal ends it")
                self.take()
                self.collect()
                self.deliver()
                self.beat()
                time.sleep(TICK_SECONDS)
        finally:
            self.end()

    def done(self) -> bool:
        if self.stopped and not self.drain:
            return True
        busy = self.claim or self.runs.running or self.unsent
        return self.claims_end and not busy

    def resume(self) -> None:
        """Send the results, and give back the gradings, that an earlier worker left in the spool."""
        for lease in self.spool.held():
            if self.spool.result(lease):
                self.unsent.append(lease)
            else:
                self.give_back(lease, "an earlier worker was ended while it ran")

    def take(self) -> None:
        """Claim a grading if there is a free slot, or start the one that a claim has got."""
        now = time.monotonic()
        if self.claim and not self.claim.is_alive():
            claim, self.claim = self.claim, None
            self.next_claim = now + TICK_SECONDS
            if isinstance(claim.error, LeaseLost):
                self.say_refused(str(claim.error))
            elif isinstance(claim.error, Away):
                self.away(claim.error)
            elif claim.error:
                raise claim.error
            else:
                self.here()
                self.say_refused("")
                self.begin(claim.answer)
        elif not self.claim and not self.claims_end and self.runs.free:
            if now >= max(self.next_claim, self.next_try):
                self.claim = Claim(self.server, {"slots_free": self.runs.free, **self.facts})

    def say_refused(self, reason: str) -> None:
        if reason:
            self.next_claim = time.monotonic() + CANNOT_SECONDS
        if reason != self.refused:
            self.refused = reason
            self.tell(f"no gradings for this worker: {reason}" if reason else "accepted again")

    def begin(self, answer: dict | None) -> None:
        """Start the grading that a claim has got, or give it back."""
        self.claims_end = self.claims_end or self.once
        if not answer:
            return
        lease = None
        try:
            lease, script = read_claim(answer)
            if reason := "the worker ends" if self.stopped else self.unfit(lease):
                raise BadLease(reason)
            rules = profiles.load(lease.profile)
            self.spool.add(lease, script)
            settings = lease.settings(self.spool.path, rules, self.least)
            self.runs.start(lease, settings, rules)
        except (HvdgradeError, OSError) as error:
            self.next_claim = time.monotonic() + CANNOT_SECONDS
            if lease:
                self.give_back(lease, str(error), worker_ends=self.stopped)
            else:
                self.tell(str(error))
            return
        self.beats[lease] = time.monotonic() + BEAT_SECONDS
        what = f"submission {lease.submission}, profile {lease.profile}, {lease.ranks} ranks"
        self.tell(f"grading {lease.grading}: started ({what})")

    def collect(self) -> None:
        """Find out which gradings have ended."""
        for lease, document, why in self.runs.ended():
            del self.beats[lease]
            if document:
                self.tell(f"grading {lease.grading}: {outcome(document)}")
                self.unsent.append(lease)
            else:  # a full disk, for example, would stop the next grading, too
                self.next_claim = time.monotonic() + CANNOT_SECONDS
                self.give_back(lease, why)

    def deliver(self) -> None:
        """Send the results that the server does not have yet."""
        for lease in list(self.unsent):
            document, log = self.spool.result(lease), self.spool.end_of_log(lease)
            if not self.ask(lease, self.server.result, document, log):
                return
            if lease in self.unsent:
                self.unsent.remove(lease)
                self.spool.forget(lease)

    def beat(self) -> None:
        """Extend the leases of the running gradings, and show their progress."""
        for lease, due in list(self.beats.items()):
            if time.monotonic() < due:
                continue
            if not self.ask(lease, self.server.beat, self.spool.progress(lease)):
                return
            if lease in self.beats:
                self.beats[lease] = time.monotonic() + BEAT_SECONDS

    def ask(self, lease: Lease, request: Callable[..., None], *arguments: Any) -> bool:
        """Send a request about a grading, and drop the grading if the server refuses it.

        Returns:
            Whether the server has answered. If it is away, nothing is sent for a while.
        """
        if time.monotonic() < self.next_try:
            return False
        try:
            request(lease, *arguments)
        except Away as error:
            self.away(error)
            return False
        except Refused as error:
            self.drop(lease, error)
        self.here()
        return True

    def drop(self, lease: Lease, error: Refused) -> None:
        """End a grading that this worker has lost, or whose result the server refuses."""
        if self.beats.pop(lease, None):
            self.runs.end(lease)
        if lease in self.unsent:
            self.unsent.remove(lease)
        if isinstance(error, LeaseLost):
            self.tell(f"grading {lease.grading}: lost, and its run was ended ({error})")
            self.spool.forget(lease)
        else:
            self.give_back(lease, f"the server refuses it: {error}")

    def give_back(self, lease: Lease, why: str, worker_ends: bool = False) -> None:
        """Let another worker grade it. If the server does not hear it, the lease runs out."""
        with contextlib.suppress(Away, Refused, TokenRefused):
            self.server.give_back(lease, why, worker_ends)
        self.spool.forget(lease)
        self.tell(f"grading {lease.grading}: given back, because {why}")

    def away(self, error: Away) -> None:
        """Pause all requests, longer with each failure."""
        if not self.pause:
            self.tell(
                f"{self.server.url} is not reachable ({error}): trying again, results are kept. If this "
                "lasts, check --server, the network, and `hvdgrade serve`."
            )
        self.pause = min(MOST_PAUSE_SECONDS, max(1.0, 2 * self.pause))
        # Not all workers at the same moment when the server is back.
        self.next_try = time.monotonic() + self.pause * random.uniform(0.5, 1.0)

    def here(self) -> None:
        if self.pause:
            self.tell(f"{self.server.url} is reachable again")
        self.pause = self.next_try = 0.0

    def end(self) -> None:
        """End what runs, send what can be sent, and give back the rest.

        The open claim gets its answer first, because it would get a grading that was given back before.
        """
        running = list(self.beats)
        if running:
            self.tell("ending what runs")
        self.runs.end_all()
        told_to_end, self.stopped = self.stopped, True
        with contextlib.suppress(TokenRefused):
            self.deliver()
            if self.claim:
                self.tell("waiting for the answer to a claim")
                self.claim.join()
                self.take()
        for lease in running:
            self.give_back(lease, "the worker ends", told_to_end)
        if self.unsent:
            self.tell(
                f"{len(self.unsent)} results are kept in {self.spool.path} for the next start"
            )
