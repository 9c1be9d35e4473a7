"""The server of `coderl view`: which page an address has, how it is rendered, how the server is started."""

import re
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from functools import lru_cache, partial
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

import anyio.to_thread
import polars as pl
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from coderl_tasks.errors import CoderlError, ConfigError
from coderl_tasks.grading.suspicion import SIGNS
from coderl_tasks.insight.drawing import LOOK
from coderl_tasks.insight.record import CurationRecord, load_curation, naming_damaged_tables
from coderl_tasks.insight.report import page_environment
from coderl_tasks.insight.shown_metrics import in_form
from coderl_tasks.insight.viewer_link import announced
from coderl_tasks.stats import student_t
from coderl_tasks.untrusted_text import printable_lines
from coderl_tasks.view import comparison_pages, completion_pages, marked_text, other_pages, proof, run_pages
from coderl_tasks.view.library import Library, NotThereError, WrongValueError, address, state_of
from coderl_tasks.view.run_data import Place, RunData
from coderl_tasks.view.run_pages import Page
from coderl_tasks.view.search import Wanted
from coderl_tasks.view.view_admission import HEADERS, HOST, Admission

USUAL_PORT = 4287
STATIC = {"look.css": "text/css", "view.css": "text/css", "view.js": "text/javascript", "icon.svg": "image/svg+xml"}
AT_ONCE = 3  # requests worked on at the same time: each may hold a step's texts
MOST_RUNS = 8  # kept in memory
LARGEST = 2**31  # what no step, group or row is beyond


