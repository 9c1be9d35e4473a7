"""Rules that find what is wrong in a run, and the setting that helps, for the console and the report.

`Watch` reports when a problem begins, is twice as bad, or is over, from the rows of metrics.jsonl alone: a resumed run
feeds it the recorded rows, and nothing is reported twice. Every rule judges a window of steps, since one is noise: a
mean reward over 5 steps of 8 problems has a standard deviation of 0.07 with a constant policy. Rewards lie in [0, 1],
but with environment=custom they can be scores of any size.
"""

import heapq
import math
import statistics
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import Any, NamedTuple

from coderl_tasks.insight.record import RunRecord
from coderl_tasks.journal.run_directory import is_eval_row, row_identity
from coderl_tasks.policy.step_metrics import REPEATED_MORE
from coderl_tasks.settings import TrainSettings, about
from coderl_tasks.settings.families import LOSSES
from coderl_tasks.settings.train_settings import BATCH_SIZE, COMPLETIONS, GROUP_SIZE, PROBLEMS
from coderl_tasks.stats import wilson_interval

WINDOW, QUIET = 10, 5
FEWEST = 5  # steps before a mean is judged: in the recipe's own first run all groups of its second step are 0
LOOK_BACK = 200  # steps in which an earlier, better state is looked for; bounds what a step of a long run costs
SEVERAL = 5  # faults up to which one more is not worse
WORSE = 2.0  # a sign that has grown by this factor since it was last reported is reported again

Row = Mapping[str, Any]


class Sign(NamedTuple):
    what: str
    size: float  # tells whether it grows


class Remedy(NamedTuple):
    setting: str
    how: str

    def text(self, config: Row) -> str:
        value = config.get(self.setting)
        # Of the step's sizes config.json has the recipe's pair, and people are told the other.
        if self.setting == PROBLEMS:
            value = config.get(GROUP_SIZE)
        elif self.setting == COMPLETIONS and config.get(BATCH_SIZE) and config.get(GROUP_SIZE):
            value = config[BATCH_SIZE] // config[GROUP_SIZE]
        known = f"now {value}; " if value is not None else ""
        # What is recorded with its content, as the pool is, may be moved on resume, and no more.
        recorded = f"{self.setting}_sha256" in config
        refused = recorded or about(TrainSettings.model_fields[self.setting]).on_resume == "refused"
        return f"{self.setting}: {self.how} ({known}{'only in a new run' if refused else 'on resume'})"


@dataclass(slots=True)
class History:
    """The rows of a run up to a step."""

    config: Row  # what config.json says
    steps: list[Row] = field(default_factory=list)
    evals: list[Row] = field(default_factory=list)

    def values(self, name: str, steps: int = WINDOW) -> list[float]:
        return [float(value) for row in self.steps[-steps:] if (value := row.get(name)) is not None]

    def recent(self, name: str) -> float | None:
        """A metric's mean over the last steps, None where too few have it to be judged."""
        values = self.values(name)
        return sum(values) / len(values) if len(values) >= FEWEST else None

    def means(self, name: str) -> list[float]:
        """A metric's means over each five steps in a row, of those that are looked back on."""
        values = self.values(name, LOOK_BACK)
        return [sum(values[end - 5 : end]) / 5 for end in range(5, len(values) + 1)]


def _no_signal(history: History) -> float | None:
    """The share of groups without a signal, where it is too large: over half, by more than chance (one-sided, 95%). The
    recipe expects 30 to 50% early in training, and a pool in its band has fewer."""
    skipped, total = history.recent("groups_skipped"), history.recent("groups_total")
    if skipped is None or not total:
        return None
    groups = total * min(WINDOW, len(history.steps))
    # With first completions what they cost counts, which is little.
    cost = history.recent("tokens_without_signal") if history.config.get("first_completions") else None
    judged = skipped / total if cost is None else min(cost, skipped / total)
    return skipped / total if judged > 0.5 + 1.64 * math.sqrt(0.25 / groups) else None


