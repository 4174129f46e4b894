"""`cd labs; python3 -m hvdlab.doctor` runs the doctor where no package is installed."""

import sys

from hvdlab.cli import main

if __name__ == "__main__":
    sys.exit(main(["doctor", *sys.argv[1:]]))
