"""A real JupyterHub with an LMS simulator as its login, and `hvdgrade serve` as its service.

with running(folder, lms, evil) as hub:
    hub.address           the proxy, for example http://127.0.0.1:8000
    hub.service           the service, f"{hub.address}/services/hvdgrade", without pages for staff
    hub.own               the service again, with a host name of its own and pages for staff
    hub.admin             a token that may do everything in the hub
    hub.evil              another service on the hub's domain, which is the server `evil`
    hub.engine            its database, with a course "ml" that has an assignment "hw1"

Everything listens on this machine. Users' servers are JupyterLab, as processes of this user.
"""

import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from jupyter_run import free_port
from lms import Lms
from sqlalchemy import Engine

from hvdgrade.service.database import connect, transaction, upgrade
from hvdgrade.service.models import Assignment, Course

BIN = Path(sys.executable).parent
PROXY = BIN.parent / "node/node_modules/.bin/configurable-http-proxy"
MISSING = f"needs configurable-http-proxy in {PROXY} (.ci/run installs it with npm)"
CONFIG = """\
import sys

c = get_config()
c.JupyterHub.bind_url = {address!r}
c.JupyterHub.hub_port = {hub_port}
c.JupyterHub.db_url = "sqlite:///{folder}/hub.sqlite"
c.JupyterHub.cookie_secret_file = "{folder}/cookie_secret"
c.JupyterHub.cleanup_servers = True
c.ConfigurableHTTPProxy.command = [{proxy!r}]
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{api_port}"
c.ConfigurableHTTPProxy.pid_file = "{folder}/proxy.pid"
c.JupyterHub.authenticator_class = "ltiauthenticator.lti13.auth.LTI13Authenticator"
c.LTI13Authenticator.issuer = {lms!r}
c.LTI13Authenticator.authorize_url = {lms!r} + "/authorize"
c.LTI13Authenticator.jwks_endpoint = {lms!r} + "/jwks"
c.LTI13Authenticator.client_id = ["client-1"]
c.LTI13Authenticator.username_key = "sub"
c.Authenticator.allow_all = True
c.Authenticator.enable_auth_state = True
c.JupyterHub.load_groups = {{"staff": {{"users": ["teacher"]}}}}
c.JupyterHub.spawner_class = "simple"
c.Spawner.cmd = [sys.executable, "-m", "jupyterhub.singleuser"]
c.Spawner.args = ["--allow-root"]
c.SimpleLocalProcessSpawner.home_dir_template = "{folder}/home/{{username}}"
c.Spawner.start_timeout = 300
c.Spawner.http_timeout = 300
c.Spawner.environment = {{"HVDGRADE_SERVICE_URL": {service!r} + "/a/hw1"}}
def serve(name, address, port):
    return {{
        "name": name,
        "url": f"http://127.0.0.1:{{port}}",
        "oauth_redirect_uri": f"{{address}}/oauth_callback",
        "oauth_no_confirm": True,
        "command": [
            sys.executable, "-m", "hvdgrade.cli", "serve", "--database", {database!r}, "--no-worker",
            "--listen", f"127.0.0.1:{{port}}", "--config", f"{folder}/{{name}}.toml",
        ],
    }}


c.JupyterHub.services = [
    serve("hvdgrade", {service!r}, {service_port}),
    serve("own", {own!r}, {own_port}),
    {{"name": "evil", "url": {evil!r}}},
    {{"name": "admin", "api_token": {admin!r}}},
]
c.JupyterHub.load_roles = [
    {{"name": "hvdgrade", "services": ["hvdgrade", "own"], "scopes": [
        "admin:auth_state", "read:users"]}},
    {{"name": "admin", "services": ["admin"]}},
    {{"name": "user", "scopes": ["self", "access:services"]}},
    {{"name": "server", "scopes": [
        "users:activity!user", "access:servers!server", "access:services!service=hvdgrade"]}},
]
"""
SERVE = """\
address = "{address}"
staff_pages = {staff_pages}
lti_keys = ["{folder}/lti.pem"]

[hub]
url = "{address_of_hub}/hub"
course = "ml"
instructors = ["staff"]

[[lms]]
issuer = "{lms}"
client = "client-1"
token_url = "{lms}/token"
"""


@dataclass
class Hub:
    address: str
    service: str
    own: str
    evil: str
    admin: str
    engine: Engine
    log: Path
    process: psutil.Popen

    @property
    def login(self) -> str:
        """Where the LMS sends browsers."""
        return f"{self.address}/hub/lti13/oauth_login"

    def target(self, path: str) -> str:
        """The address of a link of the LMS."""
        return f"{self.service}{path}"


@contextlib.contextmanager
def running(folder: Path, lms: Lms, evil: str) -> Iterator[Hub]:
    ports = dict(zip(("address", "hub", "api", "service", "own"), _free_ports(5), strict=True))
    address = f"http://127.0.0.1:{ports['address']}"
    service, database = f"{address}/services/hvdgrade", f"sqlite:///{folder}/service.db"
    own = f"http://localhost:{ports['own']}"  # another site than 127.0.0.1
    engine = connect(database)
    upgrade(engine)
    with transaction(engine) as session:
        course = Course(slug="ml", title="Machine learning")
        session.add(Assignment(slug="hw1", title="Homework 1", course=course))
    values = {
        "address": address, "hub_port": ports["hub"], "api_port": ports["api"], "folder": folder,
        "service_port": ports["service"], "service": service, "lms": lms.url, "proxy": str(PROXY),
        "database": database, "own": own, "own_port": ports["own"], "evil": evil,
        "admin": secrets.token_hex(16), "address_of_hub": address,
    }  # fmt: skip
    (folder / "jupyterhub_config.py").write_text(CONFIG.format(**values))
    for name, where, staff in (("hvdgrade", service, "false"), ("own", own, "true")):
        text = SERVE.format(**values | {"address": where}, staff_pages=staff)
        (folder / f"{name}.toml").write_text(text)
    variables = {name: value for name, value in os.environ.items() if "JUPYTER" not in name}
    variables |= {
        "JUPYTERHUB_CRYPT_KEY": secrets.token_hex(32),
        "CONFIGPROXY_AUTH_TOKEN": secrets.token_hex(32),
        "PATH": f"{BIN}:{os.environ['PATH']}",
    }
    log = folder / "hub.log"
    with log.open("w") as output:
        process = psutil.Popen(
            [sys.executable, "-m", "jupyterhub", "-f", str(folder / "jupyterhub_config.py")],
            cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        for url in (f"{address}/hub/api/", f"{service}/jwks", f"{own}/jwks"):
            _wait_for(url, process, log)
        lms.tool_keys = lambda: _json(f"{service}/jwks")
        evil, admin = f"{address}/services/evil/", values["admin"]
        yield Hub(address, service, own, evil, admin, engine, log, process)
    finally:
        _end(process)
        engine.dispose()


def _free_ports(number) -> list[int]:
    ports = {free_port() for _ in range(number)}
    while len(ports) < number:
        ports.add(free_port())
    return list(ports)


def _wait_for(url, process, log, seconds=300):
    deadline = time.monotonic() + seconds
    while True:
        try:
            return urllib.request.urlopen(url, timeout=10).close()
        except OSError:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-4000:]
            time.sleep(0.2)


def _json(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


def _end(process):
    """End the hub, its proxy, its service and the servers of its users."""
    started = process.children(recursive=True) if process.is_running() else []
    with contextlib.suppress(psutil.NoSuchProcess):
        process.terminate()
    for each in psutil.wait_procs([process, *started], timeout=40)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
