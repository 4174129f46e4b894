"""What there is to attack on a host: things put there for it, that nobody misses."""

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

import hvdgrade
import hvdlab
from hvdgrade.sandbox.sandbox import threads_of_this_user

GRADER = Path(hvdgrade.__file__).parent
SECRET_MODE = 0o644


class Host:
    """What there is to attack: a secret, a folder, a process, an open port. A context."""

    def __enter__(self) -> "Host":
        self.token = f"hvdgrade-{secrets.token_hex(8)}"
        self.place = tempfile.TemporaryDirectory(prefix="hvdgrade-")
        self.folder = Path(self.place.name)
        self.folder.chmod(0o755)
        for name in ("data", "open"):
            (self.folder / name).mkdir()
        (self.folder / "open").chmod(0o777)
        self.secret = self.folder / "secret.txt"
        self.secret.write_text(self.token)
        self.secret.chmod(SECRET_MODE)
        solution = GRADER.parent / "solutions" / "torch" / "assessment.py"
        self.solution = solution if solution.exists() else GRADER / "judge" / "verdict.py"
        self.targets = [self.folder / "open" / "file", Path(hvdlab.__file__).with_name(self.token)]
        self.listener = socket.create_server(("", 0))
        self.service = socket.socket(socket.AF_UNIX)
        self.service.bind(str(self.folder / "open" / "socket"))
        (self.folder / "open" / "socket").chmod(0o777)
        self.service.listen()
        for listener in (self.listener, self.service):
            listener.setblocking(False)
        self.victim = self.start_victim()
        # More than any tier allows one rank; without cgroups what the user runs already is allowed on top.
        self.processes = 1500 + threads_of_this_user()
        return self

    def start_victim(self) -> subprocess.Popen:
        """A process that waits, and that ends with us."""
        follow = [
            sys.executable,
            "-BEsS",
            str(GRADER / "sandbox" / "drop_privileges.py"),
            '{"follow": true}',
        ]
        return subprocess.Popen(
            [*follow, "sleep", "infinity"], env={**os.environ, "TOKEN": self.token}
        )

    def addresses(self) -> list[str]:
        """Where the open port can be reached: the loopback, and what other machines use."""
        port = self.listener.getsockname()[1]
        hosts = ["127.0.0.1"]
        for addresses in psutil.net_if_addrs().values():
            hosts += [a.address for a in addresses if a.family == socket.AF_INET]
        return [f"{host}:{port}" for host in dict.fromkeys(hosts)]

    def connected(self, listener: socket.socket) -> bool:
        """Whether anybody has connected since the last call."""
        came = 0
        while True:
            try:
                listener.accept()[0].close()
                came += 1
            except BlockingIOError:
                return came > 0

    def survivors(self) -> list[psutil.Process]:
        """Processes that have our token in their command line: what a submission left behind."""
        found = []
        for process in psutil.process_iter():
            try:
                if self.token in process.cmdline():
                    found.append(process)
            except psutil.Error:
                pass
        return found

    def clean(self) -> None:
        """Remove what an attack that succeeded left, and replace what it ended."""
        for path in [*self.targets, *Path("/dev/shm").glob(f"{self.token}*")]:
            path.unlink(missing_ok=True)
        self.secret.chmod(SECRET_MODE)
        for process in self.survivors():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if self.victim.poll() is not None:
            self.victim = self.start_victim()

    def __exit__(self, *exception) -> None:
        self.clean()
        self.victim.kill()
        self.victim.wait()
        self.listener.close()
        self.service.close()
        self.place.cleanup()
