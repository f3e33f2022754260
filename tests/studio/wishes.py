"""Requests, and reading the stream that answers a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx

DEFAULT = {"kind": "default", "nfe": 0.65}


def plan_wish(**changes: Any) -> dict[str, Any]:
    return {"steps": 20, "guidance_scale": 5.0, "plan": DEFAULT, **changes}


def run_wish(**changes: Any) -> dict[str, Any]:
    return {"prompt": "a dark coat", "seed": 3, **plan_wish(steps=6), **changes}


def events(response: httpx.Response) -> Iterator[tuple[str, dict[str, Any]]]:
    """The server-sent events of a run, as they come."""
    name = ""
    for line in response.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def finished(client: httpx.Client, wish: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """All events of a run."""
    return stream(client, "/api/runs", wish)


def stream(client: httpx.Client, path: str, wish: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """All events of something that takes time."""
    with client.stream("POST", path, json=wish) as response:
        assert response.status_code == 200, response.read()
        return list(events(response))
