#!/usr/bin/env bash
# Default command of the container: JupyterLab on the start page of the course, protected by a token.
#
#   JUPYTER_TOKEN   the token; without it JupyterLab makes a new token, and prints the address with it
#   PORT            default 8888
#   IP              default 0.0.0.0, because a container has its own network
#   arguments       are passed to JupyterLab
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# With an empty token, Jupyter lets any user in, and gives them a terminal.
if [ -z "${JUPYTER_TOKEN-unset}" ]; then
    echo "start_lab: JUPYTER_TOKEN is empty: give it a value (openssl rand -hex 24 makes one), or unset it and read the token below." >&2
    exit 2
fi
# Find, download or generate the data sets. Without data JupyterLab still starts, for labs that need none.
for name in fashion_mnist cifar10; do hvdlab data $name --or-synthetic || true; done
hvdlab notebooks
exec python -m jupyterlab --no-browser --ip="${IP:-0.0.0.0}" --port="${PORT:-8888}" --ServerApp.port_retries=0 \
    --ServerApp.root_dir=notebooks/work --LabApp.default_url=/lab/tree/00_start_here.ipynb "$@"