class Viewer:
    """The pages over a library."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self._data_of = lru_cache(MOST_RUNS)(lambda path: RunData(path, lambda: library.pools().values()))
        self._templates = page_environment("coderl_tasks.view")
        self._templates.globals.update(
            address=address,
            completion_link=completion_pages.completion_link,
            most_chars=marked_text.MOST_CHARS,
            signs=SIGNS,
        )
        self._templates.filters.update(
            number=lambda value, form=".3g": in_form(value, form),
            seconds=lambda value: f"{value * 1000:.2g} ms" if value < 0.1 else f"{value:.3g} s",
            tone=run_pages.verdict_tone,
            rule=proof.rule_in_words,
            plain=marked_text.plain,
            python=marked_text.code,
            answer=marked_text.answer,
            statement=marked_text.statement,
        )
        # What the first page of a run would wait for: compiled templates, and the import for its intervals.
        for template in ("run_page", "frame", "pieces"):
            self._templates.get_template(f"{template}.html.j2")
        student_t(1)

    def routes(self) -> list[Route]:
        """The addresses. Each of `pages` is of a run or pool, which `_record_page` finds by its name in the address."""
        completions = ("/step/{step:int}/{group:int}/{sample:int}", "/eval/{evaluation}/{sample:int}")
        pages: dict[str, Callable[[Request, str, Any], Page]] = {
            "/run/{run}": self._run,
            "/run/{run}/step/{step:int}": self._step,
            "/run/{run}/eval/{evaluation}": self._evaluation,
            "/run/{run}/problem": self._problem,
            "/run/{run}/search": self._search,
            **{f"/run/{{run}}{place}": self._completion for place in completions},
            "/pool/{pool}": self._pool,
            "/pool/{pool}/problem": self._pool_problem,
            "/pool/{pool}/drops": self._drops,
        }
        answers: dict[str, Callable[[Request], Response]] = {
            "/": self._library,
            "/state": self._library_state,
            "/static/{file}": _static,
            "/run/{run}/state": self._run_state,
            **{f"/run/{{run}}{place}/text/{{part}}": self._text for place in completions},
            "/compare": self._compare,
            **{path: partial(self._record_page, make) for path, make in pages.items()},
        }
        return [Route(path, answer, methods=["GET"]) for path, answer in answers.items()]

    def data(self, name: str) -> RunData:
        """The run of this name; NotThereError if there is none."""
        return self._data_of(self.library.run(name))

    def render(self, template: str, status: int = 200, **page: Any) -> HTMLResponse:
        page = {"watched": None, "state_now": "", "search_run": page.get("run"), **page}
        html = self._templates.get_template(f"{template}.html.j2").render(page)
        # The whole page at once: no place in a template can forget it.
        return HTMLResponse(printable_lines(html), status)

    def _record_page(self, make: Callable[[Request, str, Any], Page], request: Request) -> Response:
        """A page of a run or a pool: `make` returns its variables, and its template has the name of `make`."""
        if name := request.path_params.get("run"):
            record: RunData | CurationRecord = self.data(name)
        else:
            record = load_curation(self.library.pool(name := request.path_params["pool"]))
        with naming_damaged_tables(record.path):
            page = make(request, name, record)
        answer = self.render(f"{make.__name__.removeprefix('_')}_page", **page)
        if make == self._run:
            # What works out advantages takes seconds to import: meanwhile its reader looks at the curves.
            answer.background = BackgroundTask(import_module, "coderl_tasks.policy.grpo")
        return answer

    def _library(self, request: Request) -> Response:
        live = {"watched": "/state", "state_now": self._all_states()}
        return self.render("library_page", **live, **other_pages.library_page(self.library, time.time()))

    def _library_state(self, request: Request) -> Response:
        return JSONResponse({"state": self._all_states()})

    def _all_states(self) -> str:
        return "-".join(state_of(path, commits=True)[:6] for path in self.library.runs().values())

    def _run_state(self, request: Request) -> Response:
        name = request.path_params["run"]
        data = self.data(name)
        if "commits" not in request.query_params:
            return JSONResponse({"state": state_of(data.path)})
        found = data.at_work()
        at_work = [address("run", name, "step", found[0]), *found] if found else ["#", "", ""]
        return JSONResponse({"state": state_of(data.path, commits=True), "at_work": at_work})

    def _live(self, data: RunData, name: str, *, commits: bool = False) -> dict[str, Any]:
        """How a page notices that the run has gone on. Asked before the page is made: what comes meanwhile is new."""
        watched = address("run", name, "state", commits=1 if commits else None)
        return {"watched": watched, "state_now": state_of(data.path, commits=commits)}

    def _run(self, request: Request, name: str, data: RunData) -> Page:
        live = self._live(data, name, commits=True)  # its curves take a while to draw
        bounds, every = (_number(request, "first"), _number(request, "last")), "all" in request.query_params
        others = [other for other in self.library.runs() if other != name]
        return run_pages.run_page(data, name, self.library, *bounds, every=every) | live | {"others": others}

    def _step(self, request: Request, name: str, data: RunData) -> Page:
        live, sort = self._live(data, name), request.query_params.get("sort", "rate")
        page = run_pages.step_page(data, name, _at(request)[0].step or 0, sort)
        return page if page["commit"] else page | live

    def _evaluation(self, request: Request, name: str, data: RunData) -> Page:
        asked, evaluation = request.query_params, request.path_params["evaluation"]
        return comparison_pages.evaluation_page(data, name, evaluation, asked.get("against"), asked.get("verdict", ""))

    def _problem(self, request: Request, name: str, data: RunData) -> Page:
        live, asked = self._live(data, name), request.query_params
        step, evaluation = _number(request, "step"), asked.get("eval")
        place = Place(step, evaluation) if step is not None or evaluation is not None else None
        problem_id, group, against = asked.get("id", ""), _number(request, "group"), asked.get("against")
        pool, _ = run_pages.pool_of(data, self.library)
        return completion_pages.problem_page(data, name, problem_id, place, group, against, pool) | live

    def _completion(self, request: Request, name: str, data: RunData) -> Page:
        return completion_pages.completion_page(data, name, *_at(request), request.query_params.get("shade", ""))

    def _text(self, request: Request) -> Response:
        data, part = self.data(request.path_params["run"]), request.path_params["part"]
        return PlainTextResponse(printable_lines(completion_pages.whole_text(data, *_at(request), part)))

    def _search(self, request: Request, name: str, data: RunData) -> Page:
        asked, first, last = request.query_params, _number(request, "first"), _number(request, "last")
        fields = {"text": "q", "within": "within", "verdict": "verdict", "problem": "problem", "evaluation": "eval"}
        texts: dict[str, Any] = {field: asked[key] for field, key in fields.items() if key in asked}
        wanted = Wanted(**texts, first=first, last=last)
        if after := asked.get("after", ""):
            is_link = re.fullmatch("([0-9]{1,9})[.]([0-9]{1,9})", after)
            if is_link is None or (last is None and not wanted.evaluation):
                raise WrongValueError(f"the value {after} of after is none that the link below a list of hits has")
            wanted = replace(wanted, after=(int(is_link[1]), int(is_link[2])))
        return other_pages.search_page(data, name, wanted)

    def _compare(self, request: Request) -> Response:
        names = list(dict.fromkeys(request.query_params.getlist("run")))
        if len(names) < 2:
            raise WrongValueError("tick two runs or more in the list of all runs, or name them: /compare?run=A&run=B")
        chosen = {name: self.data(name) for name in names[: len(comparison_pages.LETTERS)]}
        return self.render("compare_page", **comparison_pages.compare_page(chosen, request.query_params.get("problem")))

    def _pool(self, request: Request, name: str, curation: CurationRecord) -> Page:
        return other_pages.pool_page(curation, name, self.library, request.query_params.get("order", "source"))

    def _pool_problem(self, request: Request, name: str, curation: CurationRecord) -> Page:
        return other_pages.pool_problem_page(curation, name, request.query_params.get("id", ""))

    def _drops(self, request: Request, name: str, curation: CurationRecord) -> Page:
        asked = request.query_params
        return other_pages.drops_page(curation, name, asked.get("stage", ""), asked.get("reason", ""))

    def refuse(self, status: int, request: Request, error: Exception) -> Response:
        """The page that says what is wrong with an address, or with the files behind it."""
        titles = {404: "There is no such page", 400: "The address has a value that the page does not take"}
        what = titles.get(status, "The files of this page cannot be read")
        asked, all_known = request.path_params, {"run": self.library.runs(), "pool": self.library.pools()}
        known = {kind: asked[kind] for kind, names in all_known.items() if asked.get(kind) in names}
        why = str(error)
        if isinstance(error, HTTPException):  # no route has the address
            why = f"no page has the address {request.url.path}: start from the list of all runs and pools"
        return self.render("refusal_page", status, title=what, why=why, **known)


def _static(request: Request) -> Response:
    name = request.path_params["file"]
    if name not in STATIC:
        raise NotThereError(f"there is no file {name}")
    content = LOOK if name == "look.css" else (files("coderl_tasks.view") / "static" / name).read_bytes()
    return Response(content, media_type=STATIC[name])


def _at(request: Request) -> tuple[Place, int | None, int]:
    """The place that an address names, and the group (in a step) and the number of a completion there."""
    asked = request.path_params
    step, group, sample = (asked.get(name) for name in ("step", "group", "sample"))
    if max(step or 0, group or 0, sample or 0) >= LARGEST:
        raise NotThereError("there is no number as large as that")
    return Place(step, asked.get("evaluation")), group, sample or 0


def _number(request: Request, name: str) -> int | None:
    """A number of the address; None without one, WrongValueError for what is none."""
    text = request.query_params.get(name, "")
    if text and not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise WrongValueError(f"the value {text} of {name} is not a whole number from 0 to 999999999")
    return int(text) if text else None


def application(library: Library, key: str, port: int) -> ASGIApp:
    """The ASGI application that shows `library` to those who have `key`. `prepare` has the server add HEADERS."""
    viewer = Viewer(library)

    @asynccontextmanager
    async def few_at_once(_: Starlette) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = AT_ONCE
        yield

    # Exception: a file of other values than a run writes; its traceback is logged.
    failures = (CoderlError, pl.exceptions.PolarsError, OSError, UnicodeError, Exception)
    statuses: dict[Any, int] = dict.fromkeys(failures, 500) | {NotThereError: 404, 404: 404, WrongValueError: 400}
    handlers: Any = {error: partial(viewer.refuse, status) for error, status in statuses.items()}
    return Admission(Starlette(routes=viewer.routes(), exception_handlers=handlers, lifespan=few_at_once), key, port)


def listen(port: int | None) -> socket.socket:
    """A loopback socket: on `port`, or without one on the usual port, else a free one. ConfigError if it is taken."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, USUAL_PORT if port is None else port))
    except OSError as error:
        if port is not None:
            listener.close()
            raise ConfigError(f"--port {port}: {error.strerror}") from error
        listener.bind((HOST, 0))
    listener.listen()  # who follows the printed address before the server is up waits
    return listener


