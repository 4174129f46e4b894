"""Copies are found in spite of superficial changes, and honest solutions of one task are not reported."""

import ast
import random
import re
from pathlib import Path

import pytest

from hvdgrade.submission.similarity import normalised, pairs

ASSESSMENT = Path(__file__).parents[3] / "assessment"
SIMILAR = Path(__file__).parents[2] / "fixtures" / "similar"
ORIGINAL = (SIMILAR / "original.py").read_bytes()
INDEPENDENT = (SIMILAR / "independent.py").read_bytes()


def renamed(source: bytes) -> bytes:
    """Every variable and function of the script's own gets another name."""
    tree = ast.parse(source)
    own = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    own |= {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    own |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    text = source.decode()
    for name in own:
        text = re.sub(rf"(?<![.\w\"'-]){name}\b(?!=[^=])", f"{name}_of_mine", text)
    return text.encode()


def reordered(source: bytes) -> bytes:
    """The functions in the opposite order."""
    tree = ast.parse(source)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    for node in functions:
        tree.body.remove(node)
    tree.body[-1:-1] = reversed(functions)
    return ast.unparse(tree).encode()


def retuned(source: bytes) -> bytes:
    """Other numbers."""
    return re.sub(rb"\b0\.(\d+)", lambda m: b"0.9" + m[1], source)


def recommented(source: bytes) -> bytes:
    """No comment is left, other docstrings, a comment on each line of its own."""
    tree = ast.parse(source)
    tree.body[0] = ast.parse('"""Entirely my own work."""').body[0]
    return b"\n# mine\n".join(ast.unparse(tree).encode().split(b"\n\n"))


def reimported(source: bytes) -> bytes:
    """Horovod under another name."""
    return source.replace(b"horovod.torch as hvd", b"horovod.torch as h").replace(b"hvd.", b"h.")


MAKE_UPS = [renamed, reordered, retuned, recommented, reimported]


@pytest.mark.parametrize("make_up", MAKE_UPS, ids=lambda f: f.__name__)
def test_a_copy_is_found(make_up):
    copy = make_up(ORIGINAL)
    assert copy != ORIGINAL
    ast.parse(copy)
    ((one, other, similarity),) = pairs({"a": ORIGINAL, "b": copy})
    assert (one, other) == ("a", "b")
    assert similarity > 0.75


def test_a_copy_under_all_make_ups_at_once_is_found():
    copy = ORIGINAL
    for make_up in MAKE_UPS:
        copy = make_up(copy)
    assert pairs({"a": ORIGINAL, "b": copy})


OWN = {
    "accuracy": """
def accuracy(model, images, labels, device, size=1000):
    right, model = [], model.eval()
    with torch.no_grad():
        parts = zip(np.array_split(images, 10), np.array_split(labels, 10))
        for part, truth in parts:
            found = model(torch.tensor(part, device=device)).cpu().numpy().argmax(axis=-1)
            right.extend(found == truth)
    return np.mean(right)
""",
    "triangle": """
def triangle(progress, peak, turn=0.25, floor=0.01):
    falling = 0.5 + 0.5 * math.cos(math.pi * progress)
    rising = min(1.0, progress / turn)
    return peak * rising * max(falling, floor)
""",
    "same_weights": """
def same_weights(model):
    state = hvd.broadcast_object(model.state_dict())
    model.load_state_dict(state)
""",
}


def test_a_copy_of_which_a_part_was_written_anew_is_found():
    """Three of its functions, and other names for all: over half of the pieces are left."""
    source = ast.unparse(ast.parse(ORIGINAL))
    for node in ast.parse(ORIGINAL).body:
        if (name := getattr(node, "name", None)) in OWN:
            source = source.replace(ast.unparse(node), OWN[name])
    ((*_, similarity),) = pairs({"a": ORIGINAL, "b": renamed(source.encode())})
    assert 0.5 < similarity < 0.65


def test_independent_work_is_no_copy():
    sources = {"original": ORIGINAL, "independent": INDEPENDENT}
    sources |= {
        f"solution {path.parent.name}": path.read_bytes()
        for path in ASSESSMENT.glob("**/assessment.py")
    }
    assert pairs(sources) == []


def test_what_was_handed_out_is_nobodys():
    handed_out = (ASSESSMENT / "torch" / "assessment.py").read_bytes()
    assert pairs({"a": handed_out, "b": handed_out}) == []
    tuned = retuned(handed_out)
    assert pairs({"a": handed_out, "b": tuned}) == []


SERIAL = (ASSESSMENT / "torch" / "assessment.py").read_text()
PLACE = (
    "        data.train_images, data.train_labels, args.batch_size, seed=args.seed, augment=True\n"
)
RATE = "model.parameters(), lr=args.lr, momentum"
WRAP = "optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())"
SHARE = "hvd.broadcast_parameters(model.state_dict(), root_rank=0)"
STATE = "hvd.broadcast_optimizer_state(optimizer, root_rank=0)"
NEXT = "    def learning_rate(step)"
REPORT = '        print(f"epoch'
CHOICES = [  # the ways in which learners write the same few changes
    ("import torch\n", ["import horovod.torch as hvd\nimport torch\n"]),
    (
        "    args = parse_args()\n",
        [
            "    hvd.init()\n    args = parse_args()\n",
            "    args = parse_args()\n    hvd.init()\n    rank, size = hvd.rank(), hvd.size()\n",
            "    args = parse_args()\n    hvd.init()\n    print(f'rank {hvd.rank()} of {hvd.size()}')\n",
        ],
    ),
    (
        "    device = torch",
        [
            "    if torch.cuda.is_available():\n"
            "        torch.cuda.set_device(hvd.local_rank())\n    device = torch",
            "    torch.set_num_threads(1)\n    device = torch",
            "    device = torch",
        ],
    ),
    (
        PLACE,
        [
            PLACE.replace("seed=", "rank=hvd.rank(), size=hvd.size(), seed="),
            PLACE.replace("augment=True", "augment=True, rank=hvd.rank(), size=hvd.size()"),
            PLACE.replace(
                "seed=args.seed", "size=hvd.size(), rank=hvd.rank(), seed=0, style='own'"
            ),
        ],
    ),
    (
        RATE,
        [
            RATE.replace("args.lr", "args.lr * hvd.size()"),
            RATE.replace("args.lr", "args.lr * math.sqrt(hvd.size())"),
            RATE.replace("args.lr", "0.35"),
            RATE.replace("args.lr", "hvd.size() * args.lr"),
        ],
    ),
    (
        NEXT,
        [
            f"    {WRAP}\n    {SHARE}\n    {STATE}\n\n{NEXT}",
            f"    {SHARE}\n    {WRAP}\n    {STATE}\n\n{NEXT}",
            f"    {SHARE}\n    {STATE}\n    {WRAP}\n\n{NEXT}",
            f"    optimizer = hvd.DistributedOptimizer(optimizer)\n    {SHARE}\n\n{NEXT}",
        ],
    ),
    (
        REPORT,
        [
            f"        if hvd.rank() == 0:\n    {REPORT}",
            f"        if not hvd.rank():\n    {REPORT}",
            f"        accuracy = hvd.allreduce(torch.tensor(accuracy)).item()\n{REPORT}",
        ],
    ),
]


def test_a_class_of_honest_short_conversions_has_no_copies():
    """Many of these are the same to the last token: with so few changes that proves nothing."""
    chance = random.Random(0)
    sources = {}
    for i in range(200):
        text = SERIAL
        for old, ways in CHOICES:
            assert text.count(old) == 1, old
            text = text.replace(old, chance.choice(ways))
        ast.parse(text)
        sources[f"s{i:03}"] = f"# by s{i}\n{text}".encode()
    assert pairs(sources) == []


def test_two_short_honest_conversions_are_not_called_copies():
    solution = (ASSESSMENT / "solutions" / "torch" / "assessment.py").read_text()
    one = solution.replace("args.lr * hvd.size()", "0.35")
    other = solution.replace("hvd.broadcast_optimizer_state(optimizer, root_rank=0)", "pass")
    assert pairs({"a": one.encode(), "b": other.encode()}) == []


def test_without_the_handed_out_scripts_only_identical_files_are_named():
    copy = renamed(ORIGINAL)
    sources = {"a": ORIGINAL, "b": copy, "c": ORIGINAL}
    assert pairs(sources, given={}) == [("a", "c", 1.0)]


def test_identical_files_are_named_however_short():
    source = b"print('the same, and nobody was given it')\n"
    assert pairs({"b": source, "a": source, "c": source + b"\n"}) == [("a", "b", 1.0)]


def test_what_cannot_be_parsed_is_compared_as_it_is():
    assert pairs({"a": b"def (", "b": b"def (", "c": b"\x00"}) == [("a", "b", 1.0)]
    assert normalised(b"def (") == []


def test_tokens_keep_what_libraries_call_things_and_nothing_else():
    one = normalised(
        b'import torch as t\ndef f(x):\n    """Doc."""\n    return t.relu(x.sum(dim=1))\n'
    )
    other = normalised(b"from torch import relu\ndef g(y): return relu(y.sum(dim=22))\n")
    assert "torch" in one and "torch.relu" in other
    assert ".sum" in one and "dim=" in one and "int" in one
    assert normalised(b'"""Doc."""\n"more"\nf(1)\n') == normalised(b"g(2)\n")
    for token in ("f", "x", "Doc.", "1", "y", "22"):
        assert token not in one + other


@pytest.mark.thorough
def test_three_hundred_submissions_take_seconds():
    chance = random.Random(1)
    lines = ORIGINAL.decode().splitlines()
    start = lines.index("def main():")
    sources = {}
    for i in range(300):
        mixed = lines[:start] + [f"def f{j}(x): return {step(chance)}" for j in range(60)]
        sources[f"s{i:03}"] = "\n".join(mixed).encode()
    sources["copy"] = renamed(sources["s007"])
    found = pairs(sources)  # 45,150 pairs: seconds, where a comparison of texts would take hours
    assert [pair[:2] for pair in found if pair[2] > 0.9] == [("copy", "s007")]


def step(chance) -> str:
    """A random expression: what stands for independent work."""
    parts = [
        "x + 1",
        "x.mean(0)",
        "[y for y in x]",
        "len(x) * 2",
        "x if x else -x",
        "{x: 1}",
        "x[1:]",
    ]
    return ", ".join(chance.choices(parts, k=4))
