"""Find near-identical submissions, even if names, constants or comments were changed.

    pairs({"ada": source, "bob": other})      [("ada", "bob", 0.93)]

Each syntax tree is converted to a sequence of tokens without names, values and docstrings, and the sequence
to the set of its overlapping pieces of LENGTH tokens. Pieces that also occur in the scripts that students
receive or in their solutions are removed, because two honest submissions share them. The similarity of two
submissions is the Jaccard index of their sets: the number of common pieces divided by that of all pieces.

The result is only a reason for an instructor to look at two submissions. A submission with few pieces of its
own resembles many others, so with fewer than MIN_PIECES pieces only identical files are reported.
"""

import ast
from itertools import combinations
from pathlib import Path

from hvdlab.script_analysis.script import Script, Unreadable

LENGTH = 12  # tokens: one or two short statements
MIN_PIECES = 150
THRESHOLD = 0.5
ASSESSMENT = Path(__file__).parents[2]
GIVEN = [  # these files exist in the repository, but not in an installed wheel
    path
    for folder in ("keras", "torch", "solutions/keras", "solutions/torch")
    if (path := ASSESSMENT / folder / "assessment.py").is_file()
]


def pairs(
    sources: dict[str, bytes],
    threshold: float = THRESHOLD,
    given: dict[str, bytes] | None = None,
) -> list[tuple[str, str, float]]:
    """Return pairs of similar submissions, the most similar pair first.

    Args:
        sources: name of a submission -> its script. A script that is not valid Python is only compared byte
            by byte.
        threshold: smallest similarity to report, from 0 to 1. Default: 0.5.
        given: name -> script whose pieces do not count. Default: the scripts that students receive, and their
            solutions. If it is empty, the common pieces are unknown, and only identical files are reported.

    Returns:
        A tuple per pair: both names and the similarity.
    """
    if given is None:
        given = {str(path): path.read_bytes() for path in GIVEN}
    common = set().union(*(pieces(source) for source in given.values()))
    handed_out = set(given.values())
    own = {name: pieces(source) - common if common else set() for name, source in sources.items()}
    similar = []
    for first, second in combinations(sorted(sources), 2):
        if sources[first] == sources[second]:
            if sources[first] not in handed_out:
                similar.append((first, second, 1.0))
        elif min(len(own[first]), len(own[second])) >= MIN_PIECES:
            shared = len(own[first] & own[second])
            similarity = shared / (len(own[first]) + len(own[second]) - shared)
            if similarity >= threshold:
                similar.append((first, second, similarity))
    return sorted(similar, key=lambda pair: (-pair[2], pair[:2]))


def pieces(source: bytes) -> set[int]:
    """Return the hashes of all overlapping pieces of LENGTH tokens; empty if the source is not valid Python.

    Args:
        source: the bytes of a script.
    """
    tokens = normalised(source)
    return {hash(tuple(tokens[i : i + LENGTH])) for i in range(len(tokens) - LENGTH + 1)}


def normalised(source: bytes) -> list[str]:
    """Return the syntax tree as tokens, in the order of the source; [] if it is not valid Python.

    A variable becomes "name", and a constant becomes its type. Imported names, attributes and keyword
    arguments keep their names, because a copy cannot rename what a library defines.

    Args:
        source: the bytes of a script.
    """
    try:
        script = Script(source)
    except Unreadable:
        return []
    own = {n.name for n in script.nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    attributes = (n for n in script.nodes if isinstance(n, ast.Attribute))
    own |= {n.attr for n in attributes if isinstance(n.ctx, ast.Store)}
    tokens, todo = [], [script.tree]
    while todo:  # a stack instead of recursion, because a submission may be nested deeply
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


def is_text(node: ast.AST) -> bool:
    """Return whether a statement is a docstring, or another expression that is only a constant."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
