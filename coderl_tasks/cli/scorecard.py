"""`coderl scorecard`: attacks and honest programs against any grader."""

import asyncio
import json
from argparse import Namespace
from itertools import groupby

import rich.table
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from coderl_tasks.errors import CoderlError, ConfigError
from coderl_tasks.journal.atomic import output_file
from coderl_tasks.scorecard.corpus import KINDS, corpus
from coderl_tasks.scorecard.scoring_run import ScoreCard, Scored, score_card
from coderl_tasks.untrusted_text import printable

SHOWN = 30
"""Of the cases that went wrong: how many are named; --json has all."""


def scorecard(options: Namespace) -> int:
    """`coderl scorecard`: has the grader `--target` grade programs (cases) of which it is known whether they deserve
    their reward, and prints where it errs. Returns an error's exit code if it gave a reward that is not deserved
    (`bought`) or refused one that is (`misjudged`)."""
    kinds = options.kind or KINDS
    cases = [case for case in corpus() if options.only in case.id and case.kind in kinds]
    if not cases:
        raise ConfigError(f"no {' or '.join(kinds)} case has {options.only!r} in its id: --list has them all")
    if options.list:
        for case in cases:
            reward = "deserves its reward" if case.deserves_reward else "deserves no reward"
            print(f"{case.id}: {case.about} ({case.category}; {reward})")
        return 0
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(f"grading by {options.target}", total=len(cases))
        card = asyncio.run(
            score_card(options.target, cases, with_outages=options.outages, on_case=lambda: progress.advance(task))
        )
    if options.json is not None:
        with output_file(options.json) as file:
            file.write((json.dumps(card.to_json(), indent=1) + "\n").encode())
    _show(card, console)
    return CoderlError.exit_code if card.bought or card.misjudged else 0


def _show(card: ScoreCard, console: Console) -> None:
    table = rich.table.Table("cases", "category", "tried", "wrong")
    ordered = sorted(card.scored, key=lambda scored: (not scored.case.is_attack, scored.case.category))
    for (is_honest, category), found in groupby(ordered, lambda s: (not s.case.is_attack, s.case.category)):
        of_category = list(found)
        wrong = sum(scored.is_bought or scored.is_misjudged for scored in of_category)
        table.add_row("honest" if is_honest else "attack", category, str(len(of_category)), str(wrong or "-"))
    console.print(table)
    _name("bought", card.bought, console)
    _name("misjudged", card.misjudged, console)
    attacks = sum(scored.case.is_attack for scored in card.scored)
    print(f"bought rewards: {len(card.bought)} of {attacks} attacks")
    print(f"misjudged honest programs: {len(card.misjudged)} of {len(card.scored) - attacks}")
    print(f"cases that ended the grader or kept it from an answer: {len(card.died)}")
    scored = card.outages_scored()
    print("outages scored as 0: " + ("not tried" if scored is None else f"{scored[0]} of {scored[1]}"))


def _name(what: str, found: list[Scored], console: Console) -> None:
    for scored in found[:SHOWN]:
        reward, reason = scored.outcome.reward, printable(scored.outcome.reason)
        line = f"{what}: {scored.case.id} ({scored.case.about}): {'no verdict' if reward is None else f'{reward:g}'}"
        console.print(line + (f", {reason[:200]}" if reason else ""), markup=False, highlight=False, soft_wrap=True)
    if len(found) > SHOWN:
        print(f"{what}: {len(found) - SHOWN} more (--json has all)")
