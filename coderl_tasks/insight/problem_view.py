"""One problem of a run: its statement, how often it was solved, and at which test its completions failed. A run never
records what a test expects: input and expected output are read where the problems lie."""

import difflib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.utils import HFValidationError
from rich.console import Console
from rich.text import Text
from tokenizers import Tokenizer

from coderl_tasks.environments import ROWS
from coderl_tasks.environments.benchmarks import load_benchmarks
from coderl_tasks.errors import CoderlError, ConfigError
from coderl_tasks.grading.scoring import SHOWN_CHARS, Verdict
from coderl_tasks.insight.record import RunRecord, load_run, pools_at_hand
from coderl_tasks.insight.tables import render_frame
from coderl_tasks.journal.atomic import DamagedFileError, scan_parquet
from coderl_tasks.journal.run_names import did_you_mean
from coderl_tasks.journal.steps import StepJournal, rollout_files
from coderl_tasks.paths import POOL_FILE, POOLS, find_local, known_sha256, local_model_path
from coderl_tasks.policy.rollout import ORDER, ROLLOUT_SCHEMA, TRUNCATED
from coderl_tasks.problems.comparators import UNORDERED, comparator, parse_value
from coderl_tasks.problems.loading import EvaluationSide
from coderl_tasks.problems.problem import PoolFile, Problem, profiled_counts
from coderl_tasks.problems.sources import find_source
from coderl_tasks.settings.setting import PROGRAMS
from coderl_tasks.untrusted_text import printable, printable_lines

MOST_LINES, MOST_CHARS = 40, 2000  # printed of a statement, a program or a test, unless all is asked for
NO_VALUE = "no JSON value"  # the difference of a call that returned none
_COUNTS = re.compile(r"^(line \d+, )?(lines|tokens)(?=: expected \d+, got \d+$)")  # of which only the numbers are known
Decode = Callable[[Sequence[int]], str]


def failed_test(row: Mapping[str, Any], problem: Problem | None) -> dict[str, Any] | None:
    """The test that a rollout (ROLLOUT_SCHEMA) failed first, None if it failed none: its `index`, and texts or None for
    `input`, `expected` (both None if `problem` is not at hand, or has other tests by now), `got` (what came back),
    `difference` (of the last two), and `error` (why there was nothing to compare)."""
    index, got = row["first_failed"], row["failed_output"]
    if index is None:
        return None
    error = row["reward_error"] or (row["reason"] or "").removeprefix(f"test {index}: ") or None
    failed = {"index": index, "input": None, "expected": None, "got": got, "difference": None, "error": error}
    if problem is None or len(problem.tests) != row["tests_total"]:
        return failed
    test, is_wrong = problem.tests[index], row["verdict"] == Verdict.WRONG_ANSWER
    difference = _difference(problem, test.expected, got) if is_wrong else None
    difference = difference and _COUNTS.sub(r"\1number of \2", difference)
    return failed | {"input": test.input, "expected": test.expected, "difference": difference}


def _difference(problem: Problem, expected: str, got: str | None) -> str | None:
    """How `got`, of which a run records SHOWN_CHARS characters, differs from `expected`; None where nobody can say."""
    compare = comparator(problem.comparator)
    if problem.kind == "call":  # a function's value, as JSON: one that was cut cannot be parsed
        if got is None or len(got) > SHOWN_CHARS:
            return NO_VALUE if got is None else None
        try:
            return compare.value(parse_value(expected), parse_value(got))
        except ValueError:
            return None
    if got is None or problem.kind != "stdin":
        return None
    if len(got) <= SHOWN_CHARS:
        return compare.text(expected, got.encode("utf-8", "surrogatepass"))
    if problem.comparator in UNORDERED:
        return None  # lines may come in any order: a part of them shows no difference
    # As many whole lines (of a single line: words) as the beginning has: the cut may be within one.
    beginning = got[:SHOWN_CHARS]
    separator = "\n" if "\n" in beginning else " "
    whole = beginning.rpartition(separator)[0]
    same_part = separator.join(expected.split(separator)[: whole.count(separator) + 1])
    difference = compare.text(same_part, whole.encode("utf-8", "surrogatepass"))
    # The output is wrong: if the recorded lines are right, the difference lies in what was not recorded ("kept").
    return difference or f"after the first {len(whole):,} characters, which are kept"