def _equal_groups(history: History, name: str) -> Sign | None:
    without, share = _no_signal(history), history.recent(name)
    if without is None:
        return None
    is_zero = name == "groups_all_zero"
    skipped = f"{without:.0%} of the last groups had equal rewards and gave no gradient"
    too_easy = "converged, or the pool is too easy: if Pass@1 is good, stop here"
    verdict = "the pool looks too hard" if is_zero else too_easy
    if share is not None and share >= 0.4 * without:  # where half of them are of each kind, both are named
        return Sign(f"{skipped}, {share:.0%} of all of them only {'0 or less' if is_zero else '1'}: {verdict}", share)
    if is_zero and _none_right(history):
        return Sign(f"{skipped}, and no completion was right: {verdict}", without)
    return None


def _none_right(history: History) -> bool:
    """Whether all of the last completions were wrong. Their rewards can be above 0: environment=gsm8k gives 0.2 to a
    wrong answer in the right format. With environment=custom, whose rewards may all be below 1, nothing tells."""
    return history.config.get("environment") != "custom" and history.recent("mean_correct") == 0


def _other_equal_groups(history: History) -> Sign | None:
    all_zero, all_one = history.recent("groups_all_zero"), history.recent("groups_all_one")
    without = _no_signal(history)
    if without is None or all_zero is None or all_one is None or all_zero + all_one > 0.6 * without:
        return None
    if _none_right(history):  # the rule all_zero reports these
        return None
    return Sign(
        f"{without:.0%} of the last groups had equal rewards, neither 0 nor 1, and gave no gradient: the reward "
        "is too coarse, or the completions of a problem are too few to differ",
        without,
    )


def _never_one(history: History) -> Sign | None:
    rates, reward = history.values("mean_correct", LOOK_BACK), history.recent("mean_reward")
    if len(rates) < WINDOW or any(rates) or reward is None or reward <= 0:
        return None
    is_custom = history.config.get("environment") == "custom"
    return Sign(
        f"no completion of the last {len(rates)} steps had a reward of 1 (mean {reward:.2f}): Pass@1 counts these "
        "alone and stays 0, while the evaluations' mean reward shows progress"
        + ("; a reward function of your own should give 1 to what is right" if is_custom else ""),
        1.0,
    )


def _low_format(history: History) -> Sign | None:
    rate = history.recent("format_rate")
    if rate is None or rate >= 0.5:  # a base model that was told the format keeps to it in most of its answers
        return None
    did = "held a code block: is the renderer the model's own?"
    if not _is_chat(history.config):
        did = "gave their answer in the format that the prompt asks for"
    return Sign(f"only {rate:.0%} of the last completions {did}", 1 - rate)


def _is_chat(config: Row) -> bool:
    """Whether prompts are in the model's chat format: those of environment=gsm8k are plain text."""
    return config.get("environment") != "gsm8k"


def _format_falls(history: History) -> Sign | None:
    means = history.means("format_rate")
    groups = history.recent("groups_total")
    if not means or not groups:
        return None
    # As if a problem's completions all kept to the format or none did: the most that it can vary by chance.
    peak = max(means)
    chance = 3 * math.sqrt(2 * max(peak * (1 - peak), 0.02) / (5 * groups))
    if peak - means[-1] < max(0.1, chance):
        return None
    return Sign(f"the format rate fell from {peak:.0%} to {means[-1]:.0%}: the policy degenerates", peak - means[-1])


