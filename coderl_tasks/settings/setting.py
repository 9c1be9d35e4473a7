"""What a setting says about itself; families, settings that are given together in one mapping; and settings from plain
values, with what is wrong with them in a line.

1. A setting is one field, and all about it stands there: what `setting` takes (pydantic's bounds, and what a `Setting`
   says), help and unit in the docstring below it. Nothing else lists settings by name.
2. The members of a family are settings like any other, with dotted keys. `flat` has them by these, `nested` as the
   models and config.json do. What a preset fills in, what was given and what may change on resume goes by member.
"""

import dataclasses
import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticUndefined

from coderl_tasks.errors import ConfigError

Environment = Literal["code", "tool", "gsm8k", "custom"]
ENVIRONMENTS = get_args(Environment)
PROGRAMS = ("code", "tool")
"""The environments whose completions are programs that tests grade."""
NONE_WORDS = ("", "none", "null")
FIELD_ARGUMENTS = {"default_factory", "ge", "gt", "le", "lt", "exclude", "description"}
SettingsT = TypeVar("SettingsT", bound=BaseModel)
ENVIRONMENT = {
    **dict.fromkeys(("base_url", "tinker_base_url"), "TINKER_BASE_URL"),
    **dict.fromkeys(("api_key", "tinker_api_key"), "TINKER_API_KEY"),
    "sandbox_url": "SANDBOX_URL",
    "sandbox_max_concurrency": "SANDBOX_MAX_CONCURRENCY",
}
"""What other tools have as settings, and is of the machine here."""

ALIKE = 0.7  # difflib's default, 0.6, also takes seq_len for selection and max_model_len for model_name


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """What a setting says about itself beside its type, its default, its bounds and its help text."""

    decides_content: bool = True  # what comes out; else where results go, how fast, or by what name
    on_resume: Literal["refused", "allowed", "warned", "ignored"] = "refused"
    """Whether a run that goes on may have another value, since it does not make the finished steps another run's. A
    warning where the steps from there on are other ones; ignored where nothing is said of it at all."""
    interchangeable: tuple[Any, ...] = ()  # values among which it may change on resume, where that is refused otherwise
    inherited: bool = False  # an evaluation of a run takes it from the run where it is not given
    nano: Any = None  # what `preset=nano` fills in; the others likewise
    smollm2: Any = None
    gsm8k: Any = None
    smoke: Any = None
    environments: tuple[str, ...] = ENVIRONMENTS  # that it says something of; in others only its default makes sense
    by_environment: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The default in environments where it is another one; "nano gsm8k": with that preset there."""
    of_profile: bool = False  # it says something of a profile alone, and so is refused where none is made
    of_turns: bool = False  # it says something of completions in several turns alone
    meaning: str = ""  # for messages, where its name, the recipe's, says something else elsewhere
    common: bool = False  # `--help` shows it; the others are shown by group
    hidden: bool = False  # another name of something, which no help shows
    recipe: str | None = None  # the recipe's name of a family's member, which is accepted too
    elsewhere: tuple[str, ...] = ()
    """What other tools call it, or what it was called, and after a space what to make of its value. Suggested, not
    accepted: one setting has one name."""


def setting(default: Any = PydanticUndefined, **arguments: Any) -> Any:
    """A field with this default. FIELD_ARGUMENTS are as of pydantic's `Field`, all others say what `Setting` has."""
    of_field = {name: arguments.pop(name) for name in FIELD_ARGUMENTS & arguments.keys()}
    field = Field(default, **of_field)
    field.metadata.append(Setting(**arguments))
    return field


def about(field: FieldInfo) -> Setting:
    """What a setting says about itself."""
    return next((item for item in field.metadata if isinstance(item, Setting)), Setting())


def refusing(
    is_wrong: Callable[[Any], bool], message: str, *, before: bool = False
) -> AfterValidator | BeforeValidator:
    """What refuses some values of a type with this message; with `before` those that are not of the type yet."""

    def validate(value: Any) -> Any:
        if is_wrong(value):
            raise ValueError(message)
        return value

    return BeforeValidator(validate) if before else AfterValidator(validate)


def split_at_commas(value: Any) -> Any:
    """The parts of a text such as "a,b" as a list."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


class SettingsModel(BaseModel):
    """A model that takes no other keys than its fields. The docstring below a field, as one line, is its help text."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[Any], handler: Callable[[Any], CoreSchema]) -> CoreSchema:
        for field in cls.model_fields.values():
            if field.description is not None:
                field.description = " ".join(field.description.split())
        return handler(source)