def pool_file(config: Mapping[str, Any], others: Collection[Path] = ()) -> Path:
    """The file of a run's pool: where its `config` names it, else that of a pool with the recorded content, among the
    folders `others` and those that `coderl pools` lists. ConfigError says where it looked."""
    recorded = str(config.get("pool") or "")
    if not recorded:  # find_local takes "" for this folder
        raise ConfigError("the run recorded no pool")
    file = find_local(recorded)
    if file is not None:
        return file / POOL_FILE if file.is_dir() else file  # the setting may name the pool's folder
    gone = f"the run recorded its pool as {recorded}, which is not there"
    if not (content := config.get("pool_sha256")):  # an older run
        raise ConfigError(f"{gone}, and no hash of its content to find it elsewhere: put it back")
    for file in dict.fromkeys(folder / POOL_FILE for folder in (*others, *pools_at_hand())):
        if file.is_file() and known_sha256(file) == content:
            return file
    places = [*(str(folder) for folder in others if folder.parent != POOLS), f"the pools of {POOLS}"]
    raise ConfigError(
        f"{gone}; no pool with the same content is among {', '.join(places)}. Move the pool's folder to {POOLS}"
    )


def problems_of(config: Mapping[str, Any], ids: Collection[str], *, evaluated: bool) -> dict[str, Problem]:
    """Those of `ids` that are still there, by id, in a run's pool or, if `evaluated`, in its benchmarks or evaluation
    data. Raises CoderlError if these cannot be read."""
    if not evaluated:
        file = pool_file(config)
        try:
            in_pool = PoolFile(file).problems()
        except (OSError, ValueError) as error:
            raise ConfigError(f"the pool {file} cannot be read: {' '.join(str(error).split())}") from error
        return {problem.problem_id: problem for problem in in_pool if problem.problem_id in ids}

    def drop_other_tests(problem: Problem) -> Problem:  # the tests of all problems take gigabytes of memory
        return problem if problem.problem_id in ids else replace(problem, tests=(), solutions=())

    if config.get("benchmark"):
        loaded = load_benchmarks([str(name) for name in config["benchmark"]], transform=drop_other_tests)
    else:
        # The evaluation's side of the data: a data set of its own, or the share of problems held out of training.
        side = EvaluationSide(str(config.get("evaluation_dataset") or config.get("dataset")), config.get("test_share"))
        environment = config.get("environment", "code")
        if environment not in ROWS:
            raise ConfigError(f"environment={environment} is none of {', '.join(ROWS)}")
        loaded = side.load(rows=ROWS[environment], transform=drop_other_tests)
    return {problem.problem_id: problem for problem in loaded.problems if problem.problem_id in ids}


def problems_at_hand(config: Mapping[str, Any], ids: Collection[str]) -> tuple[dict[str, Problem], str | None]:
    """The evaluated problems `ids` by a `config`, and why they are not at hand. Nothing is downloaded."""
    benchmarks = [str(entry) for entry in config.get("benchmark") or ()]  # NAME, of the hub, or NAME:PATH
    sources = {entry: entry.partition(":")[2] for entry in benchmarks}
    if not sources:
        dataset = str(config.get("evaluation_dataset") or config.get("dataset"))
        sources = {dataset: dataset}
    for name, source in sources.items():
        if not source or find_source(source) is None:
            return {}, f"{name} is not on this machine as a file or folder"
    try:
        return problems_of(config, set(ids), evaluated=True), None
    except CoderlError as error:
        return {}, str(error)


