"""hvdlab: the helper package of the course. Importing it imports no framework."""

__version__ = "0.1.0"


class HvdlabError(Exception):
    """Base of all exceptions of this package. The message is a sentence for the user.

    A notebook shows the message without a traceback.
    """

    def _render_traceback_(self) -> list[str]:  # IPython calls this
        return [str(self)]