class Family(SettingsModel):
    """Settings that are given together: `adam=beta1:0.9,eps:1e-8`, `adam.beta1=0.9`, or a JSON object."""

    model_config = ConfigDict(frozen=True)
    SHORT: ClassVar[tuple[str, str] | None] = None
    """Two members that "cosine:200" gives at once: a choice, and a number that belongs to it."""
    INSTEAD: ClassVar[str] = ""
    """What else a value may have been meant for that names no member."""

    @classmethod
    def members(cls, key: str, value: Any) -> dict[str, Any]:
        """Returns a dictionary from member name to member value, read from `value`, what was given for the setting
        `key`: an object of this class, a mapping, JSON, "name:value,..." or the SHORT form, "choice:number", such as
        "cosine:200". Raises ValueError, one line, for a value that names no member."""
        if isinstance(value, cls):
            return value.model_dump()
        text = value.strip() if isinstance(value, str) else ""
        if text.startswith("{"):
            try:
                value = json.loads(text)
            except ValueError as error:
                raise ValueError(f"{key}={text}: not JSON ({error})") from None
        if isinstance(value, Mapping):
            return dict(value)
        members: dict[str, Any] = {}
        for part in split_at_commas(text):
            name, colon, word = (piece.strip() for piece in part.partition(":"))
            new: dict[str, Any] = {name: None if word.lower() in NONE_WORDS else word}
            if cls.SHORT is not None and name not in cls.model_fields:  # no member's name: the SHORT form's choice
                choice, number = cls.SHORT
                new = {choice: name} | ({number: word} if colon else {})
            elif not colon:  # a name without a value
                members = {}  # refuse the whole value below
                break
            if twice := members.keys() & new.keys():
                raise ValueError(f"{key}.{min(twice)} is given twice")
            members |= new
        if not members:  # also for a value that is neither text nor a mapping
            example = ",".join(f"{name}:..." for name in cls.model_fields)
            raise ValueError(f"{key}={value!r}: write {key}={example}, some of these{cls.INSTEAD}")
        return members


def families_of(model: type[BaseModel]) -> dict[str, type[Family]]:
    """The families of `model`, by key."""
    fields = {key: field.annotation for key, field in model.model_fields.items()}
    return {key: kind for key, kind in fields.items() if isinstance(kind, type) and issubclass(kind, Family)}


