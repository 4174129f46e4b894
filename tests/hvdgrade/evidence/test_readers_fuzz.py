"""The readers of a submission's files, on thousands of damaged and hostile inputs.

A reader may only return what it documents: arrays or a ValueError, a number or None, plain text. The inputs
follow from fixed seeds, so a failure can be repeated. Its message has the number of the case.
"""

import io
import json
import math
import random
import tracemalloc
import zipfile

import numpy as np
import pytest

from hvdgrade.evidence import compare_ranks, observation, weights_file
from hvdgrade.judge import check
from hvdgrade.run import collect
from hvdgrade.run.captured_output import KEEP_OUTPUT_BYTES, CapturedOutput, stacks
from hvdlab.assessment_networks import ASSESSMENT_NET

SMALL = {"linear.bias": (3,), "linear.weight": (2, 4)}  # in place of the network's 392,106 weights
TAGS = [b"[1,0]<stdout>: ", b"[1,1]<stderr>: ", b"[" + b"9" * 5000 + b",7]<stderr>: "]
WORDS = [  # words that one of the readers interprets
    *(b"Traceback (most recent call last):", b"Fatal Python error: Aborted", b"\n", b"\r\n", b" "),
    *(b"Current thread 0x1 (most recent call first):", b"Thread 0x2 (most recent call first):"),
    *(
        b'  File "/x/assessment.py", line 7 in <module>',
        b'  File "", line 99 in ',
        b"ValueError: x",
    ),
    *(b"[1," + b"8" * 5000 + b"]<stderr>: Thread 0x1", "[1,\u0664]<stderr>: Thread 0x".encode()),
    *(b"\x1b[31m", b"\x00", b"\xff\xfe", "\u202e\u2028\x85".encode(), b"\x1b]0;x\x07", b"<b>"),
    *(b'{"epoch": 0, "steps": 24}', b'{"epoch": 1, "steps": 1e999}', b'{"epoch": [1]}', b"[]"),
    *(b'{"epoch": 0, "steps": ' + b"9" * 5000 + b"}", b'{"epoch": NaN}', b"null", b'"', b"{", b"}"),
    *(b"[" * 3000, b'{"a":' * 3000, b'{"epoch": true, "steps": -1}', b'{"epoch": 0, "steps": "x"}'),
]
HEADERS = [  # of an array: (descr, fortran_order, shape) as text
    ("'<f4'", "False", "(999999999999,)"),
    ("'<f4'", "False", "(2147483648,)"),
    ("'<f4'", "False", "(268435456,)"),
    ("'<f4'", "True", "(65536, 65536)"),
    ("'<f4'", "False", "(-3,)"),
    ("'<f4'", "False", "(0, 9999999999)"),
    ("'<f4'", "False", "(3.0,)"),
    ("'<f4'", "False", "3"),
    ("'<f4'", "False", "(" + "1, " * 100 + ")"),
    ("'<f4'", "7", "(3,)"),
    ("'|O'", "False", "(3,)"),
    ("'<U999999999'", "False", "(3,)"),
    ("'|V1000000000'", "False", "(3,)"),
    ("[('x', '<f4', (1000, 1000, 1000))]", "False", "(3,)"),
    ("[('x', '|O')]", "False", "(3,)"),
    ("'>f4'", "False", "(3,)"),
    ("'nonsense'", "False", "(3,)"),
    ("None", "False", "(3,)"),
    ("{}", "False", "(3,)"),
    ("'<M8[s]'", "False", "(3,)"),
    ("(" * 200 + ")" * 200, "False", "(3,)"),
    ("'<f4', 'more': 1", "False", "(3,)"),
    ("'<f4'", "False", "(3,"),
    ("'''", "False", "(3,)"),
    ("\t\n  '<f4'\n\t x", "False", "(3L,)"),
]


each_cases = pytest.mark.parametrize(
    "cases",
    [
        pytest.param(range(1000), id="first"),
        pytest.param(range(1000, 3000), id="others", marks=pytest.mark.thorough),
    ],
)


def mutated(content: bytes, rng: random.Random) -> bytes:
    """Return `content` with a few errors: flipped, lost, doubled, exchanged or foreign bytes."""
    content = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(content) + 1)
        end = min(len(content), start + rng.choice((1, 1, 2, 4, 16, 200)))
        match rng.randrange(7):
            case 0 if start < len(content):
                content[start] ^= 1 << rng.randrange(8)
            case 1:
                del content[start:end]
            case 2:
                content[start:start] = content[start:end]
            case 3:
                content[start:end] = rng.randbytes(end - start)
            case 4:
                content[start:end] = rng.choice((b"\x00", b"\xff")) * (end - start)
            case 5:
                content[start:start] = rng.choice(WORDS)
            case 6 if rng.random() < 0.3:
                del content[start:]
    return bytes(content)


