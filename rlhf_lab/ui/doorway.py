"""What the doors of a guarded lab have in common: the form, and the cookie a visitor leaves with."""

from html import escape

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from rlhf_lab.store.people import MAX_NAME
from rlhf_lab.ui.access import Access, Visitor

MONTH_S = 30 * 86_400
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'",
    "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
}  # fmt: skip
STYLE = """
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


def let_in(request: Request, access: Access, visitor: Visitor, to: str = "./") -> Response:
    """Off to the lab, known from now on. to: the page's address, from the door's."""
    answer = RedirectResponse(to, status_code=303, headers=HEADERS)
    give_cookie(answer, access.entered_cookie, access.cookie(visitor), MONTH_S, https=is_https(request))
    return answer


def is_https(request: Request) -> bool:
    return request.url.scheme == "https" or request.headers.get("x-forwarded-proto", "").startswith("https")


def give_cookie(answer: Response, name: str, value: str, seconds: int, *, https: bool) -> None:
    answer.headers.append("set-cookie", cookie_line(name, value, seconds, https=https))


def cookie_line(name: str, value: str, seconds: int, *, https: bool) -> str:
    """A Set-Cookie header. Over https the cookie is one that also reaches us inside another site's frame, as on Spaces."""
    scope = "SameSite=None; Secure; Partitioned" if https else "SameSite=Lax"
    return f"{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; {scope}"


def form(
    code: str = "", problem: str = "", status: int = 200, name: str = "", *, sign_in: bool = False, up: str = "",
    passwords: bool = False,
) -> HTMLResponse:  # fmt: skip
    """The page to enter by; what is still to be filled in has the focus, the code first.

    sign_in: also by an account of Hugging Face. up: from the page's address to the lab's. passwords: also by a password.
    """
    at_code, at_name = ("", " autofocus") if code else (" autofocus", "")
    others = (
        f'<a href="{up}login/huggingface" target="_blank">Sign in with Hugging Face</a><p>or</p>' if sign_in else ""
    ) + (f'<a href="{up}enter">Enter with a password</a><p>or</p>' if passwords else "")
    fields = f"""{others}
<label for="code">Join code<input id="code" name="code" required maxlength="40" autocomplete="off"{at_code}
 value="{escape(code)}"></label>
<label for="name">Your name here<input id="name" name="name" required maxlength="{MAX_NAME}" autocomplete="nickname"{at_name}
 value="{escape(name)}"></label><button>Join</button>"""
    return _page(f"{up}join", "Join RLHF Lab", problem, fields, status)


def password_form(problem: str = "", status: int = 200, name: str = "") -> HTMLResponse:
    """The page for those who have a password here."""
    at_name, at_password = ("", " autofocus") if name else (" autofocus", "")
    fields = f"""
<label for="name">Name<input id="name" name="name" required maxlength="{MAX_NAME}" autocomplete="username"{at_name}
 value="{escape(name)}"></label>
<label for="password">Password<input id="password" name="password" type="password" required maxlength="1000"
 autocomplete="current-password"{at_password}></label><button>Enter</button>"""
    return _page("enter", "Enter RLHF Lab", problem, fields, status)


def _page(action: str, title: str, problem: str, fields: str, status: int) -> HTMLResponse:
    alert = f'<p role="alert">{escape(problem)}</p>' if problem else ""
    page = f"""<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title><style>{STYLE}</style></head>
<body><form method="post" action="{action}"><h1>{title}</h1>
<p>Read two texts, say which is better; a model learns from it.</p>{alert}{fields}</form></body></html>"""
    return HTMLResponse(page, status_code=status, headers=HEADERS)
