"""Write to the files in the arguments, which lie outside of the submission's folder."""

import sys

for path in sys.argv[1:]:
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write("a submission was here\n")
    except OSError as error:
        print(error)