def all_settings(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every setting of `model` as (dotted key, field), nested models flattened, in order of definition."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from all_settings(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def recipe_names(model: type[BaseModel]) -> dict[str, str]:
    """The recipe's names of members of families, as dotted keys: {name: our key}."""
    found = {}
    for key, field in all_settings(model):
        if (name := about(field).recipe) is not None:
            *parents, _, _ = key.split(".")
            found[".".join([*parents, name])] = key
    return found


def flat(model: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` of settings of `model` with the members of families by their dotted keys. The recipe's names become
    ours; None there counts as not given: the UI's form sends it for a field left empty. ValueError, one line, for a
    family that is given something else, or a member that is given twice."""
    families, names = families_of(model), recipe_names(model)
    found: dict[str, Any] = {}
    for key, value in values.items():
        if key in families:
            given = {f"{key}.{member}": item for member, item in families[key].members(key, value).items()}
        elif key in names:
            given = {} if value is None else {names[key]: value}
        else:
            given = {key: value}
        if twice := found.keys() & given.keys():
            raise ValueError(f"{min(twice)} is given twice, as {key} too")
        found |= given
    return found


def nested(model: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """What `flat` made of some values as the fields of `model` have them, in the order of the keys."""
    families = families_of(model)
    found: dict[str, Any] = {}
    for key, value in values.items():
        family, dot, member = key.partition(".")
        if dot and family in families:
            found.setdefault(family, {})[member] = value
        else:
            found[key] = value
    return found


def preset_values(model: type[BaseModel], preset: str) -> dict[str, Any]:
    """What a preset fills in of the settings of `model`, by dotted key."""
    found = {key: getattr(about(field), preset) for key, field in all_settings(model)}
    return {key: value for key, value in found.items() if value is not None}


def environment_defaults(model: type[BaseModel], environment: str) -> dict[str, Any]:
    """The defaults of the settings of `model` that are others in `environment`, by dotted key."""
    said = {key: about(field).by_environment for key, field in all_settings(model)}
    return {key: values[environment] for key, values in said.items() if environment in values}


def parse_settings(model: type[SettingsT], values: Mapping[str, Any]) -> SettingsT:
    """Settings from plain (possibly string) values; `ConfigError` with one line that names each bad key."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError("; ".join(_explain(item, model) for item in error.errors())) from None


def _explain(item: Any, model: type[BaseModel]) -> str:
    """A line for people about one of pydantic's validation errors (`item`, of `ValidationError.errors()`) of settings
    of the class `model`. Settings may be in groups, written GROUP.SETTING."""
    key = ".".join(str(part) for part in item["loc"])
    if item["loc"][-1:] == ("[key]",):  # pydantic's mark of a key, which its Literal type refuses
        *mapping, name = (str(part) for part in item["loc"][:-1])
        return f"{'.'.join(mapping)}: {name!r} {_WORDS['literal_error'].format(**item['ctx'])}"
    if item["type"] == "extra_forbidden":
        # Of groups that do not exist: name the setting that was written in them.
        inside = item["input"]
        while isinstance(inside, Mapping) and inside:
            name, inside = next(iter(inside.items()))
            key = f"{key}.{name}"
        # Some of what people write as settings is read from the environment alone.
        if variable := ENVIRONMENT.get(key.rpartition(".")[2].lower()):
            return f"unknown setting {key!r}: it is the environment variable {variable}"
        similar = _similar_settings(key, model)
        return f"unknown setting {key!r}: {f'did you mean {similar}?' if similar else 'see --help for those there are'}"
    if item["type"] == "model_type":  # a plain value written for a group
        return f"{key}={item['input']!r}: {key} is a group of settings: write {key}.<setting>=value"
    # A group written for a plain setting. Some settings take a mapping: their own check of it is a value_error.
    if isinstance(item["input"], Mapping) and key in dict(all_settings(model)) and item["type"] != "value_error":
        return f"{key} is a setting, not a group of them: write {key}=value"
    # None where text is needed is a missing value. "Value error, " is what pydantic puts before messages of ours.
    kind = item["type"] if item["type"] != "string_type" or item["input"] is not None else "none"
    words = _WORDS.get(kind)
    message = words.format(**item.get("ctx", {})) if words else item["msg"].removeprefix("Value error, ")
    # A check of several settings together gets a mapping of them, and names them in its message.
    is_group = isinstance(item["input"], Mapping) and key not in dict(all_settings(model))
    names_its_settings = item["type"] == "value_error" and is_group
    # `key` is empty if pydantic's error is about the settings as a whole.
    return message if names_its_settings or not key else f"{key}={item['input']!r}: {message}"


_WORDS = {
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "not a whole number"),
    **dict.fromkeys(("float_parsing", "float_type"), "not a number"),
    "finite_number": "not a finite number",
    **dict.fromkeys(("bool_parsing", "bool_type"), "neither true nor false"),
    "string_type": "must be text",
    "none": "needs a value",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be more than {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
    "literal_error": "must be {expected}",
}
"""Pydantic's types of errors in words for people who do not know pydantic."""


def _similar_settings(key: str, model: type[BaseModel]) -> str:
    """The settings that `key` may be meant for, those of its own group first: of the same name in a group and of this
    name in other tools, else spelled alike; empty if none is."""
    group, _, last = key.rpartition(".")
    known = dict(all_settings(model))
    same = [name for name in known if name.rpartition(".")[2] == last]
    called = [
        f"{name} {note}".rstrip()
        for name, field in known.items()
        for other, _, note in (text.partition(" ") for text in about(field).elsewhere)
        if other == last
    ]
    # A pipeline has most settings three times: one in the group that was written is what was meant.
    here = f"{group}." if group else ""
    meant = [*same, *called]
    found = [text for text in meant if text.startswith(here)] or meant
    found = found or difflib.get_close_matches(key, known, n=1, cutoff=ALIKE)
    if not found:  # an abbreviation is less alike: batch for batch_size
        found = [name for name in difflib.get_close_matches(key, known) if last in re.split(r"[._]", name)][:1]
    return " or ".join(found)


def words_of(values: Mapping[str, Any]) -> list[str]:
    """`values` of settings as the words of a command line that give them."""

    def word(value: Any) -> str:
        if value is None:
            return NONE_WORDS[1]
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, Mapping):
            return ",".join(f"{key}:{part}" for key, part in value.items())
        return ",".join(map(str, value)) if isinstance(value, Sequence) and not isinstance(value, str) else str(value)

    return [f"{key}={word(value)}" for key, value in values.items()]
