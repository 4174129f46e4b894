"""`python -m hvdlab.check SCRIPT` is `hvdlab check SCRIPT`."""

import sys

from hvdlab import cli

sys.exit(cli.main(["check", *sys.argv[1:]]))
