"""Identifies visitors by a signed cookie; their role is checked in Python before every event.

Local lab (this computer's own address): every visitor is the operator, without any login.
Multi-user lab (other addresses):
    operator    enters by a secret link
    labeller    enters by the join code and a name; or, where labelling is open to all, gets a random name with the page
    viewer      everybody else
    People listed in a password file enter under their names, and nobody else can.

The login cookie is set at a login page; the page cookie holds the random name. Both are signed together with the time of signing
and expire a month later; the lab checks this, not only the browser. A new signing key or operator's secret invalidates them.
Logging out ends the session that a login cookie names. The login cookie also holds a fingerprint of the password, or of the join
code and the time of joining, and becomes invalid when one of them changes. Names are not secret (the screen People shows them),
so a multi-user lab accepts only names that it signed.
The signing key, the operator's secret and the join code are kept in the home, readable by its owner only.
"""

import hashlib
import hmac
import json
import os
import secrets
import threading
import time
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from itsdangerous import BadData, URLSafeTimedSerializer

from rlhf_lab.common.atomic import write_file_atomically
from rlhf_lab.common.paths import ACCESS_FILE, ENDED_SESSIONS_FILE
from rlhf_lab.common.private_files import make_private_folder
from rlhf_lab.common.records import Role
from rlhf_lab.errors import StoreError
from rlhf_lab.store.annotators import VISITOR_PREFIX
from rlhf_lab.ui.auth.ended_sessions import EndedSessions
from rlhf_lab.ui.auth.failed_attempts import FailedAttemptLimiter
from rlhf_lab.ui.auth.password_file import PasswordEntry
from rlhf_lab.ui.network import is_foreign_origin, network_of

COOKIE_PREFIX = "rlhf_lab_visitor"
#: How long a cookie is valid after it was signed: a month.
COOKIE_MAX_AGE_S = 30 * 86_400
JOIN_CODE_ENV_VAR = "RLHF_LAB_JOIN_CODE"
OPERATORS_ENV_VAR = "RLHF_LAB_OPERATORS"
#: Letters and digits that are not confused with each other when a code is read aloud.
JOIN_CODE_ALPHABET = "ABCDEFGHJKMNPQRSTUVWXYZ23456789"


class Request(Protocol):
    """The parts of a request that are used; Gradio's and Starlette's requests both have them."""

    @property
    def cookies(self) -> Any: ...
    @property
    def headers(self) -> Any: ...


@dataclass(frozen=True)
class Visitor:
    """A visitor. name: "" on a local lab, where the browser chooses the name, and for viewers."""

    role: Role
    name: str = ""

    @property
    def registered_name(self) -> str:
        """The name under which they logged in; "" for visitors with a random name or none."""
        return "" if self.name.startswith(VISITOR_PREFIX) else self.name


@dataclass
class JoinCode:
    """The code that labellers join with; "" if there is none. path: the file that keeps it; None if it cannot be renewed.
    failures: wrong codes, wherever they were entered."""

    value: str = ""
    path: Path | None = None
    failures: FailedAttemptLimiter = field(
        default_factory=lambda: FailedAttemptLimiter("join codes"), repr=False, compare=False
    )
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def renew(self) -> None:
        """Choose another code. All who joined with the old one have to join again. Raises StoreError."""
        if self.path is None:
            raise StoreError(
                f"The join code of this lab comes from {JOIN_CODE_ENV_VAR}. Change it there and restart the lab."
            )
        with self.lock:
            keys = _load_or_create_keys(self.path.parent) | {"code": _random_code()}
            try:
                write_file_atomically(self.path, json.dumps(keys), mode=0o600)
            except OSError as error:
                raise StoreError(f"The join code was not changed: {error.strerror or error}.") from error
            self.value = keys["code"]


