"""Completions in several turns: an answer, the environment's reply (feedback, or a call's result), the next answer.

1. A group's completions are in step: all that go on are replied to, then all of them answer again. Equal programs are
   run once.
2. An answer is recorded before the environment is asked about it, and a reply before the policy is asked on. A killed
   run goes on in the middle of a completion, and a reply is never made twice: what a program prints may depend on when
   it runs.
3. An answer's seed depends on the run, the group, the completion and the turn alone.
4. An outage, or a checker that fails, is no reply. The completion ends there and is left out of its group, unless a
   retry of the phase finds the sandbox up again.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl
import tinker

from coderl_tasks.errors import InfraError, SandboxDownError
from coderl_tasks.grading.scoring import UNGRADED, Grade, ScoredCompletion, Verdict
from coderl_tasks.policy import sampling
from coderl_tasks.policy.rollout import NO_COMPLETION, ROLLOUT_SCHEMA, SAMPLED_SCHEMA
from coderl_tasks.policy.selection import seed_for
from coderl_tasks.problems.problem import Problem
from coderl_tasks.prompts.renderers import Message

if TYPE_CHECKING:  # the engine calls this module
    from coderl_tasks.rollouts.engine import RolloutEngine

Row = dict[str, Any]
Record = Callable[[pl.DataFrame], None]


def with_first_turn(group: pl.DataFrame) -> pl.DataFrame:
    """A group that was just sampled (SAMPLED_SCHEMA), with its answers as first turns."""
    rows = group.to_dicts()
    for row in rows:
        answer = {"n_tokens": len(row["completion_tokens"]), "text": row["completion"]}
        answer["stop_reason"] = row["stop_reason"]
        row["turns"] = [_turn("", [], len(row["prompt_tokens"])) | answer]
    return pl.DataFrame(rows, schema=SAMPLED_SCHEMA)


def is_unfinished(group: pl.DataFrame, most: int) -> bool:
    """Whether a completion of a recorded group goes on: a reply or an answer is missing, or a reply met an outage."""
    rows = group.to_dicts() if most > 1 else []
    return any(row["turns"] and (_awaits_answer(row) or _awaits_reply(row, most, again=True)) for row in rows)


def require_replies(sampled: pl.DataFrame, what: str) -> None:
    """Raises SandboxDownError if over MOST_LOST of the completions met an outage in place of a reply."""
    lost = sum(1 for turns in sampled["turns"] if turns is not None and turns[-1]["check"] == Verdict.INFRA_ERROR)
    if lost > sampling.MOST_LOST * sampled.height:
        raise SandboxDownError(
            f"{what}: the programs of {lost} of {sampled.height} completions could not be run for a reply: is the "
            "sandbox up? (coderl doctor)"
        )


def left_out(turns: Sequence[Mapping[str, Any]]) -> Verdict | None:
    """The verdict that a completion is left out for: its last reply met an outage or a checker that failed; or None."""
    check = turns[-1]["check"]
    return Verdict(check) if check in UNGRADED else None


def not_graded(fault: Verdict, problem: Problem) -> ScoredCompletion:
    """The score of a completion that is left out: none."""
    grade = Grade(fault, 0, 0, len(problem.tests), None, 0.0, "the program could not be run for a reply")
    return ScoredCompletion(None, grade, None, None, None)


def earlier_texts(sampled: pl.DataFrame) -> list[str]:
    """The answers of all turns but the last ones, completion by completion."""
    return [turn["text"] for turns in sampled["turns"] for turn in (() if turns is None else turns[:-1])]


def with_verdicts(graded: pl.DataFrame, earlier: Sequence[Verdict]) -> pl.DataFrame:
    """Adds `turn_verdicts`: `earlier`, those of `earlier_texts`, then the completion's own."""
    remaining = iter(earlier)
    column = [
        None if turns is None else [*(next(remaining).value for _ in turns[:-1]), verdict]
        for turns, verdict in graded.select("turns", "verdict").iter_rows()
    ]
    return graded.with_columns(pl.Series("turn_verdicts", column, dtype=ROLLOUT_SCHEMA["turn_verdicts"]))


async def further_turns(
    engine: "RolloutEngine",
    sampler: tinker.SamplingClient,
    problem: Problem,
    group: pl.DataFrame,
    temperature: float,
    record: Record | None = None,
) -> pl.DataFrame:
    """Takes the completions of a group through all their turns. `group` is what is recorded of it, which `record` is
    called with whenever it grows. Raises as `sample_group` does."""
    most, rows = engine.environment.turns.most, group.to_dicts()
    problem = await asyncio.to_thread(problem.whole)

    def recorded() -> None:
        if record is not None:
            record(pl.DataFrame(rows, schema=SAMPLED_SCHEMA))

    async def answer(row: Row) -> None:
        await _next_answer(engine, sampler, row, temperature)
        recorded()

    again = True  # replies that met an outage are asked for once more
    while True:
        if asked := [row for row in rows if _awaits_reply(row, most, again=again)]:
            await _reply(engine, problem, asked)
            recorded()
        again = False
        waiting = [row for row in rows if _awaits_answer(row)]
        if not waiting:
            return pl.DataFrame(rows, schema=SAMPLED_SCHEMA)
        await sampling.try_all(answer, waiting, what="answers")


def _turn(text: str, tokens: Sequence[int], kept: int, *, is_split: bool = False) -> Row:
    """A turn that is not sampled yet."""
    values = {"environment_text": text, "environment_tokens": list(tokens), "kept": kept, "is_split": is_split}
    return values | {"n_tokens": 0, "text": "", "stop_reason": None, "check": None}


