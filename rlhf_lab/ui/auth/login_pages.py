"""Login pages of a multi-user lab: their HTML, and the cookie that a login sets."""

import base64
import hashlib
from html import escape

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from rlhf_lab.store.annotators import MAX_PERSON_NAME_CHARS
from rlhf_lab.ui.auth.visitors import COOKIE_MAX_AGE_S, Access, Visitor
from rlhf_lab.ui.network import space_urls

#: Removes the secret of an operator's link, valid or not, from the address bar and the history.
FORGET_KEY_SCRIPT = (
    "if (/[?&]key=/.test(location.search)) history.replaceState(null, '', location.pathname + location.hash);"
)
SCRIPT_HASH = base64.b64encode(hashlib.sha256(FORGET_KEY_SCRIPT.encode()).digest()).decode()
#: Referrer-Policy: with "no-referrer" a browser would send our own forms with the origin "null".
SECURITY_HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{SCRIPT_HASH}'; "
    "form-action 'self'; base-uri 'none'",
    "Referrer-Policy": "same-origin", "Cache-Control": "no-store",
}  # fmt: skip
LOGIN_PAGE_CSS = """
:root { color-scheme: light dark; font: 17px/1.5 system-ui, -apple-system, 'Segoe UI', sans-serif; }
body { margin: 0; display: grid; place-items: center; min-height: 90vh; padding: 16px; }
form { display: grid; gap: 14px; width: min(100%, 22rem); }
h1 { font-size: 1.4rem; margin: 0; } p { margin: 0; } label { display: grid; gap: 4px; }
input, button { font: inherit; padding: 11px 13px; border-radius: 10px; border: 1px solid #8a93a6; min-width: 0; }
#code { letter-spacing: .18em; text-transform: uppercase; }
button, a { background: #4f46e5; color: #fff; border: 0; min-height: 48px; font-weight: 600; }
a { display: grid; place-items: center; border-radius: 10px; text-decoration: none; } a + p { text-align: center; }
[role=alert] { border-left: 4px solid #b3261e; padding-left: 10px; }
"""


def login_redirect(request: Request, access: Access, visitor: Visitor, location: str = "./") -> Response:
    """Sets the login cookie and redirects to the lab. location: the lab's address, relative to the login page."""
    response = RedirectResponse(location, status_code=303, headers=SECURITY_HEADERS)
    https = is_https(request, access.public_url)
    set_cookie(response, access.login_cookie_name, access.cookie_value(visitor), COOKIE_MAX_AGE_S, https=https)
    return response


def logout_redirect(request: Request, access: Access) -> Response:
    """Removes the visitor's cookies and redirects to the lab."""
    response = RedirectResponse("./", status_code=303, headers=SECURITY_HEADERS)
    for name in (access.login_cookie_name, access.page_cookie_name):
        set_cookie(response, name, "", 0, https=is_https(request, access.public_url))
    return response


def is_https(request: Request, public_url: str = "") -> bool:
    """Whether the browser reaches the lab by https: according to public_url (`--url`) or on a Space; otherwise according to the
    headers of a proxy, if there is one."""
    if public_url:
        return public_url.startswith("https:")
    if space_urls():
        return True
    return request.url.scheme == "https" or request.headers.get("x-forwarded-proto", "").startswith("https")


def set_cookie(response: Response, name: str, value: str, max_age: int, *, https: bool) -> None:
    response.headers.append("set-cookie", cookie_header(name, value, max_age, https=https))


def cookie_header(name: str, value: str, max_age: int, *, https: bool) -> str:
    """A Set-Cookie header. Over https the cookie is also sent inside another site's frame, as on Spaces."""
    scope = "SameSite=None; Secure; Partitioned" if https else "SameSite=Lax"
    return f"{name}={value}; Path=/; Max-Age={max_age}; HttpOnly; {scope}"


def join_form_page(
    code: str = "", error_message: str = "", status: int = 200, name: str = "", *, show_oauth: bool = False, base_path: str = "",
    show_password_link: bool = False,
) -> HTMLResponse:  # fmt: skip
    """The page with the join form. A refused code (status 403) has the focus, otherwise the first empty field.

    show_oauth, show_password_link: links to the other ways to log in. base_path: from the page's address to the lab's.
    """
    code_autofocus, name_autofocus = ("", " autofocus") if code and status != 403 else (" autofocus", "")
    alternatives = (
        f'<a href="{base_path}login/huggingface" target="_blank">Sign in with Hugging Face</a><p>or</p>'
        if show_oauth
        else ""
    ) + (f'<a href="{base_path}enter">Enter with a password</a><p>or</p>' if show_password_link else "")
    fields = f"""{alternatives}
<label for="code">Join code<input id="code" name="code" required maxlength="40" autocomplete="off"{code_autofocus}
 value="{escape(code)}"></label>
<label for="name">Your name here<input id="name" name="name" required maxlength="{MAX_PERSON_NAME_CHARS}"
 autocomplete="nickname"{name_autofocus} value="{escape(name)}"></label><button>Join</button>"""
    return _html_page(f"{base_path}join", "Join RLHF Lab", error_message, fields, status)


def password_form_page(error_message: str = "", status: int = 200, name: str = "") -> HTMLResponse:
    """The login page for people in the password file."""
    name_autofocus, password_autofocus = ("", " autofocus") if name else (" autofocus", "")
    fields = f"""
<label for="name">Name<input id="name" name="name" required maxlength="{MAX_PERSON_NAME_CHARS}"
 autocomplete="username"{name_autofocus} value="{escape(name)}"></label>
<label for="password">Password<input id="password" name="password" type="password" required maxlength="1000"
 autocomplete="current-password"{password_autofocus}></label><button>Enter</button>"""
    return _html_page("enter", "Enter RLHF Lab", error_message, fields, status)


def logout_page(name: str) -> HTMLResponse:
    """The page to log out. name: the name under which the visitor is logged in; "" if they are not."""
    text = f"You are logged in as {escape(name)}." if name else "You are not logged in."
    return _html_page("leave", "Leave RLHF Lab", "", f"<p>{text}</p><button>Log out</button>", 200)


def _html_page(action: str, title: str, error_message: str, fields: str, status: int) -> HTMLResponse:
    alert = f'<p role="alert">{escape(error_message)}</p>' if error_message else ""
    page = f"""<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title><style>{LOGIN_PAGE_CSS}</style>
<script>{FORGET_KEY_SCRIPT}</script></head>
<body><form method="post" action="{action}"><h1>{title}</h1>
<p>Read two texts and choose the better one. A model learns from your choices.</p>{alert}{fields}</form></body></html>"""
    return HTMLResponse(page, status_code=status, headers=SECURITY_HEADERS)
