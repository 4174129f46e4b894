"""Read instruction records in the Alpaca format from a file, or make synthetic ones.

    records = load_records("alpaca_data.json")      # without a name: $HVDLAB_DATA, then ~/.cache/hvdlab
    training, held_out = split(synthetic_records(), 100, seed=1)

A record is a dict of three texts: "instruction", "input" (often empty) and "output". A seed task of
Self-Instruct has a list of "instances" with inputs and outputs. It becomes one record per instance.

Reference: R. Taori et al., Stanford Alpaca, 2023, https://github.com/tatsu-lab/stanford_alpaca;
Y. Wang et al., Self-Instruct, 2023, https://arxiv.org/abs/2212.10560.
"""

import json
import os
import random
from pathlib import Path

from hvdlab.data.files import DataError, cache_folder

FILES = ("alpaca.json", "alpaca.jsonl", "alpaca_data.json", "alpaca_seed_tasks.jsonl")
HUB_PARTS = 3  # OWNER/NAME/FILE


def load_records(source: str | os.PathLike | None = None) -> list[dict[str, str]]:
    """Read records from a .json file (a list) or a .jsonl file (one record per line).

    Args:
        source: a file, or OWNER/NAME/FILE of a data set on the Hugging Face hub, such as
            yahma/alpaca-cleaned/alpaca_data_cleaned.json. Default: the first of FILES that is in
            $HVDLAB_DATA or ~/.cache/hvdlab.

    Raises:
        DataError: there is no such file, or it holds no such records.
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
    """Return the records in two lists, for training and held out for testing.

    Args:
        records: all records.
        held_out: number of records in the second list, from 1 to len(records) - 1.
        seed: of the random numbers that choose the records.

    Raises:
        DataError: `held_out` is out of range.
    """
    if not 0 < held_out < len(records):
        raise DataError(
            f"held_out must leave records for training: expected 1 to {len(records) - 1}, got {held_out}"
        )
    shuffled = random.Random(seed).sample(records, len(records))
    return shuffled[:-held_out], shuffled[-held_out:]


def synthetic_records(count: int = 1000, seed: int = 0) -> list[dict[str, str]]:
    """Return small questions with answers that a tiny model can learn. No two records are the same.

    They are synthetic: no person wrote them, and a model that was trained on them can do nothing else. Each
    question exists in several wordings, so a held-out question may be in the training set in other words.

    Args:
        count: number of records. Default 1000.
        seed: of the random choice. Default 0.

    Raises:
        ValueError: there are not so many records.
    """
    rng = random.Random(seed)
    lists = ["-".join(rng.choices("abcdefgh", k=rng.randint(2, 7))) for _ in range(200)]
    facts = [
        (WORDINGS["kind"], {word: kind for kind, words in KINDS.items() for word in words}),
        (WORDINGS["opposite"], OPPOSITES | {second: first for first, second in OPPOSITES.items()}),
        (WORDINGS["digit"], {word: str(digit) for digit, word in enumerate(DIGITS)}),
        (WORDINGS["even"], {str(n): "odd" if n % 2 else "even" for n in range(10, 100)}),
        (WORDINGS["count"], {given: str(len(given.split("-"))) for given in lists}),
    ]
    everything = [
        {"instruction": wording, "input": given, "output": answer}
        for wordings, answers in facts
        for wording in wordings
        for given, answer in answers.items()
    ]
    if not 0 < count <= len(everything):
        raise ValueError(f"count: expected 1 to {len(everything)} records, got {count}")
    return rng.sample(everything, count)


WORDINGS = {
    "kind": ("What is it?", "Name the kind.", "What kind of thing is this?"),
    "opposite": ("Give the opposite.", "What is the opposite?", "Name the contrary."),
    "digit": ("Write the number as a digit.", "Which digit is it?", "Give the digit."),
    "even": ("Is the number even or odd?", "Even or odd?", "Tell whether it is even or odd."),
    "count": ("How many letters are there?", "Count the letters.", "Give the number of letters."),
}
KINDS = {
    "an animal": ("dog", "cat", "horse", "cow", "pig", "bird", "fish", "mouse", "lion", "frog"),
    "a colour": ("red", "green", "blue", "yellow", "black", "white", "brown", "pink", "grey", "violet"),
    "a fruit": ("apple", "pear", "plum", "cherry", "lemon", "orange", "grape", "peach", "fig", "melon"),
    "a tool": ("hammer", "saw", "axe", "drill", "knife", "spoon", "brush", "rake", "file", "shovel"),
}  # fmt: skip
OPPOSITES = {
    "hot": "cold", "big": "small", "long": "short", "fast": "slow", "old": "new", "rich": "poor",
    "open": "shut", "up": "down", "left": "right", "day": "night", "love": "hate", "full": "empty",
    "hard": "soft", "light": "dark", "high": "low", "wet": "dry", "first": "last", "true": "false",
}  # fmt: skip
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def _find(source: str | os.PathLike | None) -> Path:
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
    except (
        Exception
    ) as error:  # the network, the hub and the name raise errors of different classes
        why = str(error).strip().splitlines()[0]
        raise DataError(
            f"{source} is neither a file nor, as OWNER/NAME/FILE, available from the Hugging Face hub (is "
            f"there a network?): {why}"
        ) from None


def _lines(text: str) -> list:
    # Not splitlines(), because a text may contain characters such as U+2028, at which it ends a line.
    return [json.loads(line) for line in text.split("\n") if line.strip()]


def _records(row: object, number: int) -> list[dict[str, str]]:
    """Return the records of one row: the row itself, or one record per instance."""
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
