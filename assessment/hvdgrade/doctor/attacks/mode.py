"""Remove all permissions of the file in the first argument."""

import os
import sys

try:
    os.chmod(sys.argv[1], 0)
except OSError as error:
    print(error)
