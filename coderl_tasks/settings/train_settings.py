"""The settings of `coderl train`.

The sizes of a training step have the recipe's names and the field's:

    problems_per_step           group_size in the recipe
    completions_per_problem     batch_size / group_size
    completions per step        batch_size in the recipe

Two of them that are not two names for one decide all four keys. config.json records the recipe's pair.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, WithJsonSchema, model_validator

from coderl_tasks.settings import families
from coderl_tasks.settings.families import LOSS_HELP, LOSS_SETTINGS, LOSSES, LossName
from coderl_tasks.settings.flow_settings import FlowSettings, Temperature
from coderl_tasks.settings.setting import PROGRAMS, Setting, preset_values, refusing, setting

MAX_LORA_RANK = 512
SERVICE_STEPS = 100
"""Steps of a run on a Tinker service, which bills, where nothing says how many."""
OFF_POLICY_LOSS = "ppo"
MOST_STEPS_OFF_POLICY = 8
_STD_NAMES = ("use_std_normalization", "normalize_by_std", "scale_rewards")
_STD_NOTE = "(std_normalised where it is true, else mean_centred)"
_ESTIMATOR = "adv_estimator (std_normalised for grpo, leave_one_out for rloo)"
_EPOCHS_NAMES = ("epochs", "num_epochs", "num_train_epochs", "total_epochs")
_CHECKPOINT_NAMES = ("resume_from_checkpoint", "load_checkpoint_path")

BATCH_SIZE, GROUP_SIZE = "batch_size", "group_size"
PROBLEMS, COMPLETIONS = "problems_per_step", "completions_per_problem"
SIZE_KEYS = (BATCH_SIZE, GROUP_SIZE, PROBLEMS, COMPLETIONS)
PARTNER = {BATCH_SIZE: GROUP_SIZE, GROUP_SIZE: BATCH_SIZE, PROBLEMS: COMPLETIONS, COMPLETIONS: PROBLEMS}
"""What stays as it is where one size alone is given: the other one of its pair."""


_some_steps = refusing(
    lambda steps: steps == 0, "trains nothing: coderl evaluate measures a policy; -1 trains until it is stopped"
)
_possible_rank = refusing(
    lambda rank: rank > MAX_LORA_RANK,
    f"must be at most {MAX_LORA_RANK}: a higher rank trains as many parameters as the layers themselves",
)
_state_path = refusing(
    lambda path: path is not None and not path.startswith("tinker://"),
    "not a state: take a state_path (tinker://...) of a run's checkpoints.jsonl",
)
_replayable_loss = refusing(
    lambda loss: loss == "stable_reinforce",
    "it reads records of the sampler that end with its session, so that a run could not go on after a crash: take ppo "
    "or cispo",
    before=True,
)
RecipeSize = Annotated[
    int, WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "null"}]}), Field(json_schema_extra={"default": None})
]
"""A size that the UI's form leaves empty: it sends every field, and the same size stands there by its other name."""


