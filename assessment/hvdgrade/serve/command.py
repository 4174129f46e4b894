"""Run the server of the service: learners hand in, workers grade, staff see the class.

Without --database, everything happens on this machine: the command makes a course with one assignment in the
folder runs/service, starts a worker, and prints a link for you and one for a test learner. With --database it
serves the courses of that database, and prints nothing secret.
"""

import argparse
import contextlib
import logging
import os
import socket
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from hvdgrade import HvdgradeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Engine
    from starlette.routing import BaseRoute

    from hvdgrade.service.configuration import Configuration
    from hvdgrade.service.server import Settings

DONE, REFUSED = 0, 2
FOLDER = Path("runs/service")
PACKAGES = ("starlette", "uvicorn", "sqlalchemy", "alembic", "python_multipart", "jwt", "httpx")
END_S = 3  # in which open requests may end after Ctrl-C
EPILOG = """\
example:
  hvdgrade serve
  hvdgrade serve --database postgresql+psycopg:///hvdgrade --no-worker --config serve.toml

The file of --config is TOML: address = "https://grade.example.edu" is where browsers reach the server.

exit codes: 0 ended by Ctrl-C, or --check found no fault; 2 wrong usage, or it cannot start
"""


class CannotServe(HvdgradeError):
    """The server cannot start. The message says why in one sentence."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `hvdgrade serve`."""
    add = parser.add_argument
    add("--database", metavar="URL", help="database to serve (default: a file in runs/service)")
    add(
        "--listen",
        default="127.0.0.1:8790",
        metavar="HOST:PORT",
        help="where it listens (default 127.0.0.1:8790, this machine only; port 0 takes a free one)",
    )
    add("--no-worker", action="store_true", help="start no worker on this machine")
    add("--check", action="store_true", help="say whether it could start, and end")
    add("--config", type=Path, metavar="FILE", help="settings, see below")


def main(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C.

    Returns:
        The exit code: DONE or REFUSED.
    """
    try:
        if missing := [name for name in PACKAGES if not find_spec(name)]:
            raise CannotServe(f"{', '.join(missing)} is missing: pip install 'hvdlab[service]'.")
        serve(args)
    except HvdgradeError as error:
        print(f"hvdgrade serve: {error}", file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:  # the usual end
        pass
    return DONE


def serve(args: argparse.Namespace) -> None:
    """Serve until a signal comes.

    Raises:
        HvdgradeError: the server cannot start.
    """
    from hvdgrade.serve import one_machine
    from hvdgrade.service.issuers import issuers_of
    from hvdgrade.service.server import Settings

    config = read_config(args.config)
    with listening(args.listen) as listener, contextlib.ExitStack() as stack:
        host, port = listener.getsockname()[:2]
        here = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        address = config.address or here
        issuers = issuers_of(config, address, os.environ)
        settings = Settings(
            address=address,
            staff_pages=config.staff_pages,
            proofs=issuers.proofs(),
            login=issuers.login(),
        )
        engine = opened(args.database)
        stack.callback(engine.dispose)
        if args.check:
            print(f"It can listen on {args.listen}, and the database is ready.")
            return
        print(f"The service runs at {settings.address}. Stop it with Ctrl-C.")
        if args.database is None:
            print(one_machine.first_steps(engine, settings.address))
        if not args.no_worker:
            folder = FOLDER if args.database is None else Path.home() / ".cache/hvdgrade/serve"
            stack.enter_context(one_machine.worker(engine, here + settings.prefix, folder))
        stack.enter_context(issuers.posting(engine))
        sys.stdout.flush()
        run(engine, settings, issuers.routes(), listener)


def read_config(path: Path | None) -> "Configuration":
    """Return the configuration in a TOML file; without a file, the defaults.

    Raises:
        CannotServe: it cannot be read, or has an unknown key.
    """
    from hvdgrade.service import configuration

    try:
        values = tomllib.loads(path.read_text(encoding="utf-8")) if path else {}
        return configuration.read(values)
    except OSError as error:
        raise CannotServe(f"--config {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CannotServe(f"--config {path} is not TOML: {error}.") from None
    except configuration.BadConfig as error:
        raise CannotServe(f"--config {path}: {error}") from None


@contextlib.contextmanager
def listening(listen: str):
    """Yield a socket that listens.

    Raises:
        CannotServe: the address is not of this machine, or another program listens there.
    """
    host, _, port = listen.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise CannotServe(f"--listen must be HOST:PORT as 127.0.0.1:8790, not {listen!r}.")
    host = host.strip("[]") or "127.0.0.1"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, int(port)), family=family)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]
        raise CannotServe(
            f"it cannot listen on {listen}: {reason}. Choose another --listen."
        ) from None
    with listener:
        yield listener


def opened(url: str | None) -> "Engine":
    """Return the engine of the database. The tables of SQLite are upgraded, those of PostgreSQL never.

    Raises:
        DatabaseProblem: it cannot be used, or its tables are of another version.
        CannotServe: the folder of the service cannot be made.
    """
    from hvdgrade.service import database

    if url is None:
        try:
            FOLDER.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise CannotServe(f"the folder {FOLDER} cannot be made: {error.strerror}.") from None
        url = f"sqlite:///{FOLDER / 'service.db'}"
    engine = database.connect(url)
    if engine.dialect.name == "sqlite":
        database.upgrade(engine)
    database.must_be_current(engine)
    return engine


def run(
    engine: "Engine",
    settings: "Settings",
    routes: "Sequence[BaseRoute]",
    listener: socket.socket,
) -> None:
    """Answer requests until a signal comes. Only a proxy on this machine may name the address of a client."""
    import uvicorn

    from hvdgrade.service.app import application

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("hvdgrade.service").setLevel(logging.INFO)
    logging.getLogger("uvicorn.access").disabled = True  # it would write the tokens of links
    app = application(engine, settings, routes)

    class Server(uvicorn.Server):
        def handle_exit(self, number: int, frame: FrameType | None) -> None:
            app.state.server.close()
            super().handle_exit(number, frame)

    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=True,
        forwarded_allow_ips="127.0.0.1,::1",
        timeout_graceful_shutdown=END_S,
    )
    Server(config).run(sockets=[listener])
