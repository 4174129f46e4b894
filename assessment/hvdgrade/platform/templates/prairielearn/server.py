"""Give each student's variant a random id, because an external grader does not learn who a student is."""

import secrets


def generate(data: dict) -> None:
    """Draw the id. PrairieLearn keeps it with the variant, where no student can change it."""
    data["params"]["hvdgrade_learner"] = f"prairielearn-{secrets.token_hex(16)}"
