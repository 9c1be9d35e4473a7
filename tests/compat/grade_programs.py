"""Grades programs with the cookbook's own harness, on the sandbox that SANDBOX_URL names. Runs among its packages.

    python grade_programs.py CASES VERDICTS

CASES is a JSON list of [tests in LiveCodeBench's form, program]; VERDICTS gets a JSON list: passed or not.
"""

import asyncio
import json
import sys
from pathlib import Path

from tinker_cookbook.recipes.code_rl.code_grading import sandbox_check_correctness


async def passed(tests: list[dict[str, object]], program: str) -> bool:
    verdict, details = await sandbox_check_correctness(tests, program)
    if "error" in details:  # the harness calls a request that failed a wrong answer; it is none
        raise RuntimeError(f"the sandbox did not run a program: {details['error']}")
    return verdict


async def main() -> None:
    cases, verdicts = map(Path, sys.argv[1:])
    results = await asyncio.gather(*(passed(*case) for case in json.loads(cases.read_text())))
    verdicts.write_text(json.dumps(results))


asyncio.run(main())