def _reward_without_pass_at_1(history: History) -> Sign | None:
    """The policy may game the tests: the reward rose by at least 0.1 and 3 standard errors, but Pass@1 by at most a
    quarter of that, and by less than the reward even at the upper bound of its own gain. Pass@1 is compared between the
    first and the last evaluation, the reward between the first and the last WINDOW steps that lie between these two."""
    if not history.evals:
        return None
    # The first and the last evaluation may have more problems than those between: compare equal numbers only.
    last = history.evals[-1]
    comparable = [row for row in history.evals if row.get("eval/n") == last.get("eval/n")]
    first, n = comparable[0], last.get("eval/n")  # `first` is `last` if no other one is comparable
    start, end = (bisect_right(history.steps, row["step"], key=itemgetter("step")) for row in (first, last))
    between = range(start, end)
    # The first and the last WINDOW steps with a reward: no more are looked at, because this runs after each step.
    early_steps, late_steps = (
        [*islice((index for index in order if history.steps[index].get("mean_reward") is not None), WINDOW)]
        for order in (between, reversed(between))
    )
    windows_overlap = len(early_steps) < WINDOW or max(early_steps) >= min(late_steps)
    if windows_overlap or not n:
        return None
    early, late = ([history.steps[index]["mean_reward"] for index in part] for part in (early_steps, late_steps))
    gain = statistics.fmean(late) - statistics.fmean(early)
    before, after = first["eval/mean_correct"], last["eval/mean_correct"]
    # A small evaluation may hide a gain of Pass@1: take the upper end of its one-sided 95% interval. That is too high
    # rather than too low: it takes the two evaluations as independent, while they share their problems.
    most_possible = after - before + 1.64 * math.sqrt((before * (1 - before) + after * (1 - after)) / n)
    if gain < 0.1 or after - before > gain / 4 or most_possible >= gain:
        return None
    if gain < 3 * math.sqrt((statistics.variance(early) + statistics.variance(late)) / WINDOW):
        return None
    # A policy that becomes sure samples what it would answer greedily: its reward rises, and greedy Pass@1 need not.
    entropies = [
        [entropy for index in indices if (entropy := history.steps[index].get("entropy")) is not None]
        for indices in (early_steps, late_steps)
    ]
    sure = ""
    if all(entropies) and (ends := [*map(statistics.fmean, entropies)])[1] < ends[0] / 2:
        sure = (
            f"; or its samples only come nearer to its greedy answers (entropy {ends[0]:.2g} to {ends[1]:.2g}): then "
            "Pass@1 has risen at the rollouts' temperature (coderl evaluate temperature=...)"
        )
    return Sign(
        f"the reward rose by {gain:.2f} while Pass@1 went from {before:.1%} (step {first['step']}) to {after:.1%} "
        f"(step {last['step']}): the policy may have found a way round the tests; look at right completions of step "
        f"{history.steps[end - 1]['step']} (coderl query RUN --name rollout_samples){sure}",
        gain,
    )


def _loss_explodes(history: History) -> Sign | None:
    """Two of the last five steps have a loss per token that is impossible with ratios near 1. The loss is at most the
    mean of |advantage| times the ratio, and `AdvantageRule` bounds a group's mean |advantage| by 2; healthy runs have
    losses of 0.01, since advantages cancel. Some losses also weigh a token by its log-probability, whose mean is the
    entropy. A KL penalty is centred over the step's tokens and adds 0 to the sum. With environment=custom a loss is
    judged by the usual deviation of the advantages, unless maxrl has divided these by the mean reward."""
    rows = [row for row in history.steps[-LOOK_BACK:] if row.get("n_tokens") and row.get("loss") is not None]
    losses = [abs(row["loss"]) / row["n_tokens"] for row in rows]
    if len(losses) < FEWEST:
        return None
    usual, scale = statistics.median(losses), 1.0
    has_scores = history.config.get("environment") == "custom" and history.config.get("advantage") != "maxrl"
    if has_scores and (spreads := history.values("advantage_std", LOOK_BACK)):
        scale = max(scale, statistics.median(spreads))
    kind = LOSSES.get(str(history.config.get("loss_fn")))
    if kind and kind.weighs_logprobs and (entropies := history.values("entropy", LOOK_BACK)):
        # The run's median entropy, because the entropy of a diverging policy explodes too.
        scale *= max(1.0, statistics.median(entropies))
    # Beyond the bound, or far from the run's median: healthy runs stay within about 10 medians, and below 0.1.
    large = [loss for loss in losses[-5:] if not loss <= 3 * scale or (loss > scale / 2 and loss > 20 * usual)]
    if len(large) < 2:
        return None
    return Sign(f"{max(large):.2g} per token, where {usual:.2g} is usual in this run", max(large))


