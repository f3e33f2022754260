"""Access control.

A page on the internet must not be able to use a server on this machine: the Host header has to be one of ours (against
DNS rebinding), and a request that a browser sends on behalf of another origin is refused. Other machines need a token.
Every response has headers that allow the page its own files and nothing else.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from starlette.exceptions import HTTPException

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE: Final = "thg-studio"
MAX_BODY: Final = 64 * 1024
OPEN: Final = "/static/"  # public static files; the page that asks for the token needs its style sheet
WRONG: Final = (b'id="wrong" hidden', b'id="wrong"')  # shows the token page's message about a wrong token

HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; media-src blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}


class Refusal(HTTPException):
    """A refused request."""


class Gate:
    """An ASGI application around another one."""

    def __init__(self, app: App, *, host: str | None, token: str | None, locked: bytes) -> None:
        """host: the name or address by which other machines know the studio, None for this machine only; locked: the
        page that asks for the token."""
        self.app = app
        self.host = host
        self.token = token
        self.locked = locked

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise Refusal(400, "the studio supports HTTP only")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            self._check(scope["method"], headers)
            if self.token is not None and not scope["path"].startswith(OPEN) and not self._knows_token(headers):
                await self._ask_for_token(scope, send)
                return
            await self.app(scope, _bounded(receive, headers), _with_headers(send))
        except Refusal as refusal:
            await _answer(send, refusal.status_code, refusal.detail.encode())

    def _check(self, method: str, headers: dict[str, str]) -> None:
        host = headers.get("host", "")
        if not self._is_ours(host):
            raise Refusal(421, f"this studio does not answer for {host!r}; open the address that it printed")
        origin = headers.get("origin")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            raise Refusal(403, "requests from other origins are refused")
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none") and method not in ("GET", "HEAD"):
            raise Refusal(403, "requests from other sites are refused")

    def _is_ours(self, header: str) -> bool:
        """Accepts addresses, but no names other than ours: an attacker's DNS may point a name at this machine."""
        try:
            name = urlsplit(f"//{header}").hostname or ""
        except ValueError:
            return False
        if name in ("localhost", (self.host or "localhost").lower()):
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or self.host is not None

    # -- the token

    def _knows_token(self, headers: dict[str, str]) -> bool:
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            cookie = None
        return self._is_token(bearer) or (cookie is not None and self._is_token(cookie.value))

    def _is_token(self, value: str) -> bool:
        assert self.token is not None
        return secrets.compare_digest(value.encode(), self.token.encode())

    async def _ask_for_token(self, scope: Scope, send: Send) -> None:
        """The link with the token sets a cookie and redirects to the page without it."""
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["path"] == "/" and self._is_token(given):
            cookie = f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/"
            await _answer(send, 303, b"", location="/", set_cookie=cookie)
        elif scope["path"] == "/":
            page = self.locked.replace(*WRONG) if given else self.locked
            await _answer(send, 401, page, content_type="text/html; charset=utf-8")
        else:
            await _answer(send, 401, b"this studio asks for a token; open the link that it printed when it started")


def _bounded(receive: Receive, headers: dict[str, str]) -> Receive:
    """Stops reading a body that is longer than any request of the page."""
    try:
        announced = int(headers.get("content-length", "0"))
    except ValueError:
        announced = 0
    if announced > MAX_BODY:
        raise Refusal(413, f"a request may have {MAX_BODY} bytes, not {announced}")
    seen = 0

    async def bounded() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > MAX_BODY:
            raise Refusal(413, f"a request may have {MAX_BODY} bytes")
        return message

    return bounded


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = {name for name, _ in message["headers"]}
            extra = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in own]
            message = {**message, "headers": [*message["headers"], *extra]}
        await send(message)

    return sending


async def _answer(
    send: Send, status: int, body: bytes, content_type: str = "text/plain; charset=utf-8", **headers: str
) -> None:
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    start = [(b"content-type", content_type.encode()), (b"content-length", str(len(body)).encode()), *named]
    await _with_headers(send)({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})
