"""The HTTP request of the panel *Course*.

    GET   hvdlab/course   labs, what the learner has done, next exercise (hvdlab/course/overview.py)

The authentication and authorization of the Jupyter server decide who may send it.
"""

import asyncio
import json

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.extension.application import ExtensionApp
from tornado import web

from hvdlab import HvdlabError


class Course(ExtensionApp):
    """The server extension."""

    name = "hvdlab"

    def initialize_handlers(self) -> None:
        """Register the handler."""
        self.handlers.append(("/hvdlab/course", CourseHandler))


class CourseHandler(APIHandler):
    """Send what the panel shows."""

    auth_resource = "hvdlab"

    @web.authenticated
    @authorized("read", "contents")
    async def get(self) -> None:
        """Reply with the labs and what the learner has done.

        Raises:
            HTTPError: the file of answers cannot be read (409); the message says why.
        """
        try:
            found = await asyncio.to_thread(_overview)
        except HvdlabError as error:
            raise web.HTTPError(409, str(error)) from None
        self.finish(json.dumps(found))


def _overview() -> dict:
    """Return what the panel shows. The import takes a second, and must not delay the start of the server."""
    from hvdlab.course.overview import overview

    return overview()
