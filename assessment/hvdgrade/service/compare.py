"""Compare scripts in a process of its own, because it takes a while, and can crash at a hostile script.

`python -m hvdgrade.service.compare` reads a JSON object, id -> script in base64, and prints similar pairs.
"""

import asyncio
import base64
import contextlib
import json
import os
import sys
from collections.abc import Mapping

from hvdgrade.submission import similarity

LIMIT_S = 300.0


async def similar(scripts: Mapping[str, bytes]) -> list[tuple[str, str, float]] | None:
    """Return the pairs of similar scripts; None if the comparison crashed or took too long.

    Args:
        scripts: id -> script.
    """
    texts = {id: base64.b64encode(script).decode() for id, script in scripts.items()}
    python = [sys.executable, "-m"]
    process = await asyncio.create_subprocess_exec(
        *python, "hvdgrade.batch.die_with_parent", str(os.getpid()), "-",
        *python, "hvdgrade.service.compare",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with asyncio.timeout(LIMIT_S):
            printed, _ = await process.communicate(json.dumps(texts).encode())
        return [tuple(pair) for pair in json.loads(printed)] if process.returncode == 0 else None
    except TimeoutError:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def main() -> None:
    """Print the similar pairs of the scripts on standard input."""
    texts = json.load(sys.stdin)
    scripts = {id: base64.b64decode(text) for id, text in texts.items()}
    print(json.dumps(similarity.pairs(scripts)))


if __name__ == "__main__":
    main()
