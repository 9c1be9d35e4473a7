"""evaluate: Pass@1 of a checkpoint on the test splits, with 95% intervals, and against the run's baseline."""

import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
from prefect import flow, task

from coderl_tasks.curation.measure import MeasureSettings, Progress
from coderl_tasks.errors import ConfigError
from coderl_tasks.evaluation import compared, evaluate_policy, evaluation_subset
from coderl_tasks.evaluation.policy import FoundPolicy, find_policy
from coderl_tasks.insight.artifacts import evaluation_markdown
from coderl_tasks.insight.record import EvalRecord
from coderl_tasks.journal.evaluations import EvalJournal
from coderl_tasks.journal.run_directory import DEFAULT_ROOT
from coderl_tasks.policy.clients import create_sampling_client
from coderl_tasks.problems import Problem, load_problems
from coderl_tasks.services import for_this_machine, services
from coderl_tasks.settings import EvaluateSettings
from coderl_tasks.training.evaluations import BASELINE
from coderl_tasks.training.session import Session, open_session
from flows.display import Display
from flows.naming import deployed_name
from flows.publishing import publish_or_warn
from flows.retries import PHASE


class Evaluation:
    """One evaluation in this process: what is evaluated, on which problems, and where the record goes."""

    def __init__(
        self, settings: EvaluateSettings, policy: FoundPolicy, session: Session, problems: list[Problem], folder: Path
    ) -> None:
        self.settings = settings
        self.policy = policy
        self.session = session
        self.problems = problems
        self.journal = EvalJournal(folder)


@task(name="measure", **PHASE)
async def measure(evaluation: Evaluation, on_progress: Progress) -> tuple[pl.DataFrame, dict[str, Any]]:
    return await evaluation.session.supervised(_measure(evaluation, on_progress))


async def _measure(evaluation: Evaluation, on_progress: Progress) -> tuple[pl.DataFrame, dict[str, Any]]:
    settings, session, path = evaluation.settings, evaluation.session, evaluation.policy.sampler_path
    sampler = await create_sampling_client(
        await session.service(), sampler_path=path, base_model=None if path else settings.model_name
    )
    return await evaluate_policy(
        evaluation.problems,
        sampler,
        session.judge,
        session.renderer,
        MeasureSettings(
            purpose="evaluate",
            policy=path or settings.model_name,
            temperature=settings.temperature,
            max_tokens=settings.max_tokens,
            context=session.context,
            seed=settings.seed,
            concurrency=settings.sample_concurrency,
            sampler_step=evaluation.policy.step,
        ),
        groups=evaluation.journal.groups,
        on_progress=on_progress,
    )


@flow(name="evaluate")
async def evaluate(settings: EvaluateSettings) -> str:
    """Pass@1 of a checkpoint. Returns the folder with rollouts.parquet and summary.json."""
    display = Display()
    wanted_model = settings.model_name if "model_name" in settings.given or settings.preset else None
    policy = find_policy(settings.checkpoint, wanted_model)
    if policy.sampler_path is not None and policy.run is None and wanted_model is None:
        raise ConfigError(f"checkpoint={settings.checkpoint}: say which model it is of, with model_name or preset")
    inherited = {key: policy.config[key] for key in INHERITED if key in policy.config}
    settings = settings.filled_from(inherited) if "model_name" in inherited else for_this_machine(settings)
    folder = _folder(settings, policy)
    display.say(f"evaluating {policy.sampler_path or settings.model_name}")
    display.say(f"evaluation directory: {folder}")
    loaded = load_problems(settings.dataset, settings.splits, role="test")
    problems = evaluation_subset(loaded.problems, settings.eval_limit, seed=settings.seed)
    if not problems:
        why = loaded.unusable or "there are no rows"
        raise ConfigError(f"{settings.dataset} has no test problems in splits={settings.splits}: {why}")
    with services(settings.model_name) as used:
        for line in used.lines:
            display.say(line)
        async with open_session(settings, used) as session:
            evaluation = Evaluation(settings, policy, session, problems, folder)
            with display.bar("evaluation") as on_progress:
                rollouts, summary = await measure(evaluation, on_progress)
    before = _compared(settings, policy)
    if before is not None:
        summary |= compared(before.read_rollouts(), rollouts, to=before.name)
    evaluation.journal.write(rollouts, summary | {"step": policy.step})
    record, earlier = _record(evaluation.journal), _record(before) if before else None
    markdown = evaluation_markdown(record, earlier, dataset=settings.dataset)
    await publish_or_warn("evaluation", folder.name, markdown)
    _say_result(display, summary)
    return str(folder)


INHERITED = ("model_name", "renderer_name", "thinking", "dataset", "max_tokens", "reward_timeout")
"""Settings that an evaluation of a run takes from the run where they are not given."""


def _folder(settings: EvaluateSettings, policy: FoundPolicy) -> Path:
    """Where the record goes: `log_path`, else a new folder under the run's (or the default root's) evals/."""
    if settings.log_path is not None:
        return Path(settings.log_path).expanduser().resolve()
    name = f"evaluate-{deployed_name() or f'{datetime.now():%Y_%m_%d-%H_%M_%S}'}"
    return (policy.run or Path(DEFAULT_ROOT).expanduser()) / "evals" / name


def _compared(settings: EvaluateSettings, policy: FoundPolicy) -> EvalJournal | None:
    """The evaluation to compare with: a folder, or one of the same run by name; None where that run has none."""
    if settings.compare_to is None:
        return None
    folder = Path(settings.compare_to).expanduser()
    if not folder.is_absolute() and policy.run is not None:
        folder = policy.run / "evals" / settings.compare_to
    if (folder / "summary.json").is_file():
        return EvalJournal(folder)
    if settings.compare_to != BASELINE:
        raise ConfigError(f"compare_to={settings.compare_to}: there is no evaluation in {folder}")
    return None


def _record(journal: EvalJournal) -> EvalRecord:
    summary = journal.read_summary() or {}
    return EvalRecord(journal.name, int(summary.get("step", -1)), summary, journal.folder / "rollouts.parquet")


def _say_result(display: Display, summary: dict[str, Any]) -> None:
    for split, share in {"all": summary, **summary["by_split"]}.items():
        interval = f"[{share['ci_low']:.1%}, {share['ci_high']:.1%}]"
        display.say(f"{split:<12} Pass@1 {share['pass_at_1']:.1%} {interval}  n={share['n']}")
    if "compare" in summary:
        found = summary["compare"]
        interval = f"[{found['ci_low'] * 100:+.1f}, {found['ci_high'] * 100:+.1f}]"
        display.say(f"against {found['to']}: {found['difference'] * 100:+.1f} points {interval}")


if __name__ == "__main__":
    from coderl_tasks.cli import main

    sys.exit(main(["evaluate", *sys.argv[1:]]))
