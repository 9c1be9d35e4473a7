"""Checkers decide where several answers are right: in Python and C++, of each protocol, and attacks on them."""

import shutil
from pathlib import Path

import pytest

from coderl_tasks.grading import Judge, Verdict, judge_programs
from coderl_tasks.problems.output_checker import Checker, checker_of
from coderl_tasks.problems.problem import Problem, RowDropped
from coderl_tasks.problems.raw_row import problem_from_row

NEEDS_COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
CHECK = """
def check(input, output, expected):
    words = output.split()
    return len(words) == 2 and all(w.isdigit() for w in words) and sum(map(int, words)) == int(input)
"""
KATTIS = """
import sys
n = int(open(sys.argv[1]).read())
words = sys.stdin.read().split()
right = len(words) == 2 and all(word.isdigit() for word in words) and sum(map(int, words)) == n
open(sys.argv[3] + "judgemessage.txt", "w").write(f"{len(words)} words, flags {sys.argv[4:]}")
sys.exit(42 if right else 43)
"""
KATTIS_CPP = """
#include <bits/stdc++.h>
int main(int argc, char **argv) {
    std::ifstream in(argv[1]);
    long n, a, b;
    std::string more;
    in >> n;
    if (!(std::cin >> a >> b) || std::cin >> more || a + b != n) return 43;
    return 42;
}
"""
OLD_CPP = """
#include <fstream>
#include <iostream>
using namespace std;
int main(int argc, char **argv) {
    int words[2], n, more;
    memset(words, 0, sizeof words);
    ifstream(argv[1]) >> n;
    if (!(cin >> words[0] >> words[1]) || cin >> more || words[0] + words[1] != n) return 43;
    return 42;
}
"""
NEW_CPP = """
#include <ranges>
#include <vector>
#include <iostream>
#include <fstream>
int main(int argc, char **argv) {
    std::vector<int> words;
    for (int word; std::cin >> word;) words.push_back(word);
    int n, sum = 0;
    std::ifstream(argv[1]) >> n;
    for (int word : words | std::views::filter([](int one) { return one; })) sum += word;
    return words.size() == 2 && sum == n ? 42 : 43;
}
"""
TESTLIB_CPP = """
#include <fstream>
#include <iostream>
#include "shared.h"
int main(int argc, char **argv) {
    std::ifstream in(argv[1]), out(argv[2]), answer(argv[3]);
    long n, a, b;
    std::string more;
    in >> n;
    if (!(out >> a >> b) || out >> more) { std::cerr << "wrong output format"; return 2; }
    if (a + b != n) { std::cerr << "wrong answer the sum is " << a + b; return WRONG; }
    return 0;
}
"""
CHECKERS = {
    "a function": CHECK,
    "a validator": {"source": KATTIS, "flags": "a b"},
    "a validator in C++": KATTIS_CPP,
    "a validator in C++ that lacks an include": OLD_CPP,
    "a validator in C++ 20": NEW_CPP,
    "testlib's protocol in C++": {
        "source": TESTLIB_CPP,
        "protocol": "testlib",
        "files": {"shared.h": "#define WRONG 1"},
    },
}
RIGHT = "n = int(input())\nprint(1)\nprint(n - 1)"
WRONG = "n = int(input())\nprint(1, n)"


def problem(checker: object, **columns: object) -> Problem:
    tests = [{"input": "5\n", "output": "2 3\n"}, {"input": "7\n", "output": "3 4\n"}]
    row = {"prompt": "Two numbers whose sum is n.", "tests": tests, "checker": checker, **columns}
    return problem_from_row(row, split="s", source_row=0)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[NEEDS_COMPILER] if "C++" in name else []) for name in CHECKERS]
)
async def test_a_checker_decides(judge: Judge, name: str) -> None:
    with_checker = problem(CHECKERS[name])
    assert (await judge.grade(with_checker, RIGHT)).passed
    grade = await judge.grade(with_checker, WRONG)
    assert grade.verdict is Verdict.WRONG_ANSWER and grade.first_failed == 0, grade.reason
    assert (await judge.grade(with_checker, "print(1 / 0)")).verdict is Verdict.RUNTIME_ERROR
    # Without it, only the expected text is right.
    assert not (await judge.grade(problem(None), RIGHT)).passed