@dataclass(frozen=True, slots=True)
class Place:
    """A step, or an evaluation, in which completions of a problem were sampled, and their counts. `trained`: the
    update learned from some of them; None for an evaluation."""

    evaluation: str | None
    step: int
    graded: int
    passed: int
    mean_reward: float | None
    trained: bool | None

    @property
    def name(self) -> str:
        return f"step {self.step}" if self.evaluation is None else f"evaluation {self.evaluation}"


@dataclass(frozen=True, slots=True)
class ProblemView:
    """A problem of a run. `completions` are those of `place`: columns of ROLLOUT_SCHEMA without tokens, their number,
    and as `failed_test` what `failed_test` says."""

    problem_id: str
    split: str
    environment: str
    statement: str
    profiled: tuple[int, int] | None  # right and graded completions of the pool's profile
    places: list[Place]
    place: Place
    completions: list[dict[str, Any]]
    missing: str | None  # why the tests are not at hand


def view_problem(path: Path, wanted: str, step: int | None = None, evaluation: str | None = None) -> ProblemView:
    """One problem of the run in `path`: `wanted` names it by its id, the id's start, or words of the statement. Shown
    are its completions of a `step` or an `evaluation`, by default of the last step with the problem, else of the newest
    evaluation. Raises ConfigError, which lists the choices, if nothing or several problems match."""
    run = load_run(path)
    if evaluation is not None and evaluation not in run.evals:
        names = ", ".join(run.evals) or "none"
        raise ConfigError(printable(f"the run has no evaluation {evaluation!r} of its own; it has: {names}"))
    completions = _all_completions(run)
    problem_id = _matching_problem(run, completions, wanted)
    counted = (
        completions.filter(problem_id=problem_id)
        .group_by("evaluation", "step", maintain_order=True)
        .agg(
            graded=pl.col("reward").count(),
            passed=(pl.col("verdict") == Verdict.PASSED).sum(),
            mean_reward=pl.col("reward").mean(),
            # Null for an evaluation: no update learns from it.
            trained=pl.when(pl.col("evaluation").first().is_null()).then(pl.col("trained").any()),
        )
    )
    places = [Place(**row) for row in counted.iter_rows(named=True)]
    place = _chosen_place(places, problem_id, step, evaluation)
    if place.evaluation is None:
        file = StepJournal(run.path, place.step).files["scored"]
    else:
        file = run.path / "evals" / place.evaluation / "rollouts.parquet"
    if not file.is_file():
        raise ConfigError(f"{file} is not there: the rollouts of {place.name} were removed")
    rows = scan_parquet(file, ROLLOUT_SCHEMA).filter(problem_id=problem_id).sort(ORDER).collect().to_dicts()
    config, is_evaluated = run.config_of(place.evaluation), place.evaluation is not None
    problem, missing = None, None  # `missing` says why tests cannot be shown
    try:
        problem = problems_of(config, {problem_id}, evaluated=is_evaluated).get(problem_id)
        if problem is None:
            missing = "the problem is not there any more"
        elif {row["tests_total"] for row in rows} - {None, len(problem.tests)}:  # None: it was not graded
            missing = "the problem has other tests by now"
    except CoderlError as error:
        missing = str(error)
    statement, profiled = "" if problem is None else problem.statement, None
    # Without the problem, the statement is read from the recorded prompt, if the model's tokenizer is here.
    if problem is None and (decode := prompt_decoder(str(run.config.get("model_name", "")))) is not None:
        statement = statement_in(decode(rows[0]["prompt_tokens"]))
    with suppress(CoderlError):  # the pool may be gone: then its sampled pass rate is left out
        profiled = profiled_counts(pool_file(run.config)).get(problem_id)
    per_token = ("prompt_tokens", "completion_tokens", "logprobs", "base_logprobs")
    return ProblemView(
        problem_id=problem_id,
        split=str(rows[0]["split"]),
        environment=str(run.config.get("environment", "code")),
        statement=statement,
        profiled=profiled,
        places=places,
        place=place,
        completions=[
            {name: value for name, value in row.items() if name not in per_token}
            | {"n_completion_tokens": len(row["completion_tokens"])}
            | {"failed_test": failed_test(row, problem)}
            for row in rows
        ],
        missing=missing,
    )