def npy(array) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array))
    return file.getvalue()


def npy_with(descr: str, fortran: str, shape: str, version: int = 1) -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}\n".encode()
    length = len(text).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + bytes(12)


def archive(members: list[tuple[str, bytes]], compression=zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as zipped:
        for name, content in members:
            zipped.writestr(name, content)
    return file.getvalue()


@pytest.fixture
def small_network(monkeypatch) -> dict[str, bytes]:
    """The members of a good weights file, with a network so small that much of it is headers."""
    monkeypatch.setattr(weights_file, "network_weights", lambda network: SMALL)
    arrays = {name: np.ones(shape, np.float32) for name, shape in SMALL.items()}
    arrays["examples_read"] = np.arange(5, dtype=np.int32)
    return {f"{name}.npy": npy(array) for name, array in arrays.items()}


def read(content: bytes, path, case) -> bool:
    """Return whether a weights file is accepted. Any exception except ValueError fails the test."""
    path.write_bytes(content)
    try:
        arrays, examples = weights_file.read_weights(path)
    except ValueError as error:
        assert str(error), case
        return False
    except Exception as error:
        raise AssertionError(f"case {case}: {type(error).__name__}: {error}") from error
    assert {name: array.shape for name, array in arrays.items()} == SMALL, case
    assert all(a.dtype == np.float32 and np.isfinite(a).all() for a in arrays.values()), case
    assert examples.dtype == np.int64 and examples.ndim == 1, case
    return True


@each_cases
def test_a_damaged_archive_is_refused_or_read(cases, small_network, tmp_path):
    good = {kind: archive([*small_network.items()], kind) for kind in (0, zipfile.ZIP_DEFLATED)}
    assert all(read(content, tmp_path / "w.npz", "good") for content in good.values())
    refused = 0
    for case in cases:
        rng = random.Random(case)
        refused += not read(mutated(rng.choice([*good.values()]), rng), tmp_path / "w.npz", case)
    assert len(cases) / 3 < refused < len(cases)  # most errors make a file invalid, but not all


@pytest.mark.slow
@each_cases
def test_a_damaged_array_in_a_sound_archive_is_refused_or_read(cases, small_network, tmp_path):
    refused = 0
    for case in cases:
        rng = random.Random(case)
        members = dict(small_network)
        for name in rng.sample([*members], rng.randint(1, 2)):
            members[name] = mutated(members[name], rng)
        if rng.random() < 0.1:
            members[rng.choice(("../x.npy", "/etc/x", "linear.weight", "a" * 60_000))] = b"x"
        refused += not read(archive([*members.items()]), tmp_path / "w.npz", case)
    assert len(cases) / 3 < refused < len(cases)


@pytest.mark.parametrize("header", HEADERS, ids=range(len(HEADERS)))
@pytest.mark.parametrize("name", ["linear.bias.npy", "examples_read.npy", "other.npy"])
def test_an_array_with_a_false_size_uses_no_memory(small_network, tmp_path, header, name):
    for version in (1, 2, 3):
        members = {**small_network, name: npy_with(*header, version)}
        tracemalloc.start()
        try:
            assert not read(archive([*members.items()]), tmp_path / "w.npz", (header, version))
            assert tracemalloc.get_traced_memory()[1] < 2 * weights_file.max_unpacked_bytes(
                ASSESSMENT_NET
            )
        finally:
            tracemalloc.stop()


def test_an_archive_with_another_format_is_refused_or_read(small_network, tmp_path):
    good = archive([*small_network.items()])
    for before in (npy(np.zeros(3)), b"\x93NUMPY", b"\x80\x04.", b"#!/bin/sh\n", b"PK\x05\x06"):
        read(before + good, tmp_path / "w.npz", before)
        read(good + before, tmp_path / "w.npz", before)


def test_an_archive_with_duplicate_and_many_members_is_refused_or_read(small_network, tmp_path):
    members = [*small_network.items()]
    with pytest.warns(UserWarning, match="Duplicate name"):
        doubled = archive(
            [*members, ("linear.bias.npy", b"no array"), ("linear.bias", b"no array")]
        )
    assert not read(doubled, tmp_path / "w.npz", "doubled")
    countless = [(f"{number}.npy", b"") for number in range(20_000)]
    assert not read(archive(members + countless), tmp_path / "w.npz", "countless")


def lines(rng: random.Random) -> bytes:
    """Return lines like those of a record or of the tagged output of two ranks; most are damaged."""
    good = [json.dumps({"epoch": n, "seconds": 1.5, "steps": 24}).encode() for n in range(3)]
    if rng.random() < 0.5:
        parts = rng.sample([*good, *rng.sample(WORDS, 5)], rng.randint(1, 8))
    else:
        parts = [rng.choice(TAGS[:2]) + rng.choice(WORDS) for _ in range(rng.randint(1, 12))]
    content = b"\n".join(parts)
    return mutated(content, rng) if rng.random() < 0.7 else content


@each_cases
def test_a_damaged_record_gives_plausible_steps_or_none(cases, tmp_path):
    weights = [observation.Weights(0, epoch, 1.0 + epoch, tmp_path, "") for epoch in range(3)]
    seen = observation.Observation(1, weights=weights)
    path = tmp_path / "rank-0-record.jsonl"
    told = 0
    for case in cases:
        path.write_bytes(lines(random.Random(case)))
        for epoch in range(3):
            steps = compare_ranks.recorded(path, epoch, "steps")
            assert steps is None or (type(steps) is int and 0 < steps <= 1_000_000), case
            told += steps is not None
        for entry in collect.reported(tmp_path, seen):
            assert entry["epoch"] in (0, 1, 2), case
            assert all(type(n) in (int, float) for n in entry["reported"].values()), case
            assert len(json.dumps(entry)) < 20_000, case
    assert told > len(cases) / 10
    assert compare_ranks.recorded(tmp_path / "missing", 0, "steps") is None


def printed(content: bytes, path) -> CapturedOutput:
    path.write_bytes(content)
    output = CapturedOutput()
    with open(path, "rb") as file:
        while not output.closed:
            output.read(file)
    return output


@pytest.mark.slow
@each_cases
def test_damaged_output_gives_plain_text_and_stacks_or_none(cases, tmp_path):
    found = 0
    for case in cases:
        rng = random.Random(case)
        content = lines(rng) if rng.random() < 0.9 else rng.randbytes(3000)
        if rng.random() < 0.1:  # not written through mpirun, which would tag each line
            content += b"\n" + rng.choice([b"", *TAGS]) + rng.choice(WORDS) + b"\n"
        output = printed(content, tmp_path / "printed")
        assert output.bytes == len(content), case
        text = output.text()
        assert all(c in "\n\t" or c.isprintable() for c in text), case
        found_in = stacks(text)
        assert all(type(rank) is int and stack for rank, stack in found_in.items()), case
        error = check.last_error(text)
        assert len(error) < 10_000 and "\n" not in error, case
        waiting = check.where_they_wait(observation.Observation(2, stacks=found_in))
        assert bool(waiting) == bool(found_in), case
        found += bool(found_in) + bool(error)
    assert found > len(cases) / 30


def test_counts_endless_output_without_keeping_it(tmp_path):
    (tmp_path / "printed").write_bytes(b"[1,0]<stdout>: \xf0\x9f\x98\x80 \x1b[2J" * 1_000_000)
    output = CapturedOutput()
    tracemalloc.start()
    try:
        with open(tmp_path / "printed", "rb") as file:
            while not output.closed:
                output.read(file)
        text = output.text()
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert output.bytes == (tmp_path / "printed").stat().st_size
    assert len(text) < KEEP_OUTPUT_BYTES + 100 and "bytes left out" in text


def test_comparisons_of_finite_weights_are_numbers():
    """Zero, huge and tiny weights are finite, but their norms may not be."""
    values = [0.0, 1e-45, 1e-20, 1.0, -3e38, 3e38]
    networks = [{n: np.full(s, value, np.float32) for n, s in SMALL.items()} for value in values]
    for one in networks:
        for other in networks:
            largest, where = compare_ranks.difference(one, other)
            assert (largest > 0) == bool(where) and not math.isnan(largest)
            for third in networks:
                apart = compare_ranks.distance(
                    {4: [one, one], 8: [third, third]}, {4: [other, other]}
                )
                assert apart >= 0, "nan"
