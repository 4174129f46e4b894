"""The file of `hvdgrade serve --config`: what its tables may contain. jupyterhub_and_lms.md shows them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from hvdgrade import HvdgradeError
from hvdgrade.service.oidc import Issuer


class BadConfig(HvdgradeError):
    """The configuration cannot be used. The message says why in one sentence."""


class Table(BaseModel):
    """A table of the file, which has no other keys than these."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class HubTable(Table):
    """What the groups of a JupyterHub mean in one course.

    Attributes:
        course: slug of the course of which the hub's users are members.
        url: address of the hub for browsers. Default: what the hub's environment variables say.
        learners: groups whose users are learners; empty for all users.
        tas, instructors: groups of staff. They decide alone who is staff in that course.
    """

    course: str
    url: str = ""
    learners: frozenset[str] = frozenset()
    tas: frozenset[str] = frozenset()
    instructors: frozenset[str] = frozenset()


class Lms(Table):
    """A learning platform: its `iss`, our client there, and where it gives access tokens."""

    issuer: str
    client: str
    token_url: str
    audience: str = ""


class Configuration(Table):
    """All of the file. `address` is where browsers reach the server; "" for where it listens."""

    address: str = ""
    staff_pages: bool = True
    ci: tuple[Issuer, ...] = ()
    hub: HubTable | None = None
    lms: tuple[Lms, ...] = ()
    lti_keys: tuple[Path, ...] = Field((Path("lti.pem"),), min_length=1)

    @field_validator("address")
    @classmethod
    def _is_an_address(cls, address: str) -> str:
        parts = urlsplit(address or "http://localhost")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise ValueError("address must be as https://grade.example.edu")
        return address


def read(values: Mapping[str, Any]) -> Configuration:
    """Return the configuration.

    Args:
        values: the content of the file.

    Raises:
        BadConfig: it has an unknown key or a value that cannot be used.
    """
    try:
        return Configuration.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where, why = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
        what = "" if first["type"] == "missing" else f" = {first['input']!r}"
        raise BadConfig(f"{where}{what}: {why[:1].lower()}{why[1:]}.") from None
