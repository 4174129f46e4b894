"""Find places in a submission that an instructor may want to look at.

Such places are large literals and names that honest training scripts rarely need. A flag does not mean that
the student cheated, and it costs no points. `hvdgrade.judge.measured_flags` adds the flags that follow from
what was measured.

    flags(source)              [{"kind": "literal", "line": 3, "text": "Line 3 holds ..."}]
"""

import ast
from collections.abc import Iterator

from hvdgrade.submission.carriers import suspicious
from hvdlab.script_analysis.script import Script, Unreadable

MAX_LITERAL_BYTES = 2000
MODULES = {
    "packed data": "base64 binascii zlib gzip bz2 lzma zipfile tarfile marshal pickle dill codecs",
    "native code": "ctypes cffi _ctypes mmap",
    "other processes": "subprocess multiprocessing pty psutil concurrent",
    "network": "socket ssl urllib http requests httpx ftplib asyncio",
    "interpreter": "builtins importlib inspect gc runpy code types sys.settrace sys.setprofile "
    "sys._getframe atexit faulthandler",
}
CALLS = {
    "computed code": "exec eval compile __import__ globals setattr delattr",
    "other processes": "os.system os.popen os.fork os.forkpty os.kill os.killpg os.setsid os._exit "
    "os.abort os.posix_spawn os.execv os.execve os.execvp os.execvpe os.spawnv os.nice",
    "files": "os.symlink os.link os.mkfifo os.mknod os.walk os.listdir os.chmod",
}
GRADER_WORDS = ("hvdgrade", "HVDLAB_RUN_DIR", "HVDLAB_PROBE", "profiles.toml", "record.jsonl")
# Harmless names in these modules.
HARMLESS = ("types.SimpleNamespace", "types.MappingProxyType", "types.MethodType")
PATCHED = ("time.", "hvdlab.", "horovod.", "builtins.", "sys.modules")
MAX_FLAGS = 20


def flags(source: bytes) -> list[dict]:
    """Return the flags of a script in the order of its lines, each kind and name only once.

    Args:
        source: the bytes of the script.

    Returns:
        At most MAX_FLAGS dicts with the keys kind, line and text.
    """
    try:
        places = read(Script(source), source)
    except Unreadable:
        places = []
    except Exception:  # a failure here must not make the grading fail
        return [{"kind": "unreadable", "line": None, "text": "Its source could not be analysed."}]
    unique = {}
    for kind, line, text in sorted(places, key=lambda place: place[1]):
        flag = {"kind": kind, "line": line, "text": f"Line {line} {text}."}
        unique.setdefault((kind, text), flag)
    return list(unique.values())[:MAX_FLAGS]


def read(script: Script, source: bytes) -> list[tuple[str, int, str]]:
    """Return the kind, the line and the text of every place to flag.

    Args:
        source: its bytes.
    """
    carried = [("literal", line, text) for line, text in suspicious(script, source)]
    in_source = [*literals(script, source), *carried]
    return [*in_source, *names(script), *words(script), *patches(script)]


def literals(script: Script, source: bytes) -> Iterator[tuple[str, int, str]]:
    """Yield a flag for each large literal or long line.

    Args:
        source: its bytes.
    """
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
        if len(line) > MAX_LITERAL_BYTES:
            yield "literal", len(starts) - 1, f"is {len(line):,} bytes long"
    held: set[ast.AST] = set()  # inner nodes of a literal that has already been reported
    for node in script.nodes:  # an outer node comes before its inner nodes
        collection = isinstance(node, ast.List | ast.Tuple | ast.Set | ast.Dict)
        if not collection and not isinstance(node, ast.Constant | ast.JoinedStr):
            continue
        if node in held:
            held.update(ast.iter_child_nodes(node))
            continue
        end = min(node.end_lineno, len(starts) - 1)
        size = starts[end - 1] + node.end_col_offset - starts[node.lineno - 1] - node.col_offset
        # Python 3.11 gives the parts of an f-string the position of the whole f-string.
        if isinstance(node, ast.JoinedStr):
            held.update(ast.iter_child_nodes(node))
        if size > MAX_LITERAL_BYTES and (not collection or mostly_constant(node)):
            held.update(ast.iter_child_nodes(node))
            yield "literal", node.lineno, f"holds a literal of {size:,} bytes"


def mostly_constant(node: ast.AST) -> bool:
    """Return whether more than 90 % of the nodes of a collection are constants or collections."""
    parts = list(ast.walk(node))
    plain = ast.Constant | ast.List | ast.Tuple | ast.Set | ast.Dict | ast.UnaryOp | ast.unaryop
    return sum(isinstance(p, plain | ast.expr_context) for p in parts) > 0.9 * len(parts)


def names(script: Script) -> Iterator[tuple[str, int, str]]:
    """Yield a flag for each import and call that honest training scripts rarely need."""
    modules = {name: kind for kind, words in MODULES.items() for name in words.split()}
    calls = {name: kind for kind, words in CALLS.items() for name in words.split()}
    for name, line in script.imports.items():
        kind = modules.get(name.split(".")[0]) or modules.get(name)
        if kind and name not in HARMLESS:
            yield kind, line, f"imports {name}"
    for call, name in script.names.items():
        kind = calls.get(name) or modules.get(name)
        if kind:
            yield kind, call.lineno, f"calls {name}"
    for node in script.nodes:
        if isinstance(node, ast.Name) and node.id in ("__builtins__", "__loader__"):
            yield "interpreter", node.lineno, f"uses {node.id}"


def words(script: Script) -> Iterator[tuple[str, int, str]]:
    """Yield a flag for each name of the grader that occurs in a string or in the code."""
    for node in script.nodes:
        text = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
        text = text if isinstance(text, str) else getattr(node, "attr", getattr(node, "id", ""))
        for word in GRADER_WORDS:
            if word in text:
                yield "grader", node.lineno, f"names {word}"
    if line := script.imported("hvdgrade"):
        yield "grader", line, "imports hvdgrade"


def patches(script: Script) -> Iterator[tuple[str, int, str]]:
    """Yield a flag for each assignment to an attribute or item of a library."""
    for node in script.nodes:
        targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else []
        for target in targets:
            if isinstance(target, ast.Attribute | ast.Subscript):
                name = script.name(target.value if isinstance(target, ast.Subscript) else target)
                if name.startswith(PATCHED):
                    yield "patch", node.lineno, f"assigns to {name}"
