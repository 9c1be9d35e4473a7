"""curate from_run=RUN: a pool for a run's newest policy, profiled by the run's own rollouts.

1. The policy is the run's last checkpoint with sampler weights. The pool's folder records it (policy.json) before
   anything is sampled, so a resumed curation has the same policy even if the run went on.
2. Rollouts up to that checkpoint's step count. One that is `age` steps old weighs 1 / (1 + age / HALF_AGE), as where
   selection=adaptive begins. A problem's counts are rounded to whole completions.
3. The stopping rule sees a problem's rollouts and its new samples together: a problem that the rollouts settle gets no
   samples, and one that the run never sampled gets all that the rule wants.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

import polars as pl

from coderl_tasks.curation.profile import Prices, profile_frame, rates
from coderl_tasks.errors import ConfigError
from coderl_tasks.journal.atomic import make_folder, read_json, scan_parquet, write_json
from coderl_tasks.journal.checkpoints import get_last_checkpoint
from coderl_tasks.journal.recorded_json import recorded_config
from coderl_tasks.journal.run_names import did_you_mean, near_runs, run_path
from coderl_tasks.journal.steps import scored_files
from coderl_tasks.paths import MANIFEST_FILE, file_sha256, local_model_folder, same_model
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA
from coderl_tasks.policy.selection import HALF_AGE
from coderl_tasks.problems import Problem
from coderl_tasks.problems.loading import SIDES, same_source
from coderl_tasks.problems.profile_columns import N_FROM_RUN, SHARD_SCHEMA
from coderl_tasks.settings import CurateSettings, about

POLICY_FILE = "policy.json"
FIXED_BY_RUN = ("model_name", "environment", *SIDES)
"""Settings that a user may not set otherwise than the run: its rollouts say nothing of another model or other data."""
SAMPLING_KEYS = ("temperature", *(key for key in CurateSettings.inherited_content() if key not in FIXED_BY_RUN))
"""Settings of sampling, the run's by default, so that new samples are like its rollouts; a user may set others."""


@dataclass(frozen=True, slots=True)
class RunPolicy:
    """The policy of a checkpoint: its run's directory, the last step trained into it, its sampler weights and model."""

    run: str
    step: int
    sampler_path: str
    model_name: str

    def as_dict(self) -> dict[str, str | int]:
        """For a manifest, which names no folder of this machine."""
        return asdict(self) | {"run": Path(self.run).name}


def base_policy(model_name: str) -> dict[str, str | int]:
    """The same of a base model; of a local folder with the hash of its configuration and weights."""
    folder = local_model_folder(model_name)
    known: dict[str, str | int] = {"model_name": model_name, "step": -1}
    if folder is None:
        return known
    parts = [folder / "config.json", *sorted(folder.glob("*.safetensors"))]
    hashes = "".join(f"{file.name} {file_sha256(file)}\n" for file in parts if file.is_file())
    return known | {"sha256": sha256(hashes.encode()).hexdigest()}


def filled_from_run(settings: CurateSettings) -> CurateSettings:
    """Fills in the settings that the user did not give: model, data and sampling are the run's, and what else decides a
    pool's content is that of the pool it was trained on. Raises ConfigError if there is no such run, if it has no
    checkpoint to sample from, or if a given setting of FIXED_BY_RUN differs from the run's."""
    assert settings.from_run is not None
    run = run_path(settings.from_run).resolve()
    prefix = f"from_run={settings.from_run}"
    config = recorded_config(run)
    if config is None:
        raise ConfigError(f"{prefix}: there is no run in {run}{did_you_mean(near_runs(run))} (coderl runs lists them)")
    if get_last_checkpoint(run, "sampler_path") is None:
        raise ConfigError(f"{prefix}: the run has no checkpoint to sample from yet (save_every= says when it has)")
    for key in FIXED_BY_RUN:  # one that the run did not record had its default
        given, of_run = getattr(settings, key), config.get(key, getattr(CurateSettings(), key))
        is_same = {"model_name": same_model, "dataset": same_source}.get(key, lambda one, other: one == other)
        if key in settings.given and not is_same(given, of_run):
            raise ConfigError(f"{prefix}: the run is of {key}={of_run}, not {key}={given}: leave {key} out")
    manifest = Path(str(config.get("pool", ""))).with_name(MANIFEST_FILE)  # a run records its pool's file
    pool_settings = read_json(manifest)["settings"] if manifest.is_file() else {}  # a bare table has none
    fields = CurateSettings.model_fields
    content_keys = {key for key, field in fields.items() if key != "from_run" and about(field).decides_content}
    values = {key: value for key, value in pool_settings.items() if key in content_keys}
    # These modes are for few samples or none. The run has many: its pool's mode gives way to the default.
    if values.get("profile_mode") in ("screen", "none"):
        del values["profile_mode"]
    # The run may have been started with other settings than its pool: its own values count. The keys of FIXED_BY_RUN
    # cannot differ from what the user gave (checked above); those of SAMPLING_KEYS give way to what the user gave.
    values |= {key: config[key] for key in (*FIXED_BY_RUN, *SAMPLING_KEYS) if key in config}
    filled = settings.filled_from(values)
    # The model counts as given: no preset or service decides on another one.
    return filled.with_changes(from_run=str(run), model_name=filled.model_name)


