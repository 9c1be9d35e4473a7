"""Writes data/skewed: problems as data/mini's, of which the nano base model solves most never and some always.

    python -m data.recipes.make_skewed [folder]                      the rows: the same bytes each time, some seconds
    python -m data.recipes.make_skewed --sample candidates [folder]  samples nano on all candidates first
    python -m data.recipes.make_skewed --sample profile [folder]     then records fresh samples of the train problems

1. Train candidates of four kinds are composed: chains of up to six operations, input in layouts that nano was never
   taught, problems as data/mini's, and easy ones, of pieces that are seldom written wrongly.
2. nano's passes of 16 samples per candidate are recorded in candidates.json. By these the rows are chosen, in each file
   the same shares of never, always and sometimes solved ones, so that making the rows again needs no model.
3. Chosen by 16 samples is not the same as measured: whoever is always right of 16 is a little lucky. profile.jsonl has
   samples of another seed, and the card's shares are counted in these.
4. The test side is not chosen: two thirds as data/mini's test side, a third easy, with test-side combinations.
"""

import argparse
import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from coderl_tasks.curation.profile import profile_shard
from coderl_tasks.paths import coderl_home
from coderl_tasks.policy.clients import create_sampling_client
from coderl_tasks.problems import Problem, load_problems
from coderl_tasks.problems.raw_row import problem_from_row
from coderl_tasks.rollouts.engine import RolloutEngine, RolloutSettings, open_session
from coderl_tasks.rollouts.rounds import SamplingPlan
from coderl_tasks.services import services
from coderl_tasks.settings import EvaluateSettings
from data.recipes.cases import Case, draw_cases, solves
from data.recipes.compose import Combination, Composed, Step, draw
from data.recipes.layouts import FUNCTION_LAYOUTS, STDIN_LAYOUTS, UNTAUGHT_LAYOUTS, Layout
from data.recipes.make_mini import TESTS, Row, problems, raw_row, require_solved, split_combinations
from data.recipes.operations import FILTERS, TRANSFORMS

SEED = 41
FOLDER = Path(__file__).resolve().parents[1] / "skewed"
SAMPLES = 16
CHAIN_STEPS = (1, 2, 2, 3)
"""How many steps a chain has before those that any problem has."""
EASY_FAULTS = 0.1
"""An easy problem's pieces are written wrongly by nano's teacher with at most this probability in all."""
TRAIN_SIZES = {"primeintellect": (220, 26), "taco": (150, 22), "lcbv5": (110, 33)}
"""Split: its rows, and how many in so many candidates are functional."""
TEST_SIZES = {"codeforces": (130, 0), "lcbv5": (110, 33)}
CANDIDATES = {"chain": 0.5, "layout": 0.12, "plain": 0.42, "easy": 0.32}
"""Kind: its candidates per row of the file."""
SHARES = {"never": 0.55, "always": 0.15}
"""Of the rows; the others are solved sometimes."""
ALWAYS = 15
"""So many of 16 are as good as always: above 0.9, the upper end of what `coderl curate` keeps."""
CANDIDATES_FILE, PROFILE_FILE = "candidates.json", "profile.jsonl"

Source = Iterator[Composed]


def easy(source: Source) -> Source:
    """Those of `source` with at most two operations whose pieces are seldom written wrongly."""
    for problem in source:
        faults = sum(slip.rate for _, slips in problem.slots().values() for slip in slips)
        if problem.combination.operations <= 2 and faults <= EASY_FAULTS:
            yield problem


def chains(side: list[Combination], rng: random.Random, layouts: Sequence[Layout], seen: set[Composed]) -> Source:
    """Different problems of two or three operations with one to three steps before them, without end."""
    bases = [combination for combination in side if combination.operations > 1]
    steps: tuple[Step, ...] = (*FILTERS, *TRANSFORMS)
    while True:
        base = rng.choice(bases)
        others = [step for step in steps if step not in base.steps]
        earlier = tuple(rng.sample(others, rng.choice(CHAIN_STEPS)))
        problem = draw(Combination(base.aggregate, base.transform, base.filter, earlier), rng, layouts)
        if problem is not None and problem not in seen:
            seen.add(problem)
            yield problem


