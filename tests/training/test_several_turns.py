"""Steps whose completions have several turns: killed in the middle of one, and with groups that are begun in parts."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from coderl_tasks.environments.environment import Turns
from coderl_tasks.environments.feedback import Reply, tool_replies
from coderl_tasks.errors import SandboxDownError
from coderl_tasks.grading import Judge
from coderl_tasks.grading.scoring import Verdict
from coderl_tasks.policy.rollout import VARYING_COLUMNS
from coderl_tasks.policy.step_metrics import rollout_metrics
from coderl_tasks.problems.problem import Problem
from coderl_tasks.prompts.renderers import Message, Renderer
from coderl_tasks.training.step import sample, score
from tests.training.refilled_runs import Refilled, Told

IN_PARTS = {"first_completions": 2}


class Doubting(Told):
    """Doubts each first answer; the process dies at reply number `dying`, and the sandbox is `down`."""

    turns = Turns(2)

    def __init__(self, dying: int = -1, *, down: bool = False) -> None:
        super().__init__()
        self.dying, self.down, self.asked = dying, down, 0

    def messages(self, problem: Problem) -> list[Message]:
        return [{"role": "user", "content": problem.problem_id}]

    async def replies(self, judge: Judge, problem: Problem, texts: Sequence[str], turn: int) -> list[Reply]:
        self.asked += 1
        if self.asked == self.dying:
            raise ValueError("a crash")
        if self.down:
            return [Reply(Verdict.INFRA_ERROR, None)] * len(texts)
        return [Reply(Verdict.WRONG_ANSWER, f"Wrong ({len(text)}).") for text in texts]


class Calling(Doubting):
    """Each answer is a call, which the sandbox runs, as far as there may be calls."""

    turns = Turns(3, tool_calls=2)

    def text(self, tokens: Sequence[int], renderer: Renderer) -> str:
        call = {"name": "run_python", "arguments": {"code": f"print({sum(tokens)})"}}
        return f"<tool_call>{json.dumps(call)}</tool_call>"

    async def replies(self, judge: Judge, problem: Problem, texts: Sequence[str], turn: int) -> list[Reply]:
        await super().replies(judge, problem, texts, turn)
        return await tool_replies(judge, texts, is_last=turn == 1)


async def sampled(refilled: Refilled, folder: Path, environment: Doubting, **settings: Any) -> pl.DataFrame:
    async with refilled.run(folder, environment, **settings) as run:
        return (await sample.fn(run, 0)).rollouts


@pytest.mark.parametrize(
    ("kind", "dying_at", "settings"),
    [(Doubting, (1, 3, 6), {}), (Doubting, (1, 3, 6), IN_PARTS), (Calling, (2, 6), IN_PARTS)],
)
async def test_a_step_killed_in_the_middle_of_completions_goes_on_there(
    refilled: Refilled, tmp_path: Path, kind: type[Doubting], dying_at: tuple[int, ...], settings: dict[str, int]
) -> None:
    quiet = await sampled(refilled, tmp_path / "quiet", kind(), **settings)
    asked = len(refilled.seeds)
    assert {len(turns) for turns in quiet["turns"]} == {kind.turns.most}
    for dying in dying_at:
        killed, before = tmp_path / f"killed-{dying}", len(refilled.seeds)
        with pytest.raises(ValueError, match="a crash"):
            await sampled(refilled, killed, kind(dying), **settings)
        again = await sampled(refilled, killed, kind(), **settings)
        assert again.equals(quiet), dying
        # What was in flight at the crash may be asked for twice; nothing that was recorded is.
        assert asked <= len(refilled.seeds) - before < 1.5 * asked, dying


async def test_a_sandbox_that_is_down_fails_the_phase_whose_retry_asks_again(
    refilled: Refilled, tmp_path: Path
) -> None:
    with pytest.raises(SandboxDownError, match="could not be run for a reply"):
        await sampled(refilled, tmp_path / "down", Doubting(down=True))
    first = len(refilled.seeds)
    again = await sampled(refilled, tmp_path / "down", Doubting())
    resumed = len(refilled.seeds) - first
    quiet = await sampled(refilled, tmp_path / "quiet", Doubting())
    assert again.equals(quiet)
    assert len(refilled.seeds) == 2 * (first + resumed), "first answers are not sampled again"


async def test_a_completion_that_gets_its_reply_on_a_retry_is_graded_again(refilled: Refilled, tmp_path: Path) -> None:
    async with refilled.run(tmp_path / "quiet", Doubting(), refill=1) as run:
        quiet = (await score.fn(run, 0, await sample.fn(run, 0))).rollouts
    async with refilled.run(tmp_path / "down", doubting := Doubting(down=True), refill=1) as run:
        with pytest.raises(SandboxDownError, match="could not be run for a reply"):
            await sample.fn(run, 0)
        doubting.down = False
        again = (await score.fn(run, 0, await sample.fn(run, 0))).rollouts
    assert again.drop(VARYING_COLUMNS).equals(quiet.drop(VARYING_COLUMNS))


async def test_the_metrics_of_turns(refilled: Refilled, tmp_path: Path) -> None:
    async with refilled.run(tmp_path, Doubting(), turn_credit="last") as run:
        graded = (await score.fn(run, 0, await sample.fn(run, 0))).rollouts
        metrics = rollout_metrics(graded)
        graded_rows = graded.filter(pl.col("reward").is_not_null())
        assert metrics["mean_turns"] == 2 and metrics["replies_failed"] == 0
        assert metrics["mended_rate"] == (graded_rows["verdict"] == "passed").mean()
        trained = graded.filter("trained")
        for advantage, by_turn in trained.select("advantage", "turn_advantages").rows():
            assert by_turn == [0.0, advantage]
    async with refilled.run(tmp_path / "one", Told()) as run:
        plain = rollout_metrics((await score.fn(run, 0, await sample.fn(run, 0))).rollouts)
        assert plain["mean_turns"] is plain["mended_rate"] is plain["replies_failed"] is None
