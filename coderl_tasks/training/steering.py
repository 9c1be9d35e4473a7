"""What `steer=act` changes of a run as it goes: a lower learning rate, a higher temperature, or the end.

1. An act is decided when a step is committed, from the metrics of the committed steps, their evaluations and the
   earlier acts, and stands in the commit: a run that is killed at any point goes on with the same ones.
2. It takes effect from the first step that cannot have been begun by then, which max_steps_off_policy alone decides.
3. It changes what the settings say by a factor or an amount, and only while steer=act: another value takes it back.
4. One at a time: what comes after an act is judged by the steps that it has changed, and not before there are PAUSE.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from coderl_tasks.insight.warning_signs import ACTED_ON, QUIET, Watch
from coderl_tasks.journal.atomic import read_rows
from coderl_tasks.journal.metrics import is_eval_row
from coderl_tasks.journal.run_directory import STOP, RunDirectory
from coderl_tasks.journal.steps import Commit
from coderl_tasks.settings import TrainSettings

STANDS = QUIET + 1
"""Steps that a sign has to stand: one more than a single bad step stays in the shortest window of five."""
PAUSE = 20
"""Steps between the effect of an act and the next one."""
LR_FACTOR, MOST_HALVINGS = 0.5, 3
"""Two of them take the recipe's 4e-5 to the 1e-5 that it says where the loss explodes."""
WARMER, HOTTEST = 0.1, 1.3
"""Added to the temperature at a time, and how high that may get: hotter samples of a small model are noise."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Act:
    """A change of `setting` from `from_step` on: a factor of the learning rate, an amount of the temperature; of
    max_steps, no step is trained from there on. `why` is the sign."""

    setting: Literal["learning_rate", "temperature", "max_steps"]
    by: float
    from_step: int
    why: str

    def record(self) -> dict[str, Any]:
        """What the commit says of it."""
        return asdict(self)


def acts_of(commits: Iterable[Commit]) -> list[Act]:
    """The acts that the commits record, in order."""
    return [Act(**row) for commit in commits for row in commit.acts]


def learning_rate_factor(settings: TrainSettings, commits: Iterable[Commit], step: int) -> float:
    """What the learning rate of `step` is multiplied by."""
    return math.prod(act.by for act in _in_effect(settings, commits, "learning_rate", step))


def temperature_at(settings: TrainSettings, commits: Iterable[Commit], step: int) -> float:
    """The temperature that `step` is sampled at."""
    raised = sum(act.by for act in _in_effect(settings, commits, "temperature", step))
    # Rounded: 0.1 added three times is no 0.3 in floating point, and the number is shown and compared.
    return round(settings.temperature + raised, 6) if raised else settings.temperature


def stopped_before(settings: TrainSettings, commits: Sequence[Commit]) -> int | None:
    """The step that an act ended the run before, None if none did. One that the run went past is void."""
    ends = [act.from_step for act in _in_effect(settings, commits, STOP, None) if act.from_step >= len(commits)]
    return min(ends, default=None)


def _in_effect(settings: TrainSettings, commits: Iterable[Commit], setting: str, step: int | None) -> list[Act]:
    if settings.steer != "act":
        return []
    found = (act for act in acts_of(commits) if act.setting == setting)
    return [act for act in found if step is None or act.from_step <= step]


class Steering:
    """Decides the acts of one run."""

    def __init__(self, settings: TrainSettings, directory: RunDirectory) -> None:
        self._settings = settings
        self._directory = directory
        self._first = 0  # step that what is judged begins with
        self._watch = Watch(directory.config)

    def decide(self, step: int, metrics: Row, *, may_be_hotter: bool) -> list[tuple[Act, str]]:
        """What to do after `step`, whose row is `metrics`, each act with what people are told of it; at most one. The
        temperature is left as it is unless it `may_be_hotter`."""
        if self._settings.steer != "act":
            return []
        commits = self._directory.commits()[:step]
        earlier = acts_of(commits)
        first = max((act.from_step for act in earlier), default=0)
        # What stood before an act is no reason for another one: the signs are looked for anew in the steps that it has
        # changed.
        if first != self._first:
            self._first, self._watch = first, Watch(self._directory.config)
        judged = first + len(self._watch.history.steps)
        # Of a commit that failed, and is tried again, the row has been taken.
        rows = [*(commit.metrics for commit in commits), metrics]
        for row in rows[judged:]:
            self._watch.add(row)
        if earlier and step - first < PAUSE:
            return []
        found = self._decided(step, commits, earlier, may_be_hotter)
        return [] if found is None else [found]

    def _decided(
        self, step: int, commits: list[Commit], earlier: list[Act], may_be_hotter: bool
    ) -> tuple[Act, str] | None:
        standing = {
            episode.rule.name: episode
            for episode in self._watch.episodes
            if episode.over is None and episode.seen == step and step - episode.begun + 1 >= STANDS
        }
        start = step + 1 + self._settings.max_steps_off_policy
        temperature = temperature_at(self._settings, commits, start)
        # Another temperature than 1 makes a gap between sampler and trainer by itself.
        of_lr = ACTED_ON["learning_rate"]
        slower = [name for name in of_lr if name in standing and (name != "KL_spike" or temperature == 1)]
        unstable = any(episode.over is None and episode.rule.name in of_lr for episode in self._watch.episodes)
        converged = next((name for name in ACTED_ON[STOP] if name in standing), None)
        if slower and sum(act.setting == "learning_rate" for act in earlier) < MOST_HALVINGS:
            act = Act("learning_rate", LR_FACTOR, start, slower[0])
            factor = learning_rate_factor(self._settings, commits, start) * LR_FACTOR
            told = f"the learning rate is {factor:g} of what the settings say"
        elif (
            (hotter := [name for name in ACTED_ON["temperature"] if name in standing])
            and may_be_hotter
            # The epsilon is for the same: the last act up to HOTTEST is allowed.
            and temperature + WARMER <= HOTTEST + 1e-9
        ):
            act = Act("temperature", WARMER, start, hotter[0])
            told = f"temperature {temperature + WARMER:.3g}"
        elif converged and not unstable and self._at_its_height(step, standing[converged].begun):
            act = Act(STOP, 0.0, start, converged)
            told = "the run ends: it has converged, and Pass@1 is at its height"
        else:
            return None
        sign = standing[act.why].sign.what
        return act, f"from step {start} on {told} (steer=advise takes it back), since {act.why}: {sign}"

    def _at_its_height(self, step: int, since: int) -> bool:
        """Whether the newest evaluation was after `since`, and neither it nor the one before it is off the highest by
        more than the standard error, or one problem. Those of as many problems are compared."""
        # Up to the step before: its own evaluation comes after its commit.
        rows = [row for row in read_rows(self._directory.metrics.path) if is_eval_row(row) and row["step"] < step]
        if not rows or rows[-1]["step"] < since or not rows[-1].get("eval/n"):
            return False
        n = rows[-1]["eval/n"]
        rates = [float(row["eval/mean_correct"]) for row in rows if row.get("eval/n") == n and row["step"] >= 0]
        before = [float(row["eval/mean_correct"]) for row in rows if row.get("eval/n") == n]
        best = max(before)
        error = math.sqrt(max(best * (1 - best), 1 / n) / n)
        return len(rates) >= 2 and min(rates[-2:]) >= best - error
