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

from rlhf_lab.config.labelling import Role
from rlhf_lab.errors import StoreError
from rlhf_lab.store.annotators import VISITOR_PREFIX
from rlhf_lab.ui.auth.password_file import PasswordEntry

COOKIE_NAME = "rlhf_lab_visitor"  # as such, of who entered before each lab had its own
KEYS_FILE = "access.json"
JOIN_CODE_ENV_VAR = "RLHF_LAB_JOIN_CODE"
#: Letters and digits that nobody confuses when a code is read out.
JOIN_CODE_ALPHABET = "ABCDEFGHJKMNPQRSTUVWXYZ23456789"


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
    def registered_name(self) -> str:
        """The name that they entered by; "" for who came without one."""
        return "" if self.name.startswith(VISITOR_PREFIX) else self.name


@dataclass(frozen=True)
class Access:
    """How visitors are told apart. default: what a visitor without a cookie may do. people: who enters by a password.

    host: the name and port that a proxy serves the lab by. since: when somebody joined by a name; None where nobody of that name
    is here (any more). Without it every signed name counts.
    """

    default_role: Role = Role.OPERATOR
    key: bytes = b""
    operator_secret: str = ""
    join_code: str = ""
    host: str = ""
    password_entries: Mapping[str, PasswordEntry] = field(default_factory=dict)
    joined_at: Callable[[str], float | None] | None = None

    @property
    def is_multi_user(self) -> bool:
        return self.default_role is not Role.OPERATOR

    def visitor(self, request: Request | None) -> Visitor:
        """Who asks. A cookie counts only for requests of our own pages: another site's page cannot act with it."""
        if request is None or not self.key or self._is_cross_site(request):
            return Visitor(self.default_role)
        for cookie_name in (self.login_cookie_name, COOKIE_NAME, self.page_cookie_name):
            if (visitor := self._visitor_from_token(request.cookies.get(cookie_name) or "")) is not None:
                return Visitor(
                    visitor.role if visitor.role.at_least(self.default_role) else self.default_role, visitor.name
                )
        return Visitor(self.default_role)

    @property
    def login_cookie_name(self) -> str:
        """The cookie of who entered. Each lab has its own: a browser sends them to every port of a computer."""
        return f"{COOKIE_NAME}_entered_{self._key_digest}"

    @property
    def page_cookie_name(self) -> str:
        """The cookie that comes with the page, each lab's own too."""
        return f"{COOKIE_NAME}_{self._key_digest}"

    @property
    def _key_digest(self) -> str:
        return hashlib.sha256(self.key).hexdigest()[:8]

    def anonymous_cookie(self, request: Request) -> str:
        """The signed name of a visitor who may label without having entered, known or new; "" for everybody else.

        It says "viewer": they may label for as long as everybody may.
        """
        visitor = self.visitor(request)
        if not self.is_multi_user or not visitor.role.at_least(Role.LABELLER) or visitor.registered_name:
            return ""
        return self.cookie_value(Visitor(Role.VIEWER, visitor.name or f"{VISITOR_PREFIX}{secrets.token_hex(6)}"))

    def name_from_token(self, token: object) -> str:
        """Whose page it is that says so, where its browser keeps no cookie: `anonymous_cookie`'s name; "" for anything else."""
        visitor = self._visitor_from_token(token) if isinstance(token, str) else None
        return visitor.name if visitor is not None and not visitor.registered_name else ""

    def cookie_value(self, visitor: Visitor) -> str:
        """The cookie's value for a visitor."""
        entry, joined_at = self.password_entries.get(visitor.name), self._labeller_joined_at(visitor)
        fingerprint = (
            self._password_fingerprint(entry)
            if entry
            else joined_at and self._join_fingerprint(visitor.name, joined_at)
        )
        return self.sign([visitor.role.value, visitor.name, *([fingerprint] if fingerprint else [])])

    def sign(self, values: list[str]) -> str:
        """The words with a signature, to be kept by a browser."""
        body = base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")
        return f"{body}.{self._signature(body)}"

    def verify(self, token: str) -> list[str] | None:
        """What was sealed; None for anything else."""
        body, _, signature = token.partition(".")
        if (
            not body
            or not token.isascii()
            or not hmac.compare_digest(signature.encode(), self._signature(body).encode())
        ):
            return None
        return [str(item) for item in json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))]

    def _visitor_from_token(self, token: str) -> Visitor | None:
        role, name, *fingerprint = self.verify(token) or ("", "")
        entry = self.password_entries.get(name)
        if entry is not None:  # another password, or none any more, ends the cookie; the line says the role
            return Visitor(entry.role, name) if fingerprint == [self._password_fingerprint(entry)] else None
        if role == Role.LABELLER and (joined_at := self._labeller_joined_at(Visitor(Role.LABELLER, name))) is not None:
            # Without a mark it is a cookie of earlier versions.
            return (
                Visitor(Role.LABELLER, name) if fingerprint in ([], [self._join_fingerprint(name, joined_at)]) else None
            )
        is_valid = role != Role.LABELLER or self.joined_at is None or name.startswith(VISITOR_PREFIX)
        return Visitor(Role(role), name) if role and is_valid and not fingerprint else None

    def _is_cross_site(self, request: Request) -> bool:
        """Whether a page of another site sent the request."""
        origin = request.headers.get("origin")
        if not origin:
            return False
        host = urlsplit(origin).netloc
        own_hosts = {
            request.headers.get("host"),
            request.headers.get("x-forwarded-host"),
            os.environ.get("SPACE_HOST"),
            self.host,
        }
        return host not in own_hosts - {None, ""}

    def _labeller_joined_at(self, visitor: Visitor) -> float | None:
        """When a labeller joined by their name; None for everybody else."""
        return (
            self.joined_at(visitor.name)
            if self.joined_at and visitor.role is Role.LABELLER and visitor.registered_name
            else None
        )

    def _join_fingerprint(self, name: str, joined_at: float) -> str:
        """Stands in the cookie of who joined: whoever takes the name when they have left the lab is somebody else."""
        return self._signature(f"{name}|{joined_at!r}")[:16]

    def _password_fingerprint(self, entry: PasswordEntry) -> str:
        """Stands in the cookie of who gave this password, and does not tell it."""
        return self._signature(f"{entry.name}:{entry.password}")[:16]

    def _signature(self, body: str) -> str:
        """The operator's secret and the join code are part of it: with a new one, old cookies end."""
        message = f"{body}|{self.operator_secret}|{self.join_code}".encode()
        return hmac.new(self.key, message, hashlib.sha256).hexdigest()