class TrainSettings(FlowSettings):
    """Pool -> GRPO steps -> checkpoints and the rollout log."""

    GROUPS: ClassVar[dict[str, tuple[str, str]]] = {
        **FlowSettings.GROUPS,
        "run": ("pool", "pool, run directory, initial state"),
        "step": ("problems_per_step", "which problems a step takes, and how many completions it samples"),
        "update": ("learning_rate", "learning rate, optimizer, loss, KL, epochs, LoRA"),
        "reward": ("temperature", "temperature, reward, advantage, truncated completions"),
        "course": ("max_steps", "steps, checkpoints, evaluations, warnings, trackers"),
    }

    pool: str = setting(
        "latest", common=True, on_resume="allowed", elsewhere=("order_from (its profile alone decides)",)
    )
    """a pool's name, folder or parquet file, or latest: this model's newest pool (of dataset, if given) with enough
    problems for a step, or else a new pool of all of dataset, without a profile"""
    log_path: str | None = setting(
        None,
        common=True,
        on_resume="ignored",
        elsewhere=("output_dir", "run", *(f"{name} (of a run, to resume it)" for name in _CHECKPOINT_NAMES)),
    )
    """run directory, or its name below ~/code-rl-logs; an existing run is resumed"""
    resume: Literal["auto", "must", "never"] = setting(
        "auto", decides_content=False, elsewhere=("new (new=true is resume=never)",)
    )
    """must: never start a new run; never: start a new run, even if an unfinished one has these settings or
    log_path resembles another run's name"""
    init_from: Annotated[str | None, _state_path] = setting(
        None, elsewhere=tuple(f"{name} (a state, for a new run)" for name in _CHECKPOINT_NAMES)
    )
    """state that a new run starts from: a state_path (tinker://...) of a run's checkpoints.jsonl"""
    # Not recorded: config.json has the recipe's pair, which says the same.
    problems_per_step: int = setting(
        8,
        ge=1,
        exclude=True,
        common=True,
        elsewhere=("groups_per_batch", "prompts_per_step", "n_questions", "n_questions_per_step"),
    )
    """problems per step"""
    completions_per_problem: int = setting(
        16,
        ge=2,
        exclude=True,
        common=True,
        elsewhere=("n", "k", "samples", "num_samples", "n_samples", "num_generations", "completions_per_prompt"),
    )
    """completions per problem (a group, whose rewards are compared)"""
    group_size: RecipeSize = setting(8, ge=1, hidden=True, meaning="problems per step", smollm2=16, gsm8k=32)
    """problems per step, by the recipe's name: problems_per_step"""
    batch_size: RecipeSize = setting(
        128, ge=2, hidden=True, meaning="completions per step", gsm8k=256, elsewhere=("rollout_batch_size",)
    )
    """completions per step, by the recipe's name: problems_per_step x completions_per_problem"""
    selection: Literal["shuffle", "cycle", "adaptive"] = setting("shuffle", smollm2="adaptive")
    """which problems a step takes: shuffle, shuffled passes over the pool; cycle, the pool's order; adaptive, those
    whose groups are likely to have a signal, judged by the profile and earlier steps"""
    first_completions: int = setting(0, ge=0, elsewhere=("group_size_adaptive",))
    """completions that each group begins with (0: all). If their rewards differ, the group gets the rest of
    completions_per_problem; else further problems are sampled instead"""
    refill: float = setting(
        1.0, ge=1, elsewhere=("dynamic_sampling", "dynamic_filtering", "filter_groups", "oversampling_factor")
    )
    """replace groups without a signal (equal rewards) by groups of further problems, until a step has sampled refill x
    problems_per_step groups (with first_completions: refill x batch_size completions); 1: replace none"""
    learning_rate: float = setting(
        4e-5, gt=0, common=True, on_resume="warned", nano=1e-3, smollm2=5e-4, gsm8k=1e-5, elsewhere=("lr",)
    )
    """Adam's learning rate"""
    schedule: families.Schedule = families.Schedule()
    """how the learning rate rises and falls: schedule=cosine:200,warmup:10"""
    adam: families.Adam = families.Adam()
    """the optimizer: adam=beta1:0.9,beta2:0.95,eps:1e-12,weight_decay:0"""
    loss_fn: Annotated[LossName, _replayable_loss] = setting(
        "importance_sampling", description=LOSS_HELP, gsm8k="ppo", elsewhere=("loss_type",)
    )
    loss: families.Loss = families.Loss()
    """options of the loss: loss=clip_low:0.8,clip_high:1.2; loss=beta:0.05 (coderl train --help loss)"""
    kl: families.Kl = families.Kl()
    """distance to the base model: kl=penalty_coef:0.05 or kl=base_every:10"""
    epochs_per_rollout_batch: int = setting(
        1, ge=1, elsewhere=("num_iterations", "ppo_epochs", "epochs (over a step's completions)")
    )
    """passes of the update over a step's completions"""
    train_batch_size: int | None = setting(
        None, ge=1, gsm8k=64, elsewhere=("minibatch_size", "mini_batch_size", "ppo_mini_batch_size")
    )
    """completions per optimizer step (the last step of an epoch takes the rest); by default all"""
    lora_rank: Annotated[int, _possible_rank] = setting(
        32, ge=1, description=f"rank of the LoRA adapter, at most {MAX_LORA_RANK}", common=True, elsewhere=("rank",)
    )
    temperature: Temperature = setting(1.0, gt=0, common=True, on_resume="warned", elsewhere=("sampling_temperature",))
    """sampling temperature of the rollouts (training is at 1, so another value shifts the importance ratios)"""
    format_coef: float = setting(0.1, ge=0, environments=PROGRAMS)
    """weight of the format score in the reward"""
    reward: Literal["binary", "fraction"] = setting("binary", environments=PROGRAMS)
    """correctness: 1 if all tests pass, else 0; or the fraction of tests passed, which runs all tests"""
    holdback: float = setting(0.0, ge=0, le=0.5, environments=PROGRAMS)
    """share of each problem's tests that do not count for the reward. Programs that pass the others run on these too;
    the metric holdback_gap is the share of them that fails"""
    on_hack: Literal["warn", "quarantine", "stop"] = setting("warn", on_resume="warned", environments=PROGRAMS)
    """programs that seem written for the tests or the grader: warn; leave them out of their groups; or stop the run
    before it trains on them"""
    # docs/training.md has this text as a table.
    advantage: Literal["mean_centred", "std_normalised", "leave_one_out", "maxrl"] = setting(
        "mean_centred", gsm8k="std_normalised", elsewhere=(*(f"{name} {_STD_NOTE}" for name in _STD_NAMES), _ESTIMATOR)
    )
    """mean_centred: a completion's reward minus its group's mean reward; std_normalised: the same, divided by the
    group's standard deviation plus advantage_eps (the original GRPO); leave_one_out: its reward minus the mean of the
    group's other rewards; maxrl: (reward - mean) / mean, so that hard problems weigh more"""
    turn_credit: Literal["trajectory", "last", "discounted", "per_turn"] = setting(
        "trajectory", environments=(*PROGRAMS, "custom"), of_turns=True
    )
    """with max_turns or max_tool_calls, which turns get a completion's advantage: trajectory, all; last, the last;
    discounted, earlier turns less; per_turn, each turn by its own gain"""
    advantage_eps: float = Field(1e-6, ge=0)
    """advantage=std_normalised: added to the group's standard deviation"""
    truncation: families.Truncation = families.Truncation()
    """completions that reach max_tokens: graded, masked (left out), or penalised:N (over the last N tokens)"""
    max_steps: Annotated[int, _some_steps] = setting(
        -1,
        ge=-1,
        description=f"steps to train, -1: until stopped (on a Tinker service {SERVICE_STEPS} if not given)",
        common=True,
        on_resume="allowed",
        nano=50,
        smollm2=96,
        gsm8k=60,
        smoke=50,
        elsewhere=(
            *("steps", "num_steps", "n_grpo_steps", "total_training_steps"),
            *(f"{name} ({name} x the pool's problems / problems_per_step)" for name in _EPOCHS_NAMES),
        ),
    )
    # Always from the policy so many updates before, never from the newest there is: which weights sampled a step must
    # not depend on timing, so that a run can be repeated and resumed.
    max_steps_off_policy: int = Field(
        0,
        ge=0,
        le=MOST_STEPS_OFF_POLICY,
        description="steps that are sampled ahead while one is trained, each from a policy that lacks the last so many "
        f"updates; above 0 the default loss_fn is {OFF_POLICY_LOSS}",
    )
    save_every: int = setting(
        10,
        ge=0,
        common=True,
        on_resume="allowed",
        nano=100,
        smollm2=16,
        gsm8k=6,
        elsewhere=("save_steps", "save_freq", "save_interval"),
    )
    """steps between permanent checkpoints (0: only at the end)"""
    rolling_save: families.RollingSave = families.RollingSave()
    """states to resume from, which expire: rolling_save=every:1,hours:168,keep:3"""
    eval: families.Evaluations = setting(families.Evaluations(), common=True)
    """evaluations during training: eval=every:10,limit:200 (coderl train --help eval)"""
    steer: Literal["advise", "act", "off"] = setting("advise", on_resume="warned")
    """advise: warn when something is off, and name the setting that helps; act: also lower the learning rate, raise the
    temperature, or end a converged run (resuming with advise drops these acts); off: only in the report"""
    suspend_hours: float = setting(24, gt=0, on_resume="allowed")
    """hours for which a deployment's run stays suspended after an outage, waiting to be resumed"""
    trackers: families.Trackers = families.Trackers()
    """trackers that also get the metrics: trackers=wandb:PROJECT,name:RUN or trackio:PROJECT"""

    @classmethod
    def _is_recorded(cls, setting: Setting) -> bool:
        """config.json has more than what decides the outcome: a run that goes on takes from it what is not given."""
        return setting.decides_content or setting.on_resume != "refused"

    @classmethod
    def _fillings(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        fillings = dict(super()._fillings(values))
        # Completions of an older policy need a loss that bounds what each of them may change.
        # This comes before validation: a value may still be a word of the command line.
        if str(values.get("max_steps_off_policy") or 0) != "0":
            fillings.setdefault("loss_fn", OFF_POLICY_LOSS)
        if "eval.limit" in values:
            fillings["eval.ends_limit"] = values["eval.limit"]
        return fillings

    @classmethod
    def _over(cls, base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """Of the sizes those given, which need not be numbers yet, with what of the sizes so far completes them."""
        batch, group = (base.get(key, cls.model_fields[key].default) for key in (BATCH_SIZE, GROUP_SIZE))
        so_far = {BATCH_SIZE: batch, GROUP_SIZE: group, PROBLEMS: group, COMPLETIONS: batch // group}
        # None counts as not given: the UI's form sends it for a field left empty.
        named = {key: given[key] for key in SIZE_KEYS if given.get(key) is not None}
        if not named:
            named = {BATCH_SIZE: batch, GROUP_SIZE: group}
        elif len(named) == 1:
            partner = PARTNER[next(iter(named))]
            named[partner] = so_far[partner]
        elif named.keys() == {GROUP_SIZE, PROBLEMS}:  # two names for one size
            named[COMPLETIONS] = so_far[COMPLETIONS]
        # The four sizes apart: a recorded or default size beside a given one by another name would contradict it.
        values = {key: value for key, value in super()._over(base, given).items() if key not in SIZE_KEYS}
        return values | named

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        # `_over` has left those that decide the others; a field's default beside them could contradict them.
        named = {key: getattr(self, key) for key in SIZE_KEYS if key in self.model_fields_set}
        for key, size in all_sizes(named).items():
            setattr(self, key, size)
        return self

    @property
    def size_warning(self) -> str | None:
        """A warning if the recipe's group_size may be meant as the notebook's (completions per problem); else None."""
        problems, completions = self.group_size, self.completions_per_problem
        usual = preset_values(type(self), self.preset).get(GROUP_SIZE) if self.preset else None
        otherwise_named = GROUP_SIZE not in self.given or self.given & {PROBLEMS, COMPLETIONS}
        if self.environment != "gsm8k" or otherwise_named or problems in (completions, usual):
            return None
        return (
            f"warning: group_size={problems} is problems per step, each with {completions} completions; the notebook's "
            f"group_size={problems} is completions_per_problem={problems} here"
        )

    @property
    def most_groups(self) -> int:
        """How many groups a step may sample, those in place of others included."""
        return math.floor(self.refill * self.problems_per_step + 1e-9)  # 1.15 * 20 is 22.999...

    @property
    def most_completions(self) -> int:
        """How many completions a step may sample, those of groups in place of others included."""
        return math.floor(self.refill * self.problems_per_step * self.completions_per_problem + 1e-9)

    @property
    def rolling_states(self) -> int:
        """How many states to resume from are kept: the next step is sampled from one max_steps_off_policy older than
        the newest."""
        return max(self.rolling_save.keep, self.max_steps_off_policy + 1)

    @model_validator(mode="after")
    def _groups_are_possible(self) -> Self:
        first, whole = self.first_completions, self.completions_per_problem
        if first and not 2 <= first < whole:
            raise ValueError(
                f"first_completions={first} of completions_per_problem={whole}: use from 2, of which two can differ, "
                f"to {whole - 1}, or leave it out"
            )
        problems = self.problems_per_step
        if self.refill > 1 and self.most_groups == problems and not self.first_completions:
            raise ValueError(
                f"refill={self.refill:g} of problems_per_step={problems} replaces no group: use "
                f"{(problems + 1) / problems:.4g} or more, or leave it out"
            )
        return self

    @model_validator(mode="after")
    def _advantages_are_possible(self) -> Self:
        """Raises ValueError for an unused advantage_eps, for truncation.overlong_tokens (the last tokens that are
        penalised) above max_tokens, or for maxrl where rewards can be negative."""
        default = type(self).model_fields["advantage_eps"].default
        if self.advantage != "std_normalised" and self.advantage_eps != default:
            raise ValueError(
                f"advantage_eps={self.advantage_eps:g} needs advantage=std_normalised: {self.advantage} adds none"
            )
        overlong = self.truncation.overlong_tokens
        if overlong is not None and overlong > self.max_tokens:
            raise ValueError(f"truncation.overlong_tokens={overlong} is more than max_tokens={self.max_tokens}")
        if self.advantage == "maxrl" and self.truncation.kind == "penalised":
            raise ValueError(
                "advantage=maxrl divides by a group's mean reward, which truncation=penalised can make negative: use "
                "truncation=masked, or another advantage"
            )
        if self.advantage == "maxrl" and self.environment in PROGRAMS and self.format_coef:
            raise ValueError(
                f"advantage=maxrl divides by a group's mean reward, which format_coef={self.format_coef:g} can make "
                "negative: use format_coef=0, or another advantage"
            )
        return self

    @model_validator(mode="after")
    def _update_is_possible(self) -> Self:
        for member, key in LOSS_SETTINGS.items():
            if getattr(self.loss, member) is not None and key not in LOSSES[self.loss_fn].config:
                takers = ", ".join(name for name, loss in LOSSES.items() if key in loss.config)
                raise ValueError(f"loss.{member} is of loss_fn={takers}: {self.loss_fn} has none, leave it out")
        compares = "penalty_coef" if self.kl.penalty_coef else "base_every"
        if getattr(self.kl, compares) and self.temperature != 1:
            raise ValueError(
                f"kl.{compares} compares log-probabilities at temperature 1, and temperature={self.temperature:g}: "
                "leave one of the two out"
            )
        if self.train_batch_size is not None and self.train_batch_size > self.batch_size:
            if "train_batch_size" in self.given:
                raise ValueError(
                    f"train_batch_size={self.train_batch_size} is more than the {self.batch_size} completions of a "
                    "step (batch_size): train_batch_size=none trains on all at once"
                )
            self.train_batch_size = None  # a preset's, which is made for its own larger steps
        return self

    def loss_config(self) -> dict[str, float]:
        """What `loss_fn` is told: thresholds as given, else by default."""
        given = {key: getattr(self.loss, member) for member, key in LOSS_SETTINGS.items()}
        defaults = LOSSES[self.loss_fn].config.items()
        return {key: value if given[key] is None else given[key] for key, value in defaults}


def all_sizes(named: Mapping[str, int]) -> dict[str, int]:
    """All four sizes (batch, group, problems per step, completions per problem) from at least two independent ones; the
    group size and the problems per step are one size. Raises ValueError, one line, if the sizes contradict each other,
    do not divide, or leave fewer than two completions per problem."""
    problems, completions = named.get(PROBLEMS, named.get(GROUP_SIZE)), named.get(COMPLETIONS)
    batch = named.get(BATCH_SIZE)
    if named.get(GROUP_SIZE, problems) != problems:
        raise ValueError(
            f"problems_per_step={problems} and group_size={named[GROUP_SIZE]} are two names of one size: give one"
        )
    if problems is None:
        assert batch is not None and completions is not None  # two sizes are named
        problems = _divided(batch, completions, "completions per problem (completions_per_problem)")
    elif completions is None:
        assert batch is not None
        completions = _divided(batch, problems, "problems per step (problems_per_step, the recipe's group_size)")
    if batch is not None and batch != problems * completions:  # all three were named
        raise ValueError(
            f"batch_size={batch} (completions per step) is not {problems} problems per step x {completions} "
            "completions per problem: leave one of the three out"
        )
    if completions < 2:  # so a quotient of batch_size: a named one is at least 2
        raise ValueError(
            f"{problems} problems per step need at least 2 completions each, to be compared with one another: raise "
            f"batch_size={batch}, or lower group_size (problems_per_step)"
        )
    return {BATCH_SIZE: problems * completions, GROUP_SIZE: problems, PROBLEMS: problems, COMPLETIONS: completions}


def _divided(batch: int, size: int, what: str) -> int:
    if batch % size:
        raise ValueError(f"batch_size={batch} completions per step do not divide by {size} {what}")
    return batch // size
