"""Pack the source of a module of checks, and run a packed module, as in the hand-out of the course.

Most checks compute the answer, so their source would show the solution to every search over the files.
Packing is no protection: a learner who unpacks a module knows what it has.
"""

import base64
import linecache
import textwrap
import zlib

MODULE = '''\
"""A module of the course whose source is packed, because it computes the answers of exercises."""

from hvdlab.course.packed import run

SOURCE = """
{}
"""
run(SOURCE, globals())
'''


def packed(source: str) -> str:
    """Return the source of a module that does the same, in which no word of `source` can be read."""
    text = base64.b85encode(zlib.compress(source.encode(), 9)).decode()
    # Base 85 has neither quotes nor backslashes.
    return MODULE.format("\n".join(textwrap.wrap(text, 100, break_on_hyphens=False)))


def run(text: str, module: dict) -> None:
    """Run a packed source in the globals of its module. Tracebacks and `inspect` see the original lines."""
    source = zlib.decompress(base64.b85decode("".join(text.split()))).decode()
    name = module["__file__"]
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    exec(compile(source, name, "exec", dont_inherit=True), module)
