"""What the steps of a grading have in common."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hvdgrade.profiles import Profile
from hvdgrade.record_limits import RecordLimits
from hvdgrade.run.sandboxed_run import SandboxedRun
from hvdgrade.submission.script_facts import ScriptFacts
from hvdlab.assessment_networks import VARIABLE
from hvdlab.data import Dataset

Tell = Callable[..., None]  # called with a line of text, and with facts as keyword arguments


@dataclass(frozen=True)
class Job:
    """The grading of one submission.

    Attributes:
        source: the bytes of the script.
        ranks: number of processes.
        rules: the profile.
        tier: of the sandbox, one of `sandbox.TIERS`.
        tell: progress callback. Default: does nothing.
        data: the data set that the training set is drawn from.
        facts: what the source shows.
    """

    source: bytes
    ranks: int
    rules: Profile
    tier: str
    tell: Tell = lambda text, **facts: None
    data: Dataset | None = None
    facts: ScriptFacts = field(default_factory=ScriptFacts)

    def sandboxed(
        self,
        shown: Path | list[Path],
        arguments: tuple[str, ...] = (),
        *,
        variables: dict[str, str] | None = None,
        records: RecordLimits | None = None,
    ) -> SandboxedRun:
        """Return a run of the script that trains the network of the profile.

        Args:
            shown: folder with the data sets that it sees, or a list with one for each rank.
            arguments: of the script. Default: none.
            variables: more environment variables. Default: none.
            records: limits of what it may record. Default: those of the profile.
        """
        return SandboxedRun(
            self.source,
            self.ranks,
            shown,
            arguments,
            variables={VARIABLE: self.rules.network, **(variables or {})},
            tier=self.tier,
            gpus=self.rules.uses_gpus,
            records=records or self.rules.records,
        )
