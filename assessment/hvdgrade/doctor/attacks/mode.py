"""Takes the file of its argument from everybody, by its mode."""

import os
import sys

try:
    os.chmod(sys.argv[1], 0)
except OSError as error:
    print(error)