#: The lab on this computer's own address.
LOCAL_ACCESS = Access()


def multi_user_access(
    home: Path,
    *,
    open_to_all: bool,
    operator_secret: str | None = None,
    password_entries: Mapping[str, PasswordEntry] | None = None,
    joined_at: Callable[[str], float | None] | None = None,
) -> Access:
    """The access of a lab that others reach. open_to_all: labelling needs no code. people: who enters by a password; since: who
    has joined (see Access).

    The join code is RLHF_LAB_JOIN_CODE, or one kept in the home. Raises StoreError where the home cannot be written.
    """
    keys = _load_or_create_keys(home)
    return Access(
        default_role=Role.LABELLER if open_to_all else Role.VIEWER,
        key=bytes.fromhex(keys["key"]),
        operator_secret=operator_secret or keys["operator"],
        join_code=os.environ.get(JOIN_CODE_ENV_VAR) or keys["code"],
        password_entries=password_entries or {},
        joined_at=joined_at,
    )


def _load_or_create_keys(home: Path) -> dict[str, str]:
    path = home / KEYS_FILE
    try:
        if not path.exists():
            code = "".join(secrets.choice(JOIN_CODE_ALPHABET) for _ in range(6))
            new_keys = {"key": secrets.token_hex(32), "operator": secrets.token_urlsafe(18), "code": code}
            home.mkdir(parents=True, exist_ok=True)
            temp_path = path.with_name(f"{path.name}.{new_keys['key'][:8]}")
            with os.fdopen(os.open(temp_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                json.dump(new_keys, file)
            temp_path.replace(path)  # never half a file, whenever this ends
        keys = json.loads(path.read_text(encoding="utf-8"))
        return {name: str(keys[name]) for name in ("key", "operator", "code")}
    except (OSError, ValueError, KeyError) as error:
        raise StoreError(
            f"{path} cannot be used ({error}). Delete it to get a new join code and operator's link; people join again."
        ) from error
