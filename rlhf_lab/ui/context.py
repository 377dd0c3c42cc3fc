"""The state that all screens share: the home, the database, the visitors and their rights."""

import contextlib
import functools
import hashlib
import hmac
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from rlhf_lab.common.person_names import normalize_name
from rlhf_lab.common.records import Project, Role, Run
from rlhf_lab.common.text import cut_middle
from rlhf_lab.common.timed_cache import TimedCache
from rlhf_lab.config.demo import DemoConfig
from rlhf_lab.errors import LabelError, LabError, NotAllowedError, StoreError
from rlhf_lab.jobs.demo import Demo
from rlhf_lab.jobs.hub_download import ModelDownloader
from rlhf_lab.jobs.instant_reward import InstantReward
from rlhf_lab.jobs.mirror_control import MirrorControl
from rlhf_lab.jobs.project_setup import pick_project
from rlhf_lab.jobs.scheduler import Scheduler
from rlhf_lab.jobs.startup_project import StartupProject
from rlhf_lab.store.annotators import MAX_PERSON_NAME_CHARS, OPERATOR_NAME, joined_at
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import projects
from rlhf_lab.store.runs import get_run
from rlhf_lab.ui.auth.api_clients import ApiClients
from rlhf_lab.ui.auth.password_file import PasswordEntry
from rlhf_lab.ui.auth.visitors import (
    LOCAL_ACCESS,
    Access,
    Visitor,
    lab_key,
    multi_user_access,
    operator_accounts,
    secrets_equal,
)
from rlhf_lab.ui.gradio_patches import current_request
from rlhf_lab.ui.limits import LeaseLimiter
from rlhf_lab.ui.locations import MAX_MESSAGE_CHARS, without_known_locations, without_locations

#: Header of the page's requests with the operator's secret, percent-encoded, from a browser that stores it (screen Project).
OPERATOR_HEADER = "x-lab-operator"
LOCATIONS_S = 60.0
OPERATOR_SECRET_ENV_VAR = "RLHF_LAB_OPERATOR_SECRET"
NOT_OPERATOR_MESSAGE = (
    "Only the operator may do this. Open the operator's link that was printed when the lab was started, or enter the operator's "
    f"secret under Project; it is the value of {OPERATOR_SECRET_ENV_VAR} where the lab runs."
)


def sent_secret(request: Any = None) -> str:
    """The operator's secret that a request contains, or if None, the current one; "" without one."""
    request = current_request() if request is None else request
    return unquote(request.headers.get(OPERATOR_HEADER) or "") if request is not None else ""