def with_tests(source: Source, rng: random.Random) -> Iterator[tuple[Composed, list[Case]]]:
    """The problems with 5 to 20 tests that their solution passes, and that tell a chain from one without a step of it.

    No answer is that of more than half the tests.
    """
    for problem in source:
        cases = draw_cases(problem, rng, rng.choice(TESTS))
        if not 5 <= len(cases) <= max(TESTS):
            continue
        (_, most_common), *_ = Counter(str(case.expected) for case in cases).most_common(1)
        if 2 * most_common > len(cases):
            continue
        shorter = problem.shortened() if problem.combination.earlier else []
        if any(all(solves(each.program(), problem, case) for case in cases) for each in shorter):
            continue
        require_solved(problem, cases)
        yield problem, cases


def rows_of(
    split: str, kinds: Sequence[tuple[str, bool]], side: list[Combination], rng: random.Random, seen: set[Composed]
) -> Iterator[Row]:
    """A raw row of `split` for each of `kinds`: (what kind of problem, whether a functional one).

    No statement comes twice: such rows would be dropped as duplicates.
    """
    functions = [each for each in FUNCTION_LAYOUTS if each.array == "a" or split == "lcbv5"]
    sources: dict[tuple[str, bool], Iterator[tuple[Composed, list[Case]]]] = {}
    for functional in (False, True):
        layouts = functions if functional else STDIN_LAYOUTS
        for kind, source in {
            "chain": chains(side, rng, layouts, seen),
            "plain": problems(side, rng, layouts, seen),
            "easy": easy(problems(side, rng, layouts, seen)),
            "layout": problems(side, rng, UNTAUGHT_LAYOUTS, seen),
        }.items():
            sources[kind, functional] = with_tests(source, rng)
    statements = set()
    for index, (kind, functional) in enumerate(kinds):
        while True:
            problem, cases = next(sources[kind, functional and kind != "layout"])
            row = raw_row(split, problem, cases, example=rng.random() < 0.4, style=index)
            statement = row["problem"] + row.get("starter_code", "")
            if statement not in statements:
                break
        statements.add(statement)
        yield row


def candidates(split: str, seen: set[Composed]) -> Iterator[Row]:
    """The train candidates of `split`, mixed; `seen` are the problems of the splits before it."""
    size, functional = TRAIN_SIZES[split]
    rng = random.Random(f"{SEED} {split}-train")
    kinds = [kind for kind, share in CANDIDATES.items() for _ in range(round(share * size))]
    rng.shuffle(kinds)
    calls = [rng.random() < functional / size for _ in kinds]
    yield from rows_of(split, list(zip(kinds, calls, strict=True)), split_combinations()[0], rng, seen)


def chosen(split: str, passes: list[int]) -> list[int]:
    """The places of the candidates that become rows: as many as the file has, with its shares of the classes.

    `passes` counts the right ones of nano's `SAMPLES` per candidate. Raises ValueError where a class has too few.
    """
    size = TRAIN_SIZES[split][0]
    wanted = {name: round(share * size) for name, share in SHARES.items()}
    wanted["sometimes"] = size - sum(wanted.values())
    order = list(range(len(passes)))
    random.Random(f"{SEED} {split}-choice").shuffle(order)
    # those with all samples right first, then those with one wrong; the other classes have no order
    order.sort(key=lambda index: -max(passes[index], ALWAYS))
    classes: dict[str, list[int]] = {name: [] for name in wanted}
    for index in order:
        classes[_class(passes[index])].append(index)
    for name, count in wanted.items():
        if len(classes[name]) < count:
            raise ValueError(f"{split}: {len(classes[name])} candidates are {name} solved, {count} are wanted")
    return sorted(index for name, count in wanted.items() for index in classes[name][:count])


def _class(passes: int) -> str:
    return "never" if passes == 0 else "always" if passes >= ALWAYS else "sometimes"


def rows_of_test_side(split: str, seen: set[Composed]) -> Iterator[Row]:
    """The test problems of `split`."""
    size, functional = TEST_SIZES[split]
    rng = random.Random(f"{SEED} {split}-test")
    kinds = ["easy" if index % 3 == 0 else "plain" for index in range(size)]
    calls = [index < functional for index in range(size)]
    rng.shuffle(kinds)
    rng.shuffle(calls)
    yield from rows_of(split, list(zip(kinds, calls, strict=True)), split_combinations()[1], rng, seen)


