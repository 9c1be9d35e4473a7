"""What the driver knows of the prelude without loading it, and what programs find of it."""

import ast
import importlib

import pytest

from coderl_tasks.grading import Judge
from coderl_tasks.paths import GRADING_DRIVER
from tests.grading.programs import stdin_problem


def constants() -> dict[str, object]:
    """The driver's constants that are made of literals: it runs when it is imported."""
    space: dict[str, object] = {}
    for statement in ast.parse(GRADING_DRIVER.read_text()).body:
        if isinstance(statement, ast.Assign) and {"STAR_IMPORTED", "IMPORTED", "RARELY_USED"} & {
            ast.unparse(target) for target in statement.targets
        }:
            exec(compile(ast.Module([statement], []), "driver.py", "exec"), space)
    return space


@pytest.mark.parametrize("name", ["datetime", "random", "statistics"])
def test_every_name_of_a_rarely_used_module_is_known(name: str) -> None:
    known = constants()
    rarely_used, imported = known["RARELY_USED"], known["IMPORTED"]
    assert isinstance(rarely_used, dict) and isinstance(imported, list)
    assert set(importlib.import_module(name).__all__) - {"datetime_CAPI"} <= {*rarely_used[name], *imported}


async def test_programs_find_the_prelude_whether_it_was_loaded_or_not(judge: Judge) -> None:
    code = (
        "print(randint(3, 3), median([1, 5, 9]), timedelta(days=2).days, gcd(4, 6), len(datetime.__name__), sep='\\n')"
    )
    grade = await judge.grade(stdin_problem(("", "3\n5\n2\n2\n8\n")), code)
    assert grade.passed, grade.reason


async def test_recursion_through_c_code_has_room(judge: Judge) -> None:
    code = (
        "from functools import lru_cache\n"
        "@lru_cache(None)\n"
        "def depth(n):\n"
        "    return 0 if n == 0 else 1 + depth(n - 1)\n"
        "print(depth(100_000))\n"
    )
    grade = await judge.grade(stdin_problem(("", "100000\n")), code)
    assert grade.passed, grade.reason
