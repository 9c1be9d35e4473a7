"""Writes a data set of DeepCoder's size and shapes, with planted faults, and a record of what was planted.

24,287 train rows and 687 test rows, 7.8 GB at scale 1: lognormal sizes, a few rows of 200 MB, every raw shape, parquet
with row groups small and large, JSON lines. Statements are made-up words and the boilerplate that contest sites share.
Clean rows include hard negatives: variants of other problems that differ in one sentence and in all tests, and rows
that quote a quarter of an evaluation problem. Everything follows from the scale.

`planted.json`: a list of {split, row, fault, stage, reasons, names}; the drop's detail has to contain `names`.
"""

import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

MB = 1_000_000
TRAIN_ROWS = {"primeintellect": 16_300, "taco": 7_400, "lcbv5": 587}
TRAIN_BYTES = {"primeintellect": 1_650 * MB, "taco": 750 * MB, "lcbv5": 2_700 * MB}
TEST_ROWS = {"codeforces": 408, "lcbv5": 279}
TEST_BYTES = {"codeforces": 2 * MB, "lcbv5": 1_900 * MB}
HUGE_ROWS = 4
HUGE_BYTES = 200 * MB
GROUP_BYTES = {"primeintellect": 20 * MB, "lcbv5": 400 * MB, "codeforces": MB}
FILE_BYTES = 400 * MB

BOILERPLATE = (
    "The first line of the input contains a single integer t , the number of test cases . The description of the test "
    "cases follows .",
    "It is guaranteed that the sum of n over all test cases does not exceed 200000 .",
    "If there are multiple possible answers , print any of them . It can be shown that an answer always exists .",
    "Each test case consists of a single line containing two space separated integers n and k .",
    "For each test case , output a single integer on a line of its own , the answer to the problem modulo 998244353 .",
    "The second line of each test case contains n integers , the elements of the array , separated by single spaces .",
    "Note that the numbers may be large , so you may need to use sixty four bit integers to store the result .",
    "You may assume that each input would have exactly one solution , and you may not use the same element twice .",
)


@dataclass(frozen=True)
class Content:
    """A problem before it has a raw shape. `tests` are (input, output) text; for a function, JSON arguments by line."""

    statement: str
    tests: tuple[tuple[str, str], ...]
    function: str = ""


@dataclass(frozen=True)
class Planted:
    """A row with a fault, and how it has to be found."""

    split: str
    row: int
    fault: str
    stage: str
    reasons: tuple[str, ...]
    names: str = ""


Row = dict[str, Any] | str
Damage = Callable[[dict[str, Any], random.Random], Row]


# text


@lru_cache
def vocabulary() -> list[str]:
    rng = random.Random("words")
    syllables = [a + b for a in "bcdfglmnprstv" for b in ("a", "e", "i", "o", "u", "an", "er", "in", "or")]
    return sorted({"".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(9000)})


@lru_cache
def word_weights() -> list[float]:
    total, weights = 0.0, []
    for rank in range(len(vocabulary())):
        total += 1 / (rank + 20)
        weights.append(total)
    return weights


def sentence(rng: random.Random) -> str:
    words = rng.choices(vocabulary(), cum_weights=word_weights(), k=rng.randint(8, 20))
    return " ".join([words[0].capitalize(), *words[1:]]) + " ."


def sentences(rng: random.Random) -> list[str]:
    """A statement's sentences: its own, with boilerplate between them."""
    parts = [sentence(rng) for _ in range(rng.randint(10, 26))]
    for text in rng.sample(BOILERPLATE, rng.randint(2, 5)):
        parts.insert(rng.randint(1, len(parts)), text)
    return parts


def edited(text: str, share: float, rng: random.Random) -> str:
    """`text` with so many of its words replaced, spread over the whole."""
    words = text.split(" ")
    step = round(1 / share)
    for place in range(rng.randrange(step), len(words), step):
        words[place] = rng.choice(vocabulary())
    return " ".join(words)


@lru_cache
def numbers_text() -> str:
    rng = random.Random("numbers")
    return "".join(
        " ".join(str(rng.randint(-(10**6), 10**6)) for _ in range(rng.randint(2, 12))) + "\n" for _ in range(80_000)
    )


def numbers(rng: random.Random, size: int) -> str:
    """About `size` characters of lines of integers."""
    text = numbers_text()
    whole, rest = divmod(size, len(text))
    start = rng.randrange(len(text) - rest) if rest else 0
    part = text[start : start + rest]
    return text * whole + part[part.find("\n") + 1 :].rpartition("\n")[0]