def labelled_messages(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The model's answers and the environment's replies, each with its label (of a single answer: empty)."""
    turns, parts = row["turns"] or [], []
    for number, (turn, following) in enumerate(pairwise(turns), start=1):
        parts += [(f"answer {number}", turn["text"]), ("reply", following["environment_text"])]
    return [*parts, (f"answer {len(turns)}" if parts else "", row["completion"])]


def print_problem(view: ProblemView, console: Console, *, full: bool = False) -> None:
    """Completions with one program and verdict are printed once. Long texts are cut unless `full`."""
    console.print(Text(printable(f"{view.problem_id}  ({view.split})"), "bold"), soft_wrap=True)
    if view.profiled is not None:
        passed, graded = view.profiled
        console.print(Text(f"profile of the pool: {passed} of {graded} passed"))
    _print_heading("Statement", console)
    statement = view.statement or "(neither the problem nor the model's tokenizer is at hand)"
    _print_text(statement, console, full=full)
    _print_heading("Pass rate", console)
    render_frame(pl.DataFrame([_pass_rate_row(place) for place in view.places]), console)
    shown = view.place
    _print_heading(f"Completions of {shown.name}: {shown.passed} of {shown.graded} passed", console)
    has_several_groups = len({row["group_index"] for row in view.completions}) > 1
    numbers = [
        f"{row['group_index']}/{row['sample_index']}" if has_several_groups else str(row["sample_index"])
        for row in view.completions
    ]
    table = list(map(_completion_row, view.completions, numbers))
    render_frame(pl.DataFrame(table, infer_schema_length=None), console)  # None: types from all rows
    if view.missing is not None and any(row["failed_test"] for row in view.completions):
        console.print(Text(f"Inputs and expected outputs are not shown: {printable(view.missing)}", "yellow"))
    # What completions that are printed once have in common: the last answer, the verdict, the answers before.
    positions_by_answer: dict[tuple[str, str | None, tuple[str, ...]], list[int]] = {}
    for position, row in enumerate(view.completions):
        # The program as it ran. In other environments `code` is only the answer, so the whole completion is shown.
        program = row["code"] if view.environment in PROGRAMS else None
        earlier = tuple(turn["text"] for turn in (row["turns"] or [])[:-1])
        answer = (program or row["completion"], row["verdict"], earlier)
        positions_by_answer.setdefault(answer, []).append(position)
    # Failures first: readers look for those.
    for (text, verdict, _), same in sorted(positions_by_answer.items(), key=lambda item: item[0][1] == Verdict.PASSED):
        named = f"Completion{'s' if len(same) > 1 else ''} {', '.join(numbers[position] for position in same)}"
        _print_heading(f"{named}: {verdict or 'not graded'}", console)
        row = view.completions[same[0]] | {"completion": text}
        for label, message in labelled_messages(row):
            _print_text(message or "(empty)", console, label, full=full)
        if (failed := row["failed_test"]) is not None:
            console.print(Text(f"  test {failed['index']}"))
            for label in ("input", "expected", "got", "difference", "error"):
                if failed[label] is not None:
                    _print_text(failed[label] or "(empty)", console, label, full=full)
        elif row["reason"]:  # no test failed: no code, say, or no grade
            _print_text(row["reason"], console, "error", full=full)


def _print_heading(title: str, console: Console) -> None:
    console.print(Text(f"\n{printable(title)}", "bold"), soft_wrap=True)


def _print_text(text: str, console: Console, label: str = "", *, full: bool) -> None:
    """Prints an indented text, after `label` if there is one; a long text is cut unless `full`."""
    whole = printable_lines(text).rstrip("\n")
    printed = whole if full else "\n".join(whole[:MOST_CHARS].split("\n")[:MOST_LINES])
    indent = 14 if label else 2  # the label stands before the first line
    for number, line in enumerate(printed.split("\n")):
        head = f"  {label:<{indent - 2}}" if number == 0 else " " * indent
        console.print(Text(f"{head}{line}"), soft_wrap=True)
    if printed != whole:
        console.print(Text(f"{' ' * indent}[cut: --full shows {len(whole):,} characters]", "dim"), soft_wrap=True)


def problems_frame(path: Path) -> pl.DataFrame:
    """The 25 training problems that the run in `path` solves least, a row each."""
    run = load_run(path)
    hardest = (
        _all_completions(run)
        .filter(pl.col("evaluation").is_null() & pl.col("reward").is_not_null())
        .group_by("problem_id")
        .agg(
            pass_rate=(pl.col("verdict") == Verdict.PASSED).mean().round(3),
            completions=pl.len(),
            last_step=pl.col("step").max(),
        )
        .sort("pass_rate", "completions", "problem_id", descending=[False, True, False])
        .head(25)
    )
    statements = _statements(run, hardest["problem_id"].to_list())
    return hardest.with_columns(statement=pl.col("problem_id").replace_strict(statements, default=None))


def prompt_decoder(model_name: str) -> Decode | None:
    """A function from tokens to text, for a local model folder or a hub model in the cache; None for others."""
    file = cached_file(model_name, "tokenizer.json")
    if file is None:
        return None
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the class that the library raises for whatever is wrong with the file
        raise DamagedFileError(file, f"no tokenizer ({' '.join(str(error).split())[:200]})") from error

    def decode(tokens: Sequence[int]) -> str:
        try:
            return tokenizer.decode(list(tokens), skip_special_tokens=False)
        except (TypeError, OverflowError):  # null, or less than 0: no tokens of ours
            return ""

    return decode


def cached_file(model_name: str, name: str) -> Path | None:
    """A file of a local model folder, or of a hub model that this machine has used before: nothing is downloaded."""
    cached: object = None
    if (folder := local_model_path(model_name)) is not None:
        cached = str(folder / name)
    elif model_name.count("/") == 1:
        with suppress(HFValidationError):  # a path of another machine
            cached = try_to_load_from_cache(model_name, name)
    return Path(cached) if isinstance(cached, str) and Path(cached).is_file() else None


def _all_completions(run: RunRecord) -> pl.DataFrame:
    """All completions of a run, of training in the order of the steps, then of the evaluations."""
    training = (scan_parquet(file) for file in rollout_files(run.path))
    parts = [rows.with_columns(evaluation=pl.lit(None, pl.String)) for rows in training]
    for record in run.evals.values():
        if record.rollouts is not None:
            place = {"evaluation": pl.lit(record.name), "step": pl.lit(record.step, pl.Int32)}
            parts.append(scan_parquet(record.rollouts).with_columns(**place))
    if not parts:
        raise ConfigError(f"{run.path} has no graded completions yet")
    columns = ("evaluation", "step", "problem_id", "verdict", "reward", "trained")
    return pl.concat([part.select(columns) for part in parts]).collect()


def _matching_problem(run: RunRecord, completions: pl.DataFrame, wanted: str) -> str:
    ids = completions["problem_id"].unique(maintain_order=True).to_list()
    if wanted in ids:
        return wanted
    matches = [problem_id for problem_id in ids if problem_id.startswith(wanted)]
    statements: dict[str, str] = {}
    if not matches:
        statements = _statements(run, ids)
        words = " ".join(wanted.lower().split())
        matches = [key for key, text in statements.items() if words in " ".join(text.lower().split())]
    if len(matches) == 1:
        return str(matches[0])
    if matches:
        some = [f"{key} {statements.get(key, '')[:60]}".rstrip() for key in matches[:5]] + ["..."] * (len(matches) > 5)
        raise ConfigError(printable(f"{wanted!r} names {len(matches)} problems of the run: {'; '.join(some)}"))
    near = did_you_mean(difflib.get_close_matches(wanted, ids, n=3))
    none = f"no problem that the run has sampled has the id {wanted!r}, or these words in its statement"
    raise ConfigError(printable(f"{none}{near} (coderl show RUN lists the hardest)"))


def _statements(run: RunRecord, ids: Collection[str]) -> dict[str, str]:
    """Statements by problem id: of the pool, else of the evaluation's data set, else read from the prompts."""
    try:
        problems = problems_of(run.config, ids, evaluated=False)
    except CoderlError:  # prompts tell as much, where they can be read
        problems = {}
    if others := set(ids) - problems.keys():
        problems |= problems_at_hand(run.config, others)[0]
    statements = {key: problem.statement for key, problem in problems.items()}
    decode = prompt_decoder(str(run.config.get("model_name", "")))
    for record in run.evals.values():
        if decode is not None and record.rollouts is not None:
            rows = scan_parquet(record.rollouts).filter(pl.col("problem_id").is_in([*ids]))
            prompts = prompts_in(rows, decode, statements)
            statements |= {problem_id: statement_in(prompt) for problem_id, prompt in prompts.items()}
    return statements


def prompts_in(rows: pl.LazyFrame, decode: Decode, known: Collection[str] = ()) -> dict[str, str]:
    """The prompt of each problem of `rows` (ROLLOUT_SCHEMA) but for those `known`, by the problem's id."""
    prompts = rows.select("problem_id", "prompt_tokens").drop_nulls()
    lacking = prompts.filter(~pl.col("problem_id").is_in([*known])).unique("problem_id").collect()
    return {problem_id: decode(tokens) for problem_id, tokens in lacking.iter_rows()}


def statement_in(prompt: str) -> str:
    """The statement in a prompt of programs; another prompt as it is."""
    return prompt.partition("### Question:\n")[2].rpartition("\n\n### Format:")[0] or prompt


def _chosen_place(places: Sequence[Place], problem_id: str, step: int | None, evaluation: str | None) -> Place:
    """What is asked for, else the last step with the problem, else the newest evaluation."""
    if step is None and evaluation is None:
        return next((place for place in reversed(places) if place.evaluation is None), places[-1])
    asked = f"step {step}" if step is not None else f"evaluation {evaluation}"
    chosen = next((place for place in reversed(places) if place.name == asked), None)
    if chosen is None:
        there = ", ".join(place.name for place in places)
        raise ConfigError(f"problem {problem_id} is not in {asked}; it is in: {there}")
    return chosen


def _pass_rate_row(place: Place) -> dict[str, Any]:
    group = {None: None, True: "trained on", False: "skipped: equal rewards, no gradient"}[place.trained]
    rate = f"{place.passed / place.graded:.0%}" if place.graded else None
    return {
        "sampled in": place.name, "graded": place.graded, "passed": place.passed, "rate": rate,
        "mean reward": None if place.mean_reward is None else round(place.mean_reward, 3), "group": group,
    }  # fmt: skip


def _completion_row(row: Mapping[str, Any], number: str) -> dict[str, Any]:
    truncated = ", truncated" if row["stop_reason"] == TRUNCATED else ""
    cpu_s = None if row["run_seconds"] is None else round(row["run_seconds"], 3)
    return {
        "completion": number,
        "verdict": f"{row['verdict'] or 'not graded'}{truncated}",
        "tests passed": f"{row['tests_passed'] or 0} of {row['tests_total'] or 0}",
        "reward": row["reward"], "correctness": row["correctness_score"],
        "format": None if row["format_score"] is None else "ok" if row["format_score"] >= 0 else "no",
        "advantage": row["advantage"], "CPU s": cpu_s, "tokens": row["n_completion_tokens"],
    }  # fmt: skip
