"""Run several rank scripts in one process: python one_after_another.py SCRIPT..."""

import runpy
import sys
from pathlib import Path

for script in sys.argv[1:]:
    runpy.run_path(str(Path(__file__).with_name(script)))
