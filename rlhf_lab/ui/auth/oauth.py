"""Login with a Hugging Face account, on a Space whose settings say `hf_oauth: true`.

Authorization code flow with PKCE (RFC 6749 §4.1, RFC 7636). Only the account's name is read; no token is kept. The owner of
the Space, and those named in RLHF_LAB_OPERATORS, enter as the operator; everybody else as a labeller called @account.
"""

import asyncio
import secrets
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import httpx2 as httpx
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.httpx_client import AsyncOAuth2Client
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from rlhf_lab.common.records import Role
from rlhf_lab.errors import LabError
from rlhf_lab.store.annotators import get_or_add_account
from rlhf_lab.store.database import Database
from rlhf_lab.ui.auth.login_pages import SECURITY_HEADERS, join_form_page, login_redirect, set_cookie
from rlhf_lab.ui.auth.visitors import Access, Visitor, operator_accounts, secrets_equal
from rlhf_lab.ui.locations import without_locations

STATE_COOKIE = "rlhf_lab_sign_in"
STATE_COOKIE_MAX_AGE_S = 600
TIMEOUT_S = 15.0  # for all requests of one step together
MAX_REPLY_BYTES = 64_000
#: The provider cannot be reached, refuses, or sends an invalid reply.
PROVIDER_ERRORS = (
    httpx.HTTPError, httpx.InvalidURL, AuthlibBaseError, AttributeError, LookupError, RecursionError, TimeoutError, TypeError,
    ValueError,
)  # fmt: skip
CALLBACK_PATH = "login/callback"


@dataclass(frozen=True)
class OAuthProvider:
    """The provider at which people sign in. transport: sends the requests to it; None for the network."""

    url: str
    client_id: str
    client_secret: str
    scopes: str
    host: str
    operators: frozenset[str]
    transport: httpx.AsyncBaseTransport | None = field(default=None, compare=False)

    @classmethod
    def from_env(cls, environment: Mapping[str, str]) -> "OAuthProvider | None":
        """From the variables that a Space with OAuth sets; None elsewhere."""
        required_values = [
            environment.get(name, "")
            for name in ("OPENID_PROVIDER_URL", "OAUTH_CLIENT_ID", "OAUTH_CLIENT_SECRET", "SPACE_HOST")
        ]
        if not all(required_values):
            return None
        url, client_id, client_secret, host = required_values
        scopes = environment.get("OAUTH_SCOPES") or "openid profile"
        return cls(
            url.rstrip("/"),
            client_id,
            client_secret,
            scopes,
            host.split(",")[0].strip(),
            operator_accounts(environment),
        )

    def client(self) -> AsyncOAuth2Client:
        return AsyncOAuth2Client(
            self.client_id, self.client_secret, scope=self.scopes, redirect_uri=f"https://{self.host}/{CALLBACK_PATH}",
            code_challenge_method="S256", timeout=TIMEOUT_S, headers={"Accept-Encoding": "identity"},
            transport=BoundedTransport(self.transport or httpx.AsyncHTTPTransport(verify=tls_context())),
        )  # fmt: skip

    async def fetch_endpoints(self, client: AsyncOAuth2Client, *names: str) -> list[str]:
        """URLs from the provider's metadata. Raises ValueError for URLs of another site, which would receive the secret."""
        response = await client.request("GET", f"{self.url}/.well-known/openid-configuration", withhold_token=True)
        response.raise_for_status()
        metadata: dict[str, Any] = response.json()
        endpoints = [metadata[name] for name in names]
        if not all(isinstance(endpoint, str) and endpoint.startswith(f"{self.url}/") for endpoint in endpoints):
            raise ValueError("an address of the provider is on another site")
        return endpoints


@cache
def tls_context() -> ssl.SSLContext:
    """Reads the certificates once: that takes 50 ms of the thread that answers everybody."""
    return httpx.create_ssl_context()


