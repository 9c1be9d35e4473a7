"""What the cookbook's code_rl tells a policy of its program, and how it rewards it, on the sandbox that SANDBOX_URL
names. Runs among its packages.

    python tool_and_reward.py CASES ANSWERS

CASES is a JSON list of [tests in LiveCodeBench's form, program]; ANSWERS gets a list of [result of its tool, reward].
"""

import asyncio
import json
import sys
from pathlib import Path

from tinker_cookbook.recipes.code_rl.deepcoder_tool import DeepcoderReward, DeepcoderTask, DeepcoderTool
from tinker_cookbook.tool_use.types import ToolInput


async def told(tests: list[dict[str, object]], program: str) -> tuple[str, float]:
    task = DeepcoderTask("", tests)
    result = await DeepcoderTool(task).check_solution.run(ToolInput({"code": program}))
    answer = {"role": "assistant", "content": f"```python\n{program}\n```"}
    reward, _ = await DeepcoderReward(task)([answer])
    return str(result.messages[0]["content"]), reward


async def main() -> None:
    cases, answers = map(Path, sys.argv[1:])
    results = await asyncio.gather(*(told(*case) for case in json.loads(cases.read_text())))
    answers.write_text(json.dumps(results))


asyncio.run(main())
