"""The targets of the attacks: files, processes and ports that are created only for this purpose."""

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
    """The targets of the attacks: a secret file, writable folders, a process, and an open port.

    Use it in a `with` statement, which creates the targets and removes them.
    """

    def __enter__(self) -> "Host":
        """Create the targets."""
        self.token = f"hvdgrade-{secrets.token_hex(8)}"
        self.temporary = tempfile.TemporaryDirectory(prefix="hvdgrade-")
        self.folder = Path(self.temporary.name)
        self.folder.chmod(0o755)
        for name, mode in (("data", 0o755), ("open", 0o777), ("private", 0o700)):
            (self.folder / name).mkdir()
            (self.folder / name).chmod(mode)
        self.secret = self.folder / "secret.txt"
        self.secret.write_text(self.token, encoding="utf-8")
        self.secret.chmod(SECRET_MODE)
        solution = GRADER.parent / "solutions" / "torch" / "assessment.py"
        self.solution = solution if solution.exists() else GRADER / "judge" / "verdict.py"
        self.private = self.folder / "private" / "file"
        self.private.write_text(f"private {self.token}", encoding="utf-8")
        self.open_file = self.folder / "open" / "file"
        self.closed_files = [
            self.private.with_name("new"),
            Path(hvdlab.__file__).with_name(self.token),
        ]
        self.listener = socket.create_server(("", 0))
        self.service = socket.socket(socket.AF_UNIX)
        self.service.bind(str(self.folder / "open" / "socket"))
        (self.folder / "open" / "socket").chmod(0o777)
        self.service.listen()
        for listener in (self.listener, self.service):
            listener.setblocking(False)
        self.victim = self.start_victim()
        # More processes than any isolation level allows one rank. Without cgroups, the limit also counts the
        # processes that the user already runs.
        self.processes = 1500 + threads_of_this_user()
        return self

    def start_victim(self) -> subprocess.Popen:
        """Start a process that waits, and that ends when this process ends."""
        follow_parent = [
            sys.executable,
            "-BEsS",
            str(GRADER / "sandbox" / "drop_privileges.py"),
            '{"follow": true}',
        ]
        return subprocess.Popen(
            [*follow_parent, "sleep", "infinity"], env={**os.environ, "TOKEN": self.token}
        )

    def addresses(self) -> list[str]:
        """Return the open port as HOST:PORT, for the loopback and all other addresses of this host."""
        port = self.listener.getsockname()[1]
        hosts = ["127.0.0.1"]
        for addresses in psutil.net_if_addrs().values():
            hosts += [a.address for a in addresses if a.family == socket.AF_INET]
        return [f"{host}:{port}" for host in dict.fromkeys(hosts)]

    def connected(self, listener: socket.socket) -> bool:
        """Return whether a process has connected since the last call."""
        connections = 0
        while True:
            try:
                listener.accept()[0].close()
                connections += 1
            except BlockingIOError:
                return connections > 0

    def survivors(self) -> list[psutil.Process]:
        """Return the processes with the token in their command line, which a submission left behind."""
        left = []
        for process in psutil.process_iter():
            try:
                if self.token in process.cmdline():
                    left.append(process)
            except psutil.Error:
                pass
        return left

    def clean(self) -> None:
        """Undo a successful attack: remove its files and processes, and restart the process that it ended."""
        for path in [self.open_file, *self.closed_files, *Path("/dev/shm").glob(f"{self.token}*")]:
            if path.exists():  # on a read-only file system even a missing file cannot be removed
                path.unlink()
        self.secret.chmod(SECRET_MODE)
        for process in self.survivors():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if self.victim.poll() is not None:
            self.victim = self.start_victim()

    def __exit__(self, *exception: object) -> None:
        """Remove the targets."""
        self.clean()
        self.victim.kill()
        self.victim.wait()
        self.listener.close()
        self.service.close()
        self.temporary.cleanup()
