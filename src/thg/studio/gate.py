"""Access control.

A page on the internet must not be able to use a server on this machine: the Host header has to be one of ours (against
DNS rebinding), and a request that a browser sends on behalf of another origin is refused. Other machines need a token.
Every response has headers that allow the page its own files and nothing else.
"""

from __future__ import annotations

import ipaddress
import secrets
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE: Final = "thg-studio"
MAX_BODY: Final = 64 * 1024
MAX_PICTURE: Final = 24 * 1024 * 1024  # of a run, which may start from a picture
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


class Gate:
    """An ASGI application around another one."""

    def __init__(self, app: ASGIApp, *, host: str | None, token: str | None, locked: bytes) -> None:
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
            raise HTTPException(400, "the studio supports HTTP only")
        request, send = Request(scope), _with_headers(send)
        try:
            self._check(request)
            if self.token is None or scope["path"].startswith(OPEN) or self._knows_token(request):
                await self.app(scope, _bounded(receive, request), send)
                return
            response = self._ask_for_token(request)
        except HTTPException as refusal:
            response = PlainTextResponse(refusal.detail, refusal.status_code)
        await response(scope, receive, send)

    def _check(self, request: Request) -> None:
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if not self._is_ours(host):
            raise HTTPException(421, f"this studio does not answer for {host!r}; open the address that it printed")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            raise HTTPException(403, "requests from other origins are refused")
        site = request.headers.get("sec-fetch-site", "none")
        if site not in ("same-origin", "none") and request.method not in ("GET", "HEAD"):
            raise HTTPException(403, "requests from other sites are refused")

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

    def _knows_token(self, request: Request) -> bool:
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        return self._is_token(bearer) or self._is_token(request.cookies.get(COOKIE, ""))

    def _is_token(self, value: str) -> bool:
        assert self.token is not None
        return secrets.compare_digest(value.encode(), self.token.encode())

    def _ask_for_token(self, request: Request) -> Response:
        """The link with the token sets a cookie and redirects to the page without it."""
        given = request.query_params.get("token", "")
        if request.scope["path"] != "/":
            return PlainTextResponse("this studio asks for a token; open the link that it printed when it started", 401)
        if self._is_token(given):
            cookie = f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/"
            return RedirectResponse("/", 303, headers={"set-cookie": cookie})
        return HTMLResponse(self.locked.replace(*WRONG) if given else self.locked, 401)


def _bounded(receive: Receive, request: Request) -> Receive:
    """Stops reading a body that is longer than any request of the page."""
    most = MAX_PICTURE if request.scope["path"] == "/api/runs" else MAX_BODY
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > most:
        raise HTTPException(413, f"a request may have {most} bytes, not {announced}")
    seen = 0

    async def bounded() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > most:
            raise HTTPException(413, f"a request may have {most} bytes")
        return message

    return bounded


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sending
