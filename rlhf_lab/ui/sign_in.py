"""The third door of a guarded lab: sign in with Hugging Face, on a Space whose settings say `hf_oauth: true`.

Authorization code flow with PKCE (RFC 6749 §4.1, RFC 7636). Only the account's name is read; no token is kept. Whoever owns
the Space, or is named in RLHF_LAB_OPERATORS, enters as the operator; everybody else as a labeller called @account.
"""

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2 as httpx
from authlib.integrations.httpx_client import AsyncOAuth2Client, OAuthError
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from rlhf_lab.errors import LabError
from rlhf_lab.labelling import Role
from rlhf_lab.store.database import Database
from rlhf_lab.store.people import account
from rlhf_lab.ui.access import Access, Visitor
from rlhf_lab.ui.doorway import HEADERS, form, give_cookie, let_in

STATE = "rlhf_lab_sign_in"
MINUTES_10 = 600
PATIENCE_S = 15.0
OPERATORS_VARIABLE = "RLHF_LAB_OPERATORS"
CALLBACK = "login/callback"


@dataclass(frozen=True)
class Provider:
    """Where people sign in. transport: what carries the requests to it; the network unless a test says otherwise."""

    url: str
    client_id: str
    client_secret: str
    scopes: str
    host: str
    operators: frozenset[str]
    transport: httpx.AsyncBaseTransport | None = field(default=None, compare=False)

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Provider | None":
        """As a Space with OAuth sets its variables; None elsewhere."""
        needed = [
            environment.get(name, "")
            for name in ("OPENID_PROVIDER_URL", "OAUTH_CLIENT_ID", "OAUTH_CLIENT_SECRET", "SPACE_HOST")
        ]
        if not all(needed):
            return None
        url, client_id, client_secret, host = needed
        named = environment.get(OPERATORS_VARIABLE, "").split(",")
        operators = {name.strip().lower() for name in (*named, environment.get("SPACE_AUTHOR_NAME", ""))} - {""}
        scopes = environment.get("OAUTH_SCOPES") or "openid profile"
        return cls(url.rstrip("/"), client_id, client_secret, scopes, host.split(",")[0].strip(), frozenset(operators))

    def client(self) -> AsyncOAuth2Client:
        return AsyncOAuth2Client(
            self.client_id, self.client_secret, scope=self.scopes, redirect_uri=f"https://{self.host}/{CALLBACK}",
            code_challenge_method="S256", timeout=PATIENCE_S, transport=self.transport,
        )  # fmt: skip

    async def endpoints(self, client: AsyncOAuth2Client) -> dict[str, Any]:
        found = await client.request("GET", f"{self.url}/.well-known/openid-configuration", withhold_token=True)
        found.raise_for_status()
        said: dict[str, Any] = found.json()
        return said


def configured() -> Provider | None:
    return Provider.of(os.environ)


def sign_in(db: Database, access: Access, provider: Provider) -> list[BaseRoute]:
    """The routes that send a visitor to the provider and take them back."""

    async def leave(_: Request) -> Response:
        state, verifier = secrets.token_urlsafe(24), secrets.token_urlsafe(48)
        try:
            async with provider.client() as client:
                where = (await provider.endpoints(client))["authorization_endpoint"]
                url, _ = client.create_authorization_url(where, state=state, code_verifier=verifier)
        except (httpx.HTTPError, OAuthError, KeyError, ValueError) as error:
            return _failed(error)
        answer = RedirectResponse(url, status_code=303, headers=HEADERS)
        give_cookie(answer, STATE, access.seal([STATE, state, verifier]), MINUTES_10, https=True)
        return answer

    async def arrive(request: Request) -> Response:
        kept = access.unseal(request.cookies.get(STATE) or "") or []
        said = request.query_params
        if len(kept) != 3 or kept[0] != STATE or not secrets.compare_digest(kept[1], said.get("state", "")):
            return _again("This sign-in has ended or began in another browser. Sign in again.", 403)
        if "code" not in said:
            return _again("You were not signed in: Hugging Face says no. Sign in again, or use the code.", 403)
        try:
            name = await _account(provider, said["code"], kept[2])
        except (httpx.HTTPError, OAuthError, KeyError, ValueError) as error:
            return _failed(error)
        try:
            person = account(db, name)
        except LabError as error:
            return _again(str(error), 400)
        role = Role.OPERATOR if name.lower() in provider.operators else Role.LABELLER
        answer = let_in(request, access, Visitor(role, person.name), "../")
        answer.delete_cookie(STATE)
        return answer

    return [Route("/login/huggingface", leave, methods=["GET"]), Route(f"/{CALLBACK}", arrive, methods=["GET"])]


async def _account(provider: Provider, code: str, verifier: str) -> str:
    """The name of the account that the code stands for. The token is forgotten at the end."""
    async with provider.client() as client:
        where = await provider.endpoints(client)
        await client.fetch_token(where["token_endpoint"], code=code, code_verifier=verifier)
        found = await client.get(where["userinfo_endpoint"])
        found.raise_for_status()
        return str(found.json()["preferred_username"])


def _failed(error: Exception) -> Response:
    """What a provider that cannot be reached, or answers nonsense, looks like to the person."""
    return _again(
        f"Hugging Face could not be asked who you are ({type(error).__name__}). Try again in a minute, or use the join code.",
        502,
    )


def _again(problem: str, status: int) -> Response:
    return form("", problem, status, sign_in=True, up="../")
