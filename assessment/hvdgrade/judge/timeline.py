"""The accuracies of a run over time, and when the run reached its targets."""

from dataclasses import dataclass

from hvdgrade.evidence.evidence import Evidence
from hvdgrade.profiles import Profile


@dataclass(frozen=True)
class Entry:
    """One epoch that every rank recorded; `seconds` from launch until its weights had arrived from all."""

    seconds: float
    epoch: int
    train_accuracy: float
    heldout_accuracy: float
    weights_sha256: str = ""
    bytes_on_wire: int | None = None
    steps: int | None = None

    def meets(self, rules: Profile) -> bool:
        """Return whether both accuracies reach their targets."""
        return (
            self.train_accuracy >= rules.train_accuracy
            and self.heldout_accuracy >= rules.heldout_accuracy
        )


def of(evidence: Evidence) -> list[Entry]:
    """Return the timeline of a run whose accuracies have been computed."""
    seen, entries = evidence.observation, []
    for epoch in evidence.epochs:
        weights = [seen.of(rank)[epoch.epoch] for rank in range(seen.ranks)]
        wire = [w.bytes_on_wire for w in weights]
        entries.append(
            Entry(
                seconds=round(evidence.arrival(epoch.epoch), 2),
                epoch=epoch.epoch,
                train_accuracy=epoch.train_accuracy,
                heldout_accuracy=epoch.heldout_accuracy,
                weights_sha256=weights[0].sha256,
                bytes_on_wire=None if None in wire else max(wire),
                steps=epoch.steps,
            )
        )
    return entries


def seconds_to_target(timeline: list[Entry], rules: Profile) -> float | None:
    """Return the seconds from launch until the targets were reached, or None if they were not.

    The targets are reached with the first `rules.consecutive_epochs` consecutive epochs that meet both of
    them. The time is the one at which the last of these epochs arrived.
    """
    good: list[Entry] = []
    for entry in timeline:
        follows = good and entry.epoch == good[-1].epoch + 1
        good = (good if follows else []) + [entry] if entry.meets(rules) else []
        if len(good) == rules.consecutive_epochs:
            return max(entry.seconds for entry in good)
    return None
