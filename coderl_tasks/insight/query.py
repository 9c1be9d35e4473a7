"""DuckDB over a run directory, a curation directory, or a folder of them.

Views, each with a `run` column (the directory's name):

    rollouts       every scored training rollout, columns of ROLLOUT_SCHEMA
    outcomes       the same without tokens and texts, but with their numbers (INDEX_SCHEMA): of long runs much faster
    trainer        the trainer's log-probabilities of the tokens that were trained on (TRAINER_SCHEMA)
    eval_rollouts  the rollouts of the evaluations, with `eval`
    metrics        metrics.jsonl, one row per line     checkpoints   checkpoints.jsonl
    updates        one row per optimizer step, of the steps that have several
    evals          one row per evaluation              eval_splits   the same by split, `overall` included
    pool, dropped, profile, solutions                  the tables of a curation

A view without files is empty and has its columns, so every query works on every run. SQL is often from somebody else:
without `external_access` it can read the views only.
"""

import glob
import io
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
from rich.console import Console
from rich.text import Text

from coderl_tasks.errors import ConfigError, DataError
from coderl_tasks.insight.named_queries import CURATION, NAMED_QUERIES, PROFILED
from coderl_tasks.insight.record import CURATION_SCHEMAS, FLOAT, INT, TEXT, is_curation, is_run, load_evals
from coderl_tasks.insight.tables import Output, plain_table, render_frame, write_frame
from coderl_tasks.journal.atomic import output_file, read_json, read_rows
from coderl_tasks.journal.run_directory import is_eval_row, metrics_rows
from coderl_tasks.journal.steps import INDEX_SCHEMA, LENGTHS, TRAINER_FILE, StepJournal, index_files, scored_files
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA, TRAINER_SCHEMA
from coderl_tasks.policy.step_metrics import METRICS
from coderl_tasks.problems.profile_columns import N_FROM_RUN
from coderl_tasks.untrusted_text import printable

Connection = duckdb.DuckDBPyConnection
Schema = dict[str, pl.DataType]
METRICS_SCHEMA = {"step": INT, **{metric.name: metric.dtype for metric in METRICS}}
METRICS_SCHEMA |= {"act": TEXT, "eval/mean_correct": FLOAT}
SHARE_SCHEMA: Schema = {"n": INT, "pass_at_1": FLOAT, "ci_low": FLOAT, "ci_high": FLOAT}
EVAL_SCHEMA: Schema = {
    "eval": TEXT, "step": INT, **SHARE_SCHEMA, "mean_reward": FLOAT, "format_rate": FLOAT, "truncated_rate": FLOAT,
    "infra_errors": INT, "temperature": FLOAT, "max_tokens": INT, "policy": TEXT, "taken_from": TEXT,
    "compare_to": TEXT, "difference": FLOAT, "difference_low": FLOAT, "difference_high": FLOAT,
}  # fmt: skip
ROW_SCHEMAS: dict[str, Schema] = {  # the views that are read into memory, and their columns
    "metrics": METRICS_SCHEMA,
    "checkpoints": {"name": TEXT, "step": INT, "dataset_offset": INT, "state_path": TEXT, "sampler_path": TEXT},
    "updates": {
        "step": INT, "update": INT, "epoch": INT, "n_datums": INT, "n_tokens": INT, "loss": FLOAT,
        "kl_sample_train": FLOAT, "ratio_mean": FLOAT, "ratio_max": FLOAT, "clipped_share": FLOAT, "grad_norm": FLOAT,
    },
    "evals": EVAL_SCHEMA,
    "eval_splits": {"eval": TEXT, "step": INT, "split": TEXT, **SHARE_SCHEMA},
}  # fmt: skip
FILE_VIEWS: dict[str, tuple[str, Schema]] = {  # where their files are in a directory, and their columns
    "rollouts": ("steps/*/scored.parquet", ROLLOUT_SCHEMA),
    "trainer": (f"steps/*/{TRAINER_FILE}", TRAINER_SCHEMA),
    "eval_rollouts": ("evals/*/rollouts.parquet", {"eval": TEXT} | ROLLOUT_SCHEMA),
    **{name: (f"{name}.parquet", schema) for name, schema in CURATION_SCHEMAS.items()},
    "profile": ("profile.parquet", CURATION_SCHEMAS["profile"] | {N_FROM_RUN: INT}),
}
VIEWS = ("rollouts", "outcomes", "trainer", "eval_rollouts", *ROW_SCHEMAS, *CURATION_SCHEMAS)


