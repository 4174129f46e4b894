"""Certificates: what the page states, who gets one, and which changes the verification finds."""

import base64
import hashlib
import hmac
import json
import os
import re
import shutil
import subprocess
import zlib
from pathlib import Path

import pytest

from hvdgrade import cli
from hvdgrade.batch.id_table import Student, write_students
from hvdgrade.certificate import page, signature
from hvdgrade.certificate.command import COURSE
from hvdgrade.certificate.facts import Facts, of_pass

RESULTS = Path(__file__).parents[2] / "fixtures" / "results"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def key(folder) -> Path:
    return new_key(folder / "course.key")


def new_key(path: Path) -> Path:
    assert cli.main(["certificate", "key", str(path)]) == 0
    return path


def public(key: Path) -> Path:
    return key.with_name(f"{key.name}.pub")


@pytest.fixture(scope="module")
def made(folder, key) -> Path:
    out = folder / "ada.pdf"
    assert certificate(RESULTS / "pass.json", key, "--out", out, "--date", "2026-11-26") == 0
    return out


def certificate(result: Path, key: Path, *arguments) -> int:
    return cli.main(["certificate", "make", *map(str, (result, "--key", key, *arguments))])


def verify(pdf: Path, *arguments) -> int:
    return cli.main(["certificate", "verify", *map(str, (pdf, *arguments))])


def words_on(pdf: bytes) -> str:
    """Return the text that a PDF of matplotlib with fonts of type 3 shows, without spaces."""
    shown = []
    for stream in re.findall(rb"stream\r?\n(.*?)\r?\nendstream", pdf, re.DOTALL):
        try:
            content = zlib.decompress(stream).decode("latin-1")
        except zlib.error:
            continue
        for text in re.findall(r"BT(.*?)ET", content, re.DOTALL):
            shown += re.findall(r"\(((?:\\.|[^()\\])*)\)", text)
    text = "".join(shown).replace("\0", "fi")  # the font joins these two letters, and its code is 0
    return re.sub(r"\s|\\", "", text)


def test_the_page_states_the_result(tmp_path, key, monkeypatch):
    # Letters of fonts of type 3 are readable in the page; those of the certificate are numbers of glyphs.
    monkeypatch.setattr(page, "FONT_TYPE", 3)
    out = tmp_path / "ada.pdf"
    certificate(
        RESULTS / "pass.json", key, "--out", out, "--date", "2026-11-26", "--course", "HPC $1$"
    )
    document = json.loads((RESULTS / "pass.json").read_text(encoding="utf-8"))
    shown = words_on(out.read_bytes())
    for text in (
        "Ada Lovelace",
        "HPC $1$",
        "pass, 100 of 100 points",
        "at least 0.75 in training and 0.70 on hidden images, in 2 consecutive epochs",
        "after 50.7 s of 73.7 s",
        "2 processes, data set CIFAR-10",
        "AMD EPYC, 2 cores",
        "hvdgrade 0.1.0, profile cpu, rules 1ae8c8f283386042",
        "Issued: 26 November 2026",
        document["submission"]["sha256"],
        canonical_hash(document),
    ):
        assert text.replace(" ", "") in shown, text


