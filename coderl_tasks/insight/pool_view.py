"""What people see of a curation: what each stage dropped, what sampling cost, what the pool is made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from coderl_tasks.curation.stopping_rule import DIFFICULTIES, EASY_FROM, HARD_BELOW
from coderl_tasks.insight.drawing import FULL, HALF, BarRow, Plot, columns_of_bars, markdown, rows_of_bars, short_name
from coderl_tasks.insight.named_queries import PROFILED
from coderl_tasks.insight.record import STAGES, CurationRecord
from coderl_tasks.insight.tables import Column, CountInDoubt, Table, markdown_text
from coderl_tasks.insight.viewer_link import commands, in_markdown, page_link
from coderl_tasks.problems.profile_columns import N_FROM_RUN, POSTERIOR_BINS

EXAMPLES, EXCERPT_CHARS = 10, 160
QUERIES = ("funnel", "drops", "pool", "pass_rates", "samples", "suspects")
FIXED_SAMPLES = 16
"""So few samples tell that a problem can teach (one passes, one fails), and hardly its pass rate."""


@dataclass(frozen=True, slots=True)
class Example:
    name: str  # of the problem, or of its row if it never became one
    split: str
    detail: str
    statement: str


@dataclass(frozen=True, slots=True)
class Reason:
    reason: str
    dropped: int
    examples: tuple[Example, ...]


@dataclass(frozen=True, slots=True)
class Remaining:
    """What is `left` after a stage that dropped some; the first row, `read`, is all."""

    stage: str
    dropped: int
    left: int
    reasons: tuple[Reason, ...] = ()


def funnel(curation: CurationRecord) -> list[Remaining]:
    """What is left after each stage that dropped any, in order, from the rows read to the pool."""
    left = len(curation.pool) + len(curation.dropped)
    rows = [Remaining("read", 0, left)]
    for stage, part in _parts(curation.dropped, "stage", STAGES):
        left -= len(part)
        reasons = [Reason(name, len(rest), examples(rest)) for name, rest in _parts(part, "reason")]
        rows.append(Remaining(stage, len(part), left, tuple(sorted(reasons, key=lambda reason: -reason.dropped))))
    return rows


def several_answer_suspects(curation: CurationRecord) -> pl.DataFrame:
    """The problems that may have several right answers: problem_id, split, source_row, detail, statement, in_pool."""
    if not len(curation.solutions):
        return pl.DataFrame(schema={"in_pool": pl.Boolean})
    known = [
        frame.select("problem_id", "source_row", "statement", in_pool=pl.lit(inside))
        for frame, inside in ((curation.pool, True), (curation.dropped, False))
        if len(frame)
    ]
    flagged = curation.solutions.filter("multi_answer_suspect").select("problem_id", "split", detail="suspicion")
    # A duplicate was dropped under the name of the problem that stayed.
    known_once = pl.concat(known).unique("problem_id", keep="first", maintain_order=True)
    return flagged.join(known_once, on="problem_id", how="inner", maintain_order="left")


def with_inferred_comparator(curation: CurationRecord) -> pl.DataFrame:
    """The pool's problems with an inferred comparator, with the columns that `examples` takes."""
    if not len(curation.pool):
        return curation.pool  # perhaps without columns
    detail = pl.format("{}: {}", "comparator", "comparator_from")
    return curation.pool.filter(pl.col("comparator_from").is_not_null()).with_columns(detail=detail)


def examples(rows: pl.DataFrame) -> tuple[Example, ...]:
    """The first EXAMPLES of rows that have `problem_id`, `split`, `source_row`, `detail` and `statement`, if any."""
    if not len(rows):
        return ()  # perhaps without columns
    columns = ("problem_id", "source_row", "split", "detail", "statement")
    return tuple(
        Example(problem_id or f"row {source_row}", split, detail or "", statement or "")
        for problem_id, source_row, split, detail, statement in rows.head(EXAMPLES).select(columns).iter_rows()
    )


def _parts(frame: pl.DataFrame, column: str, order: Sequence[str] = ()) -> list[tuple[str, pl.DataFrame]]:
    """The rows by their value in `column`: those of `order` first, others as they come."""
    if not len(frame):
        return []
    parts = frame.partition_by(column, as_dict=True, maintain_order=True)
    known = {name: place for place, name in enumerate(order)}
    named = [(str(key[0]), part) for key, part in parts.items()]
    return sorted(named, key=lambda part: known.get(part[0], len(known)))


