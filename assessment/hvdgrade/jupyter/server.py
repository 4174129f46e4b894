"""What the Assess button asks the Jupyter server.

    POST   hvdgrade/assess   {"path", "ranks", "profile"}: begin; 409 while another grading runs
    GET    hvdgrade/assess   how far it is, and at the end the result
    DELETE hvdgrade/assess   cancel
    GET    hvdgrade/report   the report of the last grading, a page

The server's own authentication, authorization and XSRF protection say who may ask. A script is read
through the server's contents manager: what a user may not open in JupyterLab cannot be graded.
"""

import asyncio
import base64
import json
from pathlib import Path

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.extension.application import ExtensionApp
from jupyter_server.utils import ensure_async, to_os_path
from tornado import web

from hvdgrade.jupyter.runner import Busy, Runner, rules
from hvdgrade.submission.script import MAX_SCRIPT_BYTES
from hvdlab.system.hardware import usable_cores


class Assess(ExtensionApp):
    """The extension: one runner for the server, which ends when the server does."""

    name = "hvdgrade"

    def initialize_handlers(self):
        self.runner = Runner()
        self.handlers.extend(
            [
                ("/hvdgrade/assess", AssessHandler, {"runner": self.runner}),
                ("/hvdgrade/report", ReportHandler, {"runner": self.runner}),
            ]
        )

    def current_activity(self):
        return self.runner.running  # a server that grades is not idle

    async def stop_extension(self):
        await asyncio.to_thread(self.runner.close)


class Handler(APIHandler):
    auth_resource = "hvdgrade"

    def initialize(self, runner: Runner):
        self.runner = runner


class AssessHandler(Handler):
    @web.authenticated
    @authorized
    async def get(self):
        self.reply()

    @web.authenticated
    @authorized("read", "contents")
    @authorized("execute", "kernels")  # whoever may not run code may not have it run
    @authorized
    async def post(self):
        request = self.get_json_body()
        if not isinstance(request, dict):
            raise web.HTTPError(400, "path, ranks and profile are expected as a JSON object.")
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
            ):  # one of another server of the user's: of that nothing is known here
                raise web.HTTPError(409, str(busy)) from None
            self.reply(409, message=str(busy))
        except OSError as error:  # a full disk, no temporary folder
            raise web.HTTPError(507, f"The grading cannot begin: {error.strerror}.") from None
        else:
            self.reply(201)

    @web.authenticated
    @authorized
    async def delete(self):
        self.runner.cancel()
        self.reply()

    def reply(self, code: int = 200, **more):
        self.set_status(code)
        status = self.runner.status() | rules() | {"cores": usable_cores()}
        self.finish(json.dumps(status | more))

    async def read(self, path) -> bytes:
        """The bytes of the script, if it is a plain file that the user may read."""
        if not isinstance(path, str) or not path.strip("/"):
            raise web.HTTPError(400, f"path must name a script. Received: {path}")
        missing = web.HTTPError(
            404,
            f"There is no file {path[:100]} in the folder that Jupyter serves. "
            "Write it first; lab 7 puts a script to begin with at work/assessment.py.",
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
        except (OSError, ValueError, RuntimeError):  # a loop of links, a null byte
            raise missing from None
        if not contents.allow_hidden and await ensure_async(contents.is_hidden(path)):
            raise missing
        model = await ensure_async(contents.get(path, content=False, type="file"))
        if (model["size"] or 0) > MAX_SCRIPT_BYTES:
            raise web.HTTPError(
                400, f"{path} is larger than {MAX_SCRIPT_BYTES} bytes: a script is expected."
            )
        model = await ensure_async(contents.get(path, type="file", format="base64"))
        return base64.decodebytes(model["content"].encode())


class ReportHandler(Handler):
    @property
    def content_security_policy(self):
        """The report holds what a submission printed: no script, no origin, nothing from elsewhere.

        Of two equal directives the first counts, so these hold whatever the server adds.
        """
        ours = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
        return ours + super().content_security_policy

    @web.authenticated
    @authorized
    async def get(self):
        if not self.runner.report.is_file():
            raise web.HTTPError(404, "There is no report yet: press Assess first.")
        if self.request.query not in (
            "",
            str(self.runner.number),
        ):  # of a panel that knows no later one
            raise web.HTTPError(404, "Another grading has begun since, and its report is gone.")
        self.finish(self.runner.report.read_bytes(), set_content_type="text/html; charset=utf-8")
