"""Instruction records: both layouts of files, broken ones, and the synthetic ones."""

import json

import pytest

from hvdlab.data import DataError
from hvdlab.data.instructions import load_records, split, synthetic_records

ALPACA = {"instruction": "Add.", "input": "1 2", "output": "3"}
SEED_TASK = {
    "id": "seed_task_0",
    "instruction": "Say hello.",
    "instances": [{"input": "", "output": "Hello."}, {"input": "Anna", "output": "Hello, Anna."}],
}


def write(path, text):
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    return path


def test_both_layouts_are_read(tmp_path):
    rows = [ALPACA, {"instruction": "Sing.", "output": "La."}]
    wanted = [ALPACA, {"instruction": "Sing.", "input": "", "output": "La."}]
    assert load_records(write(tmp_path / "a.json", rows)) == wanted
    lines = "\n".join(json.dumps(row) for row in rows) + "\n\n"
    assert load_records(write(tmp_path / "a.jsonl", lines)) == wanted
    assert load_records(write(tmp_path / "seed.jsonl", SEED_TASK)) == [
        {"instruction": "Say hello.", "input": "", "output": "Hello."},
        {"instruction": "Say hello.", "input": "Anna", "output": "Hello, Anna."},
    ]


def test_a_line_ends_where_json_lines_ends_it(tmp_path):
    """U+2028, U+2029 and U+0085 may stand in a string as they are, and do in text from the web."""
    record = ALPACA | {"output": "one\u2028two\u2029three\x85four"}
    lines = json.dumps(record, ensure_ascii=False) + "\r\n"
    (tmp_path / "a.jsonl").write_bytes((2 * lines).encode())
    assert load_records(tmp_path / "a.jsonl") == [record, record]


def test_without_a_name_the_folder_of_the_data_and_then_the_cache_is_searched(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("HVDLAB_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with pytest.raises(
        DataError, match=r"No instruction records in .*data or .*: put one of alpaca.json"
    ):
        load_records()
    cache = tmp_path / "home" / ".cache" / "hvdlab"
    cache.mkdir(parents=True)
    write(cache / "alpaca.json", [ALPACA])
    assert load_records() == [ALPACA]
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / "alpaca_seed_tasks.jsonl", SEED_TASK)
    assert len(load_records()) == 2


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.json", "[", "Expecting value"),
        ("a.json", [{"instruction": "Add."}], "record 0 without them"),
        ("a.json", [ALPACA, "text"], "record 1 without them"),
        ("a.json", 3, "not iterable"),
        ("a.json", [ALPACA | {"output": 3}], "something other than text in record 0"),
        ("a.json", [SEED_TASK | {"instances": [3]}], "record 0 without them"),
        ("a.jsonl", [], "record"),
        ("a.json", [], "holds no record"),
    ],
)
def test_a_broken_file_is_one_sentence(tmp_path, name, text, says):
    with pytest.raises(DataError, match=says) as error:
        load_records(write(tmp_path / name, text))
    assert str(tmp_path / name) in str(error.value) and "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_one_sentence(tmp_path, monkeypatch):
    with pytest.raises(DataError, match="a.json: expected records .* found No such file"):
        load_records(tmp_path / "a.json")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip("huggingface_hub")
    with pytest.raises(DataError, match="nobody/nothing/a.json is neither a file nor"):
        load_records("nobody/nothing/a.json")


def test_the_split_is_the_seeds(tmp_path):
    records = synthetic_records(50, seed=3)
    training, held_out = split(records, 10, seed=1)
    assert (len(training), len(held_out)) == (40, 10)
    assert sorted(map(str, training + held_out)) == sorted(map(str, records))
    assert split(records, 10, seed=1) == (training, held_out) != split(records, 10, seed=2)
    for wrong in (0, 50):
        with pytest.raises(DataError, match="expected 1 to 49"):
            split(records, wrong, seed=1)


def test_the_synthetic_records_are_right_and_no_two_are_the_same():
    records = synthetic_records(1000)
    assert records == synthetic_records(1000) and records != synthetic_records(1000, seed=1)
    assert len({(record["instruction"], record["input"]) for record in records}) == 1000
    answers = {}
    for record in records:
        words, given = record["instruction"].lower(), record["input"]
        answers.setdefault(given, set()).add(record["output"])
        if "odd" in words:
            assert record["output"] == ["even", "odd"][int(given) % 2]
        elif "letters" in words:
            assert record["output"] == str(given.count("-") + 1)
    # In whatever words it is asked, the answer is one; the numbers have a digit and no opposite.
    assert all(len(found) == 1 for found in answers.values())
    assert len({record["instruction"] for record in records}) == 15
    with pytest.raises(ValueError, match="expected 1 to 1098 records, got 9999"):
        synthetic_records(9999)


@pytest.mark.data
def test_the_seed_tasks_of_self_instruct_are_read():
    try:
        records = load_records()
    except DataError as error:
        pytest.skip(f"needs instruction records: {error}")
    assert len(records) >= 175 and all(record["output"].strip() for record in records)
