"""What a page may show of a stranger's text and of numbers, in a form for readers."""

import json
import math
import re

MOST_CHARACTERS = 2000  # of any text in a document but the output
OUTPUT_CHARACTERS, OUTPUT_LINES, LINE_CHARACTERS = 20_000, 200, 300
# Control characters, marks that turn the direction of writing or have no width, halves of
# characters, invisible tags: all that makes a reader see other text than there is.
DISGUISE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ufffe\uffff\ud800-\udfff\U000e0000-\U000e007f]"
)


def plain(value, most: int = MOST_CHARACTERS):
    """The same document with harmless text: capped, nothing in it that hides or turns other text."""
    if isinstance(value, dict):
        return {plain(str(key)): plain(part, most) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part, most) for part in value]
    if isinstance(value, str):
        if len(value) > most:
            value = f"{value[:most]} … ({len(value) - most:,} more characters)"
        return DISGUISE.sub("\ufffd", value.replace("\r\n", "\n"))
    return value


def as_text(evidence) -> str:
    if not evidence:
        return ""
    text = json.dumps(evidence, indent=1, ensure_ascii=False, default=str)
    return plain(re.sub(r"\[[^][{}]*\]", lambda m: " ".join(m[0].split()), text), 6000)


def end_of(output) -> dict:
    """The last lines of the output, as many and as long as a page can bear."""
    if not isinstance(output, str) or not output.strip():
        return {"text": ""}
    lines = plain(output[-OUTPUT_CHARACTERS:], OUTPUT_CHARACTERS).strip().splitlines()
    kept = [line[:LINE_CHARACTERS] + "…" * (len(line) > LINE_CHARACTERS) for line in lines]
    kept = kept[-OUTPUT_LINES:]
    text = "\n".join(kept)
    # The document itself holds no more than so many characters of what was printed.
    cut = len(text) < len(output.strip()) or len(output) >= OUTPUT_CHARACTERS
    return {"text": text, "lines": len(kept), "cut": cut}


def line_of(lines: list[str], number) -> str:
    if isinstance(number, int) and 1 <= number <= len(lines):
        return plain(lines[number - 1].strip()[:LINE_CHARACTERS])
    return ""


def is_number(value, least: float = -math.inf) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= least


def decimal(value, digits: int = 0, otherwise: str = "–") -> str:
    """A number for a reader; something else where there is none."""
    if not is_number(value) or not math.isfinite(value):
        return otherwise
    if digits == 0 and value != int(value):
        digits = 1
    return f"{value:,.{digits}f}"


def in_bytes(value) -> str:
    if not is_number(value, 0) or not math.isfinite(value):
        return "–"
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000


def is_finite(value) -> bool:
    return is_number(value) and math.isfinite(value)


def printable(text: str) -> str:
    """Text of strangers for a terminal: no control characters, one line."""
    return "".join(c if c.isprintable() else "?" for c in text)
