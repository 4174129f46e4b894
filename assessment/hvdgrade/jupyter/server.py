"""The HTTP requests of the Assess button.

    POST   hvdgrade/assess   {"path", "ranks", "profile"}: start a grading; 409 while another one is running
    GET    hvdgrade/assess   the progress, and at the end the result
    DELETE hvdgrade/assess   cancel the grading
    GET    hvdgrade/report   the report of the last grading (HTML)
    GET, POST hvdgrade/handin   hand in the script instead (hand_in.py)

The authentication, authorization and XSRF protection of the Jupyter server decide who may send them. A
script is read through the server's contents manager, so a user cannot grade a file that the user may not
open in JupyterLab.
"""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.extension.application import ExtensionApp
from jupyter_server.utils import ensure_async, to_os_path
from tornado import web

from hvdgrade.jupyter import hand_in
from hvdgrade.jupyter.runner import Busy, Runner, rules
from hvdgrade.submission.script import MAX_SCRIPT_BYTES
from hvdlab.system.hardware import usable_cores


class Assess(ExtensionApp):
    """The server extension, with one `Runner` that is closed when the server stops."""

    name = "hvdgrade"

    def initialize_handlers(self) -> None:
        """Create the runner and register the handlers."""
        self.runner = Runner()
        self.handlers.extend(
            [
                ("/hvdgrade/assess", AssessHandler, {"runner": self.runner}),
                ("/hvdgrade/report", ReportHandler, {"runner": self.runner}),
                ("/hvdgrade/handin", HandInHandler, {"runner": self.runner}),
            ]
        )

    def current_activity(self) -> bool:
        """Return whether a grading is running, so that the server does not count as idle then."""
        return self.runner.running

    async def stop_extension(self) -> None:
        """End the grading and remove its files."""
        await asyncio.to_thread(self.runner.close)


class Handler(APIHandler):
    """A request handler that has the runner."""

    auth_resource = "hvdgrade"

    def initialize(self, runner: Runner) -> None:
        """Store the runner. Tornado calls this before each request."""
        self.runner = runner

    async def read(self, path: Any) -> bytes:
        """Return the bytes of a script.

        Args:
            path: the path in the request, which may be any JSON value.

        Raises:
            HTTPError: it is not a plain file that the user may read (404), not a path, or too large (400).
        """
        if not isinstance(path, str) or not path.strip("/"):
            raise web.HTTPError(400, f"path must name a script. Received: {path}")
        missing = web.HTTPError(
            404,
            f"There is no file {path[:100]} in the folder that Jupyter serves. "
            "Create it first: lab 8 writes a script to start from to assessment.py.",
        )
        contents = self.contents_manager
        try:
            root = Path(contents.root_dir).resolve()
            if not Path(to_os_path(path, contents.root_dir)).resolve().is_relative_to(root):
                raise web.HTTPError(
                    404,
                    f"The path {path[:100]} leads out of the folder that Jupyter serves: "
                    "copy the script into it.",
                )
            if not await ensure_async(contents.file_exists(path)):
                raise missing
        except (OSError, ValueError, RuntimeError):  # for example a symlink loop, or a null byte
            raise missing from None
        if not contents.allow_hidden and await ensure_async(contents.is_hidden(path)):
            raise missing
        model = await ensure_async(contents.get(path, content=False, type="file"))
        if (model["size"] or 0) > MAX_SCRIPT_BYTES:
            raise web.HTTPError(
                400,
                f"{path} is larger than {MAX_SCRIPT_BYTES} bytes: choose a script without data.",
            )
        model = await ensure_async(contents.get(path, type="file", format="base64"))
        return base64.decodebytes(model["content"].encode())


class AssessHandler(Handler):
    """Start, report and cancel a grading."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Reply with the status of the grading."""
        self.reply()

    @web.authenticated
    @authorized("read", "contents")
    @authorized("execute", "kernels")  # a user who may not run code may not let the grader run it
    @authorized
    async def post(self) -> None:
        """Start a grading.

        Raises:
            HTTPError: the request is wrong (400, 404), another server of the user grades (409), or the
                grading cannot be started (507).
        """
        request = self.get_json_body()
        if not isinstance(request, dict):
            raise web.HTTPError(400, "expected a JSON object with path, ranks and profile.")
        profiles, most = rules().values()
        profile, ranks = request.get("profile", "cpu"), request.get("ranks", 2)
        if not isinstance(profile, str) or profile not in profiles:
            names = ", ".join(profiles)
            raise web.HTTPError(400, f"profile must be one of {names}. Received: {profile}")
        if type(ranks) is not int or not 1 <= ranks <= most:
            raise web.HTTPError(400, f"ranks must be in 1..{most}. Received: {ranks}")
        path = request.get("path")
        source = await self.read(path)
        try:
            self.runner.start(path.strip("/"), source, ranks, profile)
        except Busy as busy:
            if (
                not self.runner.running
            ):  # another server of this user is grading: no status is known here
                raise web.HTTPError(409, str(busy)) from None
            self.reply(409, message=str(busy))
        except OSError as error:  # for example a full disk, or no folder for temporary files
            raise web.HTTPError(507, f"The grading cannot start: {error.strerror}.") from None
        else:
            self.reply(201)

    @web.authenticated
    @authorized
    async def delete(self) -> None:
        """Cancel the grading and reply with its status."""
        self.runner.cancel()
        self.reply()

    def reply(self, code: int = 200, **more: Any) -> None:
        """Reply with the status of the grading.

        Args:
            code: HTTP status code. Default: 200.
        """
        self.set_status(code)
        status = self.runner.status() | rules() | {"cores": usable_cores()}
        self.finish(json.dumps(status | more))


class ReportHandler(Handler):
    """Send the report of the last grading."""

    @property
    def content_security_policy(self) -> str:
        """The policy of the page: it runs no script, has no origin, and loads nothing from elsewhere.

        The reason is that the report contains text that a submission printed. If a directive occurs twice,
        a browser applies the first one, so the directives of the server cannot weaken these.
        """
        policy = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
        return policy + super().content_security_policy

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Reply with the report. The query may hold the number of the grading, to get no other one's report.

        Raises:
            HTTPError: there is no report (404).
        """
        if not self.runner.report.is_file():
            raise web.HTTPError(404, "There is no report yet: press Assess first.")
        if self.request.query not in ("", str(self.runner.number)):
            raise web.HTTPError(
                404,
                "This report was removed, because another grading has started since: reload the page.",
            )
        self.finish(self.runner.report.read_bytes(), set_content_type="text/html; charset=utf-8")


class HandInHandler(Handler):
    """Hand in a script to the service of the course."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Reply with the address of the assignment's page."""
        self.finish(json.dumps({"page": hand_in.page()}))

    @web.authenticated
    @authorized("read", "contents")
    @authorized
    async def post(self) -> None:
        """Hand in a script, and reply with the status of the submission.

        Raises:
            HTTPError: the request is wrong (400, 404), the service refuses (409) or does not answer (503).
        """
        request = self.get_json_body()
        key = request.get("key") if isinstance(request, dict) else None
        if not isinstance(key, str) or not key.isascii() or not key.isprintable():
            raise web.HTTPError(400, "expected a JSON object with path and key.")
        self.finish(json.dumps(await hand_in.hand_in(await self.read(request.get("path")), key)))
