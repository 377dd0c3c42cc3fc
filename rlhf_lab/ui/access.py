"""Who a visitor is: a signed cookie says so, and every handler asks for it in Python.

    alone          the lab on this computer's own address: whoever reaches it is its operator, without any login
    guarded        other addresses: the operator enters by a secret link, labellers by the join code and a name;
                   everybody else may look (or label too, where labelling is open to all, by a random name that comes with
                   the page). Who stands in a file of names and passwords enters as that name, and nobody else does

Names are no secret: the screen People shows them. So where a lab is guarded nobody is believed a name that the lab did not sign.
The signing key, the operator's secret and the join code live in the home, readable by its owner only.
"""

import base64
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from rlhf_lab.errors import StoreError
from rlhf_lab.labelling import Role
from rlhf_lab.store.people import NEWCOMER
from rlhf_lab.ui.auth_file import Entry

COOKIE = "rlhf_lab_visitor"  # as such, of who entered before each lab had its own
KEYS_FILE = "access.json"
CODE_VARIABLE = "RLHF_LAB_JOIN_CODE"
#: Letters and digits that nobody confuses when a code is read out.
CODE_LETTERS = "ABCDEFGHJKMNPQRSTUVWXYZ23456789"


class Request(Protocol):
    """What is read of a request; Gradio's and Starlette's both have it."""

    @property
    def cookies(self) -> Any: ...
    @property
    def headers(self) -> Any: ...


@dataclass(frozen=True)
class Visitor:
    """name: "" where the browser names itself (a lab of one's own), and for who may only look."""

    role: Role
    name: str = ""

    @property
    def nickname(self) -> str:
        """The name that they entered by; "" for who came without one."""
        return "" if self.name.startswith(NEWCOMER) else self.name