def find_directories(path: Path) -> list[Path]:
    """The run and curation directories that `path` means: itself, or those directly in it; ConfigError if none. A
    folder of runs is itself one of them if base models were evaluated there: its evals/ are theirs."""
    if not path.is_dir():
        raise ConfigError(f"{path} is not a directory: give a run directory, a curation directory or a folder of them")
    if is_run(path) or is_curation(path):
        return [path]
    found = sorted(child for child in path.iterdir() if child.is_dir() and (is_run(child) or is_curation(child)))
    if (path / "evals").is_dir():
        found.append(path)
    if not found:
        raise ConfigError(f"{path} holds no run (metrics.jsonl, steps, evals) and no curation (pool.parquet)")
    return found


_EXTERNAL = "--external-access lets SQL read and write files, load extensions and change settings"
_NO_PATH = "name a run directory, a curation directory or a folder of them (--list: the named queries)"


def connect(path: Path, sql: str = "", steps: str = "", *, external_access: bool = False) -> Connection:
    """An in-memory DuckDB connection with the views over `path` that `sql` names, or all if it names none. `steps` is
    SQL for the `run` and `step` that the view `rollouts` is limited to. Without `external_access`, DuckDB can
    afterwards open only the views' files; `query` prevents that COPY replaces one of them."""
    # Views take the run's name from each file's path, so `.` and links must be resolved.
    directories = [directory.resolve() for directory in find_directories(path)]
    # In memory: nothing is written beside a run in progress, and nothing becomes stale.
    connection = duckdb.connect()
    read: list[Path] = []  # the files that DuckDB may open later
    # Only the views named: DuckDB opens every file of a view, thousands in a long run.
    named = {word for word in re.findall(r"\w+", f"{sql} {steps}".lower()) if word in VIEWS} or set(VIEWS)
    for view in sorted(named, key=VIEWS.index, reverse=True):  # `rollouts` comes last, as `steps` reads other views
        if view in ROW_SCHEMAS:
            rows = [{"run": directory.name} | row for directory in directories for row in _view_rows(view, directory)]
            _row_table(connection, view, rows, ROW_SCHEMAS[view])
        elif view == "outcomes":
            read += _outcomes_view(connection, directories)
        else:
            pattern, schema = FILE_VIEWS[view]
            if view == "rollouts" and steps:
                folders = {directory.name: directory for directory in directories}
                wanted = sorted(set(connection.execute(steps).fetchall()))
                found = [folders[run] / "steps" / f"{step:06d}" / "scored.parquet" for run, step in wanted]
            elif view == "rollouts":
                found = [file for directory in directories for file in scored_files(directory)]
            else:
                found = [file for directory in directories for file in sorted(directory.glob(pattern))]
            files = [file for file in found if file.is_file()]  # people remove the rollouts of old steps
            # pool.parquet lies in the run's own folder, one up; each slash of a pattern is one folder more.
            read += _file_view(connection, view, files, schema, folders_up_to_run=1 + pattern.count("/"))
    if not external_access:
        # Each file also by the escaped path that the views read it by.
        connection.execute(f"SET allowed_paths = [{_listed([*read, *map(_escaped_path, read)])}]")
        connection.execute("SET python_enable_replacements = false")  # else SQL reads Python variables as tables
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
    return connection


