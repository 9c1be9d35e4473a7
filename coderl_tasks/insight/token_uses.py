"""What curation cost a run and what it brought: tokens by use, groups with a signal, problems revisited."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from coderl_tasks.errors import DataError
from coderl_tasks.insight.record import RunRecord
from coderl_tasks.insight.tables import Column, Table
from coderl_tasks.journal.atomic import scan_parquet
from coderl_tasks.journal.ledger import Tokens, evaluation_tokens, metrics_tokens, pool_spent, read_lost, recorded_price
from coderl_tasks.journal.recorded_json import Manifest, read_shaped
from coderl_tasks.paths import MANIFEST_FILE


@dataclass(frozen=True, slots=True)
class Use:
    what: str
    completions: int
    tokens: int
    share: float  # of all completion tokens


def uses(run: RunRecord) -> list[Use]:
    """What completions were sampled for, the last row for all; empty before step 0. Runs may share a profile."""
    if not len(run.metrics):
        return []
    manifest = _manifest(run)
    profiled = (int((manifest.get("spent") or {}).get("samples", 0)), pool_spent(manifest).completion)
    tokens_of = pl.col("completion_tokens").list.len().sum()
    files = (record.rollouts for record in run.evals.values() if record.rollouts is not None)
    lengths = [scan_parquet(file).select(pl.len(), tokens_of).collect().row(0) for file in files]
    evaluated = sum(n for n, _ in lengths), sum(tokens or 0 for _, tokens in lengths)
    with_signal, without = _training(run)
    first = run.config.get("first_completions")
    name = f"groups without, begun with {first} completions" if first else "groups without"
    counted = {"profile of the pool": profiled, "groups with a signal": with_signal, name: without}
    counted["evaluations"] = evaluated
    sampled = {what: count for what, count in counted.items() if count[0]}
    completions, tokens = (sum(count[part] for count in sampled.values()) for part in (0, 1))
    rows = [Use(what, *count, count[1] / tokens if tokens else 0.0) for what, count in sampled.items()]
    return [*rows, Use("all", completions, tokens, 1.0)]


def _manifest(run: RunRecord) -> dict[str, Any]:
    file = Path(str(run.config.get("pool", ""))).with_name(MANIFEST_FILE)
    try:
        return read_shaped(file, Manifest) if file.is_file() else {}
    except DataError:
        return {}  # of a pool that was damaged since, a report of the run need not say more


def _training(run: RunRecord) -> list[tuple[int, int]]:
    """Completions and tokens of the groups with and without a signal. The tokens themselves can be gigabytes."""
    groups = run.groups.group_by("step", "has_signal").agg(pl.col("sampled").sum())
    by_step = {(step, has_signal): n for step, has_signal, n in groups.iter_rows()}
    counts, tokens = [0, 0], [0, 0]
    for row in run.metrics.iter_rows(named=True):
        sides = [by_step.get((row["step"], has_signal), 0) for has_signal in (True, False)]
        total = round(sum(sides) * (row.get("mean_completion_tokens") or 0.0))
        lost = round(total * (row["tokens_without_signal"] or 0.0))
        counts = [sum(pair) for pair in zip(counts, sides, strict=True)]
        tokens = [tokens[0] + total - lost, tokens[1] + lost]
    return [*zip(counts, tokens, strict=True)]


def uses_table(rows: Sequence[Use]) -> Table[Use]:
    columns: tuple[Column[Use], ...] = (
        Column("completions sampled for", lambda row: row.what, style="name"),
        Column("completions", lambda row: row.completions, ",", "num"),
        Column("tokens", lambda row: row.tokens, ",", "num"),
        Column("share", lambda row: row.share, ".1%", "num"),
    )
    return Table(columns, rows, "dense")


def visits_in_words(run: RunRecord) -> list[str]:
    """Sentences about how the run visited its pool."""
    if not len(run.groups) or not len(run.metrics):
        return []
    pool_size, last = _manifest(run).get("kept"), run.metrics.row(-1, named=True)
    of_pool = f" of the pool's {pool_size:,}" if isinstance(pool_size, int) else ""  # the pool may be gone
    sentences = [f"{run.groups['problem_id'].n_unique():,}{of_pool} problems were sampled."]
    solved, hopeless = last.get("problems_solved"), last.get("problems_hopeless")
    if solved is not None and hopeless is not None:  # only with selection=adaptive
        sentences.append(
            f"When the last step's were chosen, {solved:,} looked solved and {hopeless:,} hopeless: "
            "they are left alone until that is in doubt."
        )
    # A small pool gives a step a problem twice: neither of these groups was chosen by the outcome of the other.
    by_visit = run.groups.group_by("problem_id", "step", maintain_order=True)
    visits = by_visit.agg(n=pl.len(), signals=pl.col("has_signal").sum())
    # Groups are in the order of steps: the row before is the same problem's visit before.
    after_no_signal = visits.filter(pl.col("signals").shift(1).over("problem_id") == 0)
    if revisited := int(after_no_signal["n"].sum()):
        with_signal = int(after_no_signal["signals"].sum())
        sentences.append(
            f"{revisited:,} groups revisited a problem whose group before had no signal; "
            f"{with_signal:,} of them had one ({with_signal / revisited:.0%})."
        )
    return sentences


@dataclass(frozen=True, slots=True)
class Spent:
    use: str
    tokens: Tokens
    usd: float | None  # None where a price is not known


def costs(run: RunRecord) -> list[Spent]:
    """What tokens were spent on, the last row for all; empty before step 0. `lost`: groups that were sampled anew, and
    the samples of `GrpoSession.sample`."""
    if not len(run.metrics):
        return []
    # Those of `coderl evaluate` too, and unfinished ones, but no copies.
    folders = run.path.glob("evals/*")
    evals = [each for each in folders if each.name in run.evals or not (each / "summary.json").is_file()]
    counted = {
        "profile": pool_spent(_manifest(run)),
        "train": sum(map(metrics_tokens, run.metrics.iter_rows(named=True)), Tokens()),
        "evaluate": sum(map(evaluation_tokens, evals), Tokens()),
        "lost": sum(map(read_lost, run.path.glob("steps/*")), Tokens()),
    }
    counted["all"] = sum(counted.values(), Tokens())
    spent, price = {use: tokens for use, tokens in counted.items() if tokens != Tokens()}, recorded_price(run.config)
    return [Spent(use, tokens, None if price is None else price.usd(tokens)) for use, tokens in spent.items()]


def costs_table(rows: Sequence[Spent]) -> Table[Spent]:
    columns: list[Column[Spent]] = [
        Column("tokens for", lambda row: row.use, style="name"),
        Column("prompt", lambda row: row.tokens.prompt, ",", "num"),
        Column("cached prompt", lambda row: row.tokens.cached, ",", "num"),
        Column("completion", lambda row: row.tokens.completion, ",", "num"),
        Column("training", lambda row: row.tokens.training, ",", "num"),
    ]
    if any(row.tokens.base for row in rows):
        columns.append(Column("base model", lambda row: row.tokens.base, ",", "num"))
    columns.append(Column("USD", lambda row: row.usd, ",.4f", "num"))
    return Table(columns, rows, "dense")
