"""Make a wrong answer out of a right one by replacing texts of its source."""

import inspect
import itertools
import linecache
import textwrap
from collections.abc import Callable

NUMBERS = itertools.count()


def changed(answer: Callable, *texts: str) -> Callable:
    """Return a copy of a function or a class of a test file in which texts are replaced.

    Its source can be read, so that it can be sent to ranks.

    Args:
        answer: the function or the class.
        *texts: an old text, which occurs once, its new text, the next old text, and so on.
    """
    source = textwrap.dedent(inspect.getsource(answer))
    for old, new in zip(texts[::2], texts[1::2], strict=True):
        assert source.count(old) == 1, f"{old!r} is {source.count(old)} times in {source}"
        source = source.replace(old, new)
    path = f"<{answer.__name__}, changed: {next(NUMBERS)}>"
    linecache.cache[path] = len(source), None, source.splitlines(keepends=True), path
    names = dict(vars(inspect.getmodule(answer)))
    exec(compile(source, path, "exec"), names)
    return names[answer.__name__]
