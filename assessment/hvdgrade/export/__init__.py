"""Convert the results of a batch into a table or into the files of a learning platform."""

from hvdgrade.export.nbgrader import nbgrader_score

__all__ = ["nbgrader_score"]
