"""Strangers stay outside: other hosts, other origins, missing tokens, paths, large bodies; and the headers."""

from __future__ import annotations

import re
import socket

import httpx
import pytest

from tests.studio.browsing import PHONE, expect
from tests.studio.conftest import serve
from tests.studio.wishes import plan_wish
from thg.studio.engine import Engine

TOKEN = "a-token-of-the-test"


@pytest.mark.parametrize("path", ["/", "/static/js/main.js", "/static/css/base.css", "/api/model", "/nothing"])
def test_every_answer_has_the_headers(studio, path):
    with studio.client() as client:
        headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-frame-options"] == "DENY"
    assert "access-control-allow-origin" not in headers


def test_the_page_is_free_of_inline_script_and_style_and_outside_addresses(studio):
    with studio.client() as client:
        page = client.get("/").text
        pages = page, client.get("/static/token.html").text
    for text in pages:
        assert " style=" not in text
        assert "<style" not in text
        assert not re.search(r"<script(?! (type=\"module\" )?src=\"/static/)", text)
        assert not re.search(r"\son\w+=", text)
        assert "http://" not in text
        assert "https://" not in text


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "192.168.0.9", "127.0.0.1.evil.example", "[", ""]
)
def test_other_hosts_are_refused(studio, host):
    with studio.client() as client:
        assert client.get("/api/model", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["127.0.0.1:1", "localhost", "[::1]:80"])
def test_own_hosts_are_served(studio, host):
    with studio.client() as client:
        assert client.get("/api/model", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1"])
def test_other_origins_are_refused(studio, origin):
    with studio.client() as client:
        answer = client.post("/api/plan", json=plan_wish(), headers={"origin": origin})
    assert answer.status_code == 403


def test_own_origin_is_served(studio):
    with studio.client() as client:
        answer = client.post("/api/plan", json=plan_wish(), headers={"origin": studio.url})
    assert answer.status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_requests_on_behalf_of_other_sites_are_refused(studio, site):
    with studio.client() as client:
        answer = client.post("/api/plan", json=plan_wish(), headers={"sec-fetch-site": site})
    assert answer.status_code == 403


def test_a_form_of_another_page_cannot_post(studio):
    with studio.client() as client:
        answer = client.post("/api/plan", content=b'{"steps": 20}', headers={"content-type": "text/plain"})
    assert answer.status_code == 422


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/static//etc/passwd",
        "/static/js/",
        "/static/js/main.js%00.css",
        "/docs",
        "/openapi.json",
    ],
)
def test_no_path_leads_out(studio, path):
    """By a bare socket, since a client would tidy the path."""
    host, port = studio.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 404")


def test_large_bodies_are_refused(studio):
    with studio.client() as client:
        assert client.post("/api/plan", content=b"x" * 70_000).status_code == 413
        chunks = (b"x" * 1000 for _ in range(70))
        assert client.post("/api/plan", content=chunks).status_code == 413


class TestToken:
    @pytest.fixture(scope="class")
    def locked(self, model):
        with serve(Engine(model), host="127.0.0.1", token=TOKEN) as running:
            yield running

    def test_without_token_the_page_asks_for_it(self, locked):
        with locked.client() as client:
            answer = client.get("/")
            assert answer.status_code == 401
            assert 'name="token"' in answer.text
            assert client.get("/api/model").status_code == 401
            assert client.post("/api/plan", json=plan_wish()).status_code == 401

    @pytest.mark.parametrize("given", ["", "wrong", TOKEN + "x", "ä"])
    def test_wrong_tokens(self, locked, given):
        with locked.client() as client:
            answer = client.get("/", params={"token": given})
            assert answer.status_code == 401
            assert ('id="wrong" hidden' in answer.text) == (not given)
            assert client.get("/api/model", headers={"cookie": f"thg-studio={given}".encode()}).status_code == 401

    def test_only_files_that_are_the_same_for_everybody_are_open(self, locked):
        with locked.client() as client:
            assert client.get("/static/css/token.css").status_code == 200
            for path in (
                "/static/../api/model",
                "/static/%2e%2e/api/model",
                "/static/nothing",
                "/api/queue",
                "/static",
            ):
                assert client.get(path).status_code in (401, 404)

    def test_the_link_opens_the_page(self, locked):
        with locked.client() as client:
            answer = client.get("/", params={"token": TOKEN})
            assert answer.status_code == 303
            cookie = answer.headers["set-cookie"]
            assert "HttpOnly" in cookie
            assert "SameSite=Strict" in cookie
            assert client.get(answer.headers["location"]).status_code == 200
            assert client.get("/api/model").status_code == 200

    def test_programs_send_a_header(self, locked):
        with locked.client(headers={"authorization": f"Bearer {TOKEN}"}) as client:
            assert client.post("/api/plan", json=plan_wish()).status_code == 200

    def test_other_names_are_refused_also_with_the_token(self, locked):
        headers = {"authorization": f"Bearer {TOKEN}", "host": "evil.example"}
        assert httpx.get(f"{locked.url}/api/model", headers=headers, trust_env=False).status_code == 421

    @pytest.mark.browser
    @pytest.mark.parametrize("theme", ["light", "dark"])
    def test_the_page_that_asks_looks_like_the_studio(self, locked, browser, shots, theme):
        """The console hears of the 401 that this page is, and of nothing else."""
        context = browser.new_context(viewport=PHONE, color_scheme=theme)
        page = context.new_page()
        said = []
        page.on("console", lambda message: said.append(message.text) if "401" not in message.text else None)
        page.goto(locked.url)
        card = page.locator("main.card").bounding_box()
        assert card["x"] == pytest.approx(PHONE["width"] - card["x"] - card["width"], abs=1)
        colour = page.locator("button").evaluate("button => getComputedStyle(button).backgroundColor")
        assert colour == {"light": "rgb(0, 0, 205)", "dark": "rgb(125, 141, 255)"}[theme]
        page.screenshot(path=shots / f"token-{theme}.png")
        assert page.evaluate("document.activeElement.id") == "token"
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#wrong")).to_be_visible()
        page.fill("#token", TOKEN)
        page.keyboard.press("Enter")
        page.wait_for_selector("body[data-ready]")
        assert "token" not in page.url
        assert said == []
        context.close()