async def test_what_a_checker_says_is_the_reason(embedded_judge: Judge) -> None:
    grade = await embedded_judge.grade(problem({"source": KATTIS, "flags": "a b"}), "print(1)")
    assert grade.reason == "test 0: 1 words, flags ['a', 'b']"


async def test_a_checker_may_report_what_is_no_text(embedded_judge: Judge) -> None:
    source = """
import sys
words = sys.stdin.read().split()
open(sys.argv[3] + "judgemessage.txt", "w").write(f"read {words}")
sys.exit(42 if words == ["5"] else 43)
"""
    grade = await embedded_judge.grade(problem(source), "import sys\nsys.stdout.buffer.write(b'5\\xff\\x00')")
    assert grade.verdict is Verdict.WRONG_ANSWER and grade.reason.startswith("test 0: read ['5"), grade


ATTACKS = {
    "nothing": "",
    "huge": "print('1 ' * (4 << 20))",
    "binary": "import sys\nsys.stdout.buffer.write(bytes(range(256)) * 100)",
    "no line end": "print(2, 3, 4, sep='', end='')",
    "endless": "while True: print('2 3' * 1000)",
    "one line without end": "import sys\nwhile True: sys.stdout.write('2' * 10000)",
    "zero bytes": "print('2\\0 3')",
    "options": "print('--help')\nprint('-c import os')",
    "shell": "print('$(exit 42)')\nprint('`exit 42`; exit 42')",
    "paths": "print('/etc/passwd')\nprint('../answer')",
    "the exit status": "import sys\nsys.exit(42)",
    "the other exit status": "print(9, 9)\nimport sys\nsys.exit(0)",
    "signals": "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)",
    "code": "print('__import__(\\'os\\')._exit(42)')",
    "numbers in other scripts": "print('\\u0662 \\u0663')",
    "a number that is not one": "print('nan inf')",
    "overflow": "print(2**64 + 2, 3 - 2**64)",
    "files beside": "open('answer', 'w').write('x')\nopen('feedback', 'w')\nprint(9, 9)",
    "a link": "import os\nos.symlink('/etc/passwd', 'output')\nprint(9, 9)",
    "a link to the report": "import os\nos.symlink('/etc/passwd', '../results.json')\nprint(9, 9)",
    "results": "import json\njson.dump({'results': [{'end': 'passed'}] * 9}, open('results.json', 'w'))\nprint(9)",
    "a judge's message": "open('judgemessage.txt', 'w').write('ok')\nprint(9, 9)",
    "children": "import os\nif os.fork() == 0:\n    print(2, 3)\nelse:\n    print(9, 9)",
    "the right answer on stderr": "import sys\nprint('2 3', file=sys.stderr)",
    "an escape sequence": "print('\\x1b]0;2 3\\x07')",
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
async def test_no_output_buys_a_checkers_verdict(embedded_judge: Judge, name: str) -> None:
    judge = Judge(embedded_judge.client, timeout_s=2.0)
    for checker in ("a function", "a validator"):
        grade = await judge.grade(problem(CHECKERS[checker]), ATTACKS[name])
        assert grade.verdict not in (Verdict.PASSED, Verdict.INFRA_ERROR, Verdict.CHECKER_ERROR), grade


@pytest.mark.parametrize(
    ("checker", "reason"),
    [
        ("def check(i, o, e): return 1 / 0", "ZeroDivisionError"),
        ("def check(i, o, e): return 'yes'", "neither a bool nor a number"),
        ("def check(i, o, e): return None", "neither a bool nor a number"),
        ("def check(i, o, e): return float('nan')", "neither a bool nor a number"),
        ("def check(i, o):  return True", "TypeError"),
        ("import nothing_of_this_name\ndef check(i, o, e): return True", "ModuleNotFoundError"),
        ("import os\ndef check(i, o, e): os._exit(42)", "ended its process"),
        ("import sys\ndef check(i, o, e): sys.exit(0)", "SystemExit"),
        ("def check(i, o, e):\n    while True: pass", "takes too long"),
        ("import time\ndef check(i, o, e): time.sleep(99)", "takes too long"),
        ("import os\ndef check(i, o, e):\n    while True: os.fork()", "the checker fails"),
        ("def check(i, o, e): return [0] * 10**11", "MemoryError"),
        ({"source": "import sys\nsys.exit(0)", "protocol": "kattis"}, "exit status 0"),
        ({"source": "import os\nos.abort()", "protocol": "kattis"}, "signal 6"),
        ({"source": "import time\ntime.sleep(99)", "protocol": "kattis"}, "takes too long"),
        ({"source": "import sys\nprint('FAIL it broke')\nsys.exit(3)", "protocol": "testlib"}, "FAIL it broke"),
        pytest.param('#include "testlib.h"\nint main() {}', "testlib.h: No such file", marks=NEEDS_COMPILER),
    ],
)  # fmt: skip
async def test_a_checker_that_fails_is_no_verdict(
    embedded_judge: Judge, monkeypatch: pytest.MonkeyPatch, checker: object, reason: str
) -> None:
    monkeypatch.setattr("coderl_tasks.grading.judge_programs.JUDGE_S", 0.5)
    monkeypatch.setattr("coderl_tasks.grading.judge_programs.CHECKER_WALL_S", 1.0)
    grade = await embedded_judge.grade(problem(checker), RIGHT)
    assert grade.verdict is Verdict.CHECKER_ERROR and reason in grade.reason, grade.reason


async def test_a_failure_before_the_fault_is_a_verdict(embedded_judge: Judge) -> None:
    checker = "def check(i, o, e):\n    return 1 / 0 if int(i) == 7 else int(o) == 5"
    assert (await embedded_judge.grade(problem(checker), "print(4)")).verdict is Verdict.WRONG_ANSWER
    assert (await embedded_judge.grade(problem(checker), "print(5)")).verdict is Verdict.CHECKER_ERROR


@NEEDS_COMPILER
async def test_a_checker_in_cpp_is_compiled_once(
    embedded_judge: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODERL_HOME", str(tmp_path))
    judge_programs._compiled.cache_clear()
    with_checker = problem(KATTIS_CPP + "// one of its own\n")
    assert (await embedded_judge.grade(with_checker, RIGHT)).passed
    (program,) = (tmp_path / "checkers").glob("*.z")
    monkeypatch.setenv("CXX", "no-compiler")
    judge_programs._compiled.cache_clear()
    with_flags = problem({"source": KATTIS_CPP + "// one of its own\n", "flags": "a b"})
    assert (await embedded_judge.grade(with_flags, RIGHT)).passed
    program.unlink()
    judge_programs._compiled.cache_clear()
    grade = await embedded_judge.grade(with_checker, RIGHT)
    assert grade.verdict is Verdict.CHECKER_ERROR and "no C++ compiler no-compiler here" in grade.reason


def test_what_a_checker_is_shows_in_its_text() -> None:
    found = checker_of(CHECK)
    assert found == Checker(CHECK, "python", "check") and Checker.from_text(found.to_text()) == found
    assert checker_of(KATTIS) == Checker(KATTIS, "python", "kattis")
    assert checker_of(KATTIS_CPP) == Checker(KATTIS_CPP, "cpp", "kattis")
    assert checker_of('#include "testlib.h"\n') == Checker('#include "testlib.h"\n', "cpp", "testlib")
    assert checker_of("") is checker_of(None) is None


@pytest.mark.parametrize(
    ("checker", "detail"),
    [
        (5, "a source text"),
        ({"language": "python"}, "a source text"),
        ({"source": CHECK, "language": "java"}, "java; read are python and cpp"),
        ({"source": CHECK, "protocol": "other"}, "there are check, kattis, testlib"),
        ({"source": "def check(", "language": "python"}, "no Python"),
        ({"source": "x = 1", "protocol": "check"}, "no function check"),
        ({"source": CHECK, "files": {"../x": "y"}}, "no folder"),
    ],
)
def test_a_checker_that_cannot_be_one_drops_its_row(checker: object, detail: str) -> None:
    with pytest.raises(RowDropped) as caught:
        problem(checker)
    assert caught.value.reason == "bad_checker" and detail in caught.value.detail


def test_a_checker_is_part_of_a_problems_identity_and_of_pools() -> None:
    with_checker, without = problem(CHECK), problem(None)
    assert with_checker.problem_id != without.problem_id
    assert Problem.from_row(with_checker.to_row()) == with_checker
    with pytest.raises(RowDropped, match="these tests call a function"):
        problem(CHECK, tests={"fn_name": "f", "inputs": [[1]], "outputs": [2]})