@dataclass(frozen=True, slots=True)
class MakeUp:
    """Problems of a split, or of all: `counts` by DIFFICULTIES, of which so many `wrong_labels` are expected."""

    split: str
    counts: tuple[int, ...]
    wrong_labels: tuple[int, ...]
    problems: int
    pass_rate: float | None


@dataclass(frozen=True, slots=True)
class Spending:
    """What profiling a split, or all, took."""

    split: str
    problems: int
    samples: int  # graded completions
    tokens: int
    cost: float | None  # if prices were given

    @property
    def share(self) -> float:
        return self.samples / (FIXED_SAMPLES * self.problems)


def make_up(pool: pl.DataFrame) -> list[MakeUp]:
    rows = []
    for split, part in _by_split(pool):
        labelled = [part.filter(difficulty=name) for name in DIFFICULTIES]
        doubts = [float((1 - each["difficulty_probability"].drop_nulls()).sum()) for each in labelled]
        rate: Any = part["pass_rate"].mean()  # polars: any scalar
        rows.append(MakeUp(split, tuple(map(len, labelled)), tuple(map(round, doubts)), len(part), rate))
    return rows


def note_on_generated_tests(pool: pl.DataFrame) -> str:
    """How many tests of a pool `strengthen` has generated; empty if none."""
    generated = pool["tests_generated"] if "tests_generated" in pool.columns else pl.Series([0])
    if not (total := int(generated.sum())):
        return ""
    tests = f"{total:,} of {pool['tests_total'].sum():,} tests are generated, for {(generated > 0).sum():,} problems"
    return f"{tests}: rewards count them, evaluations do not."


def note_on_labels(rows: Sequence[MakeUp]) -> str:
    has_brackets = bool(rows) and any(rows[-1].wrong_labels)  # the last row is of all splits
    return "In brackets: how many of these labels are expected to be wrong, by their probabilities." * has_brackets


NOTE_ON_BOUNDS = (
    f"Hard is a chance to be solved below {HARD_BELOW:.0%}, easy one from {EASY_FROM:.0%}. It is estimated from a "
    "problem's samples and from problems of its split and length; the label is the most probable one."
)
NOTE_ON_SPENDING = (
    f"Sampling a problem stops where more samples would hardly change what becomes of it. Beside it: {FIXED_SAMPLES} "
    "samples for each problem, and the share of these that was needed."
)
NOTE_ON_RATES = (
    "The number of problems expected at each pass rate: a problem with few samples counts in part at each rate that it "
    "may have, by a prior learned from all of them."
)


def spending(profile: pl.DataFrame) -> list[Spending]:
    """What the profile took by split, with a last row for all; empty without a profile."""
    return [
        Spending(
            split,
            len(part),
            int(part["n_samples"].sum()) - (int(part[N_FROM_RUN].sum()) if N_FROM_RUN in part.columns else 0),
            int(part["completion_tokens_spent"].sum()),
            float(part["cost"].sum()) if part["cost"].count() else None,
        )
        for split, part in _by_split(profile)
    ]


