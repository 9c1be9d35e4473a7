"""Functions of the user as the source of one file, run as such by another interpreter."""

import functools
import json
import math
import re
import subprocess
import sys
import urllib.parse
import xml.etree.ElementTree
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from coderl_tasks.errors import ConfigError
from coderl_tasks.grading.reward_function import file_of
from coderl_tasks.grading.scoring import extract_code as code_of
from tests import conftest

NUMBER = re.compile(r"-?\d+", re.IGNORECASE)
TOLERANCE, UNITS = 1e-4, {"km": 1000, "m": 1}
handle = sys.stdout
Text = str


class Answer:
    def __init__(self, text: Text) -> None:
        self.value = Fraction(text)

    def is_near(self, other: "Answer") -> bool:
        return abs(self.value - other.value) < TOLERANCE


def is_even(number: int) -> bool:
    return number == 0 or is_odd(number - 1)


def is_odd(number: int) -> bool:
    return number != 0 and is_even(number - 1)


def grade(completion: str, ground_truth: Any, root: Callable[[float], float] = math.sqrt) -> float:
    found = [number for number in NUMBER.findall(completion) if is_even(int(number))]
    best = max(found, key=lambda text: Fraction(text) * UNITS["m"], default="0")
    urllib.parse.quote(xml.etree.ElementTree.fromstring("<a/>").tag)
    return root(float(np.mean([Answer(best).is_near(Answer(ground_truth))])))


def by_code(completion: str, ground_truth: str) -> float:
    return float(code_of(completion) == ground_truth)


@pytest.mark.parametrize(
    ("function", "completion", "truth", "reward"),
    [
        (grade, "it is 41, no: 42", "42", 1.0),
        (grade, "it is 41", "42", 0.0),
        (by_code, "```python\nprint(1)\n```", "print(1)", 1.0),
    ],
)
def test_a_function_says_the_same_in_a_file_of_its_own(
    function: Callable[..., float], completion: str, truth: str, reward: float
) -> None:
    source = file_of(function)
    call = f"{source}\nprint(compute_reward(*{(completion, truth)!r}))"
    # Isolated: nothing of this folder can be imported.
    done = subprocess.run([sys.executable, "-I", "-c", call], capture_output=True, text=True, cwd="/")
    assert (done.stdout, done.stderr) == (f"{reward}\n", "")
    assert function(completion, truth) == reward


def closure() -> Callable[..., float]:
    weight = 0.5

    def inner(completion: str, ground_truth: str) -> float:
        return weight

    return inner


def with_handle(completion: str, ground_truth: str) -> float:
    return float(handle.closed)


def with_own_module(completion: str, ground_truth: str) -> float:
    return float(bool(conftest.__doc__))


def with_undefined(completion: str, ground_truth: str) -> float:
    return float(undefined_name)  # type: ignore[name-defined] # noqa: F821


def one_argument(completion: str) -> float:
    return 1.0


async def waits(completion: str, ground_truth: str) -> float:
    return 1.0


def made_by_exec() -> Any:
    names: dict[str, Any] = {}
    exec("def compute_reward(completion, ground_truth): return 1.0", names)
    return names["compute_reward"]


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (closure(), "it uses weight of the function around it"),
        (json.JSONDecoder().raw_decode, "it is a method of a JSONDecoder"),
        (lambda completion, ground_truth: 1.0, "it is a lambda: define it with def"),
        (max, "it is a builtin_function_or_method"),
        (functools.partial(grade, root=abs), "it is a partial"),
        (made_by_exec(), "its source cannot be read"),
        (with_handle, "its global handle is a "),
        (with_own_module, "tests.conftest is not an installed package"),
        (with_undefined, "it uses undefined_name, which is not defined"),
        (one_argument, "has to take the arguments of compute_reward"),
        (waits, "must be a plain function"),
    ],
)
def test_what_cannot_be_sent_is_refused_in_a_line(function: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refusal:
        file_of(function)
    assert "\n" not in str(refusal.value)