def _kl_spike(history: History) -> Sign | None:
    """Above about 0.1 nats per token the importance weights of 30 tokens reach e^3 and stop meaning much."""
    gaps = history.values("kl_sample_train", 5)
    if not gaps or (abs(statistics.fmean(gaps)) <= 0.05 and max(map(abs, gaps)) <= 0.1):
        return _base_gap(history)
    largest = max(gaps, key=abs)
    return Sign(
        f"sampler and trainer disagree by up to {largest:.3f} nats per token in the last {len(gaps)} steps "
        "(above about 0.1 the importance weights stop meaning much): the update is too large, or the sampler's weights "
        "are stale",
        abs(largest),
    )


def _base_gap(history: History) -> Sign | None:
    """The last two measurements of KL to the base model are twice, and 0.1 nats per token above, all of FEWEST before.
    It grows by nature while a policy learns. Of 16 completions its mean varies by a few hundredths of a nat."""
    known = history.values("kl_base", LOOK_BACK)[-FEWEST - 2 :]
    before, now = max(known[:-2], default=0.0), min(known[-2:], default=0.0)
    if len(known) < FEWEST + 2 or now < max(2 * before, before + 0.1):
        return None
    return Sign(f"KL to the base model jumped from {before:.2f} to {now:.2f} nats per token: too large updates", now)


def _least_change(history: History, means: Sequence[float], least: float, deviations: float) -> float:
    """How far two of the reward's `means` over five steps must lie apart to tell something: `least` and beyond chance,
    `deviations` of what differing problems make. A problem's own mean reward has a variance of about 0.1 in a pool of
    mixed problems. Larger scores of environment=custom are measured by the largest."""
    groups = history.recent("groups_total")
    by_chance = deviations * math.sqrt(2 * 0.1 / (5 * groups)) if groups else 0.0
    return max(1.0, *map(abs, means)) * max(least, by_chance)


def _oscillates(history: History) -> Sign | None:
    """At least three turns in 40 steps of the mean over five, each beyond chance, and 0.2: less harms nothing."""
    means = history.means("mean_reward")[-40:]
    if len(means) < 15:
        return None
    swing = _least_change(history, means, 0.2, 3)
    turns, low, high, rising = 0, means[0], means[0], None
    for value in means[1:]:
        low, high = min(low, value), max(high, value)
        if rising is not True and value - low >= swing:
            turns, rising, high = turns + (rising is False), True, value
        elif rising is not False and high - value >= swing:
            turns, rising, low = turns + (rising is True), False, value
    if turns < 3:
        return None
    return Sign(
        f"{turns} turns of {swing:.2f} and more in {len(means)} steps, between {min(means):.2f} and {max(means):.2f}",
        max(means) - min(means),
    )


def _reward_collapse(history: History) -> Sign | None:
    means = history.means("mean_reward")
    if len(means) < 16:
        return None
    peak, now = max(means), means[-1]
    # Four: the peak is the highest of many means.
    if peak - now < _least_change(history, means, 0.15, 4) or now > 0.6 * peak:
        return None
    # The middle one of the five steps that the mean is over.
    step = history.steps[-LOOK_BACK:][means.index(peak) + 2]["step"]
    return Sign(
        f"mean reward fell from {peak:.2f} around step {step} to {now:.2f}: the update diverged; start again from a "
        "checkpoint before it (init_from=<state_path>)",
        peak - now,
    )


def _entropy_collapse(history: History) -> Sign | None:
    """A tenth of the highest entropy left, and much still wrong. Healthy runs go down to a third while they learn, and
    further once nearly all is right."""
    means, correct = history.means("entropy"), history.recent("mean_correct")
    if len(means) < WINDOW or correct is None or correct > 0.9 or means[-1] > 0.1 * max(means):
        return None
    return Sign(
        f"{means[-1]:.2g} nats per token, from {max(means):.2g}, with {correct:.0%} correct: the "
        "completions of a problem become one, and nothing else is tried",
        max(means) / max(means[-1], 1e-9),
    )


