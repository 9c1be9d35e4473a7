"""What the settings of all flows share: types of their values, common fields, and how a preset fills them in."""

import json
from collections.abc import Callable, Mapping
from operator import attrgetter  # of dotted keys too
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from coderl_tasks import paths
from coderl_tasks.errors import ConfigError
from coderl_tasks.settings.setting import (
    PROGRAMS,
    Environment,
    Setting,
    SettingsModel,
    about,
    all_settings,
    environment_defaults,
    flat,
    nested,
    parse_settings,
    preset_values,
    recipe_names,
    refusing,
    setting,
    split_at_commas,
)

COLDEST, HOTTEST = 0.01, 100.0
"""Temperatures that differ from greedy and from uniform sampling; a colder one overflows."""
HUB_GSM8K = "openai/gsm8k"
GSM8K_DATA = {"gsm8k": HUB_GSM8K, "nano gsm8k": paths.WORDS_DATASET}
HUB_DATASET = "agentica-org/DeepCoder-Preview-Dataset"
DEFAULT_MODEL = "Qwen/Qwen3-4B-Instruct-2507"
PresetName = Literal["nano", "smollm2", "gsm8k", "smoke"]
SMOKE: PresetName = "smoke"
NONE_IS_A_WORD = BeforeValidator(lambda value: "none" if value is None else value)
"""The word none of a command line arrives as None."""
Feedback = Annotated[Literal["samples", "verdict", "none"], NONE_IS_A_WORD]
IsolationPerTest = Literal["failures", "always"]
"""Which tests have a process of their own: those that do not pass in one that several share, or all."""
REWARD_NAMES = ("reward_fn", "reward_funcs", "reward_function", "compute_reward")
REWARD_HASH = "reward_sha256"
"""What `content` says of the file that reward_file names."""


def _preset(value: Any) -> Any:
    if value not in (None, "none", *get_args(PresetName)):
        raise ValueError("must be nano, smollm2, gsm8k, smoke or none")
    return None if value == "none" else value


Preset = Annotated[
    PresetName | None,
    BeforeValidator(_preset),
    WithJsonSchema({"type": "string", "enum": ["none", *get_args(PresetName)]}),
    Field(json_schema_extra={"default": "none"}),
]
"""A choice in the UI's form, which shows a single permitted value, or null, as one that cannot be changed."""
Limit = Annotated[int, Field(ge=-1), refusing(lambda limit: limit == 0, "use -1 for all, or a number of problems")]
_possible_temperature = refusing(
    lambda temperature: temperature != 0 and not COLDEST <= temperature <= HOTTEST,
    f"must be from {COLDEST:g} to {HOTTEST:g}; evaluations and profiles may be greedy, 0",
)
Temperature = Annotated[float, _possible_temperature]
Names = Annotated[
    list[str] | None, BeforeValidator(split_at_commas), refusing(lambda names: names == [], "needs a value")
]
ABSOLUTE = AfterValidator(lambda path: None if path is None else str(Path(path).expanduser().resolve()))
"""A path that a resume means too, whatever folder it is started in."""
COST_SETTINGS = ("max_tokens_total", "max_usd", "prices")
"""What bounds and counts what is spent: another value goes on with the same work."""


def split_shares(value: Any, expected: str) -> Any:
    """A text such as "hard:0.3,easy:0.7", or a JSON object, as a mapping; `expected` says what it should look like
    where it is none. The word none of a command line, which arrives as None, is an empty one."""
    if not isinstance(value, str):
        return {} if value is None else value
    if value.strip().startswith("{"):
        try:
            return json.loads(value)
        except ValueError as error:
            raise ValueError(f"not JSON ({error}): {expected}") from None
    shares: dict[str, str] = {}
    for part in split_at_commas(value):
        name, colon, share = part.partition(":")
        if not colon:
            raise ValueError(expected)
        if (name := name.strip()) in shares:
            raise ValueError(f"{name} is given twice")
        shares[name] = share
    return shares


_priced_for_sampling = refusing(
    lambda prices: prices and not {"prefill", "sample"} <= prices.keys(), "both prefill and sample need a price"
)
Prices = Annotated[
    dict[Literal["prefill", "cached", "sample", "train"], Annotated[float, Field(ge=0)]],
    BeforeValidator(lambda value: split_shares(value, "prices look like prefill:0.33,sample:1.005,train:0.737")),
    _priced_for_sampling,
]


def content_sha256(file: str) -> str | None:
    """The hash of a file that a setting names, as its path says nothing of its content; None if it cannot be read."""
    try:
        return paths.file_sha256(Path(file))
    except OSError:
        return None


