"""DuckDB over runs and curations."""

import json
import os
import resource
import shutil
from collections.abc import Callable
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from coderl_tasks.cli import main
from coderl_tasks.errors import ConfigError, DataError
from coderl_tasks.insight.named_queries import CURATION, NAMED_QUERIES, RUN
from coderl_tasks.insight.query import answer_statements, connect, print_query, query
from coderl_tasks.insight.record import CURATION_SCHEMAS, is_run, load_run
from coderl_tasks.insight.tables import render_frame
from coderl_tasks.journal import steps as steps_module
from coderl_tasks.journal.ledger import frame_tokens
from coderl_tasks.journal.steps import index_files, index_step, scored_files
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA
from tests.insight.recorded_runs import write_run

Answer = Callable[[str], pl.DataFrame]
TOKENS = ("prompt_tokens", "completion_tokens")


def printed(frame: pl.DataFrame, width: int = 100) -> str:
    console = Console(file=StringIO(), width=width, force_terminal=True, color_system=None)
    render_frame(frame, console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def without_column(file: Path, name: str) -> bytes:
    """The parquet `file` with zeros where the values of column `name` were: whoever reads them fails."""
    content, group = bytearray(file.read_bytes()), pq.ParquetFile(file).metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    [found] = [column for column in columns if column.path_in_schema == name]
    start = found.dictionary_page_offset or found.data_page_offset
    content[start : start + found.total_compressed_size] = bytes(found.total_compressed_size)
    return bytes(content)


@pytest.fixture(scope="module")
def answer(run_dir: Path) -> Answer:
    """`answer(name)`: what a named query finds in the run, asked once."""
    return cache(lambda name: query(run_dir, name=name))


@pytest.mark.parametrize("name", NAMED_QUERIES)
def test_every_named_query_answers(name: str, answer: Answer, run_dir: Path, pool_dir: Path, runs_dir: Path) -> None:
    over_curation = NAMED_QUERIES[name].over == CURATION
    frame = query(pool_dir, name=name) if over_curation else answer(name)
    assert "run" not in frame.columns
    assert len(frame) or name in ("losses", "acts", "suspicious", "held_back", "turns")
    assert "run" in query(runs_dir, name=name).columns
    query(run_dir if over_curation else pool_dir, NAMED_QUERIES[name].sql)  # its views are there, and empty


def test_programs_written_for_the_tests_are_named_by_both_queries(run_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(run_dir, tmp_path / "run")
    (file,) = (tmp_path / "run").glob("steps/000002/scored.parquet")
    passed = pl.col("verdict") == "passed"
    table = pl.read_parquet(file).with_columns(
        suspicion=pl.when(passed).then(pl.lit("ignores_input: line 1: print(5)")),
        passes_held_back=pl.when(passed).then(pl.col("sample_index") > 0),
    )
    table.write_parquet(file)
    suspicious = query(tmp_path / "run", name="suspicious")
    assert suspicious.height == table.filter(passed).height > 0
    assert set(suspicious["suspicion"]) == {"ignores_input: line 1: print(5)"}
    assert set(suspicious["step"]) == {2}
    held_back = query(tmp_path / "run", name="held_back")
    failed = table.filter(passed & (pl.col("sample_index") == 0))
    assert sum(held_back["failed_held_back"]) == failed.height > 0


def test_programs_that_were_quarantined_are_no_passes(run_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(run_dir, tmp_path / "run")
    passed = pl.col("verdict") == "passed"
    for file in (tmp_path / "run").glob("steps/*/scored.parquet"):
        table = pl.read_parquet(file)
        suspicion = pl.when(passed).then(pl.lit("ignores_input: line 1: print(5)"))
        taken = {name: pl.when(~passed).then(pl.col(name)) for name in ("reward", "correctness_score")}
        turns = pl.Series([[turn([], 0)]] * table.height, dtype=ROLLOUT_SCHEMA["turns"])
        table.with_columns(suspicion=suspicion, turns=turns, **taken).write_parquet(file)
    groups = load_run(tmp_path / "run").groups
    assert groups["graded"].sum() > groups["passed"].sum() == 0
    for name, column in {
        "turns": "passed", "hardest": "passed", "sources": "passed", "lengths": "passed", "problems": "last_rate"
    }.items():  # fmt: skip
        found = query(tmp_path / "run", name=name)
        assert found.height and found[column].sum() == 0, name
        if "completions" in found.columns and found.height < 25:
            assert found["completions"].sum() == groups["graded"].sum(), name
    for name in ("hardest_solved", "worse"):
        assert query(tmp_path / "run", name=name).is_empty()


def test_a_run_of_few_steps_has_a_last_fifth(runs_dir: Path) -> None:
    verdicts, sources = (query(runs_dir / "run-0", name=name) for name in ("verdicts", "sources"))
    assert verdicts.select(pl.col("first_fifth", "last_fifth").sum()).row(0) == pytest.approx((1, 1), abs=0.01)
    last = load_run(runs_dir / "run-0").rollouts(["step", "split", "reward"]).filter(pl.col("step") == 2).collect()
    means = last.group_by("split").agg(pl.col("reward").mean().round(3)).rows()
    assert dict(sources.select("split", "reward_late").rows()) == dict(means)


def test_every_named_query_answers_where_no_file_has_a_column_yet(
    answer: Answer, run_dir: Path, tmp_path: Path
) -> None:
    shutil.copytree(run_dir, tmp_path / "run")
    for file in (tmp_path / "run").rglob("*.parquet"):
        table = pl.read_parquet(file)
        if "run_seconds" in table.columns and "verdict" in table.columns:
            table.drop("run_seconds").write_parquet(file)
    for name, named in NAMED_QUERIES.items():
        if named.over == RUN:
            assert query(tmp_path / "run", name=name).columns == answer(name).columns
    found = query(tmp_path / "run", "SELECT count(run_seconds) AS known, count(*) > 0 AS any FROM rollouts")
    assert found.row(0) == (0, True)


def test_with_an_index_every_query_answers_as_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a run of which the last steps are not indexed, and one of which none is."""
    steps_per_file = 26  # fewer than there really are, of which tests/journal/test_run_directory.py makes a file
    monkeypatch.setattr(steps_module, "STEPS_PER_FILE", steps_per_file)
    runs = tmp_path / "runs"
    long = write_run(runs / "long", steps=steps_per_file + 6, test_size=10)
    write_run(runs / "short", steps=6, seed=1, test_size=10)
    names = [name for name, entry in NAMED_QUERIES.items() if entry.over == RUN]
    answers = {name: query(runs, name=name) for name in names}
    texts = long / "steps/000003/scored.parquet"
    whole = texts.read_bytes()
    texts.write_bytes(without_column(texts, "completion"))  # no text is read for the index
    newest = steps_per_file + 5  # the first that this version adds
    index_step(long, newest, pl.read_parquet(long / f"steps/{newest:06d}/scored.parquet"))
    texts.write_bytes(whole)
    assert list(index_files(long).values()) == [range(steps_per_file), range(newest, newest + 1)]
    assert len(scored_files(long, index_files(long).values())) == 5
    for name, before in answers.items():
        assert query(runs, name=name).equals(before), name
    sums = "SELECT run, sum({}), sum({}) FROM {} GROUP BY run ORDER BY run"
    counted = sums.format("n_prompt_tokens", "n_completion_tokens", "outcomes")
    assert query(runs, counted).rows() == query(runs, sums.format(*map("len({})".format, TOKENS), "rollouts")).rows()
    shutil.rmtree(long / "steps/000000")
    assert query(runs, "SELECT count(*) AS n FROM outcomes WHERE step = 0")["n"].item() == 256  # the index was read


@pytest.mark.parametrize("name", [name for name, entry in NAMED_QUERIES.items() if entry.steps])
def test_the_steps_that_a_query_is_cut_to_change_no_answer(
    name: str, answer: Answer, run_dir: Path, runs_dir: Path
) -> None:
    assert answer(name).equals(query(run_dir, NAMED_QUERIES[name].sql).drop("run"))
    assert query(runs_dir, name=name).equals(query(runs_dir, NAMED_QUERIES[name].sql))


def test_the_optimizer_steps_of_a_step_are_rows(run_dir: Path) -> None:
    frame = query(run_dir, 'SELECT step, "update", epoch, clipped_share * n_tokens AS clipped FROM updates')
    assert frame.rows() == [(29, 0, 0, pytest.approx(3)), (29, 1, 1, pytest.approx(3))]


def test_sql_sees_all_rollouts(run_dir: Path) -> None:
    frame = query(run_dir, "SELECT count(*) AS n, count(DISTINCT step) AS steps, any_value(run) AS run FROM rollouts")
    assert frame.row(0) == (3840, 30, run_dir.name)


def test_evaluations_of_base_models_lie_beside_the_runs_and_hide_none(runs_dir: Path, tmp_path: Path) -> None:
    root = tmp_path / "logs"
    shutil.copytree(runs_dir, root)
    shutil.copytree(root / "run-0/evals/baseline", root / "evals/evaluate-base")
    found = query(root, "SELECT DISTINCT run FROM rollouts ORDER BY run")
    assert found["run"].to_list() == ["run-0", "run-1"]
    base = query(root, "SELECT run, eval FROM evals WHERE eval = 'evaluate-base'")
    assert base.rows() == [("logs", "evaluate-base")]
    assert query(root, "SELECT DISTINCT run FROM eval_rollouts WHERE eval = 'evaluate-base'").rows() == [("logs",)]
    with pytest.raises(ConfigError, match="is not a run directory"):
        load_run(root)


def test_an_answer_is_written_whole(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for ending in ("parquet", "csv", "json"):
        assert main(["query", str(run_dir), "--name", "problems", "--out", str(tmp_path / f"a.{ending}")]) == 0
    whole = pl.read_parquet(tmp_path / "a.parquet")
    assert whole.height == pl.read_csv(tmp_path / "a.csv").height == len(json.loads((tmp_path / "a.json").read_text()))
    assert f"{whole.height} rows: " in capsys.readouterr().out
    assert main(["query", str(run_dir), "select 1", "--out", str(tmp_path / "a.txt")]) == 2
    assert main(["query", str(run_dir), "select 1", "--out", str(tmp_path / "none" / "a.csv")]) == 2
    assert main(["query", str(run_dir), "select 1", "--out", str(tmp_path / "a.csv"), "--format", "json"]) == 2


@pytest.mark.parametrize("ending", ["parquet", "csv", "json"])
def test_an_answer_that_finds_the_disk_full_leaves_the_old_file(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: str
) -> None:
    out = tmp_path / f"a.{ending}"
    out.write_text("old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        assert main(["query", str(run_dir), "select * from outcomes", "--out", str(out)]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert capsys.readouterr().err == f"coderl query: File too large: {out}\n"
    assert [path.name for path in tmp_path.iterdir()] == [out.name] and out.read_text() == "old"


def test_an_answer_goes_through_a_link_and_into_a_pipe(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "link.csv").symlink_to("there.csv")
    os.mkfifo(tmp_path / "pipe.csv")
    reader = os.open(tmp_path / "pipe.csv", os.O_RDONLY | os.O_NONBLOCK)
    for name in ("link.csv", "pipe.csv"):
        assert main(["query", str(run_dir), "select 1 as one", "--out", str(tmp_path / name)]) == 0
    assert (tmp_path / "link.csv").is_symlink() and (tmp_path / "there.csv").read_text() == "one\n1\n"
    assert (tmp_path / "pipe.csv").is_fifo() and os.read(reader, 100) == b"one\n1\n"
    os.close(reader)


def test_statements_are_answered_one_by_one(run_dir: Path) -> None:
    console = Console(file=StringIO(), width=100)
    lines = ["select count(*)\n", "as n from rollouts; select nonsense;\n", ";steps;\n"]
    answer_statements(run_dir, lines, console, interactive=False)
    assert isinstance(console.file, StringIO)
    said = console.file.getvalue()
    assert "3840" in said and "nonsense" in said and "eval_rollouts" in said and "How did training go" in said
    typed = Console(file=StringIO(), width=100)
    answer_statements(run_dir, ["select 1 as one\n", ";\n", "steps\n"], typed, interactive=True)
    assert isinstance(typed.file, StringIO)
    said = typed.file.getvalue()
    assert said.count("a semicolon ends the statement") == 1 and "How did training go" in said
    with pytest.raises(ConfigError, match="ends with a semicolon: select 1"):
        answer_statements(run_dir, ["select 1\n"], console, interactive=False)


def test_a_hopeless_problem_that_was_solved_is_named_with_what_it_took(run_dir: Path) -> None:
    found = query(run_dir, name="hardest_solved").row(0, named=True)
    sql = f"SELECT step, verdict FROM rollouts WHERE problem_id = '{found['problem_id']}' AND verdict <> 'infra_error'"
    rows = query(run_dir, sql)
    first = rows.filter(pl.col("verdict") == "passed")["step"].min()
    assert found["first_solved"] == first
    assert found["failed_before"] == rows.filter(pl.col("step") < first).height


def test_flips_are_what_the_comparison_gains(run_dir: Path) -> None:
    run = load_run(run_dir)
    assert run.baseline is not None and run.final is not None
    flips, losses = query(run_dir, name="flips"), query(run_dir, name="losses")
    gain = (len(flips) - len(losses)) / run.final.summary["n"]
    assert gain == pytest.approx(run.final.pass_at_1 - run.baseline.pass_at_1)


def test_degenerate_groups_are_those_the_metrics_count(run_dir: Path) -> None:
    skipped = load_run(run_dir).metrics["groups_skipped"].sum()
    assert len(query(run_dir, name="degenerate_groups")) == skipped


@pytest.mark.parametrize(("name", "most"), [("longest", "tokens"), ("slowest", "cpu_seconds")])
def test_extremes_name_each_problem_once(run_dir: Path, name: str, most: str) -> None:
    frame = query(run_dir, name=name)
    assert frame["problem_id"].is_unique().all()
    column = {"tokens": "len(completion_tokens)", "cpu_seconds": "round(run_seconds, 3)"}[most]
    found = query(run_dir, f"SELECT problem_id, max({column}) AS most FROM rollouts GROUP BY problem_id")
    assert frame[most].to_list() == sorted(found["most"].drop_nulls(), reverse=True)[: len(frame)]


def test_samples_are_right_and_wrong_ones_of_some_steps(run_dir: Path, runs_dir: Path) -> None:
    frame = query(run_dir, name="rollout_samples")
    counts = frame.group_by("step", pl.col("verdict") == "passed").len()
    assert sorted(counts["step"].unique()) == [0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 29]
    assert set(counts["len"]) == {2} and len(counts) == 22
    for row in frame.head(4).iter_rows(named=True):
        place = f"step = 0 AND problem_id = '{row['problem_id']}' AND sample_index = {row['sample_index']}"
        found = query(run_dir, f"SELECT completion, round(reward, 3) AS reward FROM rollouts WHERE {place}")
        assert row["step"] == 0 and (row["completion"], row["reward"]) in found.rows()
    assert set(query(runs_dir, name="rollout_samples")["run"]) == {"run-0", "run-1"}


def turn(environment_tokens: list[int], kept: int, stop_reason: str | None = "stop") -> dict[str, Any]:
    return {"environment_tokens": environment_tokens, "kept": kept, "stop_reason": stop_reason} | {
        "environment_text": "", "is_split": False, "n_tokens": 4, "text": "", "check": None,
    }  # fmt: skip


def test_evaluations_in_several_turns_cost_what_the_ledger_counts(runs_dir: Path, tmp_path: Path) -> None:
    run = shutil.copytree(runs_dir / "run-0", tmp_path / "run")
    file = run / "evals" / "final" / "rollouts.parquet"
    dialogues = [
        None,
        [turn([], 0)],
        [turn([], 0), turn([1, 2, 3], 40), turn([4], 70)],
        [turn([], 0), turn([1, 2], 30), turn([5], 90, stop_reason=None)],  # the last one was not sampled
    ]
    rows = pl.read_parquet(file)
    turns = pl.Series("turns", [dialogues[number % 4] for number in range(len(rows))], ROLLOUT_SCHEMA["turns"])
    rows = rows.with_columns(turns)
    # A second completion of each problem, whose prompt is cached.
    rows = pl.concat([rows, rows.with_columns(sample_index=pl.lit(1, pl.Int32()))])
    rows.write_parquet(file)
    spent = frame_tokens(rows)
    found = query(run, name="costs").row(by_predicate=pl.col("use") == "final", named=True)
    assert (found["prompt"], found["cached_prompt"]) == (spent.prompt, spent.cached)
    assert found["completion"] == spent.completion
    of_prompts = frame_tokens(rows.with_columns(turns=pl.lit(None, ROLLOUT_SCHEMA["turns"])))
    assert spent.prompt > of_prompts.prompt and spent.cached > of_prompts.cached


def test_what_a_run_told_a_profile_was_not_sampled_for_it(pool_dir: Path, tmp_path: Path) -> None:
    pool = shutil.copytree(pool_dir, tmp_path / "pool")
    file = pool / "profile.parquet"
    profile = pl.read_parquet(file)
    before = {name: query(pool, name=name)["samples"].sum() for name in ("samples", "pass_rates")}
    assert set(before.values()) == {profile["n_samples"].sum()}
    told = profile.with_columns(n_samples=pl.col("n_samples") + 5, n_told=pl.lit(5, pl.Int64()))
    told.write_parquet(file)
    assert {name: query(pool, name=name)["samples"].sum() for name in before} == before
    assert query(pool, name="samples")["tokens"].sum() == profile["completion_tokens_spent"].sum()


def test_a_folder_of_runs_is_told_apart_by_run(runs_dir: Path) -> None:
    frame = query(
        runs_dir, "SELECT run, count(*) AS steps FROM metrics WHERE groups_total > 0 GROUP BY run ORDER BY run"
    )
    assert frame.rows() == [("run-0", 3), ("run-1", 3)]


def test_evaluations_by_split(run_dir: Path) -> None:
    frame = query(run_dir, "SELECT split, n FROM eval_splits WHERE eval = 'final' ORDER BY n DESC, split")
    assert frame.rows() == [("overall", 240), ("codeforces", 120), ("lcbv5", 120)]


def test_directory_names_are_no_patterns(run_dir: Path, tmp_path: Path) -> None:
    odd = tmp_path / "it's [a] *run*"
    shutil.copytree(run_dir, odd)
    assert query(odd, "SELECT DISTINCT run FROM rollouts").rows() == [(odd.name,)]


@pytest.mark.parametrize("folder", ["reward=fraction/first", "lr=0.001/first", "step=7", "run=3"])
def test_directory_names_are_no_columns(runs_dir: Path, tmp_path: Path, folder: str) -> None:
    """DuckDB reads `column=value` in a path as a partition of a table, unless it is told not to."""
    run = shutil.copytree(runs_dir / "run-0", tmp_path / "sweep" / folder)
    index_step(run, 0, pl.read_parquet(scored_file(run)))
    for view in ("rollouts", "outcomes", "eval_rollouts"):
        sql = f"SELECT * EXCLUDE (run) FROM {view} ORDER BY ALL"
        assert query(run, sql).equals(query(runs_dir / "run-0", sql)), view
        assert query(run, f"SELECT DISTINCT run FROM {view}").rows() == [(run.name,)]


@pytest.mark.parametrize(
    ("sql", "name", "words"),
    [
        ("SELECT nothing FROM rollouts", None, "nothing"),
        ("SELEKT 1", None, "syntax error"),
        (None, "no_such", "no query is called 'no_such'"),
        (None, None, "either SQL or --name"),
        ("SELECT 1", "steps", "either SQL or --name"),
    ],
)
def test_bad_questions_are_one_clear_line(run_dir: Path, sql: str | None, name: str | None, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as raised:
        query(run_dir, sql, name)
    assert "\n" not in str(raised.value)


def test_a_query_of_the_other_kind_is_refused(run_dir: Path, pool_dir: Path) -> None:
    with pytest.raises(ConfigError, match=r"--name funnel reads a curation, and .* is none"):
        query(run_dir, name="funnel")
    with pytest.raises(ConfigError, match=r"--name steps reads a run, and .* is none"):
        query(pool_dir, name="steps")


def test_a_missing_run_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a directory"):
        query(tmp_path / "none", "SELECT 1")
    with pytest.raises(ConfigError, match="holds no run"):
        query(tmp_path, "SELECT 1")


def test_what_the_command_prints(run_dir: Path) -> None:
    console = Console(file=StringIO(), width=120)
    print_query(None, list_names=True, console=console)
    print_query(run_dir, console=console)
    print_query(run_dir, name="times", console=console)
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue()
    assert all(name in text for name in NAMED_QUERIES)
    assert "eval_rollouts" in text and "Where does the time go?" in text
    assert "no rows in" not in text
    print_query(run_dir, "SELECT * FROM pool", console=console)
    assert "no rows in" in console.file.getvalue()


def test_elsewhere_than_on_a_terminal_nothing_is_left_out() -> None:
    wide = pl.DataFrame({f"column_{number}": [number + 0.5] for number in range(20)} | {"text": ["x" * 100]})
    console = Console(file=StringIO(), width=80)
    render_frame(wide, console)
    assert isinstance(console.file, StringIO)
    head, row = console.file.getvalue().splitlines()
    assert head.split() == wide.columns
    assert row.split()[-2:] == ["19.5", "x" * 100]


def test_a_narrow_terminal_shows_whole_columns_and_counts_the_rest() -> None:
    wide = pl.DataFrame({f"column_{number:02}": [number] for number in range(20)})
    text = printed(wide, width=80)
    assert text.splitlines()[0].split() == wide.columns[:7]
    assert "+13 columns not shown (use --format csv)" in text
    assert "not shown" not in printed(wide, width=220)
    long = pl.DataFrame({"problem_id": ["0123456789abcdef"], "pass_rate": [0.5], "statement": ["x" * 100]})
    assert printed(long, width=70).splitlines()[0].split() == long.columns, "a text gives way and not a number"


def test_small_numbers_are_not_zero(run_dir: Path, tmp_path: Path) -> None:
    rows = [{"step": step, "mean_reward": 0.5, "groups_total": 2, "kl_sample_train": kl} for step, kl in enumerate(KLS)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "steps").mkdir()
    assert query(tmp_path, name="steps")["kl"].to_list() == [9.02e-11, -0.00123, 0.0, None]
    assert "-0" not in printed(pl.DataFrame({"kl": [-0.0, 0.25]}))


KLS = [9.0158e-11, -0.001234, 0.0, None]


def test_an_answer_as_csv_and_json_is_whole(run_dir: Path) -> None:
    sql = "SELECT problem_id, completion_tokens, completion FROM rollouts ORDER BY ALL LIMIT 3"
    expected = query(run_dir, sql)
    texts = {}
    for output in ("csv", "json"):
        console = Console(file=StringIO(), width=40)
        print_query(run_dir, sql, output=output, console=console)
        assert isinstance(console.file, StringIO)
        texts[output] = console.file.getvalue()
    assert json.loads(texts["json"]) == expected.to_dicts()
    read = pl.read_csv(StringIO(texts["csv"]), infer_schema=False)
    assert read["completion"].to_list() == expected["completion"].to_list()
    assert [json.loads(text) for text in read["completion_tokens"]] == expected["completion_tokens"].to_list()


def test_the_list_of_queries_checks_the_run_it_is_given(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a directory"):
        print_query(tmp_path / "none", list_names=True)
    with pytest.raises(ConfigError, match="--format csv is for answers"):
        print_query(tmp_path, output="csv")


def test_model_output_cannot_drive_the_terminal() -> None:
    text = printed(pl.DataFrame({"code": ["\x1b[2J[red]x[/red]\x07\nnext"]}))
    assert "\x1b[2J" not in text and "\x07" not in text
    assert "[red]x[/red]" in text and "⏎next" in text


def test_long_tables_say_what_is_left_out() -> None:
    assert "… 100 more rows" in printed(pl.DataFrame({"n": range(300)}))


def test_views_have_the_columns_that_curation_writes(pool_dir: Path) -> None:
    assert CURATION_SCHEMAS.keys() == {"dropped", "pool", "profile", "solutions", "audit", "strengthened"}
    for name, schema in CURATION_SCHEMAS.items():
        if name in ("audit", "strengthened"):  # only where a setting asks for it
            continue
        assert pl.read_parquet_schema(pool_dir / f"{name}.parquet") == schema


def scored_file(run: Path) -> Path:
    return run / "steps" / "000000" / "scored.parquet"


OUTSIDE = [
    "select * from read_text('{secret}')",
    "from '{secret}'",
    "copy (select 1) to '{new}'",
    "with q as (copy (select 1) to '{new}') from q",
    "attach '{new}'",
    "export database '{new}'",
    "load httpfs",
    "set enable_external_access = true",
    "copy (select 1) to '{file}'",
    "copy (select 1) to '{file}' (use_tmp_file false)",
    "explain analyze copy (select 1) to '{file}' (\"USE_TMP_FILE\" false)",
    "\u00a0copy (select 1 as x, 2 as y) to '{file}' (format parquet, partition_by x, overwrite true)",
]


@pytest.mark.parametrize("sql", OUTSIDE)
def test_sql_reads_the_views_and_touches_no_file(sql: str, runs_dir: Path, tmp_path: Path) -> None:
    run = shutil.copytree(next(path for path in sorted(runs_dir.iterdir()) if is_run(path)), tmp_path / "run")
    secret, new, file = tmp_path / "secret.csv", tmp_path / "new", scored_file(run)
    secret.write_text("mine\n1\n")
    before = file.read_bytes()
    statement = sql.format(secret=secret, new=new, file=file)
    with pytest.raises(ConfigError, match="--external-access lets SQL read and write files"):
        query(run, f"{statement} -- rollouts")  # named, so that its files may be read
    assert not new.exists() and file.read_bytes() == before


def test_external_access_is_an_option(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("step,note\n0,first\n")
    sql = f"select note from outcomes join '{tmp_path}/mine.csv' using (step) limit 1"
    assert query(run_dir, sql, external_access=True)["note"].item() == "first"
    query(run_dir, f"copy (select 1) to '{tmp_path}/out.csv'", external_access=True)
    assert (tmp_path / "out.csv").is_file()
    frame = query(run_dir, "create table t as select step from outcomes; select count(*) as n from t")
    assert frame["n"].item() > 0  # tables in memory are anyone's
    private = pl.DataFrame({"a": [1]})
    with pytest.raises(ConfigError, match="private does not exist"):
        query(run_dir, "select * from private")
    assert private.height == 1


def test_a_table_that_is_no_parquet_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    (tmp_path / "pool.parquet").write_text("root:x:0:0")
    with pytest.raises(DataError, match=r"pool\.parquet"), connect(tmp_path):
        pass
