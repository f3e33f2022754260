"""The studio's HTTP interface: the page, plans, runs, models.

Whatever takes time is one POST that returns a stream of events. Closing the connection, with the cancel button or by
closing the tab, cancels it.
"""

from __future__ import annotations

import json
import mimetypes
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response, StreamingResponse
from fastapi.staticfiles import StaticFiles
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

import thg
from thg.errors import THGError
from thg.studio.engine import Engine
from thg.studio.gate import Gate
from thg.studio.jobs import Job, QueueFull, Worker
from thg.studio.planning import for_page, paper_presets
from thg.studio.specs import LIMITS, ModelRequest, PlanRequest, RunRequest, TuneRequest, in_words

STATIC = Path(__file__).parent / "static"
WAITING = 8  # jobs in the queue, besides the running one
KEEP_ALIVE = 0.5  # seconds without an event after which a stream checks that its client is still connected


def create_app(engine: Engine, worker: Worker, *, host: str | None = None, token: str | None = None) -> Gate:
    """The application. worker: executes the runs. host and token: as `Gate` takes them."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        worker.start()
        try:
            yield
        finally:
            worker.stop()

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    add_page(app)
    _add_api(app, engine, worker)
    _add_errors(app)
    return Gate(app, host=host, token=token, locked=(STATIC / "token.html").read_bytes())


def add_page(app: FastAPI) -> None:
    """The files of the page."""
    mimetypes.add_type("text/javascript", ".js")  # some systems have another one, which browsers refuse for modules
    app.mount("/static", StaticFiles(directory=STATIC))

    @app.get("/")
    async def index() -> Response:
        return FileResponse(STATIC / "index.html")


def _add_api(app: FastAPI, engine: Engine, worker: Worker) -> None:
    @app.get("/api/model")
    async def model() -> dict[str, Any]:
        return {**engine.model.describe(), "version": thg.__version__, "presets": paper_presets(), "limits": LIMITS}

    @app.get("/api/models")
    def models() -> list[str]:
        return list(engine.models())

    @app.get("/api/profile")
    async def profile() -> Response:
        if engine.model.profile is None:
            return JSONResponse({"message": "this studio was started without a profile of its model"}, 404)
        if engine.model.profile.constants is None:
            message = "this profile has plans, and no error constants to show: thg calibrate --algorithm3 measures them"
            return JSONResponse({"message": message}, 404)
        return JSONResponse(await run_in_threadpool(engine.profile_for_page, engine.model.profile))

    @app.get("/api/queue")
    async def queue() -> dict[str, Any]:
        running, waiting = worker.load
        return {"running": running, "waiting": waiting, "limit": worker.limit}

    @app.post("/api/plan")
    def plan(request: PlanRequest) -> dict[str, Any]:  # not async: planning must not block the streams
        chosen, note = engine.plan(request)
        return {**for_page(request.plan, chosen), "note": note}

    @app.post("/api/runs")
    async def run(request: RunRequest, http: Request) -> Response:
        chosen, _ = await run_in_threadpool(engine.plan, request)  # an impossible plan is refused before it is queued
        job = worker.submit(lambda emit, cancelled: engine.compare(request, chosen, emit, cancelled))
        return JobResponse(job, worker, http)

    @app.post("/api/tune")
    async def tune(request: TuneRequest, http: Request) -> Response:
        return JobResponse(worker.submit(lambda *job: engine.tune(request, *job)), worker, http)

    @app.post("/api/model")
    async def switch(request: ModelRequest, http: Request) -> Response:
        return JobResponse(worker.submit(lambda *job: engine.switch(request.name, *job)), worker, http)


class JobResponse(StreamingResponse):
    """A job's events as server-sent events. The job is cancelled when the response ends for any reason."""

    def __init__(self, job: Job, worker: Worker, http: Request) -> None:
        super().__init__(_stream(job, http), media_type="text/event-stream")
        self.job = job
        self.worker = worker

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.worker.cancel(self.job)


async def _stream(job: Job, http: Request) -> AsyncIterator[str]:
    async for event in job.events(KEEP_ALIVE):
        if await http.is_disconnected():
            return
        if event is None:
            yield ": keep-alive\n\n"
        else:
            name, data = event
            yield f"event: {name}\ndata: {json.dumps(data)}\n\n"


def _add_errors(app: FastAPI) -> None:
    """Returns errors as a message for the page."""

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return JSONResponse({"message": in_words(error.errors())}, 422)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        return JSONResponse({"message": error.detail}, error.status_code)

    @app.exception_handler(THGError)
    async def impossible(request: Request, error: THGError) -> Response:
        return JSONResponse({"message": str(error)}, 422)

    @app.exception_handler(QueueFull)
    async def busy(request: Request, error: QueueFull) -> Response:
        return JSONResponse({"message": str(error)}, 503, {"Retry-After": str(error.retry_after)})