def _with_recipe_names(schema: dict[str, Any], model: type[Any]) -> None:
    """Add the recipe's names of members of families to a JSON schema: Prefect refuses a key that it does not have."""
    leaf = dict(all_settings(model))
    for name, key in recipe_names(model).items():
        kind = "integer" if leaf[key].annotation in (int, int | None) else "number"
        schema["properties"][name] = {
            "anyOf": [{"type": kind}, {"type": "null"}],
            "default": None,
            "title": name,
            "description": f"{key}, by the recipe's name",
        }


class FlowSettings(SettingsModel):
    """What all three flows share."""

    model_config = ConfigDict(json_schema_extra=_with_recipe_names)
    DECIDING: ClassVar[tuple[str, ...]] = ("preset", "environment", "reward_file")
    """The settings that decide what others are by default."""
    GROUPS: ClassVar[dict[str, tuple[str, str]]] = {
        "model": ("preset", "base model, chat format, environment"),
        "data": ("dataset", "data sets, lengths, turns and how programs run"),
        "limits": ("sample_concurrency", "requests in flight, caps on cost, the seed"),
    }
    """The groups of the help: by name the first setting of each, in order of definition, and what they are."""

    preset: Preset = setting(
        None, common=True, interchangeable=(None, SMOKE), elsewhere=("smoke (smoke=true is preset=smoke)",)
    )
    """nano: model, data and sizes for the embedded servers (the default without a Tinker key and a model); smollm2: the
    same with a pretrained model; gsm8k: those of the GRPO notebook, whose group_size is completions per problem; smoke:
    a training run of 50 steps that fails if it looks unhealthy; or none"""
    model_name: str = setting(
        DEFAULT_MODEL,
        common=True,
        nano=paths.NANO_MODEL,
        smollm2=paths.SMOLLM2_MODEL,
        gsm8k="Qwen/Qwen3-8B",
        by_environment={"nano gsm8k": paths.NANO_WORDS_MODEL},
        inherited=True,
        elsewhere=("model", "base_model"),
    )
    """base model: a name of the Tinker service, a local model folder or a GGUF file; by default the first model of a
    short list that the service offers (this one comes first)"""
    renderer_name: Literal["qwen3", "qwen3_disable_thinking", "qwen3_instruct", "chat_template"] | None = setting(
        None, inherited=True, elsewhere=("renderer",)
    )
    """chat format (chat_template: the template in the tokenizer); by default the model's own"""
    thinking: bool | None = setting(None, inherited=True)
    """thinking on or off, if the chat format has a switch for it; by default the format decides"""
    stop_after_code: bool = setting(
        False, smollm2=True, by_environment={"custom": False, "gsm8k": False}, inherited=True, environments=PROGRAMS
    )
    """end a completion after its first code block, for models that go on to explain it (unsuitable for models that
    think first, and for code blocks that open with a bare ```)"""
    environment: Environment = setting("code", common=True, gsm8k="gsm8k", inherited=True)
    """the task: code (programs that must pass tests), tool (the same, and the policy may run programs before it
    answers), gsm8k (word problems), or custom (your own prompts and reward_file)"""
    use_r1_zero_format: bool = setting(True, inherited=True, environments=("gsm8k",))
    """gsm8k: ask for <think> and <answer> tags (false: for the answer in \\boxed{})"""
    reward_file: Annotated[str | None, ABSOLUTE] = setting(
        None, inherited=True, on_resume="warned", environments=("custom",), elsewhere=REWARD_NAMES
    )
    """custom: a Python file with compute_reward(completion, ground_truth) -> float, which the sandbox runs"""
    dataset: str = setting(
        HUB_DATASET,
        common=True,
        nano=paths.MINI_DATASET,
        smollm2=paths.INTRO_DATASET,
        by_environment=GSM8K_DATA,
        elsewhere=("data", "prompts", "train_dataset"),
    )
    """hub data set, local data set folder, or a file (parquet, JSONL, JSON, CSV, TSV; compressed too)"""
    evaluation_dataset: str | None = setting(None, elsewhere=("test_dataset", "eval_dataset"))
    """data set whose test splits are evaluated on and kept out of the pool; by default dataset itself"""
    test_share: float | None = Field(None, gt=0, lt=1)
    """instead of evaluation_dataset: evaluate on this share of dataset's train rows, chosen by a hash of the id"""
    max_tokens: int = setting(
        24576,
        ge=1,
        common=True,
        on_resume="warned",
        inherited=True,
        nano=128,
        smollm2=96,
        gsm8k=2048,
        elsewhere=(
            *("max_length", "max_new_tokens", "max_completion_length", "max_response_length", "response_length"),
            "sampling_max_tokens",
        ),
    )
    """completion length limit in tokens; capped at the model's context"""
    max_turns: int = setting(1, ge=1, le=16, inherited=True, environments=("code", "custom"), elsewhere=("num_turns",))
    """answers per completion: if a program fails on the statement's samples, the policy gets a reply and answers again;
    the last answer counts"""
    feedback: Feedback = setting("samples", inherited=True, environments=("code",), of_turns=True)
    """with max_turns, what the reply to a failing program contains: samples (the failed sample and the program's
    output), verdict (only the verdict), or none (only the request to look again)"""
    max_tool_calls: int = setting(0, ge=0, le=16, inherited=True, environments=("tool",), by_environment={"tool": 4})
    """tool: programs that the policy may run per completion, by default 4; the first answer without a call is graded,
    or else the answer after the last call"""
    max_trajectory_tokens: int | None = setting(
        None, ge=1, inherited=True, environments=(*PROGRAMS, "custom"), of_turns=True
    )
    """with max_turns or max_tool_calls, limit in tokens of all answers and replies of a completion together
    (max_tokens limits each answer)"""
    reward_timeout: float = setting(
        6.0, gt=0, inherited=True, environments=(*PROGRAMS, "custom"), elsewhere=("timeout",)
    )
    """limit in CPU seconds per test (if the problem names none) and per run of a tool; custom: per completion"""
    isolation_per_test: IsolationPerTest = setting(
        "failures", decides_content=False, on_resume="allowed", inherited=True, environments=PROGRAMS
    )
    """which tests get a process of their own in the sandbox: always, every test; failures, only those that fail in a
    process that several tests share"""
    sample_concurrency: int = setting(64, ge=1, decides_content=False, on_resume="allowed")
    """sampling requests in flight, one per problem"""
    max_tokens_total: int | None = setting(None, ge=1, decides_content=False, on_resume="allowed")
    """cap on tokens: the command ends before a group that could exceed it, and can be resumed with a higher cap"""
    max_usd: float | None = setting(
        None, gt=0, decides_content=False, on_resume="allowed", elsewhere=("max_cost", "budget")
    )
    """the same cap on cost in USD, training included; prices must be known"""
    prices: Prices = setting(default_factory=dict, decides_content=False, on_resume="allowed")
    """your own prices in USD per million tokens: prefill:0.33,cached:0.066,sample:1.005,train:0.737 (default for
    cached: the price of prefill)"""
    seed: int = Field(0, ge=0)
    """seed of every random draw"""

    # Not pydantic's model_fields_set: what a preset or the step's sizes filled in counts as set there. By dotted keys.
    _given: frozenset[str] = frozenset()
    _model_reason: str | None = None

    @classmethod
    def _fillings(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """What takes the place of the defaults, given `values`; both by dotted keys."""
        preset = values.get("preset")
        filled = preset_values(cls, str(preset)) if preset in get_args(PresetName) else {}
        environment = values.get("environment", filled.get("environment"))
        fitting = environment_defaults(cls, str(environment))
        # What a preset says of its own environment comes before that environment's defaults.
        filled = fitting | filled if preset == environment else filled | fitting
        return filled | environment_defaults(cls, f"{preset} {environment}")

    @classmethod
    def _over(cls, base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """`base` with `given` in its place where both say something; by dotted keys."""
        return {**base, **given}

    @property
    def given(self) -> frozenset[str]:
        """The dotted keys that were given, as opposed to filled by a preset or a default."""
        return self._given

    @property
    def names_model(self) -> bool:
        """Whether the base model was named, by itself or by a preset."""
        return "model_name" in self._given or self.preset not in (None, SMOKE)

    def content(self) -> dict[str, Any]:
        """The settings that decide what comes out, for the record; not those of where, how fast and by what name."""
        said = {key: about(field) for key, field in all_settings(type(self))}
        values = flat(type(self), self.model_dump(mode="json"))
        recorded = nested(type(self), {key: value for key, value in values.items() if self._is_recorded(said[key])})
        if self.reward_file is not None:
            recorded[REWARD_HASH] = content_sha256(self.reward_file)
        return recorded

    @classmethod
    def inherited_content(cls) -> list[str]:
        """Settings that decide what is sampled or how it is graded, and that are taken from a run where not given."""
        said = {key: about(field) for key, field in cls.model_fields.items()}
        return [key for key, setting in said.items() if setting.inherited and setting.decides_content]

    @classmethod
    def _is_recorded(cls, setting: Setting) -> bool:
        return setting.decides_content

    def changed(self) -> dict[str, Any]:
        """The settings that were given, to be given again. Of the UI's form, which gives most fields, only those that
        are not as they would be without."""
        given, fields = self._given_values(), type(self).model_fields
        plain_fields = {key for key, field in fields.items() if field.default_factory is None}
        if 2 * len(plain_fields & {key.partition(".")[0] for key in given}) < len(plain_fields):
            # A command line, whose every word counts: without one that says the default, another setting or the run
            # that is evaluated may fill in something else.
            return given
        # Not against the bare defaults: the preset, which is given again too, fills in its own.
        deciding = {key: value for key in self.DECIDING if (value := getattr(self, key)) != fields[key].default}
        plain = type(self).model_validate(deciding)
        return {key: value for key, value in given.items() if key in deciding or value != attrgetter(key)(plain)}

    def as_meant(self) -> Self:
        """These settings, of which only those that `changed` returns count as given: what is filled in later, from a
        run say, comes before the defaults that the UI's form sends."""
        meant = self.model_copy()
        meant._given = frozenset(self.changed())
        return meant

    def _given_values(self) -> dict[str, Any]:
        """What was given, by dotted key, in order of definition."""
        return {key: attrgetter(key)(self) for key, _ in all_settings(type(self)) if key in self._given}

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
        given = flat(type(self), changes)
        return self._rebuilt({}, given, self._given | frozenset(given))

    def with_preset(self, preset: PresetName) -> Self:
        """These settings where they were given, else as `preset` says; preset=smoke stays what it is. Raises
        ConfigError if the two contradict each other."""
        filled = parse_settings(type(self), {**self._given_values(), "preset": preset})
        if self.preset != SMOKE:
            return filled
        of_smoke = {key: value for key, value in preset_values(type(self), SMOKE).items() if key not in self._given}
        smoke = filled.with_changes(**of_smoke, preset=SMOKE)
        smoke._given = self._given | {"model_name"}
        return smoke

    def filled_from(self, saved: Mapping[str, Any]) -> Self:
        """These settings where they were given, else as `saved` says; what is no setting there is left out. Raises
        ConfigError if the two contradict each other."""
        settings = dict(all_settings(type(self)))
        known = {key: value for key, value in flat(type(self), saved).items() if key in settings}
        # In one go: `_over` makes the sizes fit each other, and needs to see which of them were given.
        return self._rebuilt(known, self._given_values(), self._given)

    def _rebuilt(self, base: Mapping[str, Any], over: Mapping[str, Any], given: frozenset[str]) -> Self:
        """These settings with `base` in place of theirs, and `over` in place of both; `given` counts as given."""
        rebuilt = parse_settings(type(self), self._over({**flat(type(self), self.model_dump()), **base}, over))
        rebuilt._given = given
        if rebuilt.model_name == self.model_name:  # else it is another model's, and nothing is decided
            rebuilt._model_reason = self._model_reason
        return rebuilt

    @model_validator(mode="after")
    def _fits_the_environment(self) -> Self:
        """Refuses a setting of other environments than this one, unless it has the value it has without being given."""
        if self.environment == "custom" and self.reward_file is None:
            raise ValueError(
                "environment=custom needs reward_file=FILE.py, which defines compute_reward(completion, ground_truth)"
            )
        if self.environment == "tool" and not self.max_tool_calls:
            raise ValueError("environment=tool needs max_tool_calls of 1 or more (or take environment=code)")
        usual = type(self)._fillings({"preset": self.preset, "environment": self.environment})
        for key, field in type(self).model_fields.items():
            wanted, value = about(field).environments, getattr(self, key)
            default = field.get_default(call_default_factory=True, validated_data={})
            if self.environment not in wanted and value not in (default, usual.get(key, default)):
                # Such as reward_file=FILE with environment=code, which is the default: custom was meant, and forgotten.
                add = f"add environment={wanted[-1]}, or " if "code" not in wanted else ""
                raise ValueError(
                    f"{key}={value} is a setting of environment={' or '.join(wanted)}, and environment="
                    f"{self.environment}: {add}leave it out"
                )
        return self

    @property
    def most_answers(self) -> int:
        """How many answers a completion may have; above 1 in several turns."""
        return self.max_turns + self.max_tool_calls

    def require_turns(self) -> None:
        """Raise ConfigError for a setting of several turns that was given, where completions have one."""
        for key, field in type(self).model_fields.items() if self.most_answers == 1 else ():
            value = getattr(self, key)
            # The UI's form gives all settings, max_turns too: there the default of another one says nothing.
            is_meant = value != field.default or "max_turns" not in self._given
            if about(field).of_turns and key in self._given and is_meant:
                raise ConfigError(
                    f"{key}={value} needs several turns, and max_turns=1: add max_turns=2, or leave it out"
                )

    # "wrap", since the preset fills in before the fields are validated, and what was given is noted on what comes out.
    @model_validator(mode="wrap")
    @classmethod
    def _fill_from_preset(cls, values: Any, build: Callable[[Any], Self]) -> Self:
        if not isinstance(values, dict):
            return build(values)
        given = flat(cls, values)
        settings = build(nested(cls, cls._over(cls._fillings(given), given)))
        # Of what came in, not of what was built, where the preset's values look as if they were given.
        settings._given = frozenset(given)
        return settings
