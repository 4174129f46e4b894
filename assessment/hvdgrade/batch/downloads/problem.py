"""The error of a download that cannot be understood."""

from hvdgrade import HvdgradeError


class DownloadProblem(HvdgradeError):
    """The folder of the class cannot be used. The message says why in one sentence."""