def write_rows(folder: Path, train: dict[str, list[Row]], seen: set[Composed]) -> None:
    """Writes one JSON-lines file per config and split, the train side chosen by the passes recorded in `folder`.

    If there are none, those of data/skewed are taken.
    """
    record = next(file for each in (folder, FOLDER) if (file := each / CANDIDATES_FILE).exists())
    recorded: dict[str, list[int]] = json.loads(record.read_text())
    files = {
        f"{split}-train": [rows[index] for index in chosen(split, recorded[split])] for split, rows in train.items()
    }
    files |= {f"{split}-test": list(rows_of_test_side(split, seen)) for split in TEST_SIZES}
    for name, rows in files.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        print(f"{name}: {len(rows)} problems", flush=True)


async def sample(problems: list[Problem], settings: EvaluateSettings, folder: Path) -> None:
    """Records `SAMPLES` graded completions of each problem at temperature 1.0 in `folder`."""
    with services(settings.model_name) as used:
        async with open_session(settings, used) as session:
            sampler = await create_sampling_client(await session.service(), base_model=settings.model_name)
            sampled = RolloutSettings(
                "profile", settings.model_name, 1.0, settings.max_tokens, session.context, seed=settings.seed
            )
            engine = RolloutEngine(session.judge, session.renderer, sampled)
            await profile_shard(problems, sampler, engine, SamplingPlan(SAMPLES, SAMPLES), folder=folder)


def outcomes(problems: list[Problem], seed: int, name: str) -> list[dict[str, Any]]:
    """One record per problem: which of its samples passed, in order ("0110..."), and their lengths in tokens.

    What is sampled is kept in the user's cache under `name`, where an interrupted run goes on. Raises ValueError if
    completions could not be graded.
    """
    folder = coderl_home() / "recipes" / name
    asyncio.run(sample(problems, EvaluateSettings(preset="nano", seed=seed), folder))
    rollouts = pl.read_parquet(folder / "rollouts.parquet").sort("group_index", "sample_index")
    if lost := rollouts["correctness_score"].null_count():
        raise ValueError(f"{lost} completions could not be graded: run the command again, which grades only these")
    by_place = rollouts.group_by("group_index", maintain_order=True).agg(
        passed=pl.col("correctness_score") == 1.0,
        completion_tokens=pl.col("completion_tokens").list.len(),
        prompt_tokens=pl.col("prompt_tokens").list.len().first(),
    )
    return [
        {
            "split": problem.split,
            "source_row": problem.source_row,
            "problem_id": problem.problem_id,
            "passed": "".join("01"[passed] for passed in row["passed"]),
            "prompt_tokens": row["prompt_tokens"],
            "completion_tokens": row["completion_tokens"],
        }
        for problem, row in zip(problems, by_place.sort("group_index").iter_rows(named=True), strict=True)
    ]


def record_candidates(folder: Path, train: dict[str, list[Row]]) -> None:
    """Samples nano on every candidate and writes how many of the samples passed."""
    parsed = [
        problem_from_row(row, split=split, source_row=index)
        for split, rows in train.items()
        for index, row in enumerate(rows)
    ]
    passes: dict[str, list[int]] = {split: [] for split in train}
    for record in outcomes(parsed, SEED, "skewed-candidates"):
        passes[record["split"]].append(record["passed"].count("1"))
    lines = [f'"{split}": {json.dumps(counts)}' for split, counts in passes.items()]
    (folder / CANDIDATES_FILE).write_text("{\n" + ",\n".join(lines) + "\n}\n")


def record_profile(folder: Path) -> None:
    """Samples nano on the train problems with two other seeds, writes each outcome, and prints the card's shares, which
    are the first one's."""
    problems = load_problems(str(folder), role="train").problems
    records = outcomes(problems, SEED + 1, "skewed-profile")
    for record, other in zip(records, outcomes(problems, SEED + 2, "skewed-again"), strict=True):
        record["again"] = other["passed"]
    (folder / PROFILE_FILE).write_text("".join(json.dumps(record) + "\n" for record in records))
    passes = [record["passed"].count("1") for record in records]
    for name, count in Counter(map(_class, passes)).items():
        print(f"{name}: {count} of {len(passes)} ({count / len(passes):.1%})")
    print(sorted(Counter(passes).items()))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--sample", choices=("candidates", "profile"))
    arguments = parser.parse_args()
    if arguments.sample == "profile":
        record_profile(arguments.folder)
        return
    arguments.folder.mkdir(parents=True, exist_ok=True)
    seen: set[Composed] = set()
    train = {split: list(candidates(split, seen)) for split in TRAIN_SIZES}
    if arguments.sample == "candidates":
        record_candidates(arguments.folder, train)
    write_rows(arguments.folder, train, seen)


if __name__ == "__main__":
    main()
