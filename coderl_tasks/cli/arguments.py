"""A flow's command line to its settings: `key=value`, `--key=value`, `--key value`, nested with dots; and the help."""

import shutil
import textwrap
from collections.abc import Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from coderl_tasks.errors import ConfigError
from coderl_tasks.settings import CurateSettings, EvaluateSettings, FlowSettings, PipelineSettings, TrainSettings
from coderl_tasks.settings.flow_settings import PresetName, preset_values
from coderl_tasks.settings.parsing import NONE_WORDS, all_settings

FLOW_SETTINGS: dict[str, type[FlowSettings] | type[PipelineSettings]] = {
    "curate": CurateSettings,
    "train": TrainSettings,
    "evaluate": EvaluateSettings,
    "pipeline": PipelineSettings,
}
HELP_INDENT = 34
LEAST_COLUMNS, MOST_COLUMNS = 60, 120


def parse_key_values(arguments: Sequence[str], model: type[BaseModel]) -> dict[str, Any]:
    """The arguments as a nested dict of texts (None for `none`, True for a lone `--flag` of a boolean setting).

    Raises `ConfigError` for a word that is none of the three forms, or a key that is given twice.
    """
    values: dict[str, Any] = {}
    queue = list(arguments)
    while queue:
        word = queue.pop(0)
        key, equals, text = word.removeprefix("--").partition("=")
        value: Any = text
        if not equals:
            if not word.startswith("--"):
                raise ConfigError(f"{word!r} is not a setting: write key=value, --key=value or --key value")
            if queue and _is_value(queue[0], model, flag=_is_flag(model, key)):
                value = queue.pop(0)
            elif _is_flag(model, key):
                value = True
            else:
                raise ConfigError(f"{word} needs a value")
        _put(values, key.replace("-", "_"), value)
    return values


def _put(values: dict[str, Any], dotted: str, value: Any) -> None:
    *parents, last = dotted.split(".")
    inner = values
    for parent in parents:
        inner = inner.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{dotted}: {parent} already has a value")
    if last in inner:
        raise ConfigError(f"{dotted} is given twice")
    inner[last] = None if isinstance(value, str) and value.lower() in NONE_WORDS else value


def _is_value(word: str, model: type[BaseModel], *, flag: bool) -> bool:
    """Whether the word after `--key` is its value: one with a `=` may be, unless it sets something by itself."""
    name, equals, _ = word.partition("=")
    if word.startswith("--") or (flag and equals):
        return False
    return not equals or name.replace("-", "_") not in {key for key, _ in all_settings(model)}


def _is_flag(model: type[BaseModel], dotted: str) -> bool:
    return any(key == dotted.replace("-", "_") and field.annotation is bool for key, field in all_settings(model))


def settings_help(command: str, model: type[BaseModel], columns: int | None = None) -> str:
    """The help text of a flow command: usage, what it does, every setting, and what the preset fills in.

    Lines are at most `columns` long, by default as the terminal is wide.
    """
    terminal = columns or shutil.get_terminal_size((MOST_COLUMNS, 0)).columns
    width = min(max(LEAST_COLUMNS, terminal), MOST_COLUMNS)
    lines = []
    for key, field in all_settings(model):
        head, text = f"  {key}={_type_name(field)}", f"{field.description or ''} [{_default(field)}]".strip()
        fits = len(head) + 2 <= HELP_INDENT
        lines += [] if fits else [head]
        first = f"{head if fits else '':<{HELP_INDENT}}"
        later = " " * HELP_INDENT
        lines += textwrap.wrap(text, width, initial_indent=first, subsequent_indent=later, break_on_hyphens=False)
    usage = f"usage: coderl {command} [key=value | --key=value | --key value ...]"
    text = "\n".join([usage, "", f"  {(model.__doc__ or '').strip()}", "", "settings [default]:", *lines])
    for name in get_args(PresetName):
        preset = " ".join(f"{key}={value}" for key, value in preset_values(model, name).items())
        text += f"\n\npreset={name} fills in what is not given: {preset}" if preset else ""
    return text


def _type_name(field: FieldInfo) -> str:
    annotation = field.annotation
    if get_origin(annotation) is dict:
        return "name:share,..."
    choices = [choice for part in (annotation, *get_args(annotation)) for choice in get_args(part)]
    words = [choice for choice in choices if isinstance(choice, str)]
    if words:
        return "|".join(words)
    names = [part.__name__ for part in (get_args(annotation) or (annotation,)) if isinstance(part, type)]
    names = ["a,b,..." if name == "list" else name.upper() for name in names if name != "NoneType"]
    return "|".join(names) or "a,b,..."


def _default(field: FieldInfo) -> str:
    """The default as it is typed; none also where nothing in a list or a mapping is one."""
    default = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(default, bool):
        return str(default).lower()
    return str(default) if default not in (None, {}, []) else "none"
