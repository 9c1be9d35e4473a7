"""README.md of an exported policy: the model card that the hub shows, and what one has to know to use it rightly."""

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from coderl_tasks.errors import DataError
from coderl_tasks.evaluation.policy import SavedPolicy
from coderl_tasks.gguf_models import models_folder
from coderl_tasks.insight.record import EvalRecord, load_run
from coderl_tasks.journal.atomic import scan_parquet
from coderl_tasks.journal.recorded_json import Manifest, read_shaped
from coderl_tasks.paths import MANIFEST_FILE, POOL_FILE, find_local, local_model_path
from coderl_tasks.settings import TrainSettings, flat

SETTINGS = (
    "lora_rank", "learning_rate", "schedule.kind", "schedule.warmup", "batch_size", "group_size", "temperature",
    "max_tokens", "loss_fn", "advantage", "reward", "format_coef", "kl.penalty_coef", "max_steps_off_policy", "seed",
)  # fmt: skip
"""Settings that the card names, where the run recorded them."""


def model_card(policy: SavedPolicy, *, name: str, merged: bool, checked: str | None) -> str:
    """The README.md of an exported policy called `name`: a `merged` model, else a LoRA adapter. `checked` says how its
    log-probabilities were checked (None: not at all)."""
    config = policy.config
    settings = flat(TrainSettings, config)
    base, steps = str(config.get("model_name")), policy.step + 1  # steps are numbered from 0
    licence = base_licence(base)
    run = load_run(policy.run)
    how_chosen = f": {policy.why}" if policy.why is not None else ""  # None: the user named the step
    renderer = f"the renderer `{config['renderer_name']}`" if config.get("renderer_name") else "the model's chat format"
    rows = [(key, f"`{settings[key]}`") for key in SETTINGS if settings.get(key) is not None]
    metadata: dict[str, Any] = {
        "library_name": "transformers" if merged else "peft",
        "pipeline_tag": "text-generation",
        "tags": ["coderl", "reinforcement-learning", "code", *([] if merged else ["lora"])],
    }
    if find_local(base) is None:  # the Hub refuses a path as base_model
        metadata |= {"base_model": base, "base_model_relation": "finetune" if merged else "adapter"}
    if licence is not None:
        metadata["license"] = licence
    folder, dequantised = local_model_path(base), ""
    if folder is not None and folder.parent == models_folder():  # its weights may differ from those of that name
        dequantised = f", as dequantised from `{folder.name.rpartition('-')[0]}.gguf`"
    facts = {
        # Only the folder's name: the card is published, and the path is private.
        "base model": f"`{Path(base).name if Path(base).is_absolute() else base}`{dequantised}",
        "what this is": "the merged model" if merged else "a LoRA adapter in PEFT form",
        "trained": f"{steps} GRPO step{'s' if steps != 1 else ''} on verifiable rewards{how_chosen}",
        "data": _training_data(config),
        "licence": licence or "see base model",
        "made with": f"coderl {version('coderl')}, run `{policy.run.name}`",
        "checked": checked or "not checked against the sampled log-probabilities",
    }
    parts = [
        f"---\n{yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True)}---",
        f"# {name}",
        _table(("", ""), list(facts.items())),  # a table without headings
        "## Evaluation",
        _evaluations(list(run.evals.values()), policy.step),
        "## Settings",
        _table(("setting", "value"), rows),
        "## Prompts",
        f"Trained and evaluated on the prompts of {renderer}, with coderl's system message and question per problem "
        "(`coderl_tasks.prompts`). The model was not measured with other prompts.",
    ]
    return "\n\n".join(parts) + "\n"


def base_licence(model: str) -> str | None:
    """The licence that a model's own card names, where it is at hand: in its local folder, or in the hub's cache."""
    from coderl_tasks.insight.problem_view import cached_file  # a second to import

    card = cached_file(model, "README.md")
    text = "" if card is None else card.read_text(errors="replace")
    try:
        head = yaml.safe_load(text[4:].partition("\n---")[0]) if text.startswith("---\n") else None
    except yaml.YAMLError:
        return None
    found = head.get("license") if isinstance(head, dict) else None
    return found if isinstance(found, str) and found else None


def _training_data(config: dict[str, Any]) -> str:
    named, pool = f"`{config.get('dataset')}`", config.get("pool")
    file = find_local(str(pool)) if pool else None
    folder = file if file is None or file.is_dir() else file.parent
    if folder is None or not (folder / MANIFEST_FILE).is_file():
        return f"{named}, pool `{Path(str(pool)).name}`" if pool else named
    try:
        manifest = read_shaped(folder / MANIFEST_FILE, Manifest)
    except DataError:
        return f"{named}, pool `{folder.name}`"
    text, pool_file = f"{named}, pool `{folder.name}`: {manifest.get('kept')} problems", folder / POOL_FILE
    # Of the problems and not of the manifest: its band is what was asked for.
    if not pool_file.is_file() or "pass_rate" not in scan_parquet(pool_file).collect_schema():
        return text
    if rates := scan_parquet(pool_file).select("pass_rate").collect()["pass_rate"].drop_nulls().to_list():
        text += f", measured pass rates {min(rates):.2g} to {max(rates):.2g}, mean {sum(rates) / len(rates):.2f}"
    return text


def _evaluations(evals: list[EvalRecord], step: int) -> str:
    """Pass@1 of the base model (step -1) and of the policy after `step`, and their recorded paired comparisons."""
    shown = [record for record in evals if record.step in (-1, step)]
    if not any(record.step == step for record in shown):  # the base model alone says nothing of it
        return f"The policy after step {step} was not evaluated."
    rows = [
        (
            record.name,
            "base model" if record.step < 0 else f"after step {record.step}",
            f"{record.summary['n']}",
            f"{record.pass_at_1:.1%} ({record.interval[0]:.1%} to {record.interval[1]:.1%})",
            f"{record.summary.get('temperature', 0):g}",
        )
        for record in shown
    ]
    lines = [_table(("evaluation", "policy", "problems", "Pass@1 (95% interval)", "temperature"), rows)]
    for record in shown:
        if compare := record.summary.get("compare"):
            points = [100 * float(compare[key]) for key in ("difference", "ci_low", "ci_high")]
            lines.append(
                f"`{record.name}` against `{compare['to']}`, paired over {compare['n']} problems: {points[0]:+.1f} "
                f"points ({points[1]:+.1f} to {points[2]:+.1f}, 95%)."
            )
    return "\n\n".join(lines)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
