"""Every knob: one model per flow, with its default, unit and bounds; the UI shows it as a form.

1. `preset=nano` fills what was not given with sizes for the embedded server; every key can still be overridden.
2. An unknown key, a wrong type or sizes that contradict each other are a `ConfigError` of one line.
"""

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from coderl_tasks.arguments import all_settings
from coderl_tasks.errors import ConfigError
from coderl_tasks.paths import MINI_DATASET, NANO_MODEL
from coderl_tasks.step_sizes import BATCH_SIZE, GROUP_SIZE, SIZE_KEYS, all_sizes, with_other_size

MAX_LORA_RANK = 512
COLDEST, HOTTEST = 0.01, 100.0
"""Temperatures that differ from greedy and from uniform sampling; a colder one overflows."""
HUB_DATASET = "agentica-org/DeepCoder-Preview-Dataset"
DEFAULT_MODEL = "Qwen/Qwen3-4B-Instruct-2507"
SMOKE_STEPS = 50
SERVICE_STEPS = 100
"""Steps of a run on a Tinker service, which bills, where nothing says how many."""


def _not_zero(value: int) -> int:
    if value == 0:
        raise ValueError("use -1 for all, or a number of problems")
    return value


def _some_steps(value: int) -> int:
    if value == 0:
        raise ValueError("trains nothing: coderl evaluate measures a policy; -1 trains until it is stopped")
    return value


def _possible_rank(value: int) -> int:
    if value > MAX_LORA_RANK:
        raise ValueError(
            f"must be at most {MAX_LORA_RANK}: a higher rank trains as many parameters as the layers themselves"
        )
    return value


def _possible_temperature(value: float) -> float:
    if value != 0 and not COLDEST <= value <= HOTTEST:
        raise ValueError(f"must be from {COLDEST:g} to {HOTTEST:g}; evaluations and profiles may be greedy, 0")
    return value


def _state_path(value: str | None) -> str | None:
    if value is not None and not value.startswith("tinker://"):
        raise ValueError("not a state: take a state_path (tinker://...) of a run's checkpoints.jsonl")
    return value


def _split_at_commas(value: Any) -> Any:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _preset(value: Any) -> Any:
    if value not in (None, "none", "nano"):
        raise ValueError("must be nano or none")
    return None if value == "none" else value


def _split_shares(value: Any) -> Any:
    """A text such as "hard:0.3,easy:0.7" as a mapping."""
    if not isinstance(value, str):
        return value
    shares = {}
    for part in _split_at_commas(value):
        name, colon, share = part.partition(":")
        if not colon:
            raise ValueError("shares look like hard:0.3,medium:0.5,easy:0.2")
        shares[name.strip()] = share
    return shares


def _not_all_zero(shares: dict[str, float]) -> dict[str, float]:
    if shares and not sum(shares.values()) > 0:
        raise ValueError("at least one share has to be above 0")
    return shares


Preset = Annotated[
    Literal["nano"] | None,
    BeforeValidator(_preset),
    WithJsonSchema({"type": "string", "enum": ["none", "nano"]}),
    Field(json_schema_extra={"default": "none"}),
]
"""A choice of two in the UI's form, which shows a single permitted value, or null, as one that cannot be changed."""
Limit = Annotated[int, Field(ge=-1), AfterValidator(_not_zero)]
Temperature = Annotated[float, AfterValidator(_possible_temperature)]
Names = Annotated[list[str] | None, BeforeValidator(_split_at_commas)]
Share = Annotated[float, Field(ge=0)]
DifficultyShares = Annotated[
    dict[Literal["hard", "medium", "easy"], Share], BeforeValidator(_split_shares), AfterValidator(_not_all_zero)
]
SplitShares = Annotated[dict[str, Share], BeforeValidator(_split_shares), AfterValidator(_not_all_zero)]
RecipeSize = Annotated[
    int,
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "null"}]}),
    Field(json_schema_extra={"default": None}),
]
"""A size that the UI's form leaves empty: it sends every field, and the same size stands there by its other name."""
SettingsT = TypeVar("SettingsT", bound=BaseModel)


