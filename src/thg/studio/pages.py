"""Serves the files of the page."""

from __future__ import annotations

import mimetypes
from importlib import resources

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response

TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
}


def page_files() -> dict[str, tuple[bytes, str]]:
    """The files of the page, read once: requests are looked up here, and no path from a client is ever opened."""
    contents = {}
    pending = [("", resources.files("thg.studio") / "static")]
    while pending:
        prefix, folder = pending.pop()
        for entry in folder.iterdir():
            name = f"{prefix}{entry.name}"
            if entry.is_dir():
                pending.append((f"{name}/", entry))
            else:
                suffix = "." + name.rpartition(".")[2]
                kind = TYPES.get(suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
                contents[name] = (entry.read_bytes(), kind)
    return contents


def add_pages(app: FastAPI) -> None:
    contents = page_files()

    @app.get("/")
    async def index() -> Response:
        body, kind = contents["index.html"]
        return Response(body, media_type=kind)

    @app.get("/static/{name:path}")
    async def static(name: str) -> Response:
        if name not in contents:
            return JSONResponse({"message": "there is no such file"}, 404)
        body, kind = contents[name]
        return Response(body, media_type=kind)
