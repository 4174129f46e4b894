"""The seal of a certificate: a line behind the PDF that only the holder of a key can make.

A hash in a PDF proves nothing, because any user can compute the hash of a result and print it on a page. The
seal is an HMAC-SHA256 over all bytes of the PDF and the hash of the result. A user who has the key can make
seals and verify them. Therefore the instructor keeps the key and the results, and verifies a certificate if
another person asks. Readers of PDF ignore the line, because it is a comment.
"""

import enum
import hmac
import re
from pathlib import Path

from hvdgrade import HvdgradeError

KEY_BYTES = 32  # as many as SHA-256 gives: a shorter key would be the weakest part
LINE = re.compile(
    rb"\A(?P<sealed>.*\n%hvdgrade-certificate 1 result-sha256=(?P<result>[0-9a-f]{64}))"
    rb" hmac-sha256=(?P<seal>[0-9a-f]{64})\n\Z",
    re.DOTALL,
)


class BadKey(HvdgradeError):
    """A key cannot be used. The message says why and what to do, in one sentence."""


class Answer(enum.Enum):
    """What the verification of a certificate found. The value is a sentence for the instructor."""

    VALID = "valid: it was made with this key, it belongs to this result, and no byte has changed since."
    NO_SEAL = (
        "not valid: it has no seal at its end, so 'hvdgrade certificate' did not make this file."
    )
    CHANGED = "not valid: it was changed after it was made, or it was made with another key."
    OTHER_RESULT = "not valid for this result: it was made with this key, and for another result."


def read_key(path: Path) -> bytes:
    """Return the secret key.

    Args:
        path: the file with the key. Only its owner may read it.

    Raises:
        BadKey: the file is missing, too short, or other users may read it.
    """
    try:
        key, mode = path.read_bytes(), path.stat().st_mode
    except FileNotFoundError:
        raise BadKey(
            f"{path} does not exist. Make a key once, and keep it as long as certificates may be questioned: "
            f"(umask 077; set -C; head -c {KEY_BYTES} /dev/urandom > {path})"
        ) from None
    except OSError as error:
        raise BadKey(f"{path} cannot be read: {error.strerror}.") from None
    if len(key) < KEY_BYTES:
        raise BadKey(f"{path} has {len(key)} bytes. A key must have at least {KEY_BYTES}.")
    if mode & 0o077:
        raise BadKey(
            f"{path} may be used by other users, who could make certificates: chmod 600 {path}"
        )
    return key


def seal(pdf: bytes, result_sha256: str, key: bytes) -> bytes:
    """Return a certificate: the PDF and its seal.

    Args:
        result_sha256: hash of the result, as 64 hexadecimal digits.
    """
    sealed = pdf + f"\n%hvdgrade-certificate 1 result-sha256={result_sha256}".encode()
    return sealed + f" hmac-sha256={_hmac(sealed, key)}\n".encode()


def verify(certificate: bytes, result_sha256: str, key: bytes) -> Answer:
    """Return whether a certificate belongs to a result and is unchanged.

    Args:
        certificate: the bytes of the file.
        result_sha256: hash of the result, as 64 hexadecimal digits.
    """
    found = LINE.match(certificate)
    if not found:
        return Answer.NO_SEAL
    if not hmac.compare_digest(_hmac(found["sealed"], key), found["seal"].decode()):
        return Answer.CHANGED
    return Answer.VALID if found["result"].decode() == result_sha256 else Answer.OTHER_RESULT


def _hmac(data: bytes, key: bytes) -> str:
    return hmac.digest(key, data, "sha256").hex()