def query(
    path: Path, sql: str | None = None, name: str | None = None, *, external_access: bool = False
) -> pl.DataFrame:
    """The answer to either `sql` or the named query `name`, which over one directory has no column `run`. SQL can read
    the tables of `path` only, unless it has `external_access`. ConfigError for a missing run, an unknown name or one of
    another kind of directory, both or neither of `sql` and `name`, and SQL that DuckDB refuses."""
    if (sql is None) == (name is None):
        raise ConfigError(f"give either SQL or --name, one of: {', '.join(NAMED_QUERIES)}")
    steps_sql = ""  # SQL for the only steps whose rollouts a named query reads; "": all
    if name is not None:
        if name not in NAMED_QUERIES:
            raise ConfigError(f"no query is called {name!r}: use one of {', '.join(NAMED_QUERIES)}")
        named = NAMED_QUERIES[name]
        if find_directories(path) == [path] and is_curation(path) is not (named.over == CURATION):
            found = f"--name {name} reads a {named.over}, and {path} is none"
            raise ConfigError(f"{found}: --list says what each query reads")
        sql, steps_sql = named.sql, named.steps
    assert sql is not None  # given, or the named query's
    # Without this check, `query RUN flips` would be a syntax error in DuckDB's words.
    if sql in NAMED_QUERIES:
        raise ConfigError(f"{sql} is no SQL, but the name of a query: --name {sql}")
    # With these options COPY writes into a view's file, which DuckDB may open; without, it writes another file first,
    # which `connect` forbids. The whole text is searched: COPY may be inside WITH or EXPLAIN, and spaces unusual.
    replaces = "copy" in sql.lower() and any(option in sql.lower() for option in ("overwrite", "use_tmp_file"))
    with connect(path, sql, steps_sql, external_access=external_access) as connection:
        if replaces and not external_access:
            raise ConfigError(f"COPY with OVERWRITE or USE_TMP_FILE is not run: SQL reads the views alone; {_EXTERNAL}")
        try:
            relation = connection.sql(sql)
            frame = relation.pl() if relation is not None else pl.DataFrame()  # None: a statement without an answer
        except duckdb.Error as error:
            # What the settings of `connect` forbid can be recognised by DuckDB's words only.
            refused = any(words in str(error) for words in ("disabled by config", "disabled through config", "locked"))
            hint = f": SQL reads the views alone; {_EXTERNAL}" if refused and not external_access else ""
            raise ConfigError(f"DuckDB: {' '.join(str(error).split('LINE 1:')[0].split())}{hint}") from error
    is_run_known = name is not None and len(find_directories(path)) == 1  # the column would have one value
    return frame.drop("run", strict=False) if is_run_known else frame


def print_query(
    path: Path | None,
    sql: str | None = None,
    name: str | None = None,
    *,
    list_names: bool = False,
    output: Output = "table",
    console: Console | None = None,
    external_access: bool = False,
) -> None:
    """Prints the named queries, the answer to `sql` or to the named query `name` or, without both, the views."""
    console = console or Console()
    if output != "table" and (list_names or (sql is None and name is None)):
        raise ConfigError(f"--format {output} is for answers: give SQL or --name")
    if list_names:
        if path is not None:  # the list is the same for all, but a wrong path is an error
            find_directories(path)
        names = plain_table(columns=("name", "reads", "question"))
        for entry in NAMED_QUERIES.values():
            names.add_row(entry.name, entry.over, entry.question)
        console.print(names)
    elif path is None:
        raise ConfigError(_NO_PATH)
    elif sql is None and name is None:
        print_views(path, console)
    else:
        answer = query(path, sql, name, external_access=external_access)
        if output != "table":
            write_frame(answer, console, output)
        else:
            render_frame(answer, console, NAMED_QUERIES[name].question if name in NAMED_QUERIES else None)
            if answer.is_empty():  # say where it looked: a pool and a run may have one name
                why = ": nothing was profiled" if name in PROFILED else ""
                notice = f"no rows in {path}{why}; `coderl query` without SQL lists what it has"
                console.print(notice, highlight=False, markup=False)