def _truncation(history: History) -> Sign | None:
    rate = history.recent("truncated_rate") or 0.0
    said = f"{rate:.0%} of the last completions ran into max_tokens: the policy learns to be short"
    return Sign(said, rate) if rate > 0.1 else None  # one in ten is cut off in many healthy runs of models that think


def _time_outs(history: History) -> Sign | None:
    """Over half of what is wrong ran out of time, and at least a tenth of all."""
    rate, correct = history.recent("time_limit_rate"), history.recent("mean_correct")
    if rate is None or correct is None or rate <= 0.1 or rate <= 0.5 * (1 - correct):
        return None
    return Sign(
        f"{rate:.0%} of the last completions ran out of time ({1 - correct:.0%} are wrong): "
        "endless loops are normal early on, later the tests may be too slow for the limit",
        rate,
    )


def _counted(history: History, name: str) -> Sign | None:
    values = history.values(name)
    count, steps = round(sum(values)), sum(value > 0 for value in values)
    return Sign(COUNTED[name].format(count=count, steps=steps), max(count, SEVERAL)) if count else None


def _duplicates(history: History) -> Sign | None:
    """Clones in any of the last steps, which chance does not make, or more repeats on average than the probe found."""
    probe = history.config.get("probe") or {}
    usual = float(probe.get("duplicate_rate") or 0.0)
    rates, clones = history.values("duplicate_rate", FEWEST), round(sum(history.values("clone_groups", FEWEST)))
    rate = statistics.fmean(rates) if rates else 0.0
    if not clones and rate <= usual + REPEATED_MORE:
        return None
    return Sign(
        f"{rate:.0%} of the last completions repeat another of their group token for token, beyond what their "
        f"probabilities explain ({clones} groups of the last steps are one completion over and over): clones have no "
        "signal; does the Tinker service honour temperature and num_samples? (coderl doctor --probe)",
        max(rate, REPEATED_MORE),
    )


def _held_back(rows: Iterable[Row]) -> tuple[int, int]:
    """Of the programs that passed in these steps, how many fail tests held back, and how many were run on them."""
    known = [(row["holdback_checked"], row["holdback_gap"]) for row in rows if row.get("holdback_checked")]
    return round(sum(checked * gap for checked, gap in known)), sum(checked for checked, _ in known)


def _holdback_gap(history: History) -> Sign | None:
    """Of the programs that passed in the last steps, more than one in ten fails tests that gave no reward, or more than
    before these steps, and than one in fifty: by the bounds of 95% intervals, and three at least, as it is asked in
    every step, in more than one step: those of one problem hang together. Programs that the other tests miss by chance
    are no sign: an honest policy has a few percent of them while it learns, and their share falls."""
    recent = history.steps[-WINDOW:]
    failed, checked = _held_back(recent)
    if failed < 3 or sum(bool(row.get("holdback_gap")) for row in recent) < 2:
        return None
    low, high = wilson_interval(failed, checked)
    _, usual = wilson_interval(*_held_back(history.steps[-LOOK_BACK:-WINDOW]))
    if low <= min(0.1, max(0.02, usual)):
        return None
    return Sign(
        f"{failed / checked:.0%} [{low:.0%}, {high:.0%}] of the last {checked} programs that passed fail tests held "
        "back: the tests are weak, or the policy learns what they do not see (named query: held_back)",
        failed / checked,
    )


class Rule(NamedTuple):
    name: str
    find: Callable[[History], Sign | None]
    remedies: tuple[Remedy, ...] = ()


