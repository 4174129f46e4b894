"""Say in words what the time budget follows from, what other programs took of the processor time, and whether
this explains that a script was late.

Any field of a result may be missing, see `wording`.
"""

from typing import NamedTuple

from hvdgrade.output.text import decimal, is_finite, is_number
from hvdgrade.report.wording import items, part
from hvdgrade.result_document import BudgetPart, ResultDocument

LEAST_SHOWN_FRACTION = 0.005  # so that it is not rounded to 0 %
GRADE_AGAIN = "Grade the script again when no other programs run, before you change it."


class Delay(NamedTuple):
    """What other programs have to do with a late script.

    Attributes:
        text: one to three sentences. "": the script was not late, or other programs took nothing.
        explained: whether the script would have been in time without them.
    """

    text: str = ""
    explained: bool = False


def budget_rule(budget: BudgetPart) -> str:
    if not is_number(budget.get("serial_epochs")):
        return ""
    return (
        f"The budget is what a single process needs here for {budget['serial_epochs']} epochs with "
        f"{budget.get('framework') or 'this framework'}, measured just before the run, and its "
        f"start-up of {decimal(budget.get('startup_seconds'), 1)} s{without_others(budget)}."
    )


def without_others(budget: BudgetPart) -> str:
    """Return the end of a sentence about the budget if other programs slowed the calibration, else ""."""
    taken = part(budget, "other_work").get("fraction")
    if not is_number(taken) or taken < LEAST_SHOWN_FRACTION:
        return ""
    return f", less the {taken:.0%} of the processor time that other programs took meanwhile"


def other_work(document: ResultDocument) -> str:
    """Return what other programs took of the processor time in the calibration and in the run."""
    measured = {
        "calibration": part(part(document, "budget"), "other_work"),
        "run": part(part(document, "resources"), "other_work"),
    }
    said = []
    for name, found in measured.items():
        if is_number(found.get("fraction")):
            said.append(f"{found['fraction']:.0%} of the processor time in the {name}")
        elif found.get("unknown"):
            said.append(f"not measured in the {name}: {found['unknown']}")
    return "; ".join(said)


def delay(document: ResultDocument) -> Delay:
    """Return whether other programs explain that the target was not reached in time.

    A script that computes all the time needs, without them, the seconds that it took less their fraction of
    the processor time. This is an estimate, and the budget has already been corrected in this manner.
    """
    checks = {check.get("id"): check.get("state") for check in items(document, "checks")}
    failed = {id for id, state in checks.items() if state in ("fail", "partial", "error")}
    again = f" {GRADE_AGAIN}" * (failed <= {"targets"})
    resources, seconds = part(document, "resources"), document.get("seconds_to_target")
    ended = resources.get("stop_cause") == "timeout"
    if "targets" not in failed or not (is_finite(seconds) or ended):
        return Delay()  # a script that ended by itself had time left
    others, budget = part(resources, "other_work"), part(document, "budget").get("seconds")
    fraction = others.get("fraction")
    if not is_finite(fraction):
        unknown = others.get("unknown")
        said = f"How much of the processor time other programs took was not measured ({unknown}). "
        said += (
            "If other programs ran during the grading, grade the script again when they have ended."
        )
        return Delay(said if unknown else "")
    if fraction < LEAST_SHOWN_FRACTION:
        return Delay()
    said = f"Other programs took {fraction:.0%} of the processor time in the run."
    if not is_finite(seconds) or not is_finite(budget):
        return Delay(f"{said} The script was slower by about this fraction.{again}")
    idle = seconds * (1 - fraction)
    without = f"Without them the target would have been reached after about {decimal(idle, 1)} s"
    if idle > budget:
        rest = f"{without}, and the budget is {decimal(budget, 1)} s, so they do not explain the delay."
        return Delay(f"{said} {rest}")
    return Delay(f"{said} {without}, within {decimal(budget, 1)} s.{again}", explained=True)