def canonical_hash(document: dict) -> str:
    kept = {name: value for name, value in document.items() if name != "batch"}
    return hashlib.sha256(
        json.dumps(kept, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


def test_openssl_verifies_the_signature_over_all_that_precedes_it(made, key, tmp_path):
    signed, _, value = made.read_bytes().rpartition(b" ed25519=")
    (tmp_path / "signed").write_bytes(signed)
    (tmp_path / "signature").write_bytes(bytes.fromhex(value.decode()))
    command = "openssl pkeyutl -verify -rawin -in signed -sigfile signature -pubin -inkey".split()
    done = subprocess.run([*command, public(key)], cwd=tmp_path, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_page_stands_unchanged_before_the_signature_and_equal_facts_give_equal_bytes(made, key):
    document = json.loads((RESULTS / "pass.json").read_text(encoding="utf-8"))
    drawn = page.draw(of_pass(document, None, COURSE, "26 November 2026"), fingerprint_of(key))
    assert drawn.startswith(b"%PDF-") and made.read_bytes().partition(b"\n%hvdgrade")[0] == drawn


def fingerprint_of(key: Path) -> str:
    """Return the first 128 bits of the SHA-256 of the 32 bytes that end the DER form of a public key."""
    der = base64.b64decode("".join(public(key).read_text().splitlines()[1:-1]))
    return " ".join(re.findall("....", hashlib.sha256(der[-32:]).hexdigest()[:32]))


def test_a_certificate_is_valid_for_its_result_in_any_layout_and_with_other_notes_of_the_batch(
    made, key, tmp_path, capsys
):
    document = json.loads((RESULTS / "pass.json").read_text(encoding="utf-8"))
    document["batch"] = {"name": "ada", "failed_again": {"call": "2"}}
    again = tmp_path / "ada.json"
    again.write_text(json.dumps(dict(reversed(document.items()))), encoding="utf-8")
    for result in (RESULTS / "pass.json", again):
        assert verify(made, "--public-key", public(key), "--result", result) == 0
        assert "It belongs to this result." in capsys.readouterr().out


def test_without_a_key_the_fingerprint_must_be_compared(made, key, capsys):
    assert verify(made) == 3
    printed = capsys.readouterr().out
    assert f"\n{fingerprint_of(key)}\n" in printed and "Compare the fingerprint" in printed


def test_every_changed_byte_is_found(made, key):
    good = made.read_bytes()
    assert signature.verify(good).public_key == signature.read_public_key(public(key))
    places = {*range(0, len(good), 997), *range(len(good) - 400, len(good))}
    changed = [good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :] for place in places]
    for wrong in (*changed, good + b"\n", good[:-200]):
        with pytest.raises(signature.NotValid):
            signature.verify(wrong)


def test_another_result_and_another_key_are_refused(made, key, tmp_path, capsys):
    document = json.loads((RESULTS / "pass.json").read_text(encoding="utf-8"))
    document["score"] = 99
    other = tmp_path / "other.json"
    other.write_text(json.dumps(document), encoding="utf-8")
    assert verify(made, "--public-key", public(key), "--result", other) == 1
    assert "it belongs to another result" in capsys.readouterr().out
    stranger = new_key(tmp_path / "stranger.key")
    assert verify(made, "--public-key", public(stranger)) == 1
    assert "it was signed with another key" in capsys.readouterr().out


def test_a_certificate_of_an_earlier_version_stays_verifiable(tmp_path, capsys):
    secret, pdf = tmp_path / "old.key", tmp_path / "old.pdf"
    secret.touch(mode=0o600)
    secret.write_bytes(os.urandom(32))
    document = json.loads((RESULTS / "pass.json").read_text(encoding="utf-8"))
    sealed = b"%PDF-1.4\n%hvdgrade-certificate 1 result-sha256=" + canonical_hash(document).encode()
    seal = hmac.new(secret.read_bytes(), sealed, hashlib.sha256).hexdigest()
    pdf.write_bytes(sealed + f" hmac-sha256={seal}\n".encode())
    assert verify(pdf, "--key", secret, "--result", RESULTS / "pass.json") == 0
    assert verify(pdf) == 2
    assert "it needs --key" in capsys.readouterr().err
    pdf.write_bytes(pdf.read_bytes().replace(b"PDF-1.4", b"PDF-1.5"))
    assert verify(pdf, "--key", secret) == 1


@pytest.mark.parametrize(
    "name, sentence",
    [
        ("fail", "no certificate for Noether, Emmy: the verdict is fail, 55 of 100 points."),
        ("not_gradable", "no certificate for Rózsa Péter: not gradable."),
        ("grader_fault", "no certificate for grader_fault: grader fault."),
    ],
)
def test_only_a_pass_yields_a_certificate(tmp_path, key, capsys, name, sentence):
    out = tmp_path / "none.pdf"
    assert certificate(RESULTS / f"{name}.json", key, "--out", out) == 2
    assert capsys.readouterr().err == f"hvdgrade certificate: {sentence}\n"
    assert not out.exists()


def test_a_practice_run_yields_no_certificate(tmp_path, key, capsys):
    document = json.loads((RESULTS / "pass.json").read_text(encoding="utf-8"))
    document["grader"]["data"] = "synthetic CIFAR-10"
    (tmp_path / "r.json").write_text(json.dumps(document), encoding="utf-8")
    assert certificate(tmp_path / "r.json", key, "--out", tmp_path / "r.pdf") == 2
    assert "it was a practice run" in capsys.readouterr().err


def test_a_key_that_others_can_use_or_that_is_none_is_refused(tmp_path, capsys):
    key = new_key(tmp_path / "course.key")
    assert cli.main(["certificate", "key", str(key)]) == 2
    assert "exists. No key is replaced" in capsys.readouterr().err
    key.chmod(0o644)
    assert certificate(RESULTS / "pass.json", key) == 2
    assert f"chmod 600 {key}" in capsys.readouterr().err
    for wrong in (public(key), RESULTS / "pass.json"):
        assert certificate(RESULTS / "pass.json", wrong) == 2
        assert "is not a private key" in capsys.readouterr().err
    assert certificate(RESULTS / "pass.json", tmp_path / "missing") == 2
    assert "does not exist. Make a key once" in capsys.readouterr().err


def test_a_certificate_replaces_neither_key_nor_result(tmp_path, capsys):
    key = new_key(tmp_path / "course.key")
    result = Path(shutil.copy(RESULTS / "pass.json", tmp_path / "ada.json"))
    before = key.read_bytes(), result.read_bytes()
    (tmp_path / "link.pdf").symlink_to(result)
    for out, same in ((key, key), (result, result), (tmp_path / "link.pdf", result)):
        assert certificate(result, key, "--out", out) == 2
        assert f"Received {out}, which is the same file as {same}." in capsys.readouterr().err
    assert (key.read_bytes(), result.read_bytes()) == before


def test_the_name_is_that_of_the_class_whatever_the_id_is(tmp_path, key, capsys):
    """Moodle's id is a number, which is also the name of the result's file."""
    (tmp_path / "results").mkdir()
    result = Path(shutil.copy(RESULTS / "pass.json", tmp_path / "results" / "12345.json"))
    for student, shown in (
        (Student("12345", name="Ada Lovelace"), "Ada Lovelace"),
        (Student("a.lovelace"), "a.lovelace"),
    ):
        (tmp_path / "students.json").write_bytes(write_students({"12345": student}))
        assert certificate(result, key, "--out", tmp_path / "ada.pdf") == 0
        assert f"certificate for {shown}\n" in capsys.readouterr().out
    assert certificate(result, key, "--out", tmp_path / "ada.pdf", "--name", "Ada King") == 0
    assert "certificate for Ada King\n" in capsys.readouterr().out


def test_flags_are_announced_before_the_instructor_signs(tmp_path, key, capsys):
    document = json.loads((RESULTS / "pass.json").read_text(encoding="utf-8"))
    document["flags"] = [{"line": 3, "text": "os.system"}]
    (tmp_path / "r.json").write_text(json.dumps(document), encoding="utf-8")
    assert certificate(tmp_path / "r.json", key, "--out", tmp_path / "r.pdf") == 0
    assert "read the flags in the report of this result: 1." in capsys.readouterr().out


def test_a_long_name_fits_on_the_page_and_a_letter_without_glyph_is_reported(
    tmp_path, key, monkeypatch, capsys
):
    widths = []
    draw_text = page._text

    def measured(*arguments, **options):
        drawn = draw_text(*arguments, **options)
        box = drawn.get_window_extent()
        widths.append((box.x0, box.x1, drawn.figure.bbox.width))
        return drawn

    monkeypatch.setattr(page, "_text", measured)
    page.draw(
        Facts("Wolfeschlegelsteinhausenbergerdorff " * 6, "C" * 200, "1 May 2026", (), "0" * 64),
        "0000 " * 8,
    )
    assert len(widths) > 6 and all(0 < left < right < width for left, right, width in widths)
    assert certificate(RESULTS / "pass.json", key, "--name", "\u738b", "--out", tmp_path / "x") == 2
    assert "lacks \u738b of '\u738b'" in capsys.readouterr().err
