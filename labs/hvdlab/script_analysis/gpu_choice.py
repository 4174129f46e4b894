"""The use and choice of GPUs in a script's source: see `uses_gpu`, `chosen_by_helper` and `remainders`."""

import ast
import re
from collections.abc import Iterator

from hvdlab.script_analysis.assigned_variables import Variable, tests_around
from hvdlab.script_analysis.ast_helpers import identifier, is_text, keyword, last_name
from hvdlab.script_analysis.origins import Origin
from hvdlab.script_analysis.script import TRANSPARENT, Script

# hvdlab.torch.device, hvdlab.keras.device and hvdlab.torch.process_group
HELPERS = ("rank_device", "group_device")
LOCAL = Origin(
    frozenset({"local_rank"}),
    re.compile(r"LOCAL_RANK\Z|LOCALID\Z"),
    re.compile(r"\Alocal_rank\Z"),
)
COUNTS = {"device_count"}
LISTS = {"list_physical_devices", "list_logical_devices", "visible_gpus"}
CUDA = re.compile(r"cuda(:\d+)?")
GPUS = (".cuda(", "cuda.set_device(", "cuda:", '"cuda"', "'cuda'", '"GPU"', "'GPU'")
LIST_NAME = re.compile(r"(\A|_)gpus\Z")


def uses_gpu(script: Script) -> int | None:
    """Return the line of the first call, else assignment, that names a GPU; None: there is none."""
    calls = (call for call in script.calls if _names_gpu(call))
    return getattr(next(calls, None) or _assigned_name(script), "lineno", None)


def _names_gpu(call: ast.Call) -> bool:
    """Return whether a call names a GPU, other than to switch all GPUs off."""
    text = ast.unparse(call)
    if last_name(call) == "set_visible_devices" and "[]" in text:  # switches them off
        return False
    return any(word in text for word in GPUS) and "is_available()" not in ast.unparse(call.func)


def _assigned_name(script: Script) -> ast.Assign | None:
    """Return the first assignment that names a GPU, as `name = "cuda:0" if ... else "cpu"`, or None."""
    for node in script.nodes:
        if isinstance(node, ast.Assign):
            texts = (part.value for part in ast.walk(node.value) if is_text(part))
            if any(map(CUDA.fullmatch, texts)):
                return node
    return None


def chosen_by_helper(script: Script) -> bool:
    """Return whether a script calls `rank_device` or `group_device` to choose its device."""
    return bool(script.named(*HELPERS))


def remainders(script: Script) -> list[int]:
    """Return the lines where the number of a GPU is the local rank modulo the number of GPUs.

    With fewer GPUs than ranks `local_rank() % device_count()` gives two ranks the same GPU. That is correct
    in a script that exchanges gradients through host memory (a compression of its own, `device_dense`), or
    under a test that compares the number of GPUs with the number of ranks: such lines are left out. So is
    `rank() % device_count()`, which turns a rank into its number on its machine.

    Returns:
        The lines in ascending order.
    """
    if _through_host(script):
        return []
    counts = _counts(script)
    return sorted(
        node.lineno
        for node, left, right in _divisions(script)
        if script.depends(left, LOCAL)
        and _is_count(script, right, counts)
        and not isinstance(script.parents[node], ast.Compare)  # the first rank of each GPU
        and not _enough(script, node, counts)
    )


def _divisions(script: Script) -> Iterator[tuple[ast.AST, ast.expr, ast.expr]]:
    """Yield (node, dividend, divisor) of each modulo operation."""
    for node in script.nodes:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            yield node, node.left, node.right
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Mod):
            yield node, node.target, node.value


def _through_host(script: Script) -> bool:
    """Return whether the script sets the device, or a compression of its own, for the exchange."""
    for call in script.calls:
        if keyword(call, "device_dense") is not None:
            return True
        if (given := keyword(call, "compression")) is not None:
            texts = [ast.unparse(given)]
            if isinstance(given, ast.Name | ast.Attribute):
                own = script.variable(given)
                texts += [ast.unparse(value) for variable, value in script.bound if variable == own]
            if not any("Compression." in text for text in texts):  # hvd.Compression.fp16
                return True
    return False


def _enough(script: Script, node: ast.AST, counts: set[Variable]) -> bool:
    """Return whether a test around a node compares the number of GPUs with the number of ranks."""
    tests = [*tests_around(script, node)]
    tests += [above.test for above in script.ancestors(node) if isinstance(above, ast.IfExp)]
    return any(
        script.uses_size(test) and any(_is_count(script, part, counts) for part in ast.walk(test))
        for test in tests
    )


def _counts(script: Script) -> set[Variable]:
    """Return the variables that hold the number of GPUs, and the functions that return it."""
    found: set[Variable] = set()
    for _ in range(3):  # count = torch.cuda.device_count(); gpus = count or 1
        found |= {variable for variable, value in script.bound if _is_count(script, value, found)}
    return found


def _is_count(script: Script, node: ast.AST, counts: set[Variable]) -> bool:
    """Return whether an expression is the number of GPUs; `local_size() // device_count()` is not."""

    def is_count(part: ast.AST) -> bool:
        return _is_count(script, part, counts)

    if isinstance(node, ast.Call):
        name = last_name(node)
        if name in COUNTS or name == "len" and any(_is_list(script, part) for part in node.args):
            return True
        if name in TRANSPARENT and any(map(is_count, node.args)):  # max(1, device_count())
            return True
        return is_count(node.func)  # a function of the script
    if isinstance(node, ast.BoolOp):
        return any(map(is_count, node.values))
    if isinstance(node, ast.IfExp):
        return is_count(node.body) or is_count(node.orelse)
    return isinstance(node, ast.Name | ast.Attribute) and script.variable(node) in counts


def _is_list(script: Script, node: ast.AST) -> bool:
    """Return whether an expression is the list of GPUs, by its call or by its name."""
    if isinstance(node, ast.Call):
        return last_name(node) in LISTS
    if not isinstance(node, ast.Name | ast.Attribute):
        return False
    if LIST_NAME.search(identifier(node)):
        return True
    values = [value for variable, value in script.bound if variable == script.variable(node)]
    return any(isinstance(value, ast.Call) and last_name(value) in LISTS for value in values)
