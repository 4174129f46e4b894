"""Say in words what the time budget follows from, and what other programs took of the processor time.

Any field of a result may be missing, see `wording`.
"""

from hvdgrade.output.text import decimal, is_number
from hvdgrade.report.wording import part
from hvdgrade.result_document import BudgetPart, ResultDocument

LEAST_SHOWN_FRACTION = 0.005  # so that it is not rounded to 0 %


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
