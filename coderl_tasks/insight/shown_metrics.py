"""How people see the metrics of a step: on the line of the console and logs.log, in the table of the step-history
artifact, both in this order, and in the panels of the report. `policy/step_metrics.py` says what a metric means. Two
pages choose among them: `coderl watch` (CURVES, UNSAID in `insight/terminal.py`), and the viewer's page of a step
(STEP_METRICS in `view/run_pages.py`)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from coderl_tasks.policy.step_metrics import PHASES

Row = Mapping[str, Any]
REWARD, CORRECT, FORMAT = "Mean reward", "Correct in training, and Pass@1 of the evaluations", "Format and truncation"
SIGNAL, EQUAL, TIME_LIMIT = "Groups with a signal", "Groups of one reward", "Programs that run out of time"
LENGTH, SPREAD = "Completion length", "Spread of the advantages"
ENTROPY = "Entropy of the sampled tokens, nats per token"
KL, LOSS, SECONDS = "Sampler against trainer: mean log-probability gap", "Loss", "Seconds per step, by phase"
KL_BASE = "KL to the base model, nats per token"
_KNOWN, _TOKENS = "Problems known to selection=adaptive", "Tokens per step"
KL_NOISE = 1e-6  # a gap below it is rounding: it is drawn as 0
_GAP = ".1e"  # the format of a gap


@dataclass(frozen=True, slots=True)
class Shown:
    """Where a metric is seen: `line` on the console, a format string of the value or a function of the whole row;
    `column`, heading and format, in the artifact's table; `panel` in the report, which metrics of one title share, with
    `curve` as the label. `is_fault`: counts what should not happen, and a line names it only where it did."""

    line: str | Callable[[Row], str] = ""
    column: tuple[str, str] | None = None
    panel: str = ""
    curve: str = ""
    is_fault: bool = False


def in_form(value: Any, form: str) -> str:
    """A value in the format of its column: a dash for None, and no digits of a gap that is rounding."""
    if form == _GAP and value is not None and abs(value) < KL_NOISE:
        return "<1e-6"
    return "–" if value is None else format(value, form)


def _groups_line(row: Row) -> str:
    total, refilled = row.get("groups_total"), row.get("groups_refilled")
    if total is None:
        return ""
    return f"trained on {total - row['groups_skipped']}/{total} groups" + (f" ({refilled} refilled)" * bool(refilled))


def _seconds_line(row: Row) -> str:
    phases = [f"{name} {row[key]:.1f}" for name in PHASES if row.get(key := f"time_{name}_s") is not None]
    return f"{row['time_step_s']:.1f} s" + (f" ({', '.join(phases)})" if phases else "")


SHOWN = {
    # reward
    "mean_reward": Shown(line="reward {:.3f}", column=("reward", ".3f"), panel=REWARD),
    "mean_correct": Shown(line="correct {:.0%}", column=("correct", ".1%"), panel=CORRECT, curve="training"),
    "format_rate": Shown(line="format {:.0%}", column=("format", ".1%"), panel=FORMAT, curve="format ok"),
    "truncated_rate": Shown(line="truncated {:.0%}", column=("truncated", ".1%"), panel=FORMAT, curve="truncated"),
    "mean_completion_tokens": Shown(panel=LENGTH, curve="mean"),
    "entropy": Shown(line="entropy {:.2g}", column=("entropy", ".3f"), panel=ENTROPY),
    "completion_tokens_p50": Shown(panel=LENGTH, curve="median"),
    "completion_tokens_p99": Shown(panel=LENGTH, curve="99%"),
    "time_limit_rate": Shown(column=("time limit", ".1%"), panel=TIME_LIMIT),
    # groups
    "groups_total": Shown(panel=SIGNAL, curve="groups"),
    "groups_skipped": Shown(line=_groups_line, column=("skipped", "d"), panel=SIGNAL, curve="skipped"),
    "advantage_std": Shown(panel=SPREAD),
    "groups_all_zero": Shown(column=("all 0", ".0%"), panel=EQUAL, curve="all 0"),
    "groups_all_one": Shown(column=("all 1", ".0%"), panel=EQUAL, curve="all 1"),
    "groups_refilled": Shown(column=("refilled", "d")),
    "tokens_without_signal": Shown(column=("tokens w/o signal", ".0%"), panel="Sampled tokens without signal"),
    "holdback_gap": Shown(
        line="held-back gap {:.0%}", column=("held-back gap", ".1%"), panel="Passed programs that fail held-back tests"
    ),
    "mended_rate": Shown(line="mended {:.0%}", column=("mended", ".1%"), panel=CORRECT, curve="after a reply"),
    "mean_turns": Shown(panel="Answers per completion"),
    "n_datums": Shown(column=("datums", "d")),
    "signal_expected": Shown(line="expected {:.0%}", column=("signal expected", ".0%"), panel=SIGNAL, curve="expected"),
    "problems_seen": Shown(panel=_KNOWN, curve="seen"),
    "problems_solved": Shown(panel=_KNOWN, curve="solved"),
    "problems_hopeless": Shown(panel=_KNOWN, curve="hopeless"),
    # update
    "loss": Shown(panel=LOSS),
    "kl_sample_train": Shown(
        line=lambda row: f"kl {in_form(row['kl_sample_train'], _GAP)}", column=("kl sampler to trainer", _GAP), panel=KL
    ),
    "ratio_mean": Shown(panel="Importance ratio", curve="mean"),
    "ratio_max": Shown(panel="Importance ratio", curve="greatest"),
    "clipped_share": Shown(line="clipped {:.1%}"),
    "grad_norm": Shown(panel="Gradient norm"),
    "kl_base": Shown(line="kl to base {:.2g}", panel=KL_BASE, curve="k1"),
    "kl_base_k3": Shown(panel=KL_BASE, curve="k3"),
    # faults
    "infra_errors": Shown(line="infra errors {}", column=("infra errors", "d"), is_fault=True),
    "sandbox_faults": Shown(line="sandbox faults {}", column=("sandbox faults", "d"), is_fault=True),
    "samples_skipped": Shown(line="samples skipped {}", column=("samples skipped", "d"), is_fault=True),
    "duplicate_rate": Shown(column=("excess duplicates", ".1%"), is_fault=True),
    "clone_groups": Shown(line="groups of clones {}", is_fault=True),
    "replies_failed": Shown(line="replies failed {}", column=("replies failed", "d"), is_fault=True),
    "suspicious": Shown(line="suspicious programs {}", column=("suspicious", "d"), is_fault=True),
    "reward_errors": Shown(line="reward errors {}", column=("reward errors", "d"), is_fault=True),
    # time
    "time_sample_s": Shown(panel=SECONDS, curve="sample"),
    "time_score_s": Shown(panel=SECONDS, curve="score"),
    "time_base_s": Shown(panel=SECONDS, curve="base"),
    "time_train_s": Shown(panel=SECONDS, curve="train"),
    "time_save_s": Shown(panel=SECONDS, curve="save"),
    "time_step_s": Shown(line=_seconds_line, column=("seconds", ".1f"), panel=SECONDS, curve="step"),
    # cost
    "tokens_prompt": Shown(panel=_TOKENS, curve="prompt"),
    "tokens_completion": Shown(column=("tokens", ",d"), panel=_TOKENS, curve="completion"),
    "tokens_training": Shown(panel=_TOKENS, curve="trained on"),
    "cost_usd": Shown(line="{:.3g} USD", column=("USD", ".3g"), panel="USD per step"),
}
"""By the metric's name. One that is not here is in metrics.jsonl only."""


def line_texts(row: Row) -> list[str]:
    """What a line says of a row of metrics.jsonl, metric by metric."""
    texts = []
    for name, shown in SHOWN.items():
        value = row.get(name)
        if value is not None and (value or not shown.is_fault):
            texts.append(shown.line(row) if callable(shown.line) else shown.line.format(value))
    return [text for text in texts if text]
