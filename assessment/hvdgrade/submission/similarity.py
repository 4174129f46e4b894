"""Finds submissions that are nearly the same, whatever their names, constants and comments.

    pairs({"ada": source, "bob": other})      [("ada", "bob", 0.93)]

Each syntax tree becomes a row of tokens without names, values and docstrings, the row a set of
overlapping pieces of LENGTH tokens. What the scripts handed out and their solutions contain is
everybody's and left out: two honest conversions share it. The similarity of two submissions is the
share of pieces that they have in common (Jaccard's index). A flag for a human to look at, no more:
with few pieces of its own a submission is like many others, so below LEAST_PIECES only identical
files are named.
"""

import ast
from itertools import combinations
from pathlib import Path

from hvdlab.script_analysis.script import Script, Unreadable

LENGTH = 12  # tokens: one or two short statements
LEAST_PIECES = 150
THRESHOLD = 0.5
ASSESSMENT = Path(__file__).parents[2]
GIVEN = [  # they lie in the repository, not in an installed wheel
    path
    for folder in ("keras", "torch", "solutions/keras", "solutions/torch")
    if (path := ASSESSMENT / folder / "assessment.py").is_file()
]


def pairs(
    sources: dict[str, bytes],
    threshold: float = THRESHOLD,
    given: dict[str, bytes] | None = None,
) -> list[tuple[str, str, float]]:
    """Pairs of submissions with a similarity of at least `threshold`, the most similar first.

    Args:
        sources: submission -> its script. What is not valid Python is compared byte by byte only.
        threshold: 0..1.
        given: the scripts whose pieces do not count; default: those handed out and their solutions.
            Without any, what everybody shares is not known, and only identical files are named.
    """
    if given is None:
        given = {str(path): path.read_bytes() for path in GIVEN}
    common = set().union(*(pieces(source) for source in given.values()))
    handed_out = set(given.values())
    own = {name: pieces(source) - common if common else set() for name, source in sources.items()}
    found = []
    for one, other in combinations(sorted(sources), 2):
        if sources[one] == sources[other]:
            if sources[one] not in handed_out:
                found.append((one, other, 1.0))
        elif min(len(own[one]), len(own[other])) >= LEAST_PIECES:
            shared = len(own[one] & own[other])
            similarity = shared / (len(own[one]) + len(own[other]) - shared)
            if similarity >= threshold:
                found.append((one, other, similarity))
    return sorted(found, key=lambda pair: (-pair[2], pair[:2]))


def pieces(source: bytes) -> set[int]:
    """The hashes of all runs of LENGTH tokens; empty where the source cannot be read."""
    tokens = normalised(source)
    return {hash(tuple(tokens[i : i + LENGTH])) for i in range(len(tokens) - LENGTH + 1)}


def normalised(source: bytes) -> list[str]:
    """The syntax tree as tokens, in the order of the source; [] where it cannot be read.

    A variable is "name", a constant its type. Imported things, attributes and keywords keep their
    names: a copy cannot rename what a library calls so.
    """
    try:
        script = Script(source)
    except Unreadable:
        return []
    own = {n.name for n in script.nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    own |= {n.attr for n in script.nodes if isinstance(n, ast.Attribute) and stored(n)}
    tokens, todo = [], [script.tree]
    while todo:  # a stack, not recursion: submissions may be nested deeply
        node = todo.pop()
        if isinstance(node, ast.Import | ast.ImportFrom | ast.expr_context):
            continue
        if isinstance(node, ast.Name):
            tokens.append(script.full.get(node.id, "name"))
        elif isinstance(node, ast.Attribute):
            tokens.append("attribute" if node.attr in own else f".{node.attr}")
        elif isinstance(node, ast.keyword):
            tokens.append(f"{node.arg}=")
        elif isinstance(node, ast.Constant):
            tokens.append(type(node.value).__name__)
        else:
            tokens.append(type(node).__name__)
        children = [child for child in ast.iter_child_nodes(node) if not is_text(child)]
        todo += reversed(children)
    return tokens


def stored(node: ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Store)


def is_text(node: ast.AST) -> bool:
    """A docstring, or another expression that is only a constant."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