LOWER_LR = Remedy("learning_rate", "lower")
COOLER, HOTTER = Remedy("temperature", "lower"), Remedy("temperature", "raise")
OTHERS = Remedy("refill", "raise, to sample others in their place")
EASIER = Remedy("pool", "easier problems, curated with a higher band_low")
DIFFERING = Remedy("pool", "problems that differ more")
PARTIAL = Remedy("reward", "fraction, for partial credit")
LONGER, LARGER_GROUPS = Remedy("max_tokens", "raise"), Remedy("completions_per_problem", "raise")
RENDERER = Remedy("renderer_name", "check it against the model")
HARDER = Remedy("pool", "harder problems, curated with a lower band_high")
MORE_TESTS = Remedy("pool", "problems with more tests")
QUARANTINE = Remedy("on_hack", "quarantine, so that they have no reward")

COUNTED = {
    "reward_errors": "{count} in {steps} of the last steps: put the reward function right first, do not train through "
    "it",
    "infra_errors": "{count} of the last completions, in {steps} of the last steps, could not be graded and were "
    "left out of their groups: look at the sandbox (coderl doctor; named query: infra)",
    "samples_skipped": "{count} samples in {steps} steps came without log-probabilities that can be trained on, and "
    "were left out of their groups: the Tinker service's doing (coderl doctor --probe)",
    "suspicious": "{count} programs in {steps} of the last steps seem to have taken their reward from the tests or the "
    "grader: look at them (named query: suspicious)",
}
"""Faults that a metric of that name counts."""
_all_zero, _all_one = (partial(_equal_groups, name=f"groups_all_{reward}") for reward in ("zero", "one"))
RULES = (
    Rule("all_zero", _all_zero, (EASIER, HOTTER, LONGER, LARGER_GROUPS, PARTIAL, OTHERS)),
    Rule("all_one", _all_one, (HARDER, OTHERS)),
    Rule("equal_groups", _other_equal_groups, (LARGER_GROUPS, HOTTER, DIFFERING, OTHERS)),
    Rule("never_one", _never_one),
    Rule("low_format", _low_format, (RENDERER, LONGER)),
    Rule("format_rate_falls", _format_falls, (LOWER_LR, RENDERER)),
    Rule("reward_without_pass_at_1", _reward_without_pass_at_1, (MORE_TESTS,)),
    Rule("loss_explodes", _loss_explodes, (LOWER_LR,)),
    Rule("KL_spike", _kl_spike, (LOWER_LR, COOLER)),
    Rule("rewards_oscillate", _oscillates, (LOWER_LR, COOLER)),
    Rule("reward_collapse", _reward_collapse, (LOWER_LR,)),
    Rule("entropy_collapse", _entropy_collapse, (HOTTER, LOWER_LR)),
    Rule("truncation", _truncation, (LONGER,)),
    Rule("time-outs_dominate", _time_outs, (Remedy("reward_timeout", "lower, or higher for slow tests"),)),
    *(Rule(name, partial(_counted, name=name)) for name in COUNTED if name != "suspicious"),
    Rule("holdback_gap", _holdback_gap, (MORE_TESTS,)),
    Rule("suspicious", partial(_counted, name="suspicious"), (QUARANTINE,)),
    Rule("clones", _duplicates),
)
"""The rows of the recipes' tables, and what this project met. What ends a run has no metrics: `memory_advice`."""

ACTED_ON: dict[str, tuple[str, ...]] = {
    "learning_rate": ("loss_explodes", "KL_spike", "rewards_oscillate", "reward_collapse", "format_rate_falls"),
    "temperature": ("all_zero", "entropy_collapse"),
    "max_steps": ("all_one",),
}
"""The signs that steer=act answers, by the setting that it changes for them. Of several that stand the first is named.
Not all for which a remedy is known: an act has to help without anybody looking."""


@dataclass(slots=True)
class Episode:
    """A sign, first seen in step `begun`; `said` is its size when last said; `over`: the first step without it."""

    rule: Rule
    begun: int
    sign: Sign
    said: float
    said_in: int
    seen: int
    over: int | None = None