def content(key: str, size: int, *, function: bool = False) -> Content:
    """The problem of `key`, whose tests take about `size` characters."""
    rng = random.Random(key)
    statement = "\n".join(sentences(rng))
    count = rng.randint(8, 40)
    tests = []
    for number in range(count):
        body = numbers(rng, max(4, size // count))
        head = rng.randrange(10**9)
        if function:
            body = json.dumps([int(part) for part in body.split()[:40_000]])
            tests.append((f"{body}\n{head * 64 + number}", str(rng.randrange(10**9))))
        else:
            tests.append((f"{head * 64 + number}\n{body}\n", f"{rng.randrange(10**9)}\n"))
    return Content(statement, tuple(tests), "solve" if function else "")


# raw shapes


def primeintellect(problem: Content, rng: random.Random) -> dict[str, Any]:
    kind = "function_call" if problem.function else "stdin_stdout"
    tests = [
        {"type": kind, "input": _arguments(given) if problem.function else given, "output": wanted}
        | ({"fn_name": problem.function} if problem.function else {})
        for given, wanted in problem.tests
    ]
    return {"problem": problem.statement, "tests": json.dumps(tests), "metadata": "{}", "solutions": ["pass"]}


def taco(problem: Content, rng: random.Random) -> dict[str, Any]:
    native = rng.random() < 0.5
    tests: dict[str, Any] = {
        "inputs": [json.loads(_arguments(given)) if problem.function else given for given, _ in problem.tests],
        "outputs": [json.loads(wanted) if problem.function else wanted for _, wanted in problem.tests],
    }
    if problem.function:
        tests["fn_name"] = problem.function
    row = {"problem": problem.statement, "tests": tests if native else json.dumps(tests)}
    return row | {"metadata": {"n": 1} if native else '{"n": 1}', "solutions": ["pass"]}


def lcbv5(problem: Content, rng: random.Random) -> dict[str, Any]:
    kind = "functional" if problem.function else "stdin"
    tests = [{"input": given, "output": wanted, "testtype": kind} for given, wanted in problem.tests]
    metadata = json.dumps({"func_name": problem.function or None})
    starter = f"def {problem.function}(a, b):\n    " if problem.function else ""
    return {
        "problem": problem.statement, "tests": json.dumps(tests), "starter_code": starter, "metadata": metadata
    }  # fmt: skip


def codeforces(problem: Content, rng: random.Random) -> dict[str, Any]:
    tests = [{"input": given, "output": wanted} for given, wanted in problem.tests]
    return {"problem": problem.statement, "tests": json.dumps(tests), "metadata": "{}"}


SHAPES = {"primeintellect": primeintellect, "taco": taco, "lcbv5": lcbv5, "codeforces": codeforces}


def _arguments(lines: str) -> str:
    return "[" + ", ".join(lines.split("\n")) + "]"


# damages: what a row of a split becomes


def _tests_of(row: dict[str, Any]) -> Any:
    return json.loads(row["tests"]) if isinstance(row["tests"], str) else row["tests"]


def _as_list(row: dict[str, Any]) -> list[dict[str, Any]]:
    tests = _tests_of(row)
    if isinstance(tests, dict):
        return [{"input": a, "output": b} for a, b in zip(tests["inputs"], tests["outputs"], strict=True)]
    return list(tests)


def _with_list(change: Callable[[list[dict[str, Any]]], Any]) -> Damage:
    """Replace the tests by what `change` makes of them as a list."""
    return lambda row, rng: row | {"tests": json.dumps(change(_as_list(row)))}


def _same_input(tests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [*tests, tests[0] | {"output": "-7 and no other\n"}]


def _mixed(tests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    call = {"input": "1", "output": "1", "type": "function_call", "fn_name": "solve"}
    return [*(test | {"type": "stdin_stdout"} for test in tests), call]


def _unequal(tests: list[dict[str, Any]]) -> dict[str, Any]:
    return {"inputs": [test["input"] for test in tests], "outputs": [test["output"] for test in tests[1:]]}


DAMAGES: dict[str, tuple[int, str, str, Damage]] = {
    "tests cut off": (30, "parse", "tests_not_json", lambda row, rng: row | {"tests": json.dumps(_tests_of(row))[:-9]}),
    "no tests": (20, "parse", "no_tests", lambda row, rng: row | {"tests": "[]"}),
    "fewer outputs than inputs": (20, "parse", "unequal_inputs_outputs", _with_list(_unequal)),
    "a test without output": (
        20, "parse", "unknown_test_shape", _with_list(lambda tests: [*tests, {"input": "1\n"}])
    ),
    "an unknown type of test": (
        20, "parse", "unknown_test_type", _with_list(lambda tests: [test | {"testtype": "video"} for test in tests])
    ),
    "two kinds of tests": (20, "parse", "mixed_test_kinds", _with_list(_mixed)),
    "a function without name": (
        20, "parse", "no_entry_point",
        _with_list(lambda tests: [{"input": "1", "output": "1", "type": "function_call"} for _ in tests]),
    ),
    "a bad function name": (
        20, "parse", "bad_entry_point",
        _with_list(lambda tests: [{"input": "1", "output": "1", "fn_name": "a b"} for _ in tests]),
    ),
    "arguments that are not JSON": (
        20, "parse", "call_input_not_json",
        _with_list(lambda tests: [{"input": "[1, oops", "output": "1", "fn_name": "f"} for _ in tests]),
    ),
    "an empty statement": (30, "parse", "no_statement", lambda row, rng: row | {"problem": " \n"}),
    "an endless statement": (
        10, "sanity", "statement_too_long", lambda row, rng: row | {"problem": "\n".join([row["problem"]] * 60)}
    ),
    "too few tests": (40, "sanity", "too_few_tests", _with_list(lambda tests: tests[:3])),
    "one test five times": (20, "sanity", "too_few_tests", _with_list(lambda tests: tests[:1] * 5)),
    "nothing expected": (
        20, "sanity", "no_expected_output", _with_list(lambda tests: [test | {"output": "\n"} for test in tests])
    ),
    "one input, two answers": (30, "sanity", "contradictory_tests", _with_list(_same_input)),
}  # fmt: skip
"""Fault: rows at scale 1, stage, reason, and what is done to a stdin row."""

LINE_DAMAGES: dict[str, tuple[int, str, str, Callable[[str], str]]] = {
    "a line cut off": (30, "parse", "row_not_object", lambda line: line[: len(line) // 2]),
    "a line of another kind": (10, "parse", "row_not_object", lambda line: "[1, 2, 3]"),
    "half a character": (
        10, "parse", "not_utf8", lambda line: line.replace('"problem": "', '"problem": "\\ud83d ', 1)
    ),
}  # fmt: skip
"""The same for lines of a JSON-lines file."""

COPIES: dict[str, tuple[int, str, tuple[str, ...]]] = {
    "an exact copy": (100, "dedup", ("same_identity",)),
    "a copy with other white space": (60, "dedup", ("same_identity",)),
    "an edited copy with its tests": (100, "dedup", ("near_duplicate",)),
    "a copy with other tests": (60, "dedup", ("near_duplicate",)),
    "an evaluation problem": (60, "decontaminate", ("ngram_overlap", "near_duplicate_statement")),
    "an evaluation problem, edited": (60, "decontaminate", ("ngram_overlap", "near_duplicate_statement")),
    "an evaluation problem in a longer text": (40, "decontaminate", ("ngram_overlap",)),
    "an evaluation problem, rewritten, with its tests": (
        40, "decontaminate", ("ngram_overlap", "near_duplicate_statement")
    ),
}  # fmt: skip
"""Fault: rows at scale 1, stage, and reasons that name it."""
VARIANT, QUOTE = "variant", "quote"
HARD_NEGATIVES = {VARIANT: 400, QUOTE: 200}


# the data set


class Generator:
    """Writes the data set to `folder`."""

    def __init__(self, folder: Path, scale: float) -> None:
        self.folder = folder
        self.scale = scale
        self.planted: list[Planted] = []
        self.train_rows = {split: max(40, round(rows * scale)) for split, rows in TRAIN_ROWS.items()}
        self.test_rows = {split: max(12, round(rows * scale)) for split, rows in TEST_ROWS.items()}
        self.train_sizes = _sizes("train", self.train_rows, TRAIN_BYTES, scale)
        self.test_sizes = _sizes("test", self.test_rows, TEST_BYTES, scale)
        for number in range(HUGE_ROWS):  # spread over the split, the first two side by side
            place = (number if number < 2 else number * 7) % self.train_rows["lcbv5"]
            self.train_sizes["lcbv5"][place] = round(HUGE_BYTES * min(1.0, 2 * scale))
        self.roles = self._roles()
        self._copied = {
            split: [row for row in range(rows // 2) if row % 9 != 4 and self.train_sizes[split][row] < MB]
            for split, rows in self.train_rows.items()
        }
        rng = random.Random("evaluation")
        codeforces = rng.sample(range(self.test_rows["codeforces"]), self.test_rows["codeforces"])
        by_size = sorted(range(self.test_rows["lcbv5"]), key=lambda row: self.test_sizes["lcbv5"][row])
        small = by_size[: len(by_size) // 2]
        rng.shuffle(small)
        self._evaluation_places = [("codeforces", row) for row in codeforces] + [("lcbv5", row) for row in small]
        rng.shuffle(self._evaluation_places)

    def write(self) -> None:
        (self.folder / "README.md").write_text(CARD)
        self._write("primeintellect/train-*.parquet", "primeintellect", self._train_rows_of("primeintellect"))
        self._write("taco/train.jsonl", "taco", self._train_rows_of("taco"))
        self._write("lcbv5/train-*.parquet", "lcbv5", self._train_rows_of("lcbv5"))
        self._write("codeforces/test-*.parquet", "codeforces", self._test_rows_of("codeforces"))
        self._write("lcbv5/test.jsonl", "lcbv5", self._test_rows_of("lcbv5"))
        text = json.dumps([asdict(planted) for planted in self.planted], indent=1)
        (self.folder / "planted.json").write_text(text)

    def _roles(self) -> dict[str, dict[int, str]]:
        """What each row that is not clean is, by split and row."""
        rng = random.Random("roles")
        rows_of = {name: about[0] for faults in (DAMAGES, COPIES) for name, about in faults.items()} | HARD_NEGATIVES
        wanted = [name for name, rows in rows_of.items() for _ in range(max(1, round(rows * self.scale)))]
        roles: dict[str, dict[int, str]] = {split: {} for split in self.train_rows}
        # The second half of a split: what they copy stands before them.
        lines = [name for name, about in LINE_DAMAGES.items() for _ in range(max(1, round(about[0] * self.scale)))]
        free = [
            (split, row)
            for split, rows in self.train_rows.items()
            for row in range(rows // 2, rows)
            if split != "lcbv5" or self.train_sizes[split][row] < HUGE_BYTES * min(1.0, 2 * self.scale) / 2
        ]
        for name in lines:
            place = rng.choice([place for place in free if place[0] == "taco"])
            free.remove(place)
            roles["taco"][place[1]] = name
        for name, (split, row) in zip(wanted, rng.sample(free, len(wanted)), strict=True):
            roles[split][row] = name
        return roles

    def _original(self, split: str, row: int) -> Content:
        size = self.train_sizes[split][row]
        return content(f"train {split} {row}", size, function=row % 9 == 4 and row < self.train_rows[split] // 2)

    def _evaluation(self, split: str, row: int) -> Content:
        return content(f"test {split} {row}", self.test_sizes[split][row], function=split == "lcbv5" and row % 5 == 4)

    def _test_rows_of(self, split: str) -> Iterator[Row]:
        for row in range(self.test_rows[split]):
            yield SHAPES[split](self._evaluation(split, row), random.Random(f"{split} {row}"))

    def _train_rows_of(self, split: str) -> Iterator[Row]:
        for row in range(self.train_rows[split]):
            rng = random.Random(f"shape {split} {row}")
            role = self.roles[split].get(row)
            problem = self._original(split, row)
            if role in COPIES or role in HARD_NEGATIVES:
                problem = self._copy(split, row, role, problem, rng)
            whole = SHAPES[split](problem, rng)
            raw: Row = whole
            if role in DAMAGES:
                _, stage, reason, damage = DAMAGES[role]
                raw = damage(whole, rng)
                self.planted.append(Planted(split, row, role, stage, (reason,)))
            elif role in LINE_DAMAGES:
                _, stage, reason, damage_line = LINE_DAMAGES[role]
                raw = damage_line(json.dumps(raw))
                self.planted.append(Planted(split, row, role, stage, (reason,)))
            yield raw

    def _copy(self, split: str, row: int, role: str, own: Content, rng: random.Random) -> Content:
        """The problem of a row that repeats another one, or nearly; hard negatives are not recorded as planted."""
        if role == QUOTE:
            other_split = rng.choice(list(self.test_rows))
            return MAKE[role](self._evaluation(other_split, rng.randrange(self.test_rows[other_split])), own, rng)
        if role != VARIANT and COPIES[role][1] == "decontaminate":
            other_split, other_row = self._evaluation_places.pop()
            other, name = self._evaluation(other_split, other_row), f"row {other_row} of {other_split} test"
        else:
            other_split = "primeintellect" if split == "primeintellect" else rng.choice(["primeintellect", "taco"])
            other_row = rng.choice(self._copied[other_split])
            other, name = self._original(other_split, other_row), f"row {other_row} of {other_split}"
        if role != VARIANT:
            _, stage, reasons = COPIES[role]
            self.planted.append(Planted(split, row, role, stage, reasons, name))
        return MAKE[role](other, own, rng)

    def _write(self, pattern: str, split: str, rows: Iterator[Row]) -> None:
        if pattern.endswith(".jsonl"):
            path = self.folder / pattern
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("w", encoding="utf-8") as file:
                file.writelines((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
            return
        for number, groups in enumerate(_files(rows, GROUP_BYTES[split])):
            path = self.folder / pattern.replace("*", f"{number:05d}")
            path.parent.mkdir(parents=True, exist_ok=True)
            writer: pq.ParquetWriter | None = None
            for group in groups:
                table = pa.Table.from_pylist(group)
                writer = writer or pq.ParquetWriter(path, table.schema, compression="snappy")
                writer.write_table(table, row_group_size=len(group))
            if writer is not None:
                writer.close()


def _files(rows: Iterator[Row], group_bytes: int) -> Iterator[Iterator[list[Row]]]:
    """Rows in groups of about `group_bytes`, the groups in files of about FILE_BYTES."""
    groups = _groups(rows, group_bytes)
    for first in groups:
        yield chain([first], islice(groups, max(0, FILE_BYTES // group_bytes - 1)))


def _groups(rows: Iterator[Row], group_bytes: int) -> Iterator[list[Row]]:
    group: list[Row] = []
    size = 0
    for row in rows:
        group.append(row)
        size += len(row["tests"])  # type: ignore[index]
        if size >= group_bytes:
            yield group
            group, size = [], 0
    if group:
        yield group


def _sizes(side: str, rows: dict[str, int], total: dict[str, int], scale: float) -> dict[str, list[int]]:
    """Bytes of each row's tests by split: lognormal, adding up to the split's share of `total`."""
    sizes = {}
    for split, count in rows.items():
        rng = random.Random(f"sizes {side} {split}")
        weights = [math.exp(rng.gauss(0, 1.2)) for _ in range(count)]
        sizes[split] = [round(total[split] * scale * weight / sum(weights)) for weight in weights]
    return sizes


def _with_lines_replaced(other: Content, own: Content, rng: random.Random) -> Content:
    lines = other.statement.split("\n")
    lines[rng.randrange(len(lines))] = sentence(rng)
    return Content("\n".join(lines), own.tests)


def _quoting(other: Content, own: Content, rng: random.Random) -> Content:
    lines = other.statement.split("\n")
    return Content("\n".join([own.statement, *lines[: len(lines) // 4]]), own.tests)


def _with_spaces(other: Content, own: Content, rng: random.Random) -> Content:
    tests = tuple((f"{given}\n", f"{wanted} \n") for given, wanted in other.tests)
    return Content(other.statement.replace("\n", " \n\n  "), tests)


MAKE: dict[str, Callable[[Content, Content, random.Random], Content]] = {
    "an exact copy": lambda other, own, rng: other,
    "a copy with other white space": _with_spaces,
    "an edited copy with its tests": lambda other, own, rng: Content(
        edited(other.statement, 0.02, rng), other.tests[: math.ceil(0.7 * len(other.tests))]
    ),
    "a copy with other tests": lambda other, own, rng: Content(other.statement, own.tests),
    "an evaluation problem": lambda other, own, rng: Content(other.statement, own.tests),
    "an evaluation problem, edited": lambda other, own, rng: Content(edited(other.statement, 0.03, rng), own.tests),
    "an evaluation problem in a longer text": lambda other, own, rng: Content(
        f"{own.statement}\n{other.statement}\n{sentence(rng)}", own.tests
    ),
    "an evaluation problem, rewritten, with its tests": lambda other, own, rng: replace(
        other, statement=edited(other.statement, 0.04, rng)
    ),
    VARIANT: _with_lines_replaced,
    QUOTE: _quoting,
}

CARD = """---
configs:
- config_name: primeintellect
  data_files:
  - {split: train, path: primeintellect/train-*.parquet}
- config_name: taco
  data_files:
  - {split: train, path: taco/train.jsonl}
- config_name: lcbv5
  data_files:
  - {split: train, path: lcbv5/train-*.parquet}
  - {split: test, path: lcbv5/test.jsonl}
- config_name: codeforces
  data_files:
  - {split: test, path: codeforces/test-*.parquet}
---
"""


def generate(folder: Path, scale: float) -> None:
    """Write the data set to `folder`, which must not exist."""
    folder.mkdir(parents=True)
    Generator(folder, scale).write()