@dataclass(frozen=True)
class Access:
    """How visitors are identified.

    default_role: the role of a visitor without a cookie. public_url: where a proxy serves the lab (`--url`); "" without one.
    joined_at: returns when the person of a name joined, None if nobody has that name (any more); without this function every
    signed name is accepted. ended_sessions: sessions that were ended by logging out.
    """

    default_role: Role = Role.OPERATOR
    key: bytes = b""
    operator_secret: str = ""
    code: JoinCode = field(default_factory=JoinCode)
    public_url: str = ""
    password_entries: Mapping[str, PasswordEntry] = field(default_factory=dict)
    joined_at: Callable[[str], float | None] | None = None
    ended_sessions: EndedSessions = field(default_factory=EndedSessions, compare=False)

    @property
    def join_code(self) -> str:
        return self.code.value

    @property
    def is_multi_user(self) -> bool:
        return self.default_role is not Role.OPERATOR

    def visitor(self, request: Request | None) -> Visitor:
        """The visitor who sent a request. Cookies are used only in requests from our own pages, so that pages of other sites
        cannot act for a visitor."""
        if request is None or not self.key or self.is_cross_site(request):
            return Visitor(self.default_role)
        for cookie_name in (self.login_cookie_name, self.page_cookie_name):
            if (visitor := self._visitor_from_token(request.cookies.get(cookie_name) or "")) is not None:
                return visitor if visitor.role.at_least(self.default_role) else Visitor(self.default_role, visitor.name)
        return Visitor(self.default_role)

    @property
    def login_cookie_name(self) -> str:
        """The name of the login cookie; different for each lab, because a browser sends cookies to every port of a computer."""
        return f"{COOKIE_PREFIX}_entered_{self._key_digest}"

    @property
    def page_cookie_name(self) -> str:
        """The name of the page cookie, which holds a random annotator name."""
        return f"{COOKIE_PREFIX}_{self._key_digest}"

    @property
    def _key_digest(self) -> str:
        return hashlib.sha256(self.key).hexdigest()[:8]

    def anonymous_cookie(self, request: Request) -> str:
        """The page cookie of a visitor who may label without logging in, with their random name or a new one; "" for all others.

        The role in it is viewer, so that its owner may label only as long as labelling is open to all.
        """
        visitor = self.visitor(request)
        if not self.is_multi_user or not visitor.role.at_least(Role.LABELLER) or visitor.registered_name:
            return ""
        return self.cookie_value(Visitor(Role.VIEWER, visitor.name or f"{VISITOR_PREFIX}{secrets.token_hex(6)}"))

    def name_from_token(self, token: object) -> str:
        """The random name in a page cookie that the page sends as a token, for browsers that store no cookies; "" if invalid."""
        visitor = self._visitor_from_token(token) if isinstance(token, str) else None
        return visitor.name if visitor is not None and not visitor.registered_name else ""

    def cookie_value(self, visitor: Visitor) -> str:
        """The value of a login cookie that starts a session of the visitor."""
        session = secrets.token_hex(8)
        return self.sign([visitor.role.value, visitor.name, self._fingerprint(visitor), session], COOKIE_PREFIX)

    def end_session(self, request: Request) -> None:
        """End the session of the request's login cookie, also for copies of the cookie. A page cookie is not
        listed, because everybody gets as many as they want. Raises StoreError if that cannot be recorded."""
        values = self.verify(request.cookies.get(self.login_cookie_name) or "", COOKIE_PREFIX)
        if values is None:
            return
        role, name, _, session = values
        visitor = Visitor(Role(role), name)
        if visitor.registered_name or visitor.role.at_least(Role.LABELLER):
            self.ended_sessions.add(session, name, COOKIE_MAX_AGE_S)

    def sign(self, values: list[str], purpose: str) -> str:
        """A token that a browser can keep; `verify` accepts it for the same purpose."""
        return str(self._serializer(purpose).dumps(values))

    def verify(self, token: str, purpose: str, max_age_s: float = COOKIE_MAX_AGE_S) -> list[str] | None:
        """The signed values; None for an invalid token, or one that was signed more than max_age_s seconds ago."""
        verified = self._verify(token, purpose, max_age_s)
        return verified and verified[0]

    def _verify(self, token: str, purpose: str, max_age_s: float) -> tuple[list[str], float] | None:
        """As `verify`, with the time of signing (whole seconds since 1970)."""
        if not token.isascii():
            return None
        try:
            values, signed_at = self._serializer(purpose).loads(token, return_timestamp=True)
        except BadData:
            return None
        # `loads(max_age=…)` would also refuse a token from the future: after the clock was set back, nobody could log in.
        at = signed_at.timestamp()
        return (list(values), at) if time.time() - at <= max_age_s else None

    def _serializer(self, purpose: str) -> URLSafeTimedSerializer:
        return URLSafeTimedSerializer(
            self.key, self._salt(purpose), signer_kwargs={"key_derivation": "hmac", "digest_method": hashlib.sha256}
        )

    def _salt(self, purpose: str) -> str:
        """Contains the operator's secret, so that a new one invalidates old tokens."""
        return f"{purpose}|{self.operator_secret}"

    def _visitor_from_token(self, token: str) -> Visitor | None:
        verified = self._verify(token, COOKIE_PREFIX, COOKIE_MAX_AGE_S)
        if verified is None:
            return None
        (role, name, fingerprint, session), signed_at = verified
        visitor = Visitor(Role(role), name)
        if self.ended_sessions.has(session, name, signed_at) or not hmac.compare_digest(
            fingerprint, self._fingerprint(visitor)
        ):
            return None
        if (entry := self.password_entries.get(name)) is not None:
            return Visitor(entry.role, name)  # the present role in the file
        is_unknown_labeller = (
            visitor.role is Role.LABELLER and self.joined_at and visitor.registered_name and not fingerprint
        )
        return None if is_unknown_labeller else visitor

    def _fingerprint(self, visitor: Visitor) -> str:
        """A value in the login cookie that depends on the password, or on the join code and the time of joining; "" if there is
        neither.

        It invalidates the cookie of an erased person when another person joins under the same name.
        """
        if (entry := self.password_entries.get(visitor.name)) is not None:
            basis = f"{entry.name}:{entry.password}"
        elif (
            self.joined_at
            and visitor.role is Role.LABELLER
            and visitor.registered_name
            and (joined_at := self.joined_at(visitor.name)) is not None
        ):
            basis = f"{self.join_code}|{visitor.name}|{joined_at!r}"
        else:
            return ""
        return hmac.new(self.key, f"{self._salt('fingerprint')}|{basis}".encode(), hashlib.sha256).hexdigest()

    def is_cross_site(self, request: Request) -> bool:
        """Whether a page of another origin sent the request."""
        return is_foreign_origin(request.headers, self.public_url)

    def client_address(self, request: Any) -> str:
        """The address for which failed attempts are counted. X-Forwarded-For is used only with `--url`, that is behind a proxy;
        otherwise a client could send any address in it."""
        client = getattr(request, "client", None)
        peer = client.host if client is not None else ""
        forwarded = ",".join(request.headers.getlist("x-forwarded-for")) if self.public_url else ""
        return network_of(forwarded.rpartition(",")[2].strip() or peer)