class FlowSettings(BaseModel):
    """What all three flows share."""

    model_config = ConfigDict(extra="forbid")
    nano_preset: ClassVar[Mapping[str, Any]] = {}
    no_content: ClassVar[tuple[str, ...]] = ("sample_concurrency",)

    preset: Preset = Field(
        None,
        description="nano: model, data and sizes for the embedded servers (so too where no Tinker key and no model is "
        "named); or none",
    )
    model_name: str = Field(
        DEFAULT_MODEL,
        description="base model: a name of the Tinker service, or a local model folder; "
        "without one the first of a few small models that the service offers, this one before others",
    )
    renderer_name: Literal["qwen3", "qwen3_disable_thinking", "qwen3_instruct", "chat_template"] | None = Field(
        None, description="chat format; by default the one the model was made for (chat_template: as it brings it)"
    )
    thinking: bool | None = Field(
        None, description="on or off, where the chat format has a switch for it; by default as the format has it"
    )
    dataset: str = Field(HUB_DATASET, description="hub data set, local data set folder, or a parquet or JSONL file")
    evaluation_dataset: str | None = Field(
        None,
        description="data set whose test splits are evaluated on, and kept out of the pool; by default dataset's own",
    )
    test_share: float | None = Field(
        None, gt=0, lt=1, description="in its place: this share of dataset's train rows, by a hash of the problem's id"
    )
    max_tokens: int = Field(24576, ge=1, description="completion length limit in tokens; capped at the model's context")
    reward_timeout: float = Field(6.0, gt=0, description="CPU seconds a test may take where the problem names no limit")
    sample_concurrency: int = Field(64, ge=1, description="sampling requests in flight, one per problem")
    seed: int = Field(0, ge=0, description="decides every random draw of the run")

    _given: frozenset[str] = PrivateAttr(default=frozenset())
    _model_reason: str | None = PrivateAttr(default=None)

    @classmethod
    def _fillings(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """What takes the place of the defaults, given `values`."""
        return cls.nano_preset if values.get("preset") == "nano" else {}

    @classmethod
    def _over(cls, base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """`base` with `given` in its place where both say something."""
        return {**base, **given}

    @property
    def given(self) -> frozenset[str]:
        """The keys that were given, as opposed to filled by a preset or a default."""
        return self._given

    def content(self) -> dict[str, Any]:
        """The settings that decide what comes out, for the record; not those of where, how fast and by what name."""
        return self.model_dump(mode="json", exclude=set(self.no_content))

    @classmethod
    def completed(cls, recorded: Mapping[str, Any]) -> dict[str, Any]:
        """What an earlier version recorded of `content`: settings that it did not have are as by default, which leaves
        everything as it was."""
        return {**cls().content(), **recorded}

    def changed(self) -> dict[str, Any]:
        """The settings that were given and are not as they would be without, to be given again."""
        plain = type(self).model_validate({} if self.preset is None else {"preset": self.preset})
        given = {key: getattr(self, key) for key in type(self).model_fields if key in self._given}
        return {key: value for key, value in given.items() if key == "preset" or value != getattr(plain, key)}

    @property
    def model_reason(self) -> str | None:
        """Why `model_name` is the model to use, in words to show beside it ("" where there is nothing to add); None
        where that is not decided yet (see `base_model`)."""
        return self._model_reason

    def with_model(self, model_name: str, reason: str) -> Self:
        """These settings with a base model that is decided, and why; it does not count as given."""
        changed = self.model_copy(update={"model_name": model_name})
        changed._model_reason = reason
        return changed

    def with_changes(self, **changes: Any) -> Self:
        """These settings with `changes`, which count as given."""
        changed = type(self).model_validate(self._over(self.model_dump(), changes))
        changed._given = self._given | frozenset(changes)
        return changed._with_reason_of(self)

    def with_preset(self, preset: Literal["nano"]) -> Self:
        """These settings where they were given, else as `preset` says."""
        return type(self).model_validate({**{key: getattr(self, key) for key in self._given}, "preset": preset})

    def filled_from(self, saved: Mapping[str, Any]) -> Self:
        """These settings where they were given, else as `saved` says; what is no setting there is left out."""
        known = {key: value for key, value in saved.items() if key in type(self).model_fields}
        kept = {key: getattr(self, key) for key in self._given}
        filled = type(self).model_validate(self._over({**self.model_dump(), **known}, kept))
        filled._given = self._given
        return filled._with_reason_of(self)

    def _with_reason_of(self, other: "FlowSettings") -> Self:
        if self.model_name == other.model_name:  # else it is another model's, and nothing is decided
            self._model_reason = other._model_reason
        return self

    @model_validator(mode="wrap")
    @classmethod
    def _fill_from_preset(cls, values: Any, build: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(values, dict):
            return build(values)
        settings = build(cls._over(cls._fillings(values), values))
        settings._given = frozenset(values)
        return settings


NANO_COMMON = {"model_name": NANO_MODEL, "dataset": MINI_DATASET, "max_tokens": 128}


class CurateSettings(FlowSettings):
    """Raw problems -> pass rates of the base model -> a mixed-difficulty pool."""

    nano_preset: ClassVar[Mapping[str, Any]] = NANO_COMMON
    no_content: ClassVar[tuple[str, ...]] = (
        "name",
        "readers",
        "replace",
        "sample_concurrency",
        "shard_size",
        "shards",
        "shard_deployment",
        "shard_address",
        "shards_in_flight",
    )

    splits: Names = Field(None, description="train splits to read; by default all the data set has")
    limit: Limit = Field(-1, description="read at most this many rows (-1: all)")
    max_tests: int = Field(15, ge=-1, description="tests kept per problem, longest inputs first (-1: all)")
    min_tests: int = Field(5, ge=1, description="different tests a problem needs, counted before max_tests")
    max_statement_chars: int = Field(50_000, ge=1, description="longest statement kept, in characters")
    max_row_mb: int = Field(512, ge=1, description="largest raw row that is read, in MiB")
    near_duplicate: float = Field(
        0.6, gt=0, le=1, description="likeness of two statements from which their tests decide whether they are one"
    )
    ngram_overlap: float = Field(
        0.5, gt=0, le=1, description="share of an evaluation problem's own 13-word passages that drops a problem"
    )
    near_evaluation: float = Field(
        0.6, gt=0, le=1, description="likeness to an evaluation problem that drops a problem, where their tests agree"
    )
    common_passage: int = Field(10, ge=1, description="a passage that more problems than this have is boilerplate")
    readers: int | None = Field(None, ge=1, description="processes that read the data set; by default one per core")
    check_solutions: bool = Field(True, description="drop problems whose own reference solutions fail their tests")
    max_solutions: int = Field(3, ge=1, description="reference solutions tried per problem, until one passes")
    profile_mode: Literal["adaptive", "fixed"] = Field(
        "adaptive", description="sample until it is clear whether a problem lies in the band, or profile_samples each"
    )
    profile_samples: int = Field(16, ge=1, le=16, description="completions sampled per problem, at most")
    profile_round: int = Field(2, ge=1, description="completions asked for at a time")
    profile_risk_keep: float = Field(
        0.1,
        ge=0,
        lt=0.5,
        description="adaptive: chance taken that all samples would have dropped a problem kept early",
    )
    profile_risk_drop: float = Field(
        0.05,
        ge=0,
        lt=0.5,
        description="adaptive: chance taken that all samples would have kept a problem dropped early",
    )
    price_prompt: float | None = Field(None, ge=0, description="price of a million prompt tokens, for the cost column")
    price_completion: float | None = Field(None, ge=0, description="price of a million completion tokens")
    temperature: Temperature = Field(1.0, ge=0, description="sampling temperature of the profile")
    band_low: float = Field(0.1, ge=0, le=1, description="lowest pass rate kept in the pool")
    band_high: float = Field(0.9, ge=0, le=1, description="highest pass rate kept in the pool")
    mix: DifficultyShares = Field(
        default_factory=dict,
        description="shares of difficulty as weights, hard:0.3,medium:0.5,easy:0.2; by default as it comes",
    )
    mix_splits: SplitShares = Field(
        default_factory=dict, description="shares of splits as weights, taco:0.4,lcbv5:0.6; by default as it comes"
    )
    pool_size: Limit = Field(-1, description="problems in the pool (-1: as many as the shares allow)")
    shard_size: int = Field(250, ge=1, description="problems profiled in one Prefect task")
    shards: Literal["here", "deployment"] = Field(
        "here", description="profile shards in this process, or as runs of shard_deployment, on any machine"
    )
    shard_deployment: str = Field("profile-shard/local", description="the deployment that profiles a shard")
    shard_address: str | None = Field(
        None, description="where shards lie, by pool: a path or s3://...; by default in the pool's folder"
    )
    shards_in_flight: int = Field(4, ge=1, description="runs of shard_deployment at a time")
    name: str | None = Field(
        None,
        description="name of the pool, a folder below data/pools, or an absolute path; by default the time or the "
        "flow run's id; an unfinished one is gone on with",
    )
    replace: bool = Field(
        False, description="make a finished pool of that name anew with other settings, from what it has recorded"
    )

    @model_validator(mode="after")
    def _band_is_a_band(self) -> Self:
        if self.band_low > self.band_high:
            raise ValueError(f"band_low={self.band_low} is above band_high={self.band_high}")
        return self


class TrainSettings(FlowSettings):
    """Pool -> GRPO steps -> checkpoints and the rollout log."""

    nano_preset: ClassVar[Mapping[str, Any]] = {
        **NANO_COMMON,
        "learning_rate": 1e-3,
        "max_steps": 50,
        "eval_limit": 100,
        "save_every": 100,  # a step takes a second, a checkpoint 7.5 MB
    }
    no_content: ClassVar[tuple[str, ...]] = ("resume", "new")

    pool: str = Field(
        "latest", description="a pool's folder or parquet file, or latest: the newest of this model that fills a step"
    )
    log_path: str | None = Field(
        None, description="run directory, or the name of one below ~/code-rl-logs; an existing run is resumed"
    )
    resume: Literal["auto", "must"] = Field("auto", description="must: never a new run, whatever log_path says")
    new: bool = Field(
        False,
        description="a new run, though log_path looks like the name of another one, or without log_path, though an "
        "unfinished one has these settings",
    )
    init_from: Annotated[str | None, AfterValidator(_state_path)] = Field(
        None, description="state that a new run starts from: a state_path (tinker://...) of a run's checkpoints.jsonl"
    )
    problems_per_step: int = Field(8, ge=1, exclude=True, description="problems per step")
    completions_per_problem: int = Field(
        16, ge=2, exclude=True, description="completions per problem and step, whose rewards are compared: a group"
    )
    group_size: RecipeSize = Field(8, ge=1, description="problems per step, by the recipe's name: problems_per_step")
    batch_size: RecipeSize = Field(
        128, ge=2, description="completions per step, by the recipe's name: problems_per_step x completions_per_problem"
    )
    learning_rate: float = Field(4e-5, gt=0, description="Adam's learning rate")
    adam_beta1: float = Field(0.9, ge=0, lt=1, description="decay of Adam's first moment")
    adam_beta2: float = Field(0.95, ge=0, lt=1, description="decay of Adam's second moment")
    adam_eps: float = Field(1e-12, gt=0, description="Adam's epsilon")
    lora_rank: Annotated[int, AfterValidator(_possible_rank)] = Field(
        32, ge=1, description=f"rank of the LoRA adapter, at most {MAX_LORA_RANK}"
    )
    temperature: Temperature = Field(
        1.0, gt=0, description="sampling temperature of the rollouts (training is at 1: another one shifts its ratios)"
    )
    format_coef: float = Field(0.1, ge=0, description="weight of the format score in the reward")
    reward: Literal["binary", "fraction"] = Field(
        "binary", description="correctness: 1 where all tests pass, else 0; or the fraction of tests passed, all run"
    )
    order_from: Names = Field(
        None, description="earlier runs to learn the order of the tests from, besides the pool's profile"
    )
    max_steps: Annotated[int, AfterValidator(_some_steps)] = Field(
        -1, ge=-1, description=f"steps to train, -1: until stopped; without it {SERVICE_STEPS} on a Tinker service"
    )
    max_steps_off_policy: int = Field(
        0, ge=0, le=1, description="1: sample the next step while one is trained, from the policy before it"
    )
    save_every: int = Field(10, ge=0, description="steps between checkpoints, which stay (0: only at the end)")
    rolling_save_every: int = Field(
        1, ge=0, description="steps between states to resume from, which expire (0: none but the checkpoints)"
    )
    rolling_save_hours: float = Field(168, ge=1, description="hours that states to resume from are kept")
    rolling_save_keep: int = Field(
        3, ge=2, description="states to resume from that are kept, the newest ones; older ones are deleted"
    )
    eval_every: int = Field(
        10, ge=-1, description="steps between evaluations (-1: none at all, nor baseline and final)"
    )
    eval_limit: Limit = Field(200, description="problems of a periodic evaluation, a seeded subset (-1: all)")
    eval_ends_limit: Limit = Field(
        -1, description="the same for the baseline and the final evaluation; a given eval_limit counts here too"
    )
    eval_on: Literal["test", "validation"] = Field(
        "test", description="periodic evaluations on the test splits, or on problems held out of the pool"
    )
    validation_size: int = Field(64, ge=1, description="problems held out of the pool with eval_on=validation")
    suspend_hours: float = Field(
        24, gt=0, description="hours that a deployment's run waits to be resumed when a service stays away"
    )
    smoke: bool = Field(False, description=f"run {SMOKE_STEPS} steps and fail unless the smoke-test checks pass")
    wandb_project: str | None = Field(None, description="log to this Weights & Biases project too")
    wandb_name: str | None = Field(None, description="name of the run there")

    def content(self) -> dict[str, Any]:
        """The settings that the run's config.json records; not those that say whether it may be a new one."""
        return self.model_dump(mode="json", exclude=set(self.no_content))

    @classmethod
    def _fillings(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        fillings = dict(super()._fillings(values))
        if str(values.get("smoke", "")).lower() in ("true", "1", "yes", "on"):
            fillings["max_steps"] = SMOKE_STEPS
        if "eval_limit" in values:
            fillings["eval_ends_limit"] = values["eval_limit"]
        return fillings

    @classmethod
    def _over(cls, base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        recipe = {key: base.get(key, cls.model_fields[key].default) for key in (BATCH_SIZE, GROUP_SIZE)}
        values = {key: value for key, value in super()._over(base, given).items() if key not in SIZE_KEYS}
        return values | with_other_size(given, **recipe)

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        for key, size in all_sizes(
            {key: getattr(self, key) for key in SIZE_KEYS if key in self.model_fields_set}
        ).items():
            setattr(self, key, size)
        return self

    @model_validator(mode="after")
    def _evaluations_are_possible(self) -> Self:
        if self.eval_every == 0:
            raise ValueError("eval_every=0 makes no sense: use -1 for no evaluations")
        return self


class EvaluateSettings(FlowSettings):
    """Checkpoint -> Pass@1 on the test splits, with 95% intervals."""

    nano_preset: ClassVar[Mapping[str, Any]] = NANO_COMMON
    no_content: ClassVar[tuple[str, ...]] = ("sample_concurrency", "checkpoint", "compare_to", "log_path")

    checkpoint: str = Field(
        "latest", description="latest run, a run's name or directory, a tinker:// sampler path, or a model's name"
    )
    splits: Names = Field(None, description="test splits; by default all the data set has")
    eval_limit: Limit = Field(-1, description="problems, a seeded subset (-1: all)")
    temperature: Temperature = Field(0.0, ge=0, description="sampling temperature; 0 is greedy")
    compare_to: str | None = Field(
        "baseline",
        description="evaluation to compare with: one of the same run, where there is one, another run (its final one), "
        "or a folder",
    )
    log_path: str | None = Field(None, description="where the result goes: a folder, or a name under the run's evals/")


class PipelineSettings(BaseModel):
    """Curate, train, evaluate in a row; a preset given here serves all three."""

    model_config = ConfigDict(extra="forbid")

    preset: Preset = Field(None, description="nano: model, data and sizes for the embedded servers; or none")
    curate: CurateSettings = Field(default_factory=CurateSettings)
    train: TrainSettings = Field(default_factory=TrainSettings)
    evaluate: EvaluateSettings = Field(default_factory=EvaluateSettings)

    @model_validator(mode="before")
    @classmethod
    def _hand_preset_down(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("preset") is not None:
            parts = {
                name: {"preset": values["preset"], **part}
                for name in ("curate", "train", "evaluate")
                if isinstance(part := values.get(name, {}), dict)
            }
            return {**values, **parts}
        return values

    def content(self) -> dict[str, Any]:
        """All settings, for the record: those of where it goes too, as a pipeline goes on with all three parts."""
        return self.model_dump(mode="json")

    @classmethod
    def completed(cls, recorded: Mapping[str, Any]) -> dict[str, Any]:
        """The same as `FlowSettings.completed`, part by part."""
        plain = cls().content()
        parts = ("curate", "train", "evaluate")
        return {**plain, **recorded, **{name: {**plain[name], **recorded.get(name, {})} for name in parts}}

    def changed(self) -> dict[str, Any]:
        """What `FlowSettings.changed` says of the parts, by dotted key; a preset of all three as one."""
        parts = {"curate": self.curate, "train": self.train, "evaluate": self.evaluate}
        common = {part.preset for part in parts.values()} == {self.train.preset}
        words = {f"{name}.{key}": value for name, part in parts.items() for key, value in part.changed().items()}
        if not common or self.train.preset is None:
            return words
        return {"preset": self.train.preset} | {key: value for key, value in words.items() if ".preset" not in key}


def parse_settings(model: type[SettingsT], values: Mapping[str, Any]) -> SettingsT:
    """Settings from plain (possibly string) values; `ConfigError` with one line that names each bad key."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        keys = [key for key, _ in all_settings(model)]
        raise ConfigError("; ".join(_explain(item, keys) for item in error.errors())) from None


def _explain(item: Any, keys: list[str]) -> str:
    key = ".".join(str(part) for part in item["loc"])
    if item["loc"][-1:] == ("[key]",):
        *setting, name = (str(part) for part in item["loc"][:-1])
        return f"{'.'.join(setting)}: {name!r} {_WORDS['literal_error'].format(**item['ctx'])}"
    if item["type"] == "extra_forbidden":
        inside = next(iter(item["input"]), None) if isinstance(item["input"], Mapping) else None
        key = key if inside is None else f"{key}.{inside}"
        near = _near(key, keys)
        return f"unknown setting {key!r}: {f'did you mean {near}?' if near else 'see --help for those there are'}"
    if item["type"] == "model_type":
        return f"{key}={item['input']!r}: {key} is a group of settings: write {key}.<setting>=value"
    if isinstance(item["input"], Mapping) and key in keys and item["type"] != "value_error":
        return f"{key} is a setting, not a group of them: write {key}=value"
    words = _WORDS.get(item["type"])
    message = words.format(**item.get("ctx", {})) if words else item["msg"].removeprefix("Value error, ")
    return f"{key}={item['input']!r}: {message}" if key else message


_WORDS = {
    "int_parsing": "not a whole number",
    "int_type": "not a whole number",
    "int_from_float": "not a whole number",
    "float_parsing": "not a number",
    "float_type": "not a number",
    "finite_number": "not a finite number",
    "bool_parsing": "neither true nor false",
    "bool_type": "neither true nor false",
    "string_type": "needs a value",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be more than {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
    "literal_error": "must be {expected}",
}
"""Pydantic's types of errors in words for people who do not know pydantic."""

_OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "lr": ("learning_rate",),
    "steps": ("max_steps",),
    "num_steps": ("max_steps",),
    "model": ("model_name",),
    "base_model": ("model_name",),
    "renderer": ("renderer_name",),
    "data": ("dataset",),
    "n": ("completions_per_problem", "profile_samples"),
    "k": ("completions_per_problem", "profile_samples"),
    "samples": ("completions_per_problem", "profile_samples"),
    "num_samples": ("completions_per_problem", "profile_samples"),
    "num_generations": ("completions_per_problem", "profile_samples"),
    "completions_per_prompt": ("completions_per_problem",),
    "groups_per_batch": ("problems_per_step",),
    "prompts_per_step": ("problems_per_step",),
    "max_length": ("max_tokens",),
    "max_new_tokens": ("max_tokens",),
    "max_completion_length": ("max_tokens",),
    "rank": ("lora_rank",),
    "timeout": ("reward_timeout",),
    "output_dir": ("log_path", "name"),
    "resume": ("log_path",),
    "run": ("log_path", "checkpoint"),
}
"""What other tools call a setting. Suggested, not accepted: one setting has one name."""


def _near(key: str, keys: list[str]) -> str:
    """The settings that `key` may be meant for, those of its own group first: of the same name in a group, of this name
    in other tools, else spelled alike; empty if none is."""
    group, _, last = key.rpartition(".")
    for names in ((last,), _OTHER_NAMES.get(last, ())):
        if found := [known for known in keys if known.rpartition(".")[2] in names]:
            return " or ".join([known for known in found if known.rpartition(".")[0] == group] or found)
    return " or ".join(difflib.get_close_matches(key, keys, n=1))
