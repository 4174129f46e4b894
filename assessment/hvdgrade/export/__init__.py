"""Turn the results of a batch into a table or into what a learning platform reads."""

from hvdgrade.export.nbgrader import nbgrader_score

__all__ = ["nbgrader_score"]
