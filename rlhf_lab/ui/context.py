"""What every screen needs: the home, the store, and who may do what."""

import functools
import hmac
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from urllib.parse import urlsplit

from gradio.context import LocalContext

from rlhf_lab.common.records import Project
from rlhf_lab.config.labelling import Role
from rlhf_lab.errors import NotAllowedError
from rlhf_lab.jobs.project_setup import pick_project
from rlhf_lab.store.annotators import joined_at
from rlhf_lab.store.database import Database
from rlhf_lab.ui.auth.password_file import PasswordEntry
from rlhf_lab.ui.auth.visitors import LOCAL_ACCESS, Access, Visitor, multi_user_access

P = ParamSpec("P")
T = TypeVar("T")
OPERATOR_SECRET_ENV_VAR = "RLHF_LAB_OPERATOR_SECRET"


@dataclass(frozen=True)
class Context:
    """One page server. operator_secret: None where everybody at the page is its operator (a laptop).

    address: how others reach it; "" where they do not, and on a Space. proxied: it is a proxy's that stands before the lab.
    """

    home: Path
    db: Database
    operator_secret: str | None = None
    on_space: bool = False
    access: Access = LOCAL_ACCESS
    public_url: str = ""
    behind_proxy: bool = False

    @classmethod
    def open(cls, home: Path) -> "Context":
        """The home's store; on a Space the operator's secret comes from the environment ("" refuses everybody)."""
        on_space = bool(os.environ.get("SPACE_ID"))
        secret = os.environ.get(OPERATOR_SECRET_ENV_VAR, "") if on_space else os.environ.get(OPERATOR_SECRET_ENV_VAR)
        return cls(home, Database.open(home), secret, on_space)

    def as_multi_user(
        self, *, open_to_all: bool, password_entries: Mapping[str, PasswordEntry] | None = None
    ) -> "Context":
        """The same lab for an address that others reach: visitors have roles. people: who enters by a password. StoreError."""
        access = multi_user_access(
            self.home, open_to_all=open_to_all, operator_secret=self.operator_secret, password_entries=password_entries,
            joined_at=functools.partial(joined_at, self.db),
        )  # fmt: skip
        if self.behind_proxy:
            access = replace(access, host=urlsplit(self.public_url).netloc)
        return replace(self, access=access, operator_secret=access.operator_secret)

    @property
    def project(self) -> Project:
        """The project that the page shows: the one opened last."""
        return pick_project(self.db, None)

    def visitor(self, request: Any = None) -> Visitor:
        """Who sent a request, else who asked for what is being done now; the operator where nobody has to say who they are."""
        return self.access.visitor(LocalContext.request.get(None) if request is None else request)

    def annotator_name(self, claimed_name: object) -> str:
        """The annotator that asks; "" where nobody knows. said: what their page sends, which counts as it stands on a lab of
        one's own alone."""
        if not self.access.is_multi_user:
            return str(claimed_name or "").strip()
        return self.visitor().name or self.access.name_from_token(claimed_name)

    def is_operator(self, request: Any = None) -> bool:
        """Whether the visitor entered as the operator, or none is asked for: who may do everything without the secret."""
        return self.operator_secret is None or (
            self.access.is_multi_user and self.visitor(request).role is Role.OPERATOR
        )

    def require_operator(self, secret: str | None) -> None:
        """Raises NotAllowedError unless the visitor `is_operator` or gives the operator's secret."""
        if not self.is_operator() and not self._is_secret(secret):
            raise NotAllowedError(
                "Only the operator may do this. Open the operator's link that was printed when the lab was started, or enter "
                f"the operator's secret under Project; it is the value of {OPERATOR_SECRET_ENV_VAR} where the lab runs."
            )

    def is_operator_with_secret(self, secret: str | None) -> bool:
        """Whether `require_operator` lets the visitor pass; never whoever may only look, whose events end before that."""
        return self.is_operator() or (self.visitor().role.at_least(Role.LABELLER) and self._is_secret(secret))

    def _is_secret(self, candidate: str | None) -> bool:
        secret = self.operator_secret
        return bool(secret) and hmac.compare_digest((candidate or "").encode(), (secret or "").encode())

    def require_labeller(self) -> None:
        """Raises NotAllowedError for a visitor who may only look."""
        if not self.visitor().role.at_least(Role.LABELLER):
            raise NotAllowedError("You may look at this lab. To label, enter with the join code: open the page /join.")
