"""Measure how much a script could carry in places that do not change what it computes, for example weights.

The measure is the same for every kind of place: bytes after compression by zlib. Words, digits or letters
that encode data do not compress to less than the data, and text that is repeated counts once. evidence.md has
the sizes that honest scripts have.
"""

import ast
import contextlib
import io
import re
import tokenize
import zlib
from collections.abc import Iterator

from hvdlab.script_analysis.ast_helpers import is_text
from hvdlab.script_analysis.script import Script

MOST = 3000  # bytes after compression, in one kind of place: twice the most of an honest script
MOST_TOGETHER = 6000  # in all kinds
EMPTY = len(zlib.compress(b""))

Places = list[tuple[int, str]]  # line and text


def carriers(script: Script, source: bytes) -> dict[str, Places]:
    """Return the texts of a script that could carry data: kind -> places.

    Args:
        source: its bytes.
    """
    docstrings = {n.value for n in script.nodes if isinstance(n, ast.Expr) and is_text(n.value)}
    constants = [node for node in script.nodes if isinstance(node, ast.Constant)]
    found: dict[str, Places] = {"comments": [], "names": []}
    with contextlib.suppress(tokenize.TokenError, SyntaxError):
        for token in tokenize.tokenize(io.BytesIO(source).readline):
            if token.type == tokenize.COMMENT:
                found["comments"].append((token.start[0], token.string))
            elif token.type == tokenize.NAME:
                found["names"].append((token.start[0], token.string))
    found["names"] = [(line, name) for name, line in dict(reversed_pairs(found["names"])).items()]
    found["docstrings"] = [(node.lineno, node.value) for node in docstrings]
    found["strings"] = [
        (node.lineno, node.value if isinstance(node.value, str) else repr(node.value))
        for node in constants
        if isinstance(node.value, str | bytes) and node not in docstrings
    ]
    found["numbers"] = [
        # Python converts no integer of more than 4,300 digits to decimal digits.
        (node.lineno, hex(node.value) if isinstance(node.value, int) else repr(node.value))
        for node in constants
        if type(node.value) in (int, float, complex)
    ]
    found["spaces"] = [(1, re.sub(rb"\S+", b"x", source).decode("ascii", "replace"))]
    return found


def reversed_pairs(places: Places) -> Iterator[tuple[str, int]]:
    """Yield (text, line) from the last place to the first one, so that a dict keeps the first line."""
    return ((text, line) for line, text in reversed(places))


def compressed_bytes(places: Places) -> int:
    """Return how many bytes the texts of some places have after compression."""
    text = "\n".join(text for _, text in sorted(places))
    return len(zlib.compress(text.encode("utf-8", "surrogatepass"), 9)) - EMPTY


def suspicious(script: Script, source: bytes) -> Iterator[tuple[int, str]]:
    """Yield a line and a text for each kind of place that could carry more than honest scripts have.

    Args:
        source: its bytes.
    """
    found = carriers(script, source)
    sizes = {kind: compressed_bytes(places) for kind, places in found.items()}
    large = [kind for kind, size in sizes.items() if size > MOST]
    for kind in large:
        line = max(found[kind], key=lambda place: len(place[1]))[0]
        yield (
            line,
            f"has the longest of its {kind}, which hold {sizes[kind]:,} bytes after compression",
        )
    total = sum(sizes.values())
    if total > MOST_TOGETHER and not large:
        kinds = ", ".join(sizes)
        yield 1, f"begins a script whose {kinds} hold {total:,} bytes after compression"
