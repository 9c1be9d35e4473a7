"""Settings from plain values, what is wrong with them in a line, and the words that would give them again."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from coderl_tasks.errors import ConfigError
from coderl_tasks.settings.setting import NONE_WORDS, about, all_settings

SettingsT = TypeVar("SettingsT", bound=BaseModel)
ENVIRONMENT = {
    "base_url": "TINKER_BASE_URL",
    "tinker_base_url": "TINKER_BASE_URL",
    "api_key": "TINKER_API_KEY",
    "tinker_api_key": "TINKER_API_KEY",
    "sandbox_url": "SANDBOX_URL",
    "sandbox_max_concurrency": "SANDBOX_MAX_CONCURRENCY",
}
"""What other tools have as settings, and is of the machine here."""


def parse_settings(model: type[SettingsT], values: Mapping[str, Any]) -> SettingsT:
    """Settings from plain (possibly string) values; `ConfigError` with one line that names each bad key."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError("; ".join(_explain(item, model) for item in error.errors())) from None


def _explain(item: Any, model: type[BaseModel]) -> str:
    key = ".".join(str(part) for part in item["loc"])
    if item["loc"][-1:] == ("[key]",):  # pydantic's mark of a mapping's key, as against its value
        *setting, name = (str(part) for part in item["loc"][:-1])
        return f"{'.'.join(setting)}: {name!r} {_WORDS['literal_error'].format(**item['ctx'])}"
    if item["type"] == "extra_forbidden":
        inside = next(iter(item["input"]), None) if isinstance(item["input"], Mapping) else None
        key = key if inside is None else f"{key}.{inside}"
        if variable := ENVIRONMENT.get(key.rpartition(".")[2].lower()):
            return f"unknown setting {key!r}: it is the environment variable {variable}"
        near = _near(key, model)
        return f"unknown setting {key!r}: {f'did you mean {near}?' if near else 'see --help for those there are'}"
    if item["type"] == "model_type":
        return f"{key}={item['input']!r}: {key} is a group of settings: write {key}.<setting>=value"
    if isinstance(item["input"], Mapping) and key in dict(all_settings(model)) and item["type"] != "value_error":
        return f"{key} is a setting, not a group of them: write {key}=value"
    kind = item["type"] if item["type"] != "string_type" or item["input"] is not None else "none"
    words = _WORDS.get(kind)
    message = words.format(**item.get("ctx", {})) if words else item["msg"].removeprefix("Value error, ")
    # Of several settings together, a family or all of a flow, the message says which they are.
    is_whole = (
        item["type"] == "value_error" and isinstance(item["input"], Mapping) and key not in dict(all_settings(model))
    )
    return message if is_whole or not key else f"{key}={item['input']!r}: {message}"


_WORDS = {
    "int_parsing": "not a whole number",
    "int_type": "not a whole number",
    "int_from_float": "not a whole number",
    "float_parsing": "not a number",
    "float_type": "not a number",
    "finite_number": "not a finite number",
    "bool_parsing": "neither true nor false",
    "bool_type": "neither true nor false",
    "string_type": "must be text",
    "none": "needs a value",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be more than {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
    "literal_error": "must be {expected}",
}
"""Pydantic's types of errors in words for people who do not know pydantic."""


def _near(key: str, model: type[BaseModel]) -> str:
    """The settings that `key` may be meant for, those of its own group first: of the same name in a group, of this name
    in other tools, else spelled alike; empty if none is."""
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
    of_group = [[text for text in found if text.startswith(here)] for found in (same, called)]
    found = next(filter(None, (*of_group, same, called)), None)
    return " or ".join(found or difflib.get_close_matches(key, known, n=1))


def words_of(values: Mapping[str, Any]) -> list[str]:
    """`values` of settings as the words of a command line that give them."""
    return [f"{key}={_word(value)}" for key, value in values.items()]


def _word(value: Any) -> str:
    if value is None:
        return NONE_WORDS[1]
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return ",".join(f"{key}:{part}" for key, part in value.items())
    return ",".join(map(str, value)) if isinstance(value, Sequence) and not isinstance(value, str) else str(value)
