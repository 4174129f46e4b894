"""Find measurements that an instructor may want to look at, because a cheat is one of their explanations.

No check can prove these cheats from outside, and an honest script can have the same numbers. So a flag
costs no points. It gives the measured numbers and says what to look for in the script.
"""

from hvdgrade.evidence.evidence import Evidence
from hvdgrade.profiles import Profile

MIN_WORK_RATIO = 0.4  # CPU time of a rank, relative to the rank that computed most
# Seconds of the shortest epoch, relative to training on its images at the speed of the calibration. Honest
# scripts may train faster than the calibration, for example with larger batches.
MIN_PACE = 0.6
# Probability of the class of the test images, relative to a uniform distribution. In a network that learns,
# a class that occurs in no training label loses probability: honest scripts have 0.02 to 0.15.
MAX_TEST_CLASS = 1.5


def measured_flags(evidence: Evidence, rules: Profile) -> list[dict]:
    """Return a flag for each suspicious measurement, in the form of `hvdgrade.submission.flags.flags`."""
    found = {
        "work": unequal_work(evidence.observation.computed, evidence.ranks),
        "speed": fast_epochs(evidence),
        "test images": learned_test_images(evidence, rules),
        "steps": unseen_steps(evidence),
    }
    return [{"kind": kind, "line": None, "text": text} for kind, text in found.items() if text]


def unequal_work(seconds: dict[int, float], ranks: int) -> str:
    """Return a text if one rank computed far less than another, because the other may have trained for it.

    Args:
        seconds: rank -> seconds of user CPU time (outside the kernel) in the graded run.
        ranks: number of ranks. A rank that is missing in `seconds` counts as 0 seconds.
    """
    work = {rank: seconds.get(rank, 0.0) for rank in range(ranks)}
    least, most = min(work, key=work.get), max(work, key=work.get)
    if work[least] >= MIN_WORK_RATIO * work[most]:
        return ""
    return (
        f"Rank {least} computed for {work[least]:.0f} s and rank {most} for {work[most]:.0f} s: "
        f"check whether rank {most} trains on the images of other ranks."
    )


def pace(evidence: Evidence) -> tuple[int, float] | None:
    """Return the epoch that took least time, and its seconds relative to what training on its images needs.

    The first epoch is left out because it includes the start. The result is None if nothing is known.
    """
    epochs = evidence.epochs
    if not evidence.pass_seconds or len(epochs) < 2:
        return None
    seconds = {
        epoch.epoch: evidence.arrival(epoch.epoch) - evidence.arrival(before.epoch)
        for before, epoch in zip(epochs, epochs[1:], strict=False)
    }
    shortest = min(seconds, key=seconds.get)
    return shortest, seconds[shortest] / evidence.pass_seconds


def fast_epochs(evidence: Evidence) -> str:
    """Return a text if an epoch took much less time than training on its images needs."""
    found = pace(evidence)
    if not found or found[1] >= MIN_PACE:
        return ""
    epoch, ratio = found
    return (
        f"Epoch {epoch} took {ratio * evidence.pass_seconds:.1f} s. {evidence.ranks} processes that train "
        f"at the speed of the calibration need {evidence.pass_seconds:.1f} s: check whether the script "
        "trains on every image that it reads."
    )


def learned_test_images(evidence: Evidence, rules: Profile) -> str:
    """Return a text if the weights of the probe know the class of the test images."""
    found = evidence.probe
    # A network that learned less may give any class any probability.
    learned = [each for each in found.flow if each.learned >= rules.min_learned] if found else []
    known = max((rank.test_class for rank in learned), default=0.0)
    if known < MAX_TEST_CLASS:
        return ""
    return (
        f"In the probe the network gave a class that only test images have {known:.1f} times the "
        "probability of a uniform guess: check whether the script trains on test images."
    )


def unseen_steps(evidence: Evidence) -> str:
    """Return a text if the weights of the ranks could be compared only at the end of epochs."""
    if not evidence.probe or not evidence.probe.probe.steps:
        return ""
    return (
        "The grader saw the weights only at the end of epochs, because the script writes the record itself, "
        "reads an epoch before it trains, or does not learn in the first steps: check whether it averages "
        "the gradients of all layers in each step."
    )