class Notice(NamedTuple):
    text: str
    is_warning: bool  # not where something is over

    @property
    def line(self) -> str:
        return f"warning: {self.text}" if self.is_warning else self.text


class Watch:
    def __init__(self, config: Row, rows: Iterable[Row] = ()) -> None:
        self.history = History(config)
        self.episodes: list[Episode] = []
        self._open: dict[str, Episode] = {}
        for row in rows:
            self.add(row)

    def add(self, row: Row) -> list[Notice]:
        """What to say of a further row, of a step or of an evaluation, which may come again."""
        if is_eval_row(dict(row)):
            others = [other for other in self.history.evals if row_identity(dict(other)) != row_identity(dict(row))]
            self.history.evals = [*others, row]
            return []
        self.history.steps.append(row)
        return [notice for rule in RULES for notice in self._judge(rule, int(row["step"]))]

    def _judge(self, rule: Rule, step: int) -> list[Notice]:
        sign, episode = rule.find(self.history), self._open.get(rule.name)
        if sign is None:
            if episode is None or step - episode.seen < QUIET:
                return []
            episode.over = self._open.pop(rule.name).seen + 1
            return [Notice(f"step {step}: over since step {episode.over}: {rule.name.replace('_', ' ')}", False)]
        if episode is None:
            episode = self._open[rule.name] = Episode(rule, step, sign, sign.size, step, step)
            self.episodes.append(episode)
            return [Notice(f"step {step}: {self.text(episode)}", True)]
        episode.seen, episode.sign = step, sign
        # A fault that has just begun fills the window, and grows with it.
        if sign.size < WORSE * episode.said or step - episode.said_in < WINDOW:
            return []
        episode.said, episode.said_in = sign.size, step
        return [Notice(f"step {step}: worse since step {episode.begun}: {self.text(episode)}", True)]

    def text(self, episode: Episode) -> str:
        config = self.history.config
        fitting = (remedy for remedy in episode.rule.remedies if remedy is not RENDERER or _is_chat(config))
        remedies = ", or ".join(remedy.text(config) for remedy in fitting)
        return f"{episode.rule.name.replace('_', ' ')}: {episode.sign.what}{remedies and f'; try: {remedies}'}"

    def still(self) -> list[str]:
        return [self.text(episode) for episode in self._open.values()]

    def was(self) -> list[str]:
        return [
            f"steps {episode.begun} to {episode.over - 1}, and over since: {self.text(episode)}"
            for episode in self.episodes
            if episode.over is not None
        ]


def watched(run: RunRecord) -> Watch:
    """A watch that has seen all of a run."""
    evals = [
        {"step": record.step, "eval/name": record.name, "eval/mean_correct": record.pass_at_1}
        | {"eval/n": record.summary.get("n")}
        for record in run.own_evals
    ]
    # A step before the evaluation after it, as in metrics.jsonl; both are in their order.
    rows = heapq.merge(run.metrics.iter_rows(named=True), evals, key=lambda row: (row["step"], "eval/n" in row))
    return Watch(run.config, rows)


def acts(run: RunRecord) -> list[tuple[int, str]]:
    """What steer=act changed after which step, and why."""
    return [(row["step"], str(row["act"])) for row in run.metrics.iter_rows(named=True) if row.get("act")]


def hints(run: RunRecord) -> list[str]:
    """What is or was off in a run and what to try, and what steer=act did, one line each; none for a healthy run."""
    watch = watched(run)
    return watch.still() + watch.was() + [f"step {step}: act: {act}" for step, act in acts(run)]


def memory_advice(error: BaseException, config: Row) -> str | None:
    """What to try where a run ended for want of memory; None for another error."""
    message = str(error).lower()
    if not (isinstance(error, MemoryError) or "out of memory" in message or "can't allocate memory" in message):
        return None
    settings = ("max_tokens", "sample_concurrency", "problems_per_step")
    remedies = ", or ".join(Remedy(setting, "lower").text(config) for setting in settings)
    return f"out of memory: completions of this length do not fit; try: {remedies}"
