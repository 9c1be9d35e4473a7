"""A flow's command line to its settings: `key=value`, `--key=value`, `--key value`, nested with dots; and the help."""

import shutil
import textwrap
from collections.abc import Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from coderl_tasks.errors import ConfigError
from coderl_tasks.settings import CurateSettings, EvaluateSettings, FlowSettings, PipelineSettings, TrainSettings, about
from coderl_tasks.settings.flow_settings import PresetName
from coderl_tasks.settings.setting import NONE_WORDS, all_settings, families_of, preset_values, recipe_names, words_of

FLOW_SETTINGS: dict[str, type[FlowSettings] | type[PipelineSettings]] = {
    "curate": CurateSettings,
    "train": TrainSettings,
    "evaluate": EvaluateSettings,
    "pipeline": PipelineSettings,
}
HELP_INDENT, LEAST_COLUMNS, MOST_COLUMNS = 34, 60, 120
ALL = "all"
Entry = tuple[str, FieldInfo]


def parse_key_values(arguments: Sequence[str], model: type[BaseModel]) -> dict[str, Any]:
    """The settings in `arguments` (key=value, --key=value, --key value) as a dict of texts, nested at the dots of keys:
    None for `none`, True for a boolean's `--flag` without a value. `model` says which settings are booleans, and which
    word after `--key` is a setting of its own. ConfigError for any other word, a missing value, a repeated key."""
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
            elif _is_flag(model, key):  # a boolean: the next word, if any, is no value of it
                value = True
            else:
                is_other = queue and not queue[0].startswith("--")
                hint = f": {queue[0]} is another setting, if not written as {word}={queue[0]}" if is_other else ""
                raise ConfigError(f"{word} needs a value{hint}")
        key, inner = key.replace("-", "_"), values  # --batch-size is batch_size too
        *parents, last = key.split(".")
        for parent in parents:
            inner = inner.setdefault(parent, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"{key}: {parent} already has a value")
        if last in inner:
            raise ConfigError(f"{key} is given twice")
        inner[last] = None if isinstance(value, str) and value.lower() in NONE_WORDS else value
    return values


def _is_value(word: str, model: type[BaseModel], *, flag: bool) -> bool:
    """Whether the word after `--key` is its value: one with a `=` may be, unless it sets something by itself."""
    name, equals, _ = word.partition("=")
    if word.startswith("--") or (flag and equals):
        return False
    name = name.replace("-", "_")
    known = {key for key, _ in all_settings(model)} | {*model.model_fields} | recipe_names(model).keys()
    # What other tools call a setting was meant as one: as the value of another one it would be lost silently.
    other_names = {text.partition(" ")[0] for _, field in all_settings(model) for text in about(field).elsewhere}
    return not equals or not (name in known or name.rpartition(".")[2] in other_names)


def _is_flag(model: type[BaseModel], dotted: str) -> bool:
    flags = {key for key, field in all_settings(model) if field.annotation in (bool, bool | None)}
    return dotted.replace("-", "_") in flags


def settings_help(command: str, model: type[BaseModel], group: str | None = None, columns: int | None = None) -> str:
    """The help of a flow command: the common settings and the groups, or the settings of `group`, or with ALL every
    setting and what each preset fills in. `columns` is the width (None: the terminal's), LEAST_COLUMNS to MOST_COLUMNS.
    ConfigError for an unknown group."""
    terminal = columns or shutil.get_terminal_size((MOST_COLUMNS, 0)).columns
    width = min(max(LEAST_COLUMNS, terminal), MOST_COLUMNS)
    groups = _groups(model)
    usage, heading = f"usage: coderl {command} [key=value | --key=value | --key value ...]", "settings [default]:"
    if group is None:
        entries = [entry for entry in model.model_fields.items() if about(entry[1]).common]
    elif group == ALL:
        entries = [*all_settings(model)]
    elif group in groups:
        entries, heading = groups[group][1], f"settings of {group} [default]:"
    else:
        raise ConfigError(f"--help {group}: there is no such group of settings: {', '.join([*groups, ALL])}")
    parts = [usage, "", f"  {(model.__doc__ or '').strip()}", "", heading]
    for key, field in entries:
        if not about(field).hidden:
            text = f"{field.description or ''} [{_default_text(field)}]".strip()
            parts += _entry_lines(f"  {key}={_type_name(field)}", text, width)
    if group is None:
        parts += ["", f"groups of settings (coderl {command} --help GROUP, or --help {ALL}):"]
        parts += [line for name, (what, _) in groups.items() for line in _entry_lines(f"  {name}", what, width)]
    if group == ALL:
        for preset in get_args(PresetName):
            if words := " ".join(words_of(preset_values(model, preset))):  # empty: it fills in nothing here
                parts += ["", f"preset={preset} fills in what is not given: {words}"]
    return "\n".join(parts)


def _groups(model: type[BaseModel]) -> dict[str, tuple[str, list[Entry]]]:
    groups: dict[str, tuple[str, list[Entry]]] = {}
    if not issubclass(model, FlowSettings):
        parts = {name: part for name, part in FLOW_SETTINGS.items() if name in model.model_fields}
        return {name: (f"as of coderl {name}", [*all_settings(part, f"{name}.")]) for name, part in parts.items()}
    starts = {first: name for name, (first, _) in model.GROUPS.items()}
    name = ""
    for key, field in model.model_fields.items():
        name = starts.get(key, name)
        groups.setdefault(name, (model.GROUPS[name][1], []))[1].append((key, field))
    for key, family in families_of(model).items():
        groups[key] = (model.model_fields[key].description or "", [*all_settings(family, f"{key}.")])
    return groups


def _entry_lines(head: str, text: str, width: int) -> list[str]:
    fits, later = len(head) + 2 <= HELP_INDENT, " " * HELP_INDENT
    first = f"{head if fits else '':<{HELP_INDENT}}"
    wrapped = textwrap.wrap(text, width, initial_indent=first, subsequent_indent=later, break_on_hyphens=False)
    return wrapped if fits else [head, *wrapped]


def _type_name(field: FieldInfo) -> str:
    annotation = field.annotation
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "member:value,..."
    if get_origin(annotation) is dict:
        return "name:number,..."
    choices = [choice for part in (annotation, *get_args(annotation)) for choice in get_args(part)]
    words = [choice for choice in choices if isinstance(choice, str)]
    if words:
        return "|".join(words)
    names = [part.__name__ for part in (get_args(annotation) or (annotation,)) if isinstance(part, type)]
    names = ["a,b,..." if name == "list" else name.upper() for name in names if name != "NoneType"]
    return "|".join(names) or "a,b,..."


def _default_text(field: FieldInfo) -> str:
    """The default as it is typed; none also where nothing in a list or a mapping is one."""
    default = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, BaseModel):
        given = {key: value for key, value in default.model_dump().items() if value is not None}
        return ",".join(f"{key}:{value}" for key, value in given.items()) or "none"
    return str(default) if default not in (None, {}, []) else "none"
