"""Completions in several turns: an answer, the environment's reply (feedback, or a call's result), the next answer.

1. A group's completions are in step: all that go on are replied to, then all answer again. Equal programs run once.
2. An answer is recorded before the environment is asked about it, and a reply before the policy is asked on: a killed
   run does not make a reply twice (what a program prints may depend on when it runs). The answers of a turn are
   recorded together: to rewrite the group's file after each took minutes per step.
3. An answer's seed depends on the run, the group, the completion and the turn alone.
4. An outage, or a checker that fails, is no reply. The completion ends there and is left out of its group, unless a
   retry of the phase finds the sandbox up again, or the checker mended.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import polars as pl
import tinker

from coderl_tasks.errors import CoderlError, InfraError, SandboxDownError
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
        row["turns"] = [_unsampled_turn("", [], kept=len(row["prompt_tokens"])) | answer]
    return pl.DataFrame(rows, schema=SAMPLED_SCHEMA)


def is_unfinished(engine: "RolloutEngine", group: pl.DataFrame) -> bool:
    """Whether a completion of a recorded group goes on: a reply or an answer is missing, or a reply met a fault."""
    rows = [row for row in group.to_dicts() if row["turns"]] if engine.environment.turns.most > 1 else []
    return any(_awaits_answer(row) or _awaits_reply(engine, row, retry_faults=True) for row in rows)


def require_replies(sampled: pl.DataFrame, what: str) -> None:
    """Raises SandboxDownError if over MOST_LOST of the completions met an outage in place of a reply, CoderlError if as
    many met a checker or a function `respond` that failed."""
    faults = Counter(None if turns is None else fault_of_last_reply(turns) for turns in sampled["turns"])
    most = sampling.MOST_LOST * sampled.height
    if (lost := faults[Verdict.INFRA_ERROR]) > most:
        raise SandboxDownError(
            f"{what}: the programs of {lost} of {sampled.height} completions could not be run for a reply: is the "
            "sandbox up? (coderl doctor)"
        )
    if (failed := faults[Verdict.CHECKER_ERROR]) > most:
        raise CoderlError(
            f"{what}: the checker, or the function respond, failed on {failed} of {sampled.height} completions, more "
            f"than {sampling.MOST_LOST:.0%}: warnings say how. Mend respond, or leave out the problems that coderl "
            "validate finds, then start again: the completions stay recorded"
        )


def fault_of_last_reply(turns: Sequence[Mapping[str, Any]]) -> Verdict | None:
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
    """Takes the completions of a group through all their turns, until none goes on. `group` is what is recorded of it
    so far; `record` is called with the whole group after the replies and after the answers of each turn. Raises as
    `sample_group` does."""
    rows = group.to_dicts()

    def record_group() -> None:
        if record is not None:
            record(pl.DataFrame(rows, schema=SAMPLED_SCHEMA))

    async def answer(row: Row) -> None:
        await _add_answer(engine, sampler, row, temperature)

    retry_faults = True  # only the first time: what meets a fault now stays without a reply
    while True:
        if to_reply := [row for row in rows if _awaits_reply(engine, row, retry_faults=retry_faults)]:
            await _add_replies(engine, problem, to_reply)
            record_group()
        retry_faults = False
        to_answer = [row for row in rows if _awaits_answer(row)]
        if not to_answer:
            return pl.DataFrame(rows, schema=SAMPLED_SCHEMA)
        try:
            await sampling.try_all(answer, to_answer, what="answers")
        finally:
            record_group()  # also if some of them failed, or the run is stopped: the others are paid for


def _unsampled_turn(text: str, tokens: Sequence[int], kept: int, *, is_split: bool = False) -> Row:
    values = {"environment_text": text, "environment_tokens": list(tokens), "kept": kept, "is_split": is_split}
    return values | {"n_tokens": 0, "text": "", "stop_reason": None, "check": None}


def _awaits_answer(row: Row) -> bool:
    return row["turns"][-1]["stop_reason"] is None


def _awaits_reply(engine: "RolloutEngine", row: Row, *, retry_faults: bool) -> bool:
    turns = row["turns"]
    last = turns[-1]
    if len(turns) >= engine.environment.turns.most or last["stop_reason"] in (None, NO_COMPLETION):
        return False
    if engine.settings.purpose == "train" and row["logprobs"] is None:  # it is not trained on
        return False
    return last["check"] is None or (retry_faults and last["check"] in UNGRADED)


async def _add_replies(engine: "RolloutEngine", problem: Problem, rows: Sequence[Row]) -> None:
    """Asks the environment for its replies to the last answers of `rows`, and adds the turns that these begin."""
    # For this call alone: tests can be large, and the next answers may take minutes. A tool is called without them.
    whole = problem if engine.environment.turns.tool_calls else await asyncio.to_thread(problem.whole)
    by_turn_number: dict[int, list[Row]] = {}
    for row in rows:
        by_turn_number.setdefault(len(row["turns"]) - 1, []).append(row)
    for turn_number, asked in by_turn_number.items():
        answers = [row["turns"][-1]["text"] for row in asked]
        replies = await engine.environment.replies(engine.judge, whole, answers, turn_number)
        for row, reply in zip(asked, replies, strict=True):
            row["turns"][-1]["check"] = str(reply.check)
            if reply.text is not None:  # else the completion ends with the answer
                _add_turn(engine, problem, row, reply.text)


def _add_turn(engine: "RolloutEngine", problem: Problem, row: Row, reply_text: str) -> None:
    """Adds the turn that a reply begins, with its prompt and without an answer, unless no tokens are left for one."""
    environment = engine.environment
    last_prompt, last_answer = _prompt_and_answer_of_last_turn(row)
    conversation = list(environment.messages(problem))
    for number, turn in enumerate(row["turns"]):
        if number:
            conversation.append({"role": environment.turns.role, "content": turn["environment_text"]})
        conversation.append({"role": "assistant", "content": turn["text"]})
    reply: Message = {"role": environment.turns.role, "content": reply_text}
    prompt, continues = engine.renderer.continued_prompt(
        last_prompt, last_answer, conversation, reply, environment.turns.tools
    )
    # If the chat format writes past turns otherwise than they were sampled (without their thinking, say), the prompt
    # shares only its beginning with the tokens so far, and the turn is trained on as a sequence of its own.
    so_far = [*last_prompt, *last_answer]
    shared = takewhile(lambda pair: pair[0] == pair[1], zip(so_far, prompt, strict=False))
    kept = len(so_far) if continues else len(list(shared))
    turn = _unsampled_turn(reply_text, prompt[kept:], kept, is_split=not continues)
    if _most_tokens(engine, row, turn, len(prompt)) > 0:
        row["turns"].append(turn)


async def _add_answer(engine: "RolloutEngine", sampler: tinker.SamplingClient, row: Row, temperature: float) -> None:
    """Samples the answer to the prompt of the last turn of `row`, and writes it into that turn and into `row`."""
    settings, turn, turn_number = engine.settings, row["turns"][-1], len(row["turns"]) - 1
    prompt, _ = _prompt_and_answer_of_last_turn(row)
    group_key = [row[name] for name in ("step", "attempt", "group_index", "problem_id")]
    request = sampling.GroupRequest(
        group_index=row["group_index"],
        problem_id=row["problem_id"],
        split=row["split"],
        prompt_tokens=prompt,
        num_samples=1,
        max_tokens=_most_tokens(engine, row, turn, len(prompt)),
        # Always with a seed: some services repeat a seeded request's sample, but this one asks for one.
        seed=seed_for(settings.seed, settings.purpose, *group_key, "turn", turn_number, row["sample_index"]),
        temperature=temperature,
        step=row["step"],
        attempt=row["attempt"],
        sampler_step=row["sampler_step"],
        first_sample=row["sample_index"],
    )
    before = pl.DataFrame([row], schema=SAMPLED_SCHEMA)
    async with engine.sampled_within_budget(sampler, request) as (completions, charge):
        (completion,) = completions
        # Where none came, training leaves it out of its group. A profile or an evaluation would count a wrong answer.
        if completion.stop_reason == NO_COMPLETION and settings.purpose != "train":
            raise InfraError("Tinker, sampling: a completion was asked for, and none came")
        text = engine.environment.text(completion.tokens, engine.renderer)
        turn |= {"n_tokens": len(completion.tokens), "text": text, "stop_reason": completion.stop_reason}
        row["completion_tokens"] = [*row["completion_tokens"], *completion.tokens]
        has_logprobs = row["logprobs"] is not None and completion.logprobs is not None
        row["logprobs"] = [*row["logprobs"], *(completion.logprobs or ())] if has_logprobs else None
        # The text is the last answer's, which is graded; tokens and log-probabilities are of all answers.
        row |= {"completion": text, "stop_reason": completion.stop_reason}
        # The budget is charged with the tokens that the row has now and did not have before.
        charge(pl.DataFrame([row], schema=SAMPLED_SCHEMA), before)


def _prompt_and_answer_of_last_turn(row: Row) -> tuple[list[int], list[int]]:
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


def _most_tokens(engine: "RolloutEngine", row: Row, turn: Row, prompt: int) -> int:
    """How many tokens the answer of `turn` may have, behind a prompt of `prompt` tokens."""
    most = sampling.completion_budget(prompt, engine.settings.max_tokens, engine.settings.context)
    trajectory = engine.environment.turns.tokens
    if trajectory is None:
        return most
    turns = row["turns"] if row["turns"][-1] is turn else [*row["turns"], turn]
    spent = len(row["completion_tokens"]) + sum(len(each["environment_tokens"]) for each in turns)
    return min(most, trajectory - spent)