def policy_in(folder: Path, settings: CurateSettings) -> RunPolicy:
    """The policy that the curation in `folder` profiles: the recorded one, else, recorded now, that of the run's last
    checkpoint. Raises ConfigError if there is none."""
    recorded = recorded_policy(folder)
    assert settings.from_run is not None
    if recorded is not None and recorded.run == settings.from_run:
        return recorded
    row = get_last_checkpoint(settings.from_run, "sampler_path")
    if row is None:
        raise ConfigError(f"from_run={settings.from_run}: the run has no checkpoint to sample from yet")
    policy = RunPolicy(settings.from_run, int(row["step"]), str(row["sampler_path"]), settings.model_name)
    # Before the first sample: a later start must not mix in those of a later checkpoint.
    write_json(make_folder(folder) / POLICY_FILE, asdict(policy))
    return policy


def recorded_policy(folder: Path) -> RunPolicy | None:
    """The policy of a run that the curation in `folder` was begun with; None if it profiles a base model."""
    file = folder / POLICY_FILE
    return RunPolicy(**read_json(file)) if file.is_file() else None


@dataclass(frozen=True, slots=True)
class RunEstimates:
    """What a run's rollouts say of problems: `counts` has (right, completions) by problem_id, discounted and rounded,
    `profile` (SHARD_SCHEMA) the same with what else a profile has. Nothing was spent on it."""

    counts: Mapping[str, tuple[int, int]]
    profile: pl.DataFrame

    def with_samples(self, problem_ids: Sequence[str], sampled: pl.DataFrame) -> pl.DataFrame:
        """The profile (SHARD_SCHEMA and N_FROM_RUN) of the problems by rollouts and samples, in their order. Rates of
        format and truncation and lengths are the samples' where there are any: they are of the policy itself."""
        fresh = {row["problem_id"]: row for row in sampled.iter_rows(named=True)}
        old = {row["problem_id"]: row for row in self.profile.iter_rows(named=True)}
        rows = []
        for name in problem_ids:
            row = (fresh.get(name) or old[name]) | {N_FROM_RUN: old[name]["n_samples"] if name in old else 0}
            if name in fresh and name in old:
                k, n = row["n_correct"] + old[name]["n_correct"], row["n_samples"] + old[name]["n_samples"]
                both = {
                    key: [one + other for one, other in zip(row[key], old[name][key], strict=True)]
                    for key in ("test_runs", "test_catches")
                    if len(row[key]) == len(old[name][key])
                }
                row |= both | rates(k, n)
            rows.append(row)
        return pl.DataFrame(rows, schema=SHARD_SCHEMA | {N_FROM_RUN: pl.Int64()})


def estimate_from_run(policy: RunPolicy, problems: Iterable[Problem], prices: Prices) -> RunEstimates:
    """Estimates the policy's pass rates on `problems` (with tests) from rollouts that its run recorded, up to the
    policy's step. Leaves out problems that the run did not sample, or graded with another number of tests or another
    comparator."""
    unread = ("completion", "logprobs", "base_logprobs", "failed_output", "reason")  # large, or of no use here
    columns = [name for name in ROLLOUT_SCHEMA if name not in unread]
    files = [file for file in scored_files(Path(policy.run)) if int(file.parent.name) <= policy.step]
    if not files:
        return RunEstimates({}, pl.DataFrame(schema=SHARD_SCHEMA))
    scan = scan_parquet(files, ROLLOUT_SCHEMA)
    graded = scan.select(columns).filter(pl.col("correctness_score").is_not_null()).collect()
    by_problem = graded.partition_by("problem_id", as_dict=True, maintain_order=True)
    # The run paid for its rollouts: a curation that uses them has no rounds, tokens or costs of its own.
    nothing_spent = {"rounds": 0, "prompt_tokens_spent": 0, "completion_tokens_spent": 0, "cost": prices.cost(0, 0)}
    counts, rows = {}, []
    run_comparators = _comparators(Path(policy.run))  # empty if the run's pool is gone: then taken to be the same
    for problem in problems:  # one at a time: with their tests they may not all fit into memory
        rollouts = by_problem.get((problem.problem_id,))
        if run_comparators.get(problem.problem_id, problem.comparator) != problem.comparator:
            continue
        # Another number of tests: the run had other ones. A 0 is recorded of what was not run, such as a format error.
        if rollouts is None or set(rollouts["tests_total"].drop_nulls()) - {0, problem.tests_total}:
            continue
        weights = 1 / (1 + (policy.step - rollouts["step"].to_numpy()) / HALF_AGE)
        pass_weights = weights[(rollouts["correctness_score"] == 1.0).to_numpy()]
        if n := round(math.fsum(weights)):  # otherwise they are too old to count
            n_correct = round(n * math.fsum(pass_weights) / math.fsum(weights))
            counts[problem.problem_id] = n_correct, n
            unweighted_row = profile_frame([problem], rollouts, prices).row(0, named=True)
            # Lengths and formats stay unweighted; counts, pass rate, its interval and difficulty are the weighted ones.
            rows.append(unweighted_row | rates(n_correct, n) | nothing_spent)
    return RunEstimates(counts, pl.DataFrame(rows, schema=SHARD_SCHEMA))


def _comparators(run: Path) -> dict[str, str]:
    """The comparators by which rollouts of `run` were graded, by problem id; empty if its pool is gone."""
    file = Path(str((recorded_config(run) or {}).get("pool", "")))
    names = ("problem_id", "comparator")
    if not file.is_file() or not {*names} <= scan_parquet(file).collect_schema().keys():
        return {}
    return dict(scan_parquet(file).select(names).collect().iter_rows())