@dataclass(frozen=True)
class Context:
    """The shared state of one page server.

    operator_secret: None if every visitor is the operator (a laptop). public_url: the address by which others reach the lab;
    "" if they do not, and on a Space. behind_proxy: public_url is that of a proxy in front of the lab.
    in_container: others reach the lab at an address of its computer, which it does not know. demo: None without demo
    mode. job_addresses: the addresses from which unfinished short jobs came, by job. downloads: model downloads, one at a time.
    startup: opens the project that a Space's variables name; None elsewhere. settings_problem: what is wrong with the other
    variables of a Space, as shown on the page; "" if nothing is. mirror: the copy of the lab on the Hub; None if the page never
    has one.
    """

    home: Path
    db: Database
    operator_secret: str | None = None
    on_space: bool = False
    access: Access = LOCAL_ACCESS
    public_url: str = ""
    behind_proxy: bool = False
    in_container: bool = False
    demo: Demo | None = None
    downloads: ModelDownloader = field(default_factory=ModelDownloader)
    api_clients: ApiClients = field(default_factory=ApiClients)
    lease_limiter: LeaseLimiter = field(default_factory=LeaseLimiter)
    job_addresses: dict[int, str] = field(default_factory=dict)
    startup: StartupProject | None = None
    settings_problem: str = ""
    mirror: MirrorControl | None = None
    cache: TimedCache = field(init=False, default_factory=TimedCache)

    @classmethod
    def open(cls, home: Path) -> "Context":
        """Open the home's database. On a Space without an operator's secret ("") nobody is the operator."""
        on_space = bool(os.environ.get("SPACE_ID"))
        secret = os.environ.get(OPERATOR_SECRET_ENV_VAR, "") if on_space else os.environ.get(OPERATOR_SECRET_ENV_VAR)
        return cls(home, Database.open(home), secret, on_space)

    def as_multi_user(
        self, *, open_to_all: bool, password_entries: Mapping[str, PasswordEntry] | None = None
    ) -> "Context":
        """The same lab at an address that other computers reach, where visitors have roles. Raises StoreError."""
        access = multi_user_access(
            self.home, open_to_all=open_to_all, operator_secret=self.operator_secret, password_entries=password_entries,
            joined_at=functools.partial(joined_at, self.db),
        )  # fmt: skip
        if self.behind_proxy:
            access = replace(access, public_url=self.public_url)
        return replace(self, access=access, operator_secret=access.operator_secret)

    def with_demo(self, config: DemoConfig) -> "Context":
        """The same multi-user lab in demo mode. Raises StoreError."""
        operators = {OPERATOR_NAME} | {f"@{name}" for name in operator_accounts(os.environ)}
        operators |= {entry.name for entry in self.access.password_entries.values() if entry.role is Role.OPERATOR}
        return replace(self, demo=Demo(self.home, self.db, config, operators))

    @functools.cached_property
    def scheduler(self) -> Scheduler:
        """The background work of the page's process, started by app.py. `dataclasses.replace` of a context creates another."""
        return Scheduler(self.home, self.db, self.demo)

    @functools.cached_property
    def instant_reward(self) -> InstantReward:
        """The reward model that learns from every vote, in the page's process. Started by app.py."""
        return InstantReward(self.db)

    @functools.cached_property
    def _key(self) -> bytes:
        return self.access.key or lab_key(self.home)

    def blind_digest(self, *parts: str | int) -> bytes:
        """32 bytes that depend on all parts and that only this lab can compute. Every side, id and token of a blind comparison is
        made from them, so that none reveals what is hidden, whatever a visitor tries out."""
        return hmac.new(self._key, f"blind/{json.dumps(parts)}".encode(), hashlib.sha256).digest()

    def blind_side(self, *parts: str | int) -> bool:
        """Whether the first text is on the left: the same after a reload, and unpredictable without the lab's key."""
        return self.blind_digest("side", *parts)[0] % 2 == 0

    def blind_token(self, *parts: str | int) -> str:
        """Names what is on a person's screen."""
        return self.blind_digest("token", *parts)[:16].hex()

    @property
    def project(self) -> Project:
        """The project that was opened last."""
        return pick_project(self.db, None)

    def run(self, run_id: int) -> Run:
        """A run of the open project, also one that was made elsewhere. Raises StoreError for any other run, in the same words as
        for none: the page does not show which runs other projects have."""
        with contextlib.suppress(StoreError):
            run = get_run(self.db, run_id, made_elsewhere=True)
            if run.project_id == self.project.id:
                return run
        raise StoreError(
            f"Run {run_id} is not in the open project: it was deleted, or another project has been opened."
        )

    def visitor(self, request: Any = None) -> Visitor:
        """The visitor who sent the request, or if None, the event that is being handled."""
        return self.access.visitor(current_request() if request is None else request)

    def client_address(self) -> str:
        """The address from which the current event was sent; "" outside of an event."""
        request = current_request()
        return "" if request is None else self.access.client_address(request)

    def annotator_name(self, claimed_name: object) -> str:
        """The visitor's annotator name; "" if unknown. claimed_name: the name that their page sends, which is used only on a
        local lab."""
        if not self.access.is_multi_user:
            return str(claimed_name or "").strip()
        return self.visitor().name or self.access.name_from_token(claimed_name)

    def require_annotator(self, claimed_name: object) -> str:
        """The visitor's annotator name. Raises LabelError if it is unknown or invalid."""
        name = self.annotator_name(claimed_name)
        if (
            not normalize_name(name)
            or len(name) > MAX_PERSON_NAME_CHARS
            or not name.isprintable()
            or name.startswith(("judge:", "api:"))
        ):
            raise LabelError("This page has no usable name for you; reload it.")
        return name

    def annotator_or_empty(self, claimed_name: object) -> str:
        """As `require_annotator`, but "" for a viewer."""
        return self.require_annotator(claimed_name) if self.is_labeller() else ""

    def is_labeller(self, request: Any = None) -> bool:
        return self.visitor(request).role.at_least(Role.LABELLER)

    def is_operator(self, request: Any = None) -> bool:
        """Whether the visitor is logged in as the operator or sends the operator's secret, or the lab has none. A viewer with the
        secret first has to log in with the operator's link."""
        if self.operator_secret is None or (self.access.is_multi_user and self.visitor(request).role is Role.OPERATOR):
            return True
        return self._is_secret(sent_secret(request)) and self.is_labeller(request)

    def require_operator(self) -> None:
        """Raises NotAllowedError unless the visitor `is_operator`."""
        if not self.is_operator():
            raise NotAllowedError(NOT_OPERATOR_MESSAGE)

    def check_secret(self, candidate: str) -> None:
        """Raises NotAllowedError unless this is the operator's secret."""
        if not self._is_secret(candidate):
            raise NotAllowedError(NOT_OPERATOR_MESSAGE)

    def _is_secret(self, candidate: str) -> bool:
        return secrets_equal(candidate, self.operator_secret or "")

    def message_for_visitor(self, error: Exception | str) -> str:
        """The message of an error, shortened. Only the operator reads where things are on the server; the log has the whole
        message."""
        if not self.is_operator():
            return without_locations(str(error), self._locations)
        return cut_middle(str(error), MAX_MESSAGE_CHARS)

    def reply_for_visitor(self, body: bytes) -> bytes:
        """The JSON of a reply, without the locations of this lab unless the visitor is the operator."""
        return body if self.is_operator() else without_known_locations(body, self._locations)

    @property
    def _locations(self) -> list[str]:
        """The folders of the lab and of its models, and its database."""

        def read() -> list[str]:
            models = [project.model for project in projects(self.db) if Path(project.model).is_absolute()]
            return [str(self.home), str(self.home.resolve()), self.db.location, *models]

        try:
            return self.cache.get("locations", LOCATIONS_S, read)
        except LabError:  # the database is lost: the message says so
            return [str(self.home), str(self.home.resolve()), self.db.location]

    def require_labeller(self) -> None:
        """Raises NotAllowedError for a viewer."""
        if not self.is_labeller():
            raise NotAllowedError(
                "You can only view this lab. To label, log in with the join code: open the page /join."
            )