def write_answer(
    path: Path | None, out: Path, sql: str | None = None, name: str | None = None, *, external_access: bool = False
) -> int:
    """Writes the whole answer to `out` in the format of its suffix; returns how many rows. Raises as `query` does."""
    if path is None:
        raise ConfigError(_NO_PATH)
    if out.suffix not in (".parquet", ".csv", ".json"):
        raise ConfigError(f"--out {out}: the file's name ends with .parquet, .csv or .json")
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"--out {out}: there is no folder {out.absolute().parent}")
    answer = query(path, sql, name, external_access=external_access)
    with output_file(out) as file:
        if out.suffix == ".parquet":
            answer.write_parquet(file, compression="zstd")
        else:
            text = io.TextIOWrapper(file, encoding="utf-8", newline="\n")
            write_frame(answer, Console(file=text), "csv" if out.suffix == ".csv" else "json")
            text.flush()
            text.detach()  # or the wrapper would close the file
    return answer.height


def answer_statements(
    path: Path, lines: Iterable[str], console: Console, *, interactive: bool, external_access: bool = False
) -> None:
    """Answers the statements in `lines`: SQL, a named query (alone on a line it needs no semicolon), or nothing for the
    views. Prints errors and goes on; ConfigError if the last statement does not end."""

    def prompt(text: str) -> None:
        if interactive:
            console.print(text, end="", highlight=False)

    prompt(
        f"{path}: SQL that ends with a semicolon, or a query's name ({', '.join(NAMED_QUERIES)}); "
        "a semicolon alone lists the views; Ctrl-D ends\n> "
    )
    unfinished = ""
    for line in lines:
        if not unfinished.strip() and line.strip() in NAMED_QUERIES:  # not within a statement
            line = f"{line.strip()};"
        *statements, unfinished = (unfinished + line).split(";")
        for statement in map(str.strip, statements):
            try:
                if statement in NAMED_QUERIES:
                    print_query(path, name=statement, console=console)
                else:
                    print_query(path, statement or None, console=console, external_access=external_access)
            except ConfigError as error:
                console.print(Text(printable(str(error)), style="red"))
        prompt("... (a semicolon ends the statement) " if unfinished.strip() else "> ")
    if unfinished.strip():
        raise ConfigError(f"a statement ends with a semicolon: {unfinished.strip()}")
    prompt("\n")


def print_views(path: Path, console: Console) -> None:
    table = plain_table()
    table.add_column("view")
    table.add_column("rows", justify="right")
    table.add_column("columns", overflow="fold")
    with connect(path) as connection:
        for view in VIEWS:
            rows = connection.execute(f"SELECT count(*) FROM {view}").fetchone()
            columns = [row[0] for row in connection.execute(f"DESCRIBE {view}").fetchall()]
            if rows and rows[0]:
                table.add_row(view, str(rows[0]), Text(", ".join(columns)))
    console.print(table)


def _file_view(
    connection: Connection, name: str, files: list[Path], schema: Schema, *, folders_up_to_run: int
) -> list[Path]:
    """Creates the view `name` over parquet files, with the columns of `schema` even if no file has them, and `run`, the
    name of the folder `folders_up_to_run` above each file (1: its own). Returns `files`."""
    if not files:  # read_parquet takes no empty list
        _row_table(connection, name, rows=[], schema=schema)
        return files
    names = f"string_split(filename, '/')[{-1 - folders_up_to_run}] AS run"  # [-1] is the file's own name
    if "eval" in schema:  # evals/NAME/rollouts.parquet
        names += ", string_split(filename, '/')[-2] AS eval"
    # Else DuckDB takes a folder called `step=7` for a partition, whose column replaces that of the files.
    options = "union_by_name = true, filename = true, hive_partitioning = false"
    source = f"read_parquet([{_listed(map(_escaped_path, files))}], {options})"
    try:
        # The union with an empty table of all columns makes a column null that no file has: older runs lack new ones.
        _row_table(connection, f"_no_{name}", rows=[], schema=schema)
        connection.execute(
            f"CREATE VIEW {name} AS SELECT {names}, * EXCLUDE (filename) FROM {source} "
            f"UNION ALL BY NAME FROM _no_{name}"
        )
    except duckdb.Error as error:  # it names the file
        raise DataError(f"the tables of {name} cannot be read: {' '.join(str(error).split())[:300]}") from error
    return files


def _escaped_path(file: Path) -> Path:
    """The path of `file` with * and [ escaped: DuckDB takes them for a pattern, which might match another run."""
    return Path(glob.escape(str(file)))


