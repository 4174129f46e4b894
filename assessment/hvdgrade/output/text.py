"""Make untrusted text harmless, and format numbers, for terminals and pages."""

import json
import math
import re
from typing import Any, TypeGuard

MAX_CHARACTERS = 2000  # of any text in a document except the output
MAX_EVIDENCE_CHARACTERS = 6000
OUTPUT_CHARACTERS, OUTPUT_LINES, LINE_CHARACTERS = 20_000, 200, 300
# Control characters, marks that reverse the writing direction or have no width, surrogates, and invisible
# tags. With all of them, a reader sees a different text from the one that is there.
DISGUISE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ufffe\uffff\ud800-\udfff\U000e0000-\U000e007f]"
)


def plain(value: Any, most: int = MAX_CHARACTERS) -> Any:
    """Return a copy of a JSON value in which every text is shortened and has no disguising characters.

    Args:
        most: characters that remain of each text. Default: 2000.
    """
    if isinstance(value, dict):
        return {plain(str(key)): plain(part, most) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part, most) for part in value]
    if isinstance(value, str):
        if len(value) > most:
            value = f"{value[:most]} … ({len(value) - most:,} more characters)"
        return DISGUISE.sub("\ufffd", value.replace("\r\n", "\n"))
    return value


def as_text(evidence: Any) -> str:
    """Return the evidence of a check as JSON text with one list per line; "" if there is none."""
    if not evidence:
        return ""
    text = json.dumps(evidence, indent=1, ensure_ascii=False, default=str)
    return plain(
        re.sub(r"\[[^][{}]*\]", lambda m: " ".join(m[0].split()), text), MAX_EVIDENCE_CHARACTERS
    )


def end_of(output: Any) -> dict:
    """Return the last lines of a submission's output.

    Returns:
        A dict with `text`, and if there is any output, `lines` (their number) and `cut` (whether output is
        missing).
    """
    if not isinstance(output, str) or not output.strip():
        return {"text": ""}
    lines = plain(output[-OUTPUT_CHARACTERS:], OUTPUT_CHARACTERS).strip().splitlines()
    kept = [line[:LINE_CHARACTERS] + "…" * (len(line) > LINE_CHARACTERS) for line in lines]
    kept = kept[-OUTPUT_LINES:]
    text = "\n".join(kept)
    # The result itself holds at most OUTPUT_CHARACTERS of the output.
    cut = len(text) < len(output.strip()) or len(output) >= OUTPUT_CHARACTERS
    return {"text": text, "lines": len(kept), "cut": cut}


def line_of(lines: list[str], number: Any) -> str:
    """Return a line of a script, shortened; "" if there is no such line.

    Args:
        number: number of the line, from 1; any other JSON value counts as no line.
    """
    if isinstance(number, int) and 1 <= number <= len(lines):
        return plain(lines[number - 1].strip()[:LINE_CHARACTERS])
    return ""


def is_number(value: Any, least: float = -math.inf) -> TypeGuard[int | float]:
    """Return whether a JSON value is a number of at least `least`. It may be infinite.

    Args:
        least: the smallest number that counts. Default: any number counts.
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= least


def decimal(value: Any, digits: int = 0, otherwise: str = "–") -> str:
    """Return a number as text, with commas between thousands.

    Args:
        digits: digits after the decimal point. With 0, a number that is not an integer still gets one.
        otherwise: the text for a value that is not a finite number. Default: a dash.
    """
    if not is_number(value) or not math.isfinite(value):
        return otherwise
    if digits == 0 and value != int(value):
        digits = 1
    return f"{value:,.{digits}f}"


def in_bytes(value: Any) -> str:
    """Return a number of bytes as text with a unit, for example "1.5 MB"; a dash for other values."""
    if not is_number(value, 0) or not math.isfinite(value):
        return "–"
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000


def is_finite(value: Any) -> TypeGuard[int | float]:
    """Return whether a JSON value is a finite number."""
    return is_number(value) and math.isfinite(value)


def printable(text: str) -> str:
    """Return untrusted text for a terminal: in one line, with "?" for each unprintable character."""
    return "".join(c if c.isprintable() else "?" for c in text)
