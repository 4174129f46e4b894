"""The kits: what each platform allows, and the files that a kit has."""

import io
import json
import os
import uuid
import zipfile
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from hvdgrade.platform import door
from hvdgrade.submit import client

TEMPLATES = Path(__file__).parent / "templates"
GRADER, DATA = (
    "/opt/hvdlab/.venv/bin/hvdgrade",
    "/srv/hvdlab",
)  # in an image of the Dockerfile of a kit


@dataclass(frozen=True)
class Place:
    """A platform.

    Attributes:
        format: what it reads, a format of `hvdgrade export`.
        minutes: its time limit unless the instructor changes it.
        most_minutes: the longest limit that it allows; None if it has none.
        reserve: seconds of the limit in which nothing is graded: the start, and the end of a late grading.
        grades_here: whether its own machine can grade.
        secret: whether the kit can hold the token of a server, because no student can read it.
        base: the image on which the grader is installed.
        programs: files of the template that the platform starts: name in the kit -> name of the template.
    """

    format: str
    minutes: int
    most_minutes: int | None
    reserve: int
    grades_here: bool
    secret: bool
    base: str = "debian:12.11-slim"
    programs: tuple[str, ...] = ()


PLACES = {
    "gradescope": Place(
        *("gradescope", 10, 40, 60, True, True, "gradescope/autograder-base:ubuntu-22.04"),
        programs=("run_autograder.py",),
    ),
    "classroom50": Place("classroom50", 15, 15, 240, True, False),
    "gitlab": Place("junit", 60, None, 120, True, False),
    "prairielearn": Place("prairielearn", 10, 10, 60, False, True),
}


@dataclass(frozen=True)
class Choices:
    """What the instructor has chosen.

    Attributes:
        place: name of the platform.
        server: address of the server that grades; "" to grade in the platform's own machine.
        assignment: name of the assignment on the server.
        token: the server's token for this platform.
        profile, ranks, require_sandbox, framework: of a grading in the platform's own machine.
        minutes: time limit of the platform.
        image: container image that the platform starts.
        runs_on: labels of own runners.
    """

    place: str
    server: str
    assignment: str
    token: str
    profile: str
    ranks: int
    require_sandbox: str
    framework: str
    minutes: int
    image: str
    runs_on: tuple[str, ...]

    @property
    def limit_s(self) -> int:
        """Seconds after which a grading is ended."""
        return 60 * self.minutes - PLACES[self.place].reserve


def files(chosen: Choices) -> dict[str, bytes]:
    """Return the files of a kit: path in the kit -> content."""
    place, folder = PLACES[chosen.place], TEMPLATES / chosen.place
    facts = vars(chosen) | {"limit_s": chosen.limit_s, "base": place.base, "data": DATA}
    facts |= {"labels": json.dumps(chosen.runs_on), "uuid": uuid.uuid4()}
    made = {}
    for path in sorted(folder.iterdir()):
        name = path.name.removesuffix(".j2")
        made[name] = render(path, facts) if name != path.name else path.read_bytes()
    if not chosen.server and (chosen.image or chosen.place == "gradescope"):
        made["Dockerfile"] = render(TEMPLATES / "Dockerfile.j2", facts)
    if chosen.place != "gitlab":
        made["door.py"] = Path(door.__file__).read_bytes()
        made["settings.json"] = settings(chosen)
    if chosen.server:
        made["client.py"] = Path(client.__file__).read_bytes()
    if chosen.token:
        made["token"] = chosen.token.encode()
    return arranged(made, chosen)


def render(path: Path, facts: dict) -> bytes:
    """Return a file made from a jinja2 template."""
    environment = Environment(
        loader=FileSystemLoader(path.parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # no HTML: the values are the instructor's own
    )
    return environment.get_template(path.name).render(facts).encode()


def settings(chosen: Choices) -> bytes:
    """Return settings.json, which door.py reads."""
    names = ("server", "assignment", "profile", "ranks", "require_sandbox", "limit_s")
    own_runner = chosen.runs_on and not chosen.image
    found = {name: getattr(chosen, name) for name in names}
    found["format"] = PLACES[chosen.place].format
    found["hvdgrade"] = "hvdgrade" if own_runner else GRADER
    found["environment"] = {} if own_runner else {"HVDLAB_DATA": DATA}
    return (json.dumps(found, indent=2) + "\n").encode()


def arranged(made: dict[str, bytes], chosen: Choices) -> dict[str, bytes]:
    """Return the files under the names, and in the archive, that the platform expects."""
    if chosen.place == "gradescope":
        made["run_autograder"] = made.pop("run_autograder.py")
        setup = made.pop("setup.sh")
        if chosen.server:
            readme = made.pop("README.md")
            return {"README.md": readme, "autograder.zip": archive(made | {"setup.sh": setup})}
    if chosen.place == "classroom50" and not chosen.server:
        del made["hvdgrade.yaml"]
    if chosen.place == "prairielearn":
        question = ("README.md", "info.json", "question.html", "server.py")
        return {name if name in question else f"tests/{name}": text for name, text in made.items()}
    return made


def archive(made: dict[str, bytes]) -> bytes:
    """Return a ZIP file. Every file in it can be executed, because Gradescope starts one of them."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in sorted(made.items()):
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (0o100000 | mode(name)) << 16
            file.writestr(entry, content)
    return buffer.getvalue()


def mode(name: str) -> int:
    """Return the permissions of a file: only its owner reads a token, and programs can be started."""
    name = os.path.basename(name)
    if name in ("token", "autograder.zip"):
        return 0o600
    return 0o755 if name in ("run_autograder", "setup.sh", "grade.py") else 0o644
