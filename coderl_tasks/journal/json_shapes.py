"""What config.json, a summary.json and a pool's manifest.json hold, as far as others read it: checked where it is read.

A run or a pool may come from others. Readers index and count what is named here without looking again; other keys may
hold anything. What is optional may be null, as for what was written before there was such a key.
"""

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from coderl_tasks.journal.atomic import DamagedFileError, read_json

DEEPEST = 50  # lists and objects in one another: ours have five, and readers recur
Number = Annotated[float, Field(gt=-(2**63), lt=2**63)]


class _Shape(BaseModel):
    """Only checked against, never filled: the defaults say that a key may be missing."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False, protected_namespaces=())


class Score(_Shape):
    """What the best checkpoint is chosen by."""

    pass_at_1: Number


class Share(Score):
    """Pass@1 of an evaluation or a split of it."""

    n: Number
    ci_low: Number
    ci_high: Number


class Compared(_Shape):
    """What a summary says of the difference from an earlier evaluation."""

    to: str | None = None
    difference: Number | None = None
    ci_low: Number | None = None
    ci_high: Number | None = None
    n: PositiveInt = 1
    gained: Number = 0
    lost: Number = 0


class Summary(Share):
    """summary.json of an evaluation."""

    step: int | None = None
    by_split: dict[str, Share] = {}
    mean_reward: Number | None = None
    format_rate: Number | None = None
    truncated_rate: Number | None = None
    infra_errors: Number | None = None
    temperature: Number | None = None
    max_tokens: Number | None = None
    policy: str | None = None
    taken_from: str | None = None
    compare: Compared | None = None


class Config(_Shape):
    """config.json of a run."""

    model_name: str = ""
    environment: str = ""
    steer: str = ""
    pool: str | None = None
    batch_size: PositiveInt = 1
    group_size: PositiveInt = 1
    max_steps: Number = 0
    first_completions: Number | None = None
    refill: Number = 0
    learning_rate: Number = 0
    test_share: Number | None = None
    eval: dict[str, Any] = {}
    probe: dict[str, Any] | None = None


class Manifest(_Shape):
    """manifest.json of a pool."""

    model_name: str | None = None
    read: Number | None = None
    kept: Number | None = None
    dropped: Number | None = None
    band_low: Number | None = None
    band_high: Number | None = None
    infra_errors: Number | None = None
    by_difficulty: dict[str, Number] = {}
    by_split: dict[str, Number] = {}
    dropped_by_reason: dict[str, Number] = {}
    spent: dict[str, Number | None] = {}
    settings: dict[str, Any] | None = None
    policy: dict[str, Any] = {}
    mix: dict[str, Any] = {}
    labels: dict[str, Any] | None = None
    inputs: dict[str, Any] = {}


def read_shaped(path: Path, shape: type[BaseModel]) -> dict[str, Any]:
    """The JSON object at `path`, as it is. Raises FileNotFoundError, or DamagedFileError, with the first fault, if it
    is none or not of `shape`."""
    value = read_json(path)
    try:
        json.dumps(value, ensure_ascii=False).encode()  # as it was written
    except (UnicodeEncodeError, RecursionError) as error:
        raise DamagedFileError(path, f"it cannot be written again ({error})") from error
    if _depth(value) > DEEPEST:
        raise DamagedFileError(path, f"it is nested more than {DEEPEST} deep")
    try:
        shape.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise DamagedFileError(path, f"{'.'.join(map(str, first['loc']))}: {first['msg'].lower()}") from error
    return value


def _depth(value: Any) -> int:
    """How deep lists and objects lie in one another; no further than DEEPEST is looked."""
    level, depth = [value], 0
    while depth <= DEEPEST:
        level = [list(each.values()) if isinstance(each, dict) else each for each in level]
        level = [inner for each in level if isinstance(each, list) for inner in each]
        if not level:
            break
        depth += 1
    return depth
