"""The run of a score card: every case graded, and what came out of it as a table and as JSON.

A grader whose sandbox fails has no verdict: a reward of 0 for a right program is wrong then. For this, right programs
are graded on servers that have a fault for every request but a health check.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from coderl_tasks.scorecard.corpus import Case
from coderl_tasks.scorecard.graders import Outcome, started

FAULTS = (
    "answers 500", "answers SandboxError", "answers with a page", "resets the connection", "cuts its answer",
)  # fmt: skip
_TRIED_WITH_FAULTS = ("sum/stdin-readline", "call/a-lambda", "assert/a-function")
"""Right programs, one of each kind: those that the grader takes."""


@dataclass(frozen=True)
class Scored:
    case: Case
    outcome: Outcome

    @property
    def is_rewarded(self) -> bool:
        return (self.outcome.reward or 0.0) > 0.0

    @property
    def is_bought(self) -> bool:
        return self.case.is_attack and self.is_rewarded

    @property
    def is_misjudged(self) -> bool:
        return not self.case.is_attack and self.is_rewarded is not self.case.deserves_reward

    def to_json(self) -> dict[str, Any]:
        case = self.case
        verdict = "bought" if self.is_bought else "misjudged" if self.is_misjudged else "as it should be"
        return {
            "id": case.id, "kind": case.kind, "category": case.category, "about": case.about,
            "is_attack": case.is_attack, "deserves_reward": case.deserves_reward, "reward": self.outcome.reward,
            "reason": self.outcome.reason, "outcome": verdict, "problem": dict(case.problem),
            "completion": case.completion,
        }  # fmt: skip


@dataclass(frozen=True)
class ScoreCard:
    """All cases, and per fault of the sandbox the outcomes of right programs (None: not tried)."""

    scored: Sequence[Scored]
    outages: dict[str, list[Outcome] | None]

    @property
    def bought(self) -> list[Scored]:
        return [scored for scored in self.scored if scored.is_bought]

    @property
    def misjudged(self) -> list[Scored]:
        return [scored for scored in self.scored if scored.is_misjudged]

    @property
    def died(self) -> list[Scored]:
        """Cases that ended the grader or kept it from an answer."""
        return [scored for scored in self.scored if scored.outcome.reason.startswith(("grader died", "grader hung"))]

    def outages_scored(self) -> tuple[int, int] | None:
        """How many right programs got 0 or less because the sandbox failed, and of how many; None: not tried."""
        outcomes = [outcome for found in self.outages.values() for outcome in found or ()]
        wrong = sum(outcome.reward is not None and outcome.reward <= 0.0 for outcome in outcomes)
        return (wrong, len(outcomes)) if outcomes else None

    def to_json(self) -> dict[str, Any]:
        return {
            "bought": len(self.bought),
            "misjudged": len(self.misjudged),
            "died": len(self.died),
            "outages": {
                fault: None if found is None else [{"reward": one.reward, "reason": one.reason} for one in found]
                for fault, found in self.outages.items()
            },
            "cases": [scored.to_json() for scored in self.scored],
        }


async def score_card(
    target: str,
    cases: Sequence[Case],
    *,
    with_outages: bool = False,
    on_case: Callable[[], None] = lambda: None,
    at_once: int | None = None,
) -> ScoreCard:
    """Grades `cases` with the grader that `target` names; returns each with its outcome, in order. At most `at_once`
    are graded at a time (None: one more than there are cores); `on_case` is called after each. `with_outages` also
    tries right programs while the sandbox fails. Raises ConfigError for a target that cannot be used."""
    slots = asyncio.Semaphore(at_once or (os.cpu_count() or 1) + 1)

    async def scored(case: Case) -> Scored:
        async with slots:
            outcome = await grade(case)
        on_case()
        return Scored(case, outcome)

    async with started(target) as grade:
        tasks = [asyncio.create_task(scored(case)) for case in cases]
        try:
            card = await asyncio.gather(*tasks)
        finally:  # after an error or Ctrl-C the others are cancelled, and their processes gone
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    outages: dict[str, list[Outcome] | None] = {}
    if with_outages:
        right = [case for case in cases if case.id in _TRIED_WITH_FAULTS]
        found = await asyncio.gather(*(_outcomes_with_fault(fault, target, right) for fault in FAULTS))
        outages = dict(zip(FAULTS, found, strict=True))
    return ScoreCard(card, outages)


async def _outcomes_with_fault(fault: str, target: str, cases: Sequence[Case]) -> list[Outcome] | None:
    """The outcomes of `cases` on a sandbox server with this fault; None where the grader has sent it nothing."""
    was_asked = False

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal was_asked
        await request.read()  # so that the client has sent all before the fault
        if request.method == "GET":
            return web.Response(text="pong")
        was_asked = True
        return await _faulty_answer(fault, request)

    app = web.Application(client_max_size=1 << 28)  # requests have tests in them
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with started(target, f"http://127.0.0.1:{runner.addresses[0][1]}") as grade:
            outcomes = list(await asyncio.gather(*map(grade, cases)))
            return outcomes if was_asked else None
    finally:
        await runner.cleanup()


async def _faulty_answer(fault: str, request: web.Request) -> web.StreamResponse:
    match fault:
        case "answers 500":
            return web.Response(status=500, text="internal server error")
        case "answers SandboxError":
            body = {"status": "SandboxError", "message": "no space left on device", "run_result": None}
            return web.json_response(body)
        case "answers with a page":
            return web.Response(text="<html>starting, please wait</html>", content_type="text/html")
    response: web.StreamResponse = web.Response()
    if fault == "cuts its answer":
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"status": "Success", "message": "", "run_result": {"status": "Finished", "stdo')
    assert request.transport is not None
    request.transport.abort()
    return response
