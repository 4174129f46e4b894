"""Instruction records in the alpaca layout: read from a file, or made up on the spot.

    records = load_records("alpaca_data.json")      # without a name: $HVDLAB_DATA, then ~/.cache/hvdlab
    training, held_out = split(synthetic_records(2000), 200, seed=1)

A record is a dict of three texts: "instruction", "input" (often empty) and "output". A seed task of
Self-Instruct, which has a list of "instances" with inputs and outputs, becomes one record for each.

Reference: R. Taori et al., Stanford Alpaca, 2023, https://github.com/tatsu-lab/stanford_alpaca;
Y. Wang et al., Self-Instruct, 2023, https://arxiv.org/abs/2212.10560.
"""

import json
import os
import random
from pathlib import Path
from string import ascii_lowercase

from hvdlab.data import DataError, cache_folder

FILES = ("alpaca.json", "alpaca.jsonl", "alpaca_data.json", "alpaca_seed_tasks.jsonl")
HUB_PARTS = 3  # OWNER/NAME/FILE


def load_records(source: str | os.PathLike | None = None) -> list[dict[str, str]]:
    """Read records from a .json file (a list) or a .jsonl file (one a line).

    Args:
        source: a file, or OWNER/NAME/FILE of a data set on the Hugging Face hub, such as
            yahma/alpaca-cleaned/alpaca_data_cleaned.json. Default: the first of FILES that is in
            $HVDLAB_DATA or ~/.cache/hvdlab.

    Raises:
        DataError: no such file, or one that holds no such records.
    """
    path = _find(source)
    try:
        text = path.read_text(encoding="utf-8")
        rows = json.loads(text) if path.suffix == ".json" else _lines(text)
        records = [record for number, row in enumerate(rows) for record in _records(row, number)]
    except (OSError, ValueError, TypeError) as error:
        came = getattr(error, "strerror", None) or error
        raise DataError(
            f"{path}: expected records with `instruction`, `input` and `output` (alpaca) or `instances` "
            f"(seed tasks), as a JSON list or one a line, found {came}."
        ) from None
    if not records:
        raise DataError(f"{path} holds no record.")
    return records


def split(records: list[dict], held_out: int, seed: int) -> tuple[list[dict], list[dict]]:
    """Shuffle with a seed of its own and take the last `held_out` records away from the rest."""
    if not 0 < held_out < len(records):
        raise DataError(
            f"held_out must leave records on both sides: expected 1 to {len(records) - 1}, got {held_out}"
        )
    shuffled = random.Random(seed).sample(records, len(records))
    return shuffled[:-held_out], shuffled[-held_out:]


def synthetic_records(count: int, seed: int = 0) -> list[dict[str, str]]:
    """Small tasks that a tiny model can learn, on letters and numbers: no two records are the same.

    They are synthetic. No person wrote them, and a model that was trained on them can do nothing else.
    """
    rng = random.Random(seed)
    tasks = tuple(TASKS.items())
    records = {}
    while len(records) < count:
        wordings, (make, answer) = rng.choice(tasks)
        given = make(rng)
        # One wording for each input: the held-out records are not the training records, reworded.
        records.setdefault(
            (wordings, given),
            {"instruction": rng.choice(wordings), "input": given, "output": answer(given)},
        )
    return list(records.values())


def _letters(rng):
    return " ".join(rng.sample(ascii_lowercase, rng.randint(2, 5)))


def _numbers(rng):
    return f"{rng.randint(10, 99)} and {rng.randint(10, 99)}"


def _reversed(given):
    return given[::-1]


def _larger(given):
    return max(given.split(" and "))  # two digits each, so that texts compare as numbers do


TASKS = {
    ("Write the letters in reverse order.", "Turn the list around."): (_letters, _reversed),
    ("Write the letters as capitals.", "Make the letters large."): (_letters, str.upper),
    ("Give the first letter.", "Which letter comes first?"): (_letters, lambda given: given[0]),
    ("Give the last letter.", "Which letter comes last?"): (_letters, lambda given: given[-1]),
    ("How many letters are there?", "Count the letters."): (
        _letters,
        lambda given: str(len(given.split())),
    ),
    ("Choose the larger number.", "Which number is larger?"): (_numbers, _larger),
}


def _find(source):
    if source is None:
        folders = [Path(named).expanduser()] if (named := os.environ.get("HVDLAB_DATA")) else []
        folders.append(cache_folder())
        for path in (folder / name for folder in folders for name in FILES):
            if path.is_file():
                return path
        places = " or ".join(map(str, folders))
        raise DataError(f"No instruction records in {places}: put one of {', '.join(FILES)} there.")
    path = Path(source).expanduser()
    parts = str(source).split("/")
    if path.exists() or len(parts) != HUB_PARTS or path.is_absolute():
        return path
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download("/".join(parts[:2]), parts[2], repo_type="dataset"))
    except Exception as error:  # of the network, of the hub, of the name: each is a kind of its own
        why = str(error).strip().splitlines()[0]
        raise DataError(
            f"{source} is neither a file nor, as OWNER/NAME/FILE, on the Hugging Face hub: {why}"
        ) from None


def _lines(text):
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def _records(row, number):
    """The records of one row: itself, or one for each of its instances."""
    found = []
    for part in row.get("instances", [row]) if isinstance(row, dict) else [row]:
        try:
            record = {
                "instruction": row["instruction"],
                "input": part.get("input") or "",
                "output": part["output"],
            }
        except (TypeError, KeyError, AttributeError):
            raise ValueError(f"record {number} without them") from None
        if not all(isinstance(text, str) for text in record.values()):
            raise ValueError(f"something other than text in record {number}")
        found.append(record)
    return found
