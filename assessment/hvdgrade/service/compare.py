"""Compare scripts in a process of its own, because it takes a while, and can crash at a hostile script.

`python -m hvdgrade.service.compare` reads a JSON object, id -> script in base64, and prints similar pairs.
"""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Mapping

from hvdgrade.submission import similarity

LIMIT_S = 300.0


def similar(scripts: Mapping[str, bytes]) -> list[tuple[str, str, float]] | None:
    """Return the pairs of similar scripts (id -> script); None if the comparison crashed or took too long."""
    texts = {id: base64.b64encode(script).decode() for id, script in scripts.items()}
    python = [sys.executable, "-m"]
    until_we_end = [*python, "hvdgrade.batch.die_with_parent", str(os.getpid()), "-"]
    try:
        done = subprocess.run(
            [*until_we_end, *python, "hvdgrade.service.compare"],
            input=json.dumps(texts),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=True,
        )
    except subprocess.SubprocessError:
        return None
    return [tuple(pair) for pair in json.loads(done.stdout)]


def main() -> None:
    """Print the similar pairs of the scripts on standard input."""
    texts = json.load(sys.stdin)
    scripts = {id: base64.b64decode(text) for id, text in texts.items()}
    print(json.dumps(similarity.pairs(scripts)))


if __name__ == "__main__":
    main()
