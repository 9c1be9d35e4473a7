"""The cases of the score card: problems, answers, and whether an answer deserves its reward.

They stand in cases/*.toml. A file whose name begins with "attacks-" holds attacks, none of which deserves a reward. The
answers in the others are honest; those with `reward = false` are wrong. A case has a `program`, which becomes an answer
with one code block, or the whole `completion`.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

CASES = Path(__file__).parent / "cases"
KINDS = ("stdin", "call", "assert")
TIME_LIMIT_S, MEMORY_MB = 5.0, 1024
"""Of problems that name no other: CPU seconds per test, and MiB of memory."""


@dataclass(frozen=True)
class Case:
    """One answer to a problem (`problem`: the mapping of docs/scorecard.md); `deserves_reward` is the right verdict."""

    id: str
    category: str
    about: str
    problem: Mapping[str, Any]
    completion: str
    is_attack: bool
    deserves_reward: bool
    program: str | None = None  # None where `completion` is given whole

    @property
    def kind(self) -> str:
        return str(self.problem["kind"])

    @property
    def group(self) -> str:
        return self.id.partition("/")[0]


@cache
def corpus() -> tuple[Case, ...]:
    """All cases, attacks first, in the order of their files."""
    texts = (CASES / "problems.toml").read_text()
    shared = tomllib.loads(texts)
    names = sorted(path.name for path in CASES.glob("*.toml") if path.name != "problems.toml")
    return tuple(case for name in names for case in _cases(name, shared["problem"], shared["parts"]))


def _cases(name: str, problems: Mapping[str, Any], parts: Mapping[str, str]) -> Iterator[Case]:
    is_attack = name.startswith("attacks-")
    for row in tomllib.loads((CASES / name).read_text())["case"]:
        program = None
        if "program" in row:
            program = parts.get(row.get("before", ""), "") + row["program"].removesuffix("\n")
        problem = problems[row["problem"]]
        tests = problem.get("tests") or list(zip(problem["inputs"], row["expected"], strict=True))
        yield Case(
            id=row["id"],
            category=row["category"],
            about=row["about"],
            problem={  # as graders get it
                "kind": problem["kind"],
                "statement": problem["statement"],
                "starter_code": problem.get("starter_code", ""),
                "entry_point": problem.get("entry_point", ""),
                "tests": [{"input": given, "expected": expected} for given, expected in tests],
                "time_limit_s": row.get("time_limit_s", problem.get("time_limit_s", TIME_LIMIT_S)),
                "memory_mb": MEMORY_MB,
            },
            completion=row["completion"] if program is None else f"```python\n{program}\n```\n",
            is_attack=is_attack,
            deserves_reward=not is_attack and row.get("reward", True),
            program=program,
        )
