"""data/mini: counts, raw shapes, right solutions, and no combination on both sides."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from datasets import load_dataset

from coderl_tasks.paths import DATA, PROJECT_ROOT

SPLITS = {
    ("primeintellect", "train"): 300,
    ("taco", "train"): 200,
    ("lcbv5", "train"): 140,
    ("codeforces", "test"): 240,
    ("lcbv5", "test"): 180,
}


@pytest.fixture(scope="session")
def mini(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[Any]]:
    cache = str(tmp_path_factory.mktemp("datasets"))
    return {
        (config, split): list(load_dataset(str(DATA / "mini"), config, split=split, cache_dir=cache))
        for config, split in SPLITS
    }


def _tests(row: dict[str, Any]) -> list[tuple[Any, Any]]:
    tests = json.loads(row["tests"])
    if isinstance(tests, dict):
        return list(zip(tests["inputs"], tests["outputs"], strict=True))
    return [(test["input"], test["output"]) for test in tests]


def _metadata(row: dict[str, Any]) -> dict[str, Any]:
    return json.loads(row["metadata"]) if isinstance(row["metadata"], str) else row["metadata"]


def test_counts_and_numbers_of_tests(mini: dict) -> None:
    assert {key: len(rows) for key, rows in mini.items()} == SPLITS
    assert all(5 <= len(_tests(row)) <= 20 for rows in mini.values() for row in rows)
    statements = [row["problem"] + row.get("starter_code", "") + row["tests"] for rows in mini.values() for row in rows]
    assert len(set(statements)) == len(statements)


def test_no_combination_is_on_both_sides(mini: dict) -> None:
    sides: dict[str, set[str]] = {"train": set(), "test": set()}
    for (_, split), rows in mini.items():
        sides[split] |= {_metadata(row)["combination"] for row in rows}
    assert len(sides["train"]) > 300
    assert len(sides["test"]) > 200
    assert not sides["train"] & sides["test"]


def test_every_raw_shape_is_there(mini: dict) -> None:
    taco = [json.loads(row["tests"]) for row in mini["taco", "train"]]
    named = [tests for tests in taco if "fn_name" in tests]
    assert {type(tests["inputs"][0]) for tests in named} == {list, str}
    assert {type(tests["inputs"][0]) for tests in taco if "fn_name" not in tests} == {list, str}
    assert {type(tests["outputs"][0]) for tests in taco if "fn_name" not in tests} == {int, str}

    prime = [json.loads(row["tests"])[0] for row in mini["primeintellect", "train"]]
    assert {test["type"] for test in prime} == {"stdin_stdout", "function_call"}
    calls = [test for test in prime if test["type"] == "function_call"]
    assert {type(test["input"]) for test in calls} == {list, str}
    assert {"fn_name" in test for test in calls} == {True, False}

    for split in ("train", "test"):
        rows = mini["lcbv5", split]
        assert {json.loads(row["tests"])[0]["testtype"] for row in rows} == {"stdin", "functional"}
        functional = [row for row in rows if row["metadata"]["func_name"]]
        assert all(row["metadata"]["func_name"] in row["starter_code"] for row in functional)
        assert {row["starter_code"].startswith("class Solution:") for row in functional} == {True, False}
    assert set(json.loads(mini["codeforces", "test"][0]["tests"])[0]) == {"input", "output"}


def test_solutions_pass_as_programs_of_their_own(mini: dict) -> None:
    rows = mini["taco", "train"] + mini["primeintellect", "train"]
    stdin_rows = [row for row in rows if "func_name" not in row["metadata"] and "fn_name" not in row["tests"]]
    for row in random.Random(0).sample(stdin_rows, 12):
        given, expected = _tests(row)[0]
        text = "\n".join(given) if isinstance(given, list) else given
        ran = subprocess.run(
            [sys.executable, "-I", "-S", "-c", row["solutions"][0]], input=text, text=True, capture_output=True
        )
        assert ran.stdout.strip() == str(expected).strip(), row["problem"]


def test_functional_solutions_return_the_value(mini: dict) -> None:
    rows = [row for row in mini["taco", "train"] if "fn_name" in row["tests"]]
    assert len(rows) >= 8
    for row in rows[:8]:
        name = json.loads(row["tests"])["fn_name"]
        given, expected = _tests(row)[0]
        args = json.loads(given) if isinstance(given, str) else given
        value = json.loads(expected) if isinstance(expected, str) else expected
        target = f"Solution().{name}" if "class Solution" in row["solutions"][0] else name
        code = f"from typing import List\n{row['solutions'][0]}\nprint({target}(*{args!r}))"
        ran = subprocess.run([sys.executable, "-I", "-c", code], text=True, capture_output=True)
        assert ran.stdout.strip() == str(value), row["problem"]


def test_the_recipe_writes_the_bundled_bytes(tmp_path: Path) -> None:
    recipe = [sys.executable, "-m", "data.recipes.make_mini", str(tmp_path)]
    subprocess.run(recipe, cwd=PROJECT_ROOT, check=True, capture_output=True)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made.keys() >= {f"{name}.jsonl" for name in ("codeforces-test", "lcbv5-test", "lcbv5-train", "taco-train")}
    assert made == {name: (DATA / "mini" / name).read_bytes() for name in made}
