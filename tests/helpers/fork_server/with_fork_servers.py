"""Run a command, such as pytest, whose training scripts start in processes that have imported the frameworks.

    python tests/helpers/fork_server/with_fork_servers.py pytest tests -n 3

The import of PyTorch or TensorFlow takes 5 to 10 s of a core, and `make test` starts several hundred ranks
that train for less. So each of four servers imports the frameworks once, and forks a process for each
script that imports them (`client/sitecustomize.py` asks for it). mpirun, torchrun and the scripts are the
real ones. What differs: all ranks have the same hash seed of Python, and /proc shows the command and the
environment of the server. Without this program each rank starts as usual. So do, always, graded runs and
`hvdlab check`.
"""

import atexit
import builtins
import faulthandler
import importlib
import io
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import types
from pathlib import Path

TORCH = (
    "torch torch._dynamo torch.nn.parallel torch.utils.data torch.profiler horovod.torch "
    "torch.distributed.fsdp torch.distributed.pipelining torch.distributed.tensor.parallel "
    "torch.distributed.tensor.debug"
).split()
SERVERS = {  # what each imports
    "torch": TORCH,
    "language_model": [*TORCH, "lightning.pytorch", "litgpt"],
    "tensorflow": ["tensorflow", "keras", "horovod.tensorflow"],
    "keras_on_torch": [*TORCH, "keras"],
}
ENVIRONMENT = {  # what libraries read when they are imported
    "OMP_NUM_THREADS": "1",  # a process with threads must not fork
    "OPENBLAS_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "-1",
}


def main(command: list[str]) -> int:
    """Start the servers, run the command, end the servers, and return the exit code of the command."""
    folder = tempfile.mkdtemp(prefix="fork-servers-")
    end, alive = os.pipe()  # a server ends when the last copy of `alive` is closed
    for name in SERVERS:
        if os.fork() == 0:
            os.close(alive)
            become(serve(name, os.path.join(folder, name), end))
    client = str(Path(__file__).with_name("client"))
    path = os.pathsep.join(filter(None, [client, os.environ.get("PYTHONPATH")]))
    try:
        process = subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": path, "FORK_SERVERS": folder}
        )
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the command itself
        return process.wait()
    finally:
        os.close(alive)
        for _ in SERVERS:
            os.wait()
        shutil.rmtree(folder)


def serve(name: str, path: str, end: int) -> dict:
    """Import the frameworks and fork for each client. Return, in the forked process, what the client sent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen(64)
    with open(os.devnull, "r+b") as nothing:  # TensorFlow prints when it is imported
        for number in range(3):
            os.dup2(nothing.fileno(), number)
    os.environ.update(ENVIRONMENT)
    os.environ["KERAS_BACKEND"] = "torch" if name == "keras_on_torch" else "tensorflow"
    for module in SERVERS[name]:
        try:
            importlib.import_module(module)
        except ImportError:  # the script fails as it would without the server
            break
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    selector.register(end, selectors.EVENT_READ)
    processes: dict[socket.socket, int] = {}  # of the clients

    while True:
        for key, _ in selector.select():
            if key.fileobj == end:
                for process in processes.values():
                    os.kill(process, signal.SIGKILL)
                os._exit(0)
            if key.fileobj is listener:
                connection, _ = listener.accept()
                data, files, *_ = socket.recv_fds(connection, 1_000_000, 3)
                request = json.loads(data) if data else {}
                if request.get("prefix") != sys.prefix:
                    for descriptor in files:
                        os.close(descriptor)
                    connection.close()
                    continue
                process = os.fork()
                if process == 0:
                    for number in range(3):
                        os.dup2(files[number], number)
                    for other in selector.get_map().values():
                        if isinstance(other.fileobj, socket.socket):
                            other.fileobj.close()
                        else:
                            os.close(other.fd)
                    selector.close()
                    connection.close()
                    for descriptor in files:
                        os.close(descriptor)
                    return request
                for descriptor in files:
                    os.close(descriptor)
                connection.send(str(process).encode())
                processes[connection] = process
                selector.register(connection, selectors.EVENT_READ)  # until its end
                selector.register(os.pidfd_open(process), selectors.EVENT_READ, connection)
            elif key.data is None:  # a client was killed
                if key.fileobj in processes:
                    os.kill(processes[key.fileobj], signal.SIGKILL)
                    selector.unregister(key.fileobj)
            else:
                selector.unregister(key.fd)
                os.close(key.fd)
                connection = key.data
                _, status = os.waitpid(processes.pop(connection), 0)
                if connection in selector.get_map():
                    selector.unregister(connection)
                try:
                    connection.send(str(os.waitstatus_to_exitcode(status)).encode())
                except OSError:  # it was killed
                    pass
                connection.close()


def become(request: dict) -> None:
    """Run the client's script in this process, as Python runs a script."""
    import numpy as np

    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid()
    os.chdir(request["folder"])
    os.sched_setaffinity(0, request["cores"])
    environment = request["environment"]
    os.environ.clear()
    os.environ.update(environment)
    for name, number in (("stdout", 1), ("stderr", 2)):
        unbuffered = request["unbuffered"]
        raw = open(number, "wb", 0 if unbuffered else -1, closefd=False)
        stream = io.TextIOWrapper(
            raw,
            encoding="utf-8",
            errors=getattr(sys, name).errors,
            line_buffering=not unbuffered and (name == "stderr" or os.isatty(number)),
            write_through=unbuffered,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)
    if environment.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    np.random.seed()  # the module's generator was seeded before the fork
    if "torch" in sys.modules:
        threads = environment.get("OMP_NUM_THREADS", "")
        count = int(threads) if threads.isdigit() else len(request["cores"])
        sys.modules["torch"].set_num_threads(max(1, count))
    sys.argv = request["words"]
    script = os.path.abspath(sys.argv[0])
    added = [] if environment.get("PYTHONSAFEPATH") else [os.path.dirname(os.path.realpath(script))]
    added += filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:1] = added  # in place of the folder of this file
    sys.path_importer_cache.clear()
    importlib.invalidate_caches()
    module = types.ModuleType("__main__")
    module.__file__, module.__builtins__ = script, builtins
    sys.modules["__main__"] = module
    try:
        exec(compile(Path(script).read_bytes(), script, "exec"), module.__dict__)
    except Exception as error:
        # As Python does, but without the line of this file.
        error = error.with_traceback(error.__traceback__.tb_next)
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)
    except KeyboardInterrupt as error:
        error = error.with_traceback(error.__traceback__.tb_next)
        sys.excepthook(type(error), error, error.__traceback__)
        atexit._run_exitfuncs()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    sys.exit()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
