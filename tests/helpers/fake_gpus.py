"""Simulate a machine with two GPUs for one command: device files, an `nvidia-smi`, and the start of CUDA.

In its own mount namespace the command sees /dev/nvidia0 and other files. They are character devices of the
kernel that any process may open, so they show which process can reach a GPU, but not what CUDA does with it.
The library libcuda.so.1 only starts: it does what the start of the driver's library is known to need.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

# name -> minor number of a device of major 1 (mem): 3 is null, 5 zero, 7 full, 8 random
NODES = {
    "nvidia0": 7,
    "nvidia1": 5,
    "nvidiactl": 3,
    "nvidia-uvm": 3,
    "dxg": 8,
    "nvidia-caps/nvidia-cap1": 3,
}
SETUP = """
set -e
mount -t tmpfs -o mode=755 none {dev}
for name in null zero full random urandom tty; do
    touch {dev}/$name; mount --bind /dev/$name {dev}/$name
done
mkdir {dev}/shm {dev}/pts {dev}/nvidia-caps
mount --rbind /dev/shm {dev}/shm
mount --rbind /dev/pts {dev}/pts
ln -s /proc/self/fd {dev}/fd
ln -s pts/ptmx {dev}/ptmx
{nodes}
mount --move {dev} /dev
exec "$@"
"""
# Lists two GPUs. The query for compute processes reports that rank r computes on GPU r.
NVIDIA_SMI = """#!/bin/sh
case "$1" in
--list-gpus) echo "GPU 0: NVIDIA H100 (UUID: GPU-aa)"; echo "GPU 1: NVIDIA H100 (UUID: GPU-bb)" ;;
--query-compute-apps*)
    [ -e {folder}/silent ] && exit 0
    for process in /proc/[0-9]*; do
        for rank in 0 1; do
            if tr '\\0' '\\n' < $process/environ 2>/dev/null | grep -q "^OMPI_COMM_WORLD_RANK=$rank\\$"; then
                [ $rank = 0 ] && uuid=GPU-aa || uuid=GPU-bb
                echo "${{process#/proc/}}, $uuid"
            fi
        done
    done ;;
esac
"""
# CUDA ends with error 304 if it cannot name its threads, and with 100 without device files.
LIBCUDA = r"""
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>
static void *thread(void *named) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task/%ld/comm", getpid(), syscall(SYS_gettid));
    int file = open(path, O_WRONLY);
    *(int *)named = file >= 0 && write(file, "cuda", 4) == 4;
    return NULL;
}
static int opens(const char *path) {
    int file = open(path, O_RDWR);
    return file >= 0 && !close(file);
}
int cuInit(unsigned flags) {
    int named = 0;
    pthread_t made;
    pthread_create(&made, NULL, thread, &named);
    pthread_join(made, NULL);
    if (ERROR || !named) return ERROR ? ERROR : 304;
    return opens("/dev/nvidiactl") && opens("/dev/nvidia-uvm") ? 0 : 100;
}
int cuDeviceGetCount(int *gpus) {
    *gpus = opens("/dev/nvidia0") + opens("/dev/nvidia1");
    return 0;
}
int cuGetErrorString(int code, const char **words) {
    *words = code == 304 ? "OS call failed" : code == 100 ? "no device is detected" : "unknown error";
    return 0;
}
"""


def libcuda(folder: Path, error: int) -> None:
    """Compile libcuda.so.1 into `folder`, which programs find through LD_LIBRARY_PATH."""
    (folder / "cuda.c").write_text(LIBCUDA)
    options = ["-shared", "-fPIC", "-pthread", f"-DERROR={error}", "-o", folder / "libcuda.so.1"]
    subprocess.run(["gcc", *options, folder / "cuda.c"], check=True, timeout=60)


def why_not() -> str:
    """Return why this machine cannot simulate GPUs; "" if it can."""
    if os.geteuid():
        return "only root can make device files"
    if not shutil.which("gcc"):
        return "no gcc to compile the CUDA library"
    try:
        tried = subprocess.run(
            ["unshare", "-m", "--propagation", "private", "true"], capture_output=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"no mount namespaces here: {error}"
    return "" if tried.returncode == 0 else "no mount namespaces here"


def run(
    folder: Path, *command, mode: str = "666", cuda_error: int = 0, **variables: str
) -> subprocess.CompletedProcess:
    """Run a Python command line on a machine with two GPUs.

    Args:
        folder: empty folder for the files of the simulation.
        mode: permissions of the device files.
        cuda_error: with which CUDA ends at its start; 0: it starts, if the sandbox lets it.
        variables: environment variables to set.
    """
    dev = folder / "dev"
    dev.mkdir(exist_ok=True)
    nodes = "\n".join(
        f"mknod {dev}/{n} c 1 {minor}; chmod {mode} {dev}/{n}" for n, minor in NODES.items()
    )
    program = folder / "nvidia-smi"
    program.write_text(NVIDIA_SMI.format(folder=folder))
    program.chmod(0o755)
    libcuda(folder, cuda_error)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", **variables}
    environment["LD_LIBRARY_PATH"] = f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    setup = SETUP.format(dev=dev, nodes=nodes)
    return subprocess.run(
        [
            "unshare",
            "-m",
            "--propagation",
            "private",
            "sh",
            "-c",
            setup,
            "sh",
            sys.executable,
            *command,
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