def _awaits_answer(row: Row) -> bool:
    return row["turns"][-1]["stop_reason"] is None


def _awaits_reply(row: Row, most: int, *, again: bool) -> bool:
    turns = row["turns"]
    last = turns[-1]
    if len(turns) >= most or last["stop_reason"] in (None, NO_COMPLETION) or row["logprobs"] is None:
        return False
    return last["check"] is None or (again and last["check"] == Verdict.INFRA_ERROR)


async def _reply(engine: "RolloutEngine", problem: Problem, rows: Sequence[Row]) -> None:
    """Asks the environment about the last answers of `rows`, and adds the turns that follow."""
    environment = engine.environment
    by_turn: dict[int, list[Row]] = {}
    for row in rows:
        by_turn.setdefault(len(row["turns"]) - 1, []).append(row)
    for number, asked in by_turn.items():
        texts = [row["turns"][-1]["text"] for row in asked]
        for row, reply in zip(asked, await environment.replies(engine.judge, problem, texts, number), strict=True):
            row["turns"][-1]["check"] = str(reply.check)
            if reply.text is None:
                continue
            prompt, completion = _so_far(row)
            says: Message = {"role": environment.turns.role, "content": reply.text}
            conversation = [*environment.messages(problem), *_history(row, environment.turns.role)]
            tokens, goes_on = engine.renderer.continued_prompt(
                prompt, completion, conversation, says, environment.turns.tools
            )
            before = [*prompt, *completion]
            kept = len(before) if goes_on else _common(before, tokens)
            turn = _turn(reply.text, tokens[kept:], kept, is_split=not goes_on)
            if _most_tokens(engine, row, turn, len(tokens)) > 0:  # else the completion ends with the answer
                row["turns"].append(turn)


async def _next_answer(engine: "RolloutEngine", sampler: tinker.SamplingClient, row: Row, temperature: float) -> None:
    """Samples the answer of the last turn of `row`, whose prompt is recorded."""
    settings, turn, number = engine.settings, row["turns"][-1], len(row["turns"]) - 1
    prompt, _ = _so_far(row)
    place = [row[name] for name in ("step", "attempt", "group_index", "problem_id")]
    request = sampling.GroupRequest(
        group_index=row["group_index"],
        problem_id=row["problem_id"],
        split=row["split"],
        prompt_tokens=prompt,
        num_samples=1,
        max_tokens=_most_tokens(engine, row, turn, len(prompt)),
        # Of one sample alone: a service whose seeds repeat a request's samples does no harm here.
        seed=seed_for(settings.seed, settings.purpose, *place, "turn", number, row["sample_index"]),
        temperature=temperature,
        step=row["step"],
        attempt=row["attempt"],
        sampler_step=row["sampler_step"],
        first_sample=row["sample_index"],
    )
    before = pl.DataFrame([row], schema=SAMPLED_SCHEMA)
    async with engine.requested(sampler, request) as (completions, charge):
        (completion,) = completions
        # In training it is left out; elsewhere one that never came would count as a wrong answer.
        if completion.stop_reason == NO_COMPLETION and settings.purpose != "train":
            raise InfraError("Tinker, sampling: a completion was asked for, and none came")
        text = engine.environment.text(completion.tokens, engine.renderer)
        turn |= {"n_tokens": len(completion.tokens), "text": text, "stop_reason": completion.stop_reason}
        row["completion_tokens"] = [*row["completion_tokens"], *completion.tokens]
        known = row["logprobs"] is not None and completion.logprobs is not None
        row["logprobs"] = [*row["logprobs"], *(completion.logprobs or ())] if known else None
        row |= {"completion": text, "stop_reason": completion.stop_reason}
        charge(pl.DataFrame([row], schema=SAMPLED_SCHEMA), before)


def _so_far(row: Row) -> tuple[list[int], list[int]]:
    """The prompt of the last turn of `row`, and the tokens of its answer, none if it is not sampled."""
    sequence: list[int] = row["prompt_tokens"]
    prompt, place = sequence, 0
    answer: list[int] = []
    for turn in row["turns"]:
        prompt = [*sequence[: turn["kept"]], *turn["environment_tokens"]]
        answer = row["completion_tokens"][place : place + turn["n_tokens"]]
        place += turn["n_tokens"]
        sequence = [*prompt, *answer]
    return prompt, answer


def _history(row: Row, role: str) -> list[Message]:
    """What was said after the first prompt, the environment's part in this role."""
    messages: list[Message] = []
    for number, turn in enumerate(row["turns"]):
        if number:
            messages.append({"role": role, "content": turn["environment_text"]})
        messages.append({"role": "assistant", "content": turn["text"]})
    return messages


def _most_tokens(engine: "RolloutEngine", row: Row, turn: Row, prompt: int) -> int:
    """How many tokens the answer of `turn` may have, behind a prompt of `prompt` tokens."""
    most = sampling.completion_budget(prompt, engine.settings.max_tokens, engine.settings.context)
    trajectory = engine.environment.turns.tokens
    if trajectory is None:
        return most
    turns = row["turns"] if row["turns"][-1] is turn else [*row["turns"], turn]
    spent = len(row["completion_tokens"]) + sum(len(each["environment_tokens"]) for each in turns)
    return min(most, trajectory - spent)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences have in common at their beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