def secrets_equal(candidate: str, expected: str) -> bool:
    """Compare in constant time. An empty `expected` is never equal."""
    return bool(expected) and hmac.compare_digest(candidate.encode("utf-8", "surrogatepass"), expected.encode())


def is_join_code(typed: str, code: str) -> bool:
    """Whether a person typed the join code `code`: without regard to case, width and script of digits, spaces, hyphens and
    other separators. An empty `code` is never equal."""
    return secrets_equal(_normalized_code(typed), _normalized_code(code))


def _normalized_code(text: str) -> str:
    """Without punctuation, white space and invisible characters, unless nothing else is left: a home may have chosen "!!!"."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    kept = "".join(
        str(unicodedata.decimal(character, character)) for character in folded
        if unicodedata.category(character)[0] not in "ZPC"
    )  # fmt: skip
    return kept or text.strip()


def operator_accounts(environment: Mapping[str, str]) -> frozenset[str]:
    """The accounts of an OAuth provider that enter as the operator, in lower case: the Space's owner and RLHF_LAB_OPERATORS."""
    names = (*environment.get(OPERATORS_ENV_VAR, "").split(","), environment.get("SPACE_AUTHOR_NAME", ""))
    return frozenset(name.strip().lower() for name in names) - {""}


#: A lab that only its own computer reaches.
LOCAL_ACCESS = Access()


def multi_user_access(
    home: Path,
    *,
    open_to_all: bool,
    operator_secret: str | None = None,
    password_entries: Mapping[str, PasswordEntry] | None = None,
    joined_at: Callable[[str], float | None] | None = None,
) -> Access:
    """The access of a lab that other computers can reach. open_to_all: labelling needs no code.

    The join code is RLHF_LAB_JOIN_CODE, or one kept in the home. Raises StoreError if the home cannot be written.
    """
    keys, chosen_code = _load_or_create_keys(home), os.environ.get(JOIN_CODE_ENV_VAR)
    return Access(
        default_role=Role.LABELLER if open_to_all else Role.VIEWER,
        key=bytes.fromhex(keys["key"]),
        operator_secret=operator_secret or keys["operator"],
        code=JoinCode(chosen_code) if chosen_code else JoinCode(keys["code"], home / ACCESS_FILE),
        password_entries=password_entries or {},
        joined_at=joined_at,
        ended_sessions=EndedSessions(home / ENDED_SESSIONS_FILE),
    )


def lab_key(home: Path) -> bytes:
    """The lab's signing key, also that of a lab that only its own computer reaches. Raises StoreError."""
    return bytes.fromhex(_load_or_create_keys(home)["key"])


def _random_code() -> str:
    return "".join(secrets.choice(JOIN_CODE_ALPHABET) for _ in range(6))


def _load_or_create_keys(home: Path) -> dict[str, str]:
    path = home / ACCESS_FILE
    try:
        if not path.exists():
            new_keys = {"key": secrets.token_hex(32), "operator": secrets.token_urlsafe(18), "code": _random_code()}
            make_private_folder(home)
            write_file_atomically(path, json.dumps(new_keys), mode=0o600)
        keys = json.loads(path.read_text(encoding="utf-8"))
        return {name: str(keys[name]) for name in ("key", "operator", "code")}
    except (OSError, ValueError, KeyError) as error:
        raise StoreError(
            f"{path} cannot be used ({error}). Delete it to get a new join code and operator's link; everybody has "
            "to join again."
        ) from error
