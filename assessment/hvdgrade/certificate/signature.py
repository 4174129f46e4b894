"""The signature of a certificate: a line behind the PDF that only the holder of a private key can make.

A hash in a PDF proves nothing, because any user can compute the hash of a result and print it on a page. The
signature (Ed25519, RFC 8032) covers all bytes of the PDF, the hash of the result and the public key. Any user
can verify it. It proves who made the certificate only if the public key is known to be that of the school.
Readers of PDF ignore the line, because it is a comment.

Earlier versions made an HMAC-SHA256 with a secret key, which also verifies it. `verify_old` still does.
"""

import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from hvdgrade import HvdgradeError

LINE = re.compile(
    rb"\A(?P<signed>.*\n%hvdgrade-certificate 2 result-sha256=(?P<result>[0-9a-f]{64})"
    rb" public-key=(?P<key>[0-9a-f]{64})) ed25519=(?P<signature>[0-9a-f]{128})\n\Z",
    re.DOTALL,
)
OLD_LINE = re.compile(
    rb"\A(?P<signed>.*\n%hvdgrade-certificate 1 result-sha256=(?P<result>[0-9a-f]{64}))"
    rb" hmac-sha256=(?P<signature>[0-9a-f]{64})\n\Z",
    re.DOTALL,
)


class BadKey(HvdgradeError):
    """A key cannot be used. The message says why and what to do, in one sentence."""


class NotValid(HvdgradeError):
    """A certificate is not valid. The message says why, as the end of a sentence."""


@dataclass(frozen=True)
class Signed:
    """What a signature that was verified says.

    Attributes:
        result_sha256: hash of the result, as 64 hexadecimal digits.
        public_key: the key that verifies it; None for an old certificate.
    """

    result_sha256: str
    public_key: Ed25519PublicKey | None = None


def write_keys(path: Path) -> Path:
    """Write a new private key, and the public key to a file beside it; return the path of the latter.

    Raises:
        BadKey: one of the files exists, or cannot be written.
    """
    key, public = Ed25519PrivateKey.generate(), path.with_name(f"{path.name}.pub")
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    shown = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    try:
        if public.exists():
            raise FileExistsError
        path.touch(mode=0o600, exist_ok=False)
        path.write_bytes(secret)
        public.write_bytes(shown)
    except FileExistsError:
        raise BadKey(f"{path} or {public} exists. No key is replaced: name a new file.") from None
    except OSError as error:
        raise BadKey(f"{path} cannot be written: {error.strerror}.") from None
    return public


def read_private_key(path: Path) -> Ed25519PrivateKey:
    """Return the private key in a file, which only its owner may read.

    Raises:
        BadKey: the file is missing or no such key, or other users may read it.
    """
    key = _read(path, lambda text: serialization.load_pem_private_key(text, password=None))
    if not isinstance(key, Ed25519PrivateKey):
        raise BadKey(f"{path} is not a private key of 'hvdgrade certificate key'.")
    _check_secrecy(path)
    return key


def read_public_key(path: Path) -> Ed25519PublicKey:
    """Return the public key in a file.

    Raises:
        BadKey: the file is missing or no such key.
    """
    key = _read(path, serialization.load_pem_public_key)
    if not isinstance(key, Ed25519PublicKey):
        raise BadKey(f"{path} is not a public key of 'hvdgrade certificate key'.")
    return key


def read_old_key(path: Path) -> bytes:
    """Return the secret key of an earlier version: 32 bytes or more.

    Raises:
        BadKey: the file is missing or too short, or other users may read it.
    """
    key = _read(path, bytes)
    if len(key) < 32:
        raise BadKey(f"{path} has {len(key)} bytes. A key of earlier versions has at least 32.")
    _check_secrecy(path)
    return key


def _read(path: Path, load: Callable[[bytes], object]) -> object:
    try:
        return load(path.read_bytes())
    except FileNotFoundError:
        raise BadKey(
            f"{path} does not exist. Make a key once, with: hvdgrade certificate key {path}"
        ) from None
    except OSError as error:
        raise BadKey(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None


def _check_secrecy(path: Path) -> None:
    if path.stat().st_mode & 0o077:
        raise BadKey(
            f"{path} may be used by other users, who could make certificates: chmod 600 {path}"
        )


def fingerprint(key: Ed25519PublicKey) -> str:
    """Return the first 128 bits of the SHA-256 of a public key, as groups of four hexadecimal digits."""
    digest = hashlib.sha256(key.public_bytes_raw()).hexdigest()[:32]
    return " ".join(digest[place : place + 4] for place in range(0, 32, 4))


def sign(pdf: bytes, result_sha256: str, key: Ed25519PrivateKey) -> bytes:
    """Return a certificate: the PDF and its signature.

    Args:
        result_sha256: hash of the result, as 64 hexadecimal digits.
    """
    public = key.public_key().public_bytes_raw().hex()
    line = f"\n%hvdgrade-certificate 2 result-sha256={result_sha256} public-key={public}"
    signed = pdf + line.encode()
    return signed + f" ed25519={key.sign(signed).hex()}\n".encode()


def is_old(certificate: bytes) -> bool:
    """Return whether a certificate has the seal of an earlier version."""
    return OLD_LINE.match(certificate) is not None


def verify(certificate: bytes) -> Signed:
    """Return what the signature of a certificate says.

    Raises:
        NotValid: the certificate has no signature, or was changed after it was signed.
    """
    found = LINE.match(certificate)
    if not found:
        raise NotValid(
            "it has no signature at its end, so 'hvdgrade certificate' did not make this file."
        )
    key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(found["key"].decode()))
    try:
        key.verify(bytes.fromhex(found["signature"].decode()), found["signed"])
    except InvalidSignature:
        raise NotValid("it was changed after it was signed.") from None
    return Signed(found["result"].decode(), key)


def verify_old(certificate: bytes, key: bytes) -> Signed:
    """Return what the seal of a certificate of an earlier version says.

    Args:
        key: the secret key with which the seal was made.

    Raises:
        NotValid: the certificate was changed after it was made, or made with another key.
    """
    found = OLD_LINE.match(certificate)
    if not hmac.compare_digest(
        hmac.digest(key, found["signed"], "sha256").hex(), found["signature"].decode()
    ):
        raise NotValid("it was changed after it was made, or it was made with another key.")
    return Signed(found["result"].decode())
