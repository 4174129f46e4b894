"""Writes files outside of its folder."""

import sys

for path in sys.argv[1:]:
    try:
        with open(path, "w") as file:
            file.write("a submission was here\n")
    except OSError as error:
        print(error)
