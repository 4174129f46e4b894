#!/usr/bin/env bash
# What the container does by default: JupyterLab on the start page of the course, behind a token.
#
#   JUPYTER_TOKEN   the token; without it JupyterLab makes a new one and prints the address with it
#   PORT            default 8888
#   IP              default 0.0.0.0: a container has a network of its own
#   arguments       go to JupyterLab
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Jupyter takes an empty token as "let everybody in", and a terminal comes with it.
if [ -z "${JUPYTER_TOKEN-unset}" ]; then
    echo "start_lab: JUPYTER_TOKEN is empty: give it a value (openssl rand -hex 24 makes one), or unset it and read the token below." >&2
    exit 2
fi
# What the labs load: found, downloaded once, or made. Without it the labs that need none still open.
for name in fashion_mnist cifar10; do hvdlab data $name --or-synthetic || true; done
exec python -m jupyterlab --no-browser --ip="${IP:-0.0.0.0}" --port="${PORT:-8888}" --ServerApp.port_retries=0 \
    --ServerApp.root_dir=notebooks --LabApp.default_url=/lab/tree/00_start_here.ipynb "$@"
