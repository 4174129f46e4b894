#!/usr/bin/env bash
# Gradescope runs this once, when it builds the image. run_autograder needs only Python.
set -euo pipefail
command -v python3 >/dev/null || { apt-get update && apt-get install -y --no-install-recommends python3 ca-certificates; }
python3 -c 'import sys; sys.exit("Python 3.10 or newer is needed: choose a newer image" if sys.version_info < (3, 10) else 0)'