@dataclass(frozen=True)
class Access:
    """How visitors are told apart. default: what a visitor without a cookie may do. people: who enters by a password.

    host: the name and port that a proxy serves the lab by. since: when somebody joined by a name; None where nobody of that name
    is here (any more). Without it every signed name counts.
    """

    default: Role = Role.OPERATOR
    key: bytes = b""
    operator_secret: str = ""
    join_code: str = ""
    host: str = ""
    people: Mapping[str, Entry] = field(default_factory=dict)
    since: Callable[[str], float | None] | None = None

    @property
    def guarded(self) -> bool:
        return self.default is not Role.OPERATOR

    def visitor(self, request: Request | None) -> Visitor:
        """Who asks. A cookie counts only for requests of our own pages: another site's page cannot act with it."""
        if request is None or not self.key or self._from_elsewhere(request):
            return Visitor(self.default)
        for cookie in (self.entered_cookie, COOKIE, self.page_cookie):
            if (found := self._read(request.cookies.get(cookie) or "")) is not None:
                return Visitor(found.role if found.role.may(self.default) else self.default, found.name)
        return Visitor(self.default)

    @property
    def entered_cookie(self) -> str:
        """The cookie of who entered. Each lab has its own: a browser sends them to every port of a computer."""
        return f"{COOKIE}_entered_{self._digest}"

    @property
    def page_cookie(self) -> str:
        """The cookie that comes with the page, each lab's own too."""
        return f"{COOKIE}_{self._digest}"

    @property
    def _digest(self) -> str:
        return hashlib.sha256(self.key).hexdigest()[:8]

    def newcomer(self, request: Request) -> str:
        """The signed name of a visitor who may label without having entered, known or new; "" for everybody else.

        It says "viewer": they may label for as long as everybody may.
        """
        visitor = self.visitor(request)
        if not self.guarded or not visitor.role.may(Role.LABELLER) or visitor.nickname:
            return ""
        return self.cookie(Visitor(Role.VIEWER, visitor.name or f"{NEWCOMER}{secrets.token_hex(6)}"))

    def named(self, said: object) -> str:
        """Whose page it is that says so, where its browser keeps no cookie: `newcomer`'s name; "" for anything else."""
        found = self._read(said) if isinstance(said, str) else None
        return found.name if found is not None and not found.nickname else ""

    def cookie(self, visitor: Visitor) -> str:
        """The cookie's value for a visitor."""
        entry, joined = self.people.get(visitor.name), self._joined(visitor)
        mark = self._mark(entry) if entry else joined and self._mark_of_joined(visitor.name, joined)
        return self.seal([visitor.role.value, visitor.name, *([mark] if mark else [])])

    def seal(self, said: list[str]) -> str:
        """The words with a signature, to be kept by a browser."""
        body = base64.urlsafe_b64encode(json.dumps(said).encode()).decode().rstrip("=")
        return f"{body}.{self._sign(body)}"

    def unseal(self, value: str) -> list[str] | None:
        """What was sealed; None for anything else."""
        body, _, signature = value.partition(".")
        if not body or not value.isascii() or not hmac.compare_digest(signature.encode(), self._sign(body).encode()):
            return None
        return [str(word) for word in json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))]

    def _read(self, value: str) -> Visitor | None:
        role, name, *mark = self.unseal(value) or ("", "")
        entry = self.people.get(name)
        if entry is not None:  # another password, or none any more, ends the cookie; the line says the role
            return Visitor(entry.role, name) if mark == [self._mark(entry)] else None
        if role == Role.LABELLER and (joined := self._joined(Visitor(Role.LABELLER, name))) is not None:
            # Without a mark it is a cookie of earlier versions.
            return Visitor(Role.LABELLER, name) if mark in ([], [self._mark_of_joined(name, joined)]) else None
        known = role != Role.LABELLER or self.since is None or name.startswith(NEWCOMER)
        return Visitor(Role(role), name) if role and known and not mark else None

    def _from_elsewhere(self, request: Request) -> bool:
        """Whether a page of another site sent the request."""
        origin = request.headers.get("origin")
        if not origin:
            return False
        host = urlsplit(origin).netloc
        ours = {
            request.headers.get("host"),
            request.headers.get("x-forwarded-host"),
            os.environ.get("SPACE_HOST"),
            self.host,
        }
        return host not in ours - {None, ""}

    def _joined(self, visitor: Visitor) -> float | None:
        """When a labeller joined by their name; None for everybody else."""
        return self.since(visitor.name) if self.since and visitor.role is Role.LABELLER and visitor.nickname else None

    def _mark_of_joined(self, name: str, at: float) -> str:
        """Stands in the cookie of who joined: whoever takes the name when they have left the lab is somebody else."""
        return self._sign(f"{name}|{at!r}")[:16]

    def _mark(self, entry: Entry) -> str:
        """Stands in the cookie of who gave this password, and does not tell it."""
        return self._sign(f"{entry.name}:{entry.password}")[:16]

    def _sign(self, body: str) -> str:
        """The operator's secret and the join code are part of it: with a new one, old cookies end."""
        said = f"{body}|{self.operator_secret}|{self.join_code}".encode()
        return hmac.new(self.key, said, hashlib.sha256).hexdigest()


#: The lab on this computer's own address.
ALONE = Access()


def guarded_access(
    home: Path, *, open_to_all: bool, operator_secret: str | None = None, people: Mapping[str, Entry] | None = None,
    since: Callable[[str], float | None] | None = None,
) -> Access:  # fmt: skip
    """The access of a lab that others reach. open_to_all: labelling needs no code. people: who enters by a password; since: who
    has joined (see Access).

    The join code is RLHF_LAB_JOIN_CODE, or one kept in the home. Raises StoreError where the home cannot be written.
    """
    keys = _keys(home)
    return Access(
        default=Role.LABELLER if open_to_all else Role.VIEWER,
        key=bytes.fromhex(keys["key"]),
        operator_secret=operator_secret or keys["operator"],
        join_code=os.environ.get(CODE_VARIABLE) or keys["code"],
        people=people or {},
        since=since,
    )


def _keys(home: Path) -> dict[str, str]:
    path = home / KEYS_FILE
    try:
        if not path.exists():
            code = "".join(secrets.choice(CODE_LETTERS) for _ in range(6))
            made = {"key": secrets.token_hex(32), "operator": secrets.token_urlsafe(18), "code": code}
            home.mkdir(parents=True, exist_ok=True)
            fresh = path.with_name(f"{path.name}.{made['key'][:8]}")
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                json.dump(made, file)
            fresh.replace(path)  # never half a file, whenever this ends
        keys = json.loads(path.read_text(encoding="utf-8"))
        return {name: str(keys[name]) for name in ("key", "operator", "code")}
    except (OSError, ValueError, KeyError) as error:
        raise StoreError(
            f"{path} cannot be used ({error}). Delete it to get a new join code and operator's link; people join again."
        ) from error