class BoundedTransport(httpx.AsyncBaseTransport):
    """Refuses replies that are longer than MAX_REPLY_BYTES, compressed, or redirections."""

    def __init__(self, transport: httpx.AsyncBaseTransport) -> None:
        self._transport = transport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self._transport.handle_async_request(request)
        if response.is_redirect or response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise httpx.RequestError("the reply is a redirection, or compressed", request=request)
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = BoundedStream(response.stream)
        return response

    async def aclose(self) -> None:
        await self._transport.aclose()


class BoundedStream(httpx.AsyncByteStream):
    def __init__(self, stream: httpx.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        count = 0
        async for chunk in self._stream:
            count += len(chunk)
            if count > MAX_REPLY_BYTES:
                raise httpx.ReadError("the reply is too long")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


def oauth_routes(db: Database, access: Access, provider: OAuthProvider) -> list[BaseRoute]:
    """The routes that send a visitor to the provider and take them back."""

    async def login_endpoint(_: Request) -> Response:
        state, verifier = secrets.token_urlsafe(24), secrets.token_urlsafe(48)
        try:
            async with asyncio.timeout(TIMEOUT_S), provider.client() as client:
                (authorization_endpoint,) = await provider.fetch_endpoints(client, "authorization_endpoint")
                url, _ = client.create_authorization_url(authorization_endpoint, state=state, code_verifier=verifier)
        except PROVIDER_ERRORS as error:
            return _provider_error_page(error)
        response = RedirectResponse(url, status_code=303, headers=SECURITY_HEADERS)
        set_cookie(
            response, STATE_COOKIE, access.sign([state, verifier], STATE_COOKIE), STATE_COOKIE_MAX_AGE_S, https=True
        )
        return response

    async def callback_endpoint(request: Request) -> Response:
        state_token = request.cookies.get(STATE_COOKIE) or ""
        state, verifier = access.verify(state_token, STATE_COOKIE, STATE_COOKIE_MAX_AGE_S) or ("", "")
        params = request.query_params
        if not secrets_equal(params.get("state", ""), state):
            return _retry_page("This sign-in has expired, or was started in another browser. Sign in again.", 403)
        if "code" not in params:
            return _retry_page(
                "You were not signed in: Hugging Face refused. Sign in again, or use the join code.", 403
            )
        try:
            name = await _fetch_account_name(provider, params["code"], verifier)
        except PROVIDER_ERRORS as error:
            return _provider_error_page(error)
        return await run_in_threadpool(admit, request, name)

    def admit(request: Request, name: str) -> Response:
        try:
            person = get_or_add_account(db, name)
        except LabError as error:
            return _retry_page(without_locations(str(error), [db.location]), 400)
        role = Role.OPERATOR if name.lower() in provider.operators else Role.LABELLER
        response = login_redirect(request, access, Visitor(role, person.name), "../")
        set_cookie(response, STATE_COOKIE, "", 0, https=True)
        return response

    return [
        Route("/login/huggingface", login_endpoint, methods=["GET"]),
        Route(f"/{CALLBACK_PATH}", callback_endpoint, methods=["GET"]),
    ]


async def _fetch_account_name(provider: OAuthProvider, code: str, verifier: str) -> str:
    """The name of the account that the authorization code belongs to. The token is not kept."""
    async with asyncio.timeout(TIMEOUT_S), provider.client() as client:
        token_endpoint, userinfo_endpoint = await provider.fetch_endpoints(
            client, "token_endpoint", "userinfo_endpoint"
        )
        await client.fetch_token(token_endpoint, code=code, code_verifier=verifier)
        response = await client.get(userinfo_endpoint)
        response.raise_for_status()
        name = response.json()["preferred_username"]
    if not isinstance(name, str):
        raise ValueError("the name of the account is not a text")
    return name


def _provider_error_page(error: Exception) -> Response:
    """The page for a provider that cannot be reached or sends an invalid reply."""
    return _retry_page(
        f"Hugging Face did not confirm who you are ({type(error).__name__}). Try again in a minute, or use the join "
        "code.",
        502,
    )


def _retry_page(error_message: str, status: int) -> Response:
    return join_form_page("", error_message, status, show_oauth=True, base_path="../")