def _listed(files: Iterable[Path]) -> str:
    """Files as SQL writes them: DuckDB takes no parameters in the definition of a view, nor in a setting."""
    return ", ".join("'" + str(file).replace("'", "''") + "'" for file in files)


def _outcomes_view(connection: Connection, directories: list[Path]) -> list[Path]:
    """The view `outcomes`, of the runs' indexes and the rollouts of steps that they lack; the files that it reads."""
    # Read once: a file that a run adds in between would leave its steps in neither.
    indexes = {directory: index_files(directory) for directory in directories}
    indexed = [file for index in indexes.values() for file in index]
    others = [file for directory, index in indexes.items() for file in scored_files(directory, index.values())]
    _file_view(connection, "_indexed", indexed, INDEX_SCHEMA, folders_up_to_run=2)
    _file_view(connection, "_others", others, ROLLOUT_SCHEMA, folders_up_to_run=3)
    columns = ", ".join(["run", *INDEX_SCHEMA])
    counted = ", ".join(f"len({LENGTHS[name]}) AS {name}" if name in LENGTHS else name for name in INDEX_SCHEMA)
    connection.execute(
        f"CREATE VIEW outcomes AS SELECT {columns} FROM _indexed UNION ALL SELECT run, {counted} FROM _others"
    )
    return [*indexed, *others]


def _row_table(connection: Connection, name: str, rows: list[dict[str, Any]], schema: Schema) -> None:
    """Creates the table `name`: `run` and the columns of `schema` (null where a row lacks one, or has what does not fit
    its type), then others with inferred types. Raises DataError if values of one key fit no column."""
    try:
        # Types from all rows: by default polars reads the first ones, where a key may be null or missing.
        frame = pl.DataFrame(rows, infer_schema_length=None)
    except (TypeError, ValueError, OverflowError, RecursionError, pl.exceptions.PolarsError) as error:
        raise DataError(f"the rows of {name} cannot be read: {' '.join(str(error).split())[:300]}") from error
    empty = pl.DataFrame(schema={"run": TEXT, **schema})
    known = pl.Schema({column: dtype for column, dtype in empty.schema.items() if column in frame.columns})
    table = pl.concat([empty, frame.cast(known, strict=False)], how="diagonal")
    connection.register("_rows", table.to_arrow())
    connection.execute(f"CREATE TABLE {name} AS SELECT * FROM _rows")
    connection.unregister("_rows")


def _view_rows(view: str, directory: Path) -> list[dict[str, Any]]:
    """The rows of the run in `directory` in a view of ROW_SCHEMAS, without the column `run`."""
    if view == "checkpoints":
        return read_rows(directory / "checkpoints.jsonl")
    metrics = metrics_rows(directory / "metrics.jsonl")
    if view == "metrics":
        return metrics
    if view == "updates":
        steps = [int(row["step"]) for row in metrics if (row.get("n_updates") or 0) > 1]
        commits = {step: StepJournal(directory, step).files["commit"] for step in steps}
        return [
            {"step": step, "update": number, **row}
            for step, file in commits.items()
            if file.is_file()
            for number, row in enumerate(read_json(file).get("updates", []))
        ]
    last_step = max((int(row["step"]) for row in metrics if not is_eval_row(row)), default=-1)  # -1: not trained
    # The final evaluation counts as one of the last step.
    evaluations = load_evals(directory / "evals", last_step).values()
    rows = []
    for record in evaluations:
        place = {"eval": record.name, "step": record.step}
        if view == "evals":
            earlier = record.summary.get("compare") or {}  # how it compares to an earlier one, if it was compared
            row = {column: record.summary.get(column) for column in EVAL_SCHEMA} | place
            row |= {"compare_to": earlier.get("to"), "difference": earlier.get("difference")}
            row |= {"difference_low": earlier.get("ci_low"), "difference_high": earlier.get("ci_high")}
            rows.append(row)
        else:
            for split, result in {"overall": record.summary, **record.summary.get("by_split", {})}.items():
                rows.append(place | {"split": split} | {column: result.get(column) for column in SHARE_SCHEMA})
    return rows