def prepare(library: Library, key: str, port: int | None, page: str) -> tuple[str, Callable[[], None]]:
    """The address at which a browser first opens `page`, and the function that serves `library` until SIGINT or SIGTERM
    (from a thread: as long as the process lives)."""
    listener = listen(port)
    number = listener.getsockname()[1]
    config = uvicorn.Config(
        application(library, key, number),
        log_level="warning",
        access_log=False,
        headers=[*HEADERS.items()],
        server_header=False,
        ws="none",
    )
    server = uvicorn.Server(config)

    def serve() -> None:
        with announced(number) if library.is_whole else nullcontext():
            server.run(sockets=[listener])

    return f"http://{HOST}:{number}{page}{'&' if '?' in page else '?'}key={key}", serve


def first_page(library: Library, records: list[Path]) -> str:
    """The address of what the command named: a run, a pool, two runs or more compared, or all there is."""
    paths = [path.resolve() for path in records]
    runs, pools = ({path: name for name, path in found.items()} for found in (library.runs(), library.pools()))
    if len(paths) > 1 and all(path in runs for path in paths):
        return address("compare", run=[runs[path] for path in paths])
    if len(paths) == 1 and paths[0] in runs | pools:
        return address("run", runs[paths[0]]) if paths[0] in runs else address("pool", pools[paths[0]])
    return "/"