def _by_split(frame: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    """The rows of each split, and `all` of them at the end."""
    return [*_parts(frame, "split", sorted(frame["split"].unique())), ("all", frame)] if len(frame) else []


def drops_table(rows: Sequence[Remaining]) -> Table[tuple[Remaining, Reason]]:
    """What was dropped at each stage and why; a stage is named at its first reason, what it left at its last."""
    columns: list[Column[tuple[Remaining, Reason]]] = [
        Column("stage", lambda row: row[0].stage if row[1] is row[0].reasons[0] else ""),
        Column("reason", lambda row: row[1].reason),
        Column("dropped", lambda row: row[1].dropped, ",", "num"),
        Column("left after the stage", lambda row: f"{row[0].left:,}" * (row[1] is row[0].reasons[-1]), "", "num"),
    ]
    return Table(columns, [(row, reason) for row in rows for reason in row.reasons])


def spending_table(rows: Sequence[Spending]) -> Table[Spending]:
    columns: list[Column[Spending]] = [
        Column("split", lambda row: row.split),
        Column("problems", lambda row: row.problems, ",", "num"),
        Column("samples", lambda row: row.samples, ",", "num"),
        Column(f"fixed {FIXED_SAMPLES}", lambda row: FIXED_SAMPLES * row.problems, ",", "num"),
        Column("share", lambda row: row.share, ".0%", "num"),
        Column("tokens", lambda row: row.tokens, ",", "num"),
    ]
    if rows and rows[-1].cost is not None:
        columns.append(Column("cost", lambda row: row.cost or 0.0, ".2f", "num"))
    return Table(columns, rows, "dense")


def make_up_table(rows: Sequence[MakeUp]) -> Table[MakeUp]:
    """The pool by split and, where that is known, difficulty and pass rate; labels in doubt are noted."""
    by_difficulty: list[Column[MakeUp]] = [
        Column(name, lambda row, place=place: CountInDoubt(row.counts[place], row.wrong_labels[place]), ",", "num")  # type: ignore[misc]
        for place, name in enumerate(DIFFICULTIES)
    ]
    rate: Column[MakeUp] = Column("mean pass rate", lambda row: row.pass_rate, ".1%", "num", media="html")
    if all(row.pass_rate is None for row in rows):
        by_difficulty, rate = [], Column("pass rates", lambda row: "not profiled")
    split: Column[MakeUp] = Column("split", lambda row: row.split)
    return Table((split, *by_difficulty, Column("all", lambda row: row.problems, ",", "num"), rate), rows, "dense")


def solution_status_table(solutions: pl.DataFrame) -> Table[tuple[str, int]]:
    """How many problems have which status: what running a problem's own solutions on its tests showed."""
    counts = solutions.group_by("status").len().sort(["len", "status"], descending=[True, False])
    shown: Column[tuple[str, int]] = Column("what the problem's own solutions show", lambda row: row[0])
    return Table((shown, Column("problems", lambda row: row[1], ",", "num")), list(counts.iter_rows()))


def pass_rate_plot(profile: pl.DataFrame, band: tuple[float, float] | None = None, width: int = FULL) -> Plot:
    """A histogram of the problems expected at each pass rate, stacked by split; `band`, the rates kept, is shaded."""
    bins = POSTERIOR_BINS
    return columns_of_bars(
        "Pass rate of the base model",
        {split: expected_counts(part).tolist() for split, part in _by_split(profile)[:-1]},
        [(k, f"{k / bins:.1f}") for k in range(0, bins + 1, 2)],
        ("pass rate", "problems expected"),
        f"Histogram of the pass rates of {len(profile)} profiled problems.",
        (width, 290),
        None if band is None else (bins * band[0], bins * band[1]),
    )


def expected_counts(profile: pl.DataFrame) -> np.ndarray:
    """How many problems are expected in each of POSTERIOR_BINS equal parts of 0 to 1, by their posteriors."""
    known = profile["posterior"].drop_nulls()
    return np.array(known.to_list()).sum(axis=0) if len(known) else np.zeros(POSTERIOR_BINS)


def funnel_plot(rows: Sequence[Remaining]) -> Plot:
    bars = []
    for row in rows:
        behind = f"{row.left:,}" + (f" ({row.dropped:,} dropped)" * bool(row.dropped))
        bars.append(BarRow(row.stage, ((row.left, "s0"), (row.dropped, "s4 faint")), behind))
    alt = f"Problems left after each stage: {', '.join(f'{row.stage} {row.left}' for row in rows)}."
    return rows_of_bars("Problems left after each stage", bars, alt)


def samples_plot(profile: pl.DataFrame) -> Plot:
    """How many problems took how many graded completions, stacked by split."""
    numbers = sorted(profile["n_samples"].unique())
    return columns_of_bars(
        "Samples",
        {split: [part.filter(n_samples=n).height for n in numbers] for split, part in _by_split(profile)[:-1]},
        [(k + 0.5, str(n)) for k, n in enumerate(numbers)],
        ("samples per problem", "problems"),
        f"Histogram of the samples spent on {len(profile)} profiled problems.",
        (HALF, 240),
    )


def is_profiled(pool: pl.DataFrame) -> bool:
    """Whether pass rates are known: with profile_mode=none they are null."""
    return "pass_rate" in pool.columns and bool(pool["pass_rate"].count())


def difficulty_plot(pool: pl.DataFrame) -> Plot:
    """Bars by split, stacked by difficulty, of the problems expected: the sum of the labels' probabilities."""
    colours: dict[str, str] = dict(zip(DIFFICULTIES, ("s4", "s1", "s2"), strict=True))
    rows = []
    for split, part in _by_split(pool)[:-1]:
        sums = [(float(part[f"{name}_probability"].sum()), colour) for name, colour in colours.items()]
        rows.append(BarRow(short_name(split), sums))
    alt = f"The pool's {len(pool)} problems by split and difficulty."
    return rows_of_bars("Pool, as expected", rows, alt, colours, HALF)


def pool_page(curation: CurationRecord) -> dict[str, Any]:
    """The variables of the template pool.html.j2, None or empty where the curation has nothing, as no profile."""
    pool, profile = curation.pool, curation.profile
    stages = funnel(curation)
    spent, splits = spending(profile), make_up(pool)  # a row per split; the last row of each is of all splits
    queries = (name for name in QUERIES if len(profile) or name not in PROFILED)  # only those with an answer
    suspects = several_answer_suspects(curation).sort("in_pool", descending=True, maintain_order=True)
    inferred = with_inferred_comparator(curation)
    return {
        "title": curation.path.name,
        "curation": curation,
        "funnel": stages,
        "drops": drops_table(stages),
        "funnel_plot": funnel_plot(stages),
        "rates_plot": pass_rate_plot(profile, curation.band) if len(profile) else None,
        "rates_note": NOTE_ON_RATES,
        "samples_plot": samples_plot(profile) if len(profile) else None,
        "spending": spending_table(spent),
        "total": spent[-1] if spent else None,
        "pool_plot": difficulty_plot(pool) if is_profiled(pool) else None,
        "make_up": make_up_table(splits) if splits else None,
        "labels_note": note_on_labels(splits),
        "generated_tests_note": note_on_generated_tests(pool),
        "solution_statuses": solution_status_table(curation.solutions) if len(curation.solutions) else None,
        "suspects": len(suspects),
        "suspects_kept": int(suspects["in_pool"].sum()),
        "suspect_examples": examples(suspects),
        "inferred_comparators": len(inferred),
        "inferred_examples": examples(inferred),
        "manifest": flatten(curation.manifest),
        "viewer_link": page_link(curation.path),
        "commands": commands(curation.path, queries, "SELECT split, count(*) FROM pool GROUP BY split"),
    }


def flatten(values: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """The entries of nested dicts in one list, their keys joined with dots."""
    pairs: list[tuple[str, Any]] = []
    for key, value in values.items():
        pairs += flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else [(f"{prefix}{key}", value)]
    return pairs


def pool_markdown(curation: CurationRecord) -> str:
    """A curation as markdown, without the parts that it does not have, such as a profile."""
    pool, profile, n_dropped = curation.pool, curation.profile, len(curation.dropped)
    stages = funnel(curation)  # the first row is of all problems read
    parts: list[Plot | Table[Any] | str | None] = [
        f"# Pool: {markdown_text(curation.path.name)}",
        f"{len(pool)} problems kept, {n_dropped} dropped, {stages[0].left} read.",
        f"All of them: {in_markdown(curation.path)}",
        funnel_plot(stages),
        drops_table(stages) if n_dropped else None,
    ]
    if len(profile):
        parts += ["## Pass rates", pass_rate_plot(profile, curation.band), NOTE_ON_RATES]
        parts += ["## Samples spent", spending_table(spending(profile))]
    if splits := make_up(pool):
        parts += ["## The pool", difficulty_plot(pool) if is_profiled(pool) else None, make_up_table(splits)]
        parts += [note_on_labels(splits), note_on_generated_tests(pool)]
    if len(curation.solutions):
        parts += ["## Reference solutions", solution_status_table(curation.solutions)]
    suspects, inferred = several_answer_suspects(curation), with_inferred_comparator(curation)
    parts += _example_section(f"Suspects of several right answers: {len(suspects)}", examples(suspects))
    parts += _example_section(f"Comparators inferred: {len(inferred)}", examples(inferred))
    for stage in stages:
        for reason in stage.reasons:
            parts += _example_section(f"Dropped at {stage.stage}: {reason.reason}", reason.examples)
    return markdown(parts)


def _example_section(title: str, shown: Sequence[Example]) -> list[str]:
    """A heading and a list of problems; nothing without a problem."""
    lines = []
    for example in shown:
        beginning = " ".join(example.statement.split())[:EXCERPT_CHARS]
        line = f"- **{markdown_text(example.name)}** ({markdown_text(example.split)})"
        line += f" {markdown_text(example.detail)}" if example.detail else ""
        lines.append(line + (f": {markdown_text(beginning)}" if beginning else ""))
    return [f"## {markdown_text(title)}", "\n".join(lines)] if lines else []
