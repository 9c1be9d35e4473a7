"""What is read off reference solutions: whether 0, numbers below it, empty lists and other characters are like any."""

import pytest

from coderl_tasks.curation.treatment import treatment_of


def treats(code: str) -> str:
    """What a program's operations allow, in letters: plain numbers, zero, empty lists, any text."""
    found = treatment_of([code])
    allowed = (found.is_plain, found.takes_zero, found.takes_empty, found.takes_any_text)
    return "".join(letter for letter, is_allowed in zip("pzet", allowed, strict=True) if is_allowed)


@pytest.mark.parametrize(
    ("code", "allowed"),
    [
        ("def f(a: int, b: list[int]) -> list[int]:\n    return [a * x - 3 for x in b if x % 2 == 0]", "pzet"),
        ("def f(a, b):\n    return a >= b and abs(a) ** 2 > b / 5", "pzet"),
        ("def f(values):\n    return sorted(values)[:2] + values[::-1]", "pzet"),
        ("def f(values):\n    total = 0\n    for x in values:\n        total += x\n    return total", "pzet"),
        ("def f(values):\n    return [i for i in range(len(values)) if values[i]]", "pzet"),
        # What a number is to be divided by, or to the power of, and what is left of it.
        ("def f(a, b):\n    return a / b", "zet"),
        ("def f(a):\n    return a // 2", "zet"),
        ("def f(a):\n    return a % 10", "zet"),
        ("def f(a):\n    return a % 10 == 3", "zet"),
        ("def f(a):\n    return a % 10 == 0 or a % 2 == 1", "pzet"),
        ("def f(days):\n    return 4 ** days", "zet"),
        # Its digits, its bits, as often as it says, the element at it.
        ("def f(a):\n    return sum(int(x) for x in str(a))", ""),
        ("def f(a):\n    return a << 1", "et"),
        ("def f(a):\n    return sum(range(1, a + 1))", ""),
        ("def f(a):\n    while a > 9:\n        a -= 9\n    return a", ""),
        ("def f(a):\n    return a * f(a - 1) if a else 1", ""),
        ("def f(values, k):\n    return values[k:]", "t"),
        # The largest so far begins with 0.
        ("def f(values):\n    best = 0\n    for x in values:\n        best = max(best, x)\n    return best", "zt"),
        ("def f(text):\n    return [x for x in text if x in 'aeiou']", "pze"),
        ("def f(text):\n    return text.upper()", "pze"),
        ("import math\ndef f(a):\n    return math.sqrt(a)", ""),
        ("def f(a:", ""),
    ],
)  # fmt: skip
def test_plain_operations_take_values_that_no_given_input_shows(code: str, allowed: str) -> None:
    assert treats(code) == allowed


def test_all_references_decide_and_each_names_values() -> None:
    plain, other = "def f(a):\n    return a >= 50 or a == -1", "def f(a):\n    return str(a).isdigit() and a < 7"
    both = treatment_of([plain, other])
    assert treatment_of([plain]).is_plain and not both.is_plain and not treatment_of([]).is_plain
    assert both.compared == {50, -1, 7} and set("0123456789") == both.characters
    assert {50, 1, 7} <= set(both.constants)


def test_characters_are_those_that_a_reference_looks_for_and_not_its_messages() -> None:
    vowels = "def f(text):\n    return 'many vowels' if any(c in 'aeiou' for c in text) else text.count('y')"
    assert treatment_of([vowels]).characters == set("aeiouy")
    assert treatment_of(["def f(text):\n    return text == 'stop'"]).characters == set()
