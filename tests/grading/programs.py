"""Problems and programs with known verdicts, for the tests of grading."""

import asyncio

# One program, one string: long lines are kept.
# ruff: noqa: E501
from dataclasses import replace

from coderl_tasks.grading import Grade, Judge
from coderl_tasks.problems.problem import Problem, Test


def stdin_problem(*tests: tuple[str, str], time_limit_s: float | None = None) -> Problem:
    cases = tuple(Test(*test) for test in tests)
    return Problem("p-stdin", "", "", "", "stdin", "", cases, len(cases), len(cases), time_limit_s, (), 0)


def call_problem(entry_point: str, *tests: tuple[str, str]) -> Problem:
    return replace(stdin_problem(*tests), problem_id="p-call", kind="call", entry_point=entry_point)


ADD = stdin_problem(("2 3\n", "5\n"), (f"{10**40} 1\n", f"{10**40 + 1}\n"), ("-4 4\n", "0\n"))
DEPTH = stdin_problem(("100000\n", "100000\n"))
LINES = stdin_problem(("3\n1\n2\n3\n", "1\n2\n3\n"), ("1\n7\n", "7\n"))
TOTAL = call_problem("total", ("[[1, 2, 3]]", "6"), ("[[]]", "0"))
PAIRS = call_problem("pairs", ("[2, 1.5]", "[[2, 1.5], [1.5, 2]]"))
IS_EVEN = call_problem("is_even", ("[4]", "true"), ("[7]", "false"))

SUM = "a, b = map(int, input().split())\n"

RIGHT: dict[str, tuple[Problem, str]] = {
    "input": (ADD, SUM + "print(a + b)"),
    "stdin.buffer": (
        ADD,
        "import sys\na, b = map(int, sys.stdin.buffer.read().split())\nsys.stdout.buffer.write(b'%d' % (a + b))",
    ),
    "sys.stdin lines": (ADD, "import sys\nfor line in sys.stdin:\n    print(sum(map(int, line.split())))"),
    "readline": (
        ADD,
        "from sys import stdin, stdout\na, b = map(int, stdin.readline().split())\nstdout.write(str(a + b))",
    ),
    "open(0)": (ADD, "print(sum(map(int, open(0).read().split())), end='')"),
    "/dev/stdin": (ADD, "print(sum(map(int, open('/dev/stdin').read().split())))"),
    "os.read": (ADD, "import os\nos.write(1, str(sum(map(int, os.read(0, 1000).split()))).encode())"),
    "fstat": (ADD, "import os\nprint(sum(map(int, os.read(0, os.fstat(0).st_size).split())))"),
    "open(1), not closed": (ADD, SUM + "out = open(1, 'w')\nout.write(f'{a + b}\\n')"),
    "stdout replaced": (
        ADD,
        "import sys, io\n" + SUM + "sys.stdout = io.TextIOWrapper(open(1, 'wb', closefd=False))\nprint(a + b)",
    ),
    "exit()": (ADD, SUM + "print(a + b)\nexit()"),
    "sys.exit(0)": (ADD, "import sys\n" + SUM + "print(a + b)\nsys.exit(0)\nprint('not reached')"),
    "os._exit(0) after a flush": (ADD, "import os\n" + SUM + "print(a + b, flush=True)\nos._exit(0)"),
    "main guard": (
        ADD,
        "def main():\n    a, b = map(int, input().split())\n    print(a + b)\n\nif __name__ == '__main__':\n    main()",
    ),
    "global state": (
        ADD,
        "count = 0\ndef add(x):\n    global count\n    count += x\nfor x in map(int, input().split()):\n    add(x)\nprint(count)",
    ),
    "thread with a big stack": (
        ADD,
        "import sys, threading\nthreading.stack_size(1 << 27)\ndef main():\n    print(sum(map(int, input().split())))\n"
        "threading.Thread(target=main).start()",
    ),
    "thread that is not waited for": (
        ADD,
        "import threading, time\n" + SUM + "threading.Thread(target=lambda: (time.sleep(0.1), print(a + b))).start()",
    ),
    # Scipy, where it is there, is loaded before the program, and has loaded threading.
    "thread that is not waited for, threading loaded before": (
        ADD,
        "import threading, time  # not scipy\n"
        + SUM
        + "assert threading.current_thread() is threading.main_thread() and threading.active_count() == 1\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), print(a + b))).start()",
    ),
    "atexit": (ADD, "import atexit\n" + SUM + "atexit.register(lambda: print(a + b))"),
    "input at EOF": (
        ADD,
        "total = 0\nwhile True:\n    try:\n        total += sum(map(int, input().split()))\n    except EOFError:\n        break\nprint(total)",
    ),
    "prelude names made at run time: globals": (
        ADD,
        SUM + "f = globals()['red' + 'uce']\nprint(f(globals()['a' + 'dd'], [a, b]))",
    ),
    "prelude names made at run time: eval": (ADD, SUM + "print(eval('red' + 'uce(a' + 'dd, [a, b])'))"),
    "prelude names made at run time: exec": (ADD, SUM + "exec('print(red' + 'uce(a' + 'dd, [a, b]))')"),
    "prelude names made at run time: vars": (ADD, SUM + "print(vars()['a' + 'dd'](a, b))"),
    "prelude names made at run time: sys.modules": (
        ADD,
        SUM + "import sys\nprint(getattr(sys.modules[__name__], 'a' + 'dd')(a, b))",
    ),
    "prelude names made at run time: __main__": (
        ADD,
        SUM + "import __main__\nprint(getattr(__main__, 'a' + 'dd')(a, b))",
    ),
    "prelude names": (
        ADD,
        "print(reduce(operator.add, [int(x) for x in input().split()]))\nd: List[int] = deque(Counter())",
    ),
    "pow with three arguments": (ADD, SUM + "assert pow(2, 3, 5) == 3\nprint(a + b)"),
    "future import": (
        ADD,
        "from __future__ import annotations\n" + SUM + "def f(x: NoSuch): return x\nprint(f(a + b))",
    ),
    "dataclass": (
        ADD,
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    a: int\n    b: int\np = P(*map(int, input().split()))\nprint(p.a + p.b)",
    ),
    "pickle of __main__": (
        ADD,
        "import pickle\nclass A: pass\npickle.loads(pickle.dumps(A()))\n" + SUM + "print(a + b)",
    ),
    "SIGPIPE idiom": (
        ADD,
        "from signal import signal, SIGPIPE, SIG_DFL\nsignal(SIGPIPE, SIG_DFL)\n" + SUM + "print(a + b)",
    ),
    "recursion limit": (ADD, "import sys\nsys.setrecursionlimit(10**6)\n" + SUM + "print(a + b)"),
    "numpy": (ADD, "import numpy as np\nprint(sum(int(x) for x in np.array(input().split(), dtype=object)))"),
    "subprocess": (
        ADD,
        "import os\npid = os.fork()\nif pid == 0:\n    os._exit(7)\nos.waitpid(pid, 0)\n" + SUM + "print(a + b)",
    ),
    "noise on stderr": (ADD, "import sys\n" + SUM + "print('debug ' * 10000, file=sys.stderr)\nprint(a + b)"),
    "long integers printed": (ADD, "x = 10**10000\ns = str(x)\n" + SUM + "print(a + b)"),
    "coding cookie, CRLF": (ADD, "# -*- coding: utf-8 -*-\r\na, b = map(int, input().split())\r\nprint(a + b)\r\n"),
    "file in the folder": (ADD, SUM + "with open('x.txt', 'w') as f: f.write(str(a + b))\nprint(open('x.txt').read())"),
    "print(end='')": (LINES, "for _ in range(int(input())):\n    print(input(), end='\\n')\nprint(end='')"),
    "joined lines": (LINES, "print(*open(0).read().split()[1:], sep='\\n')"),
    "deep recursion": (DEPTH, "def f(n): return 0 if n == 0 else 1 + f(n - 1)\nprint(f(int(input())))"),
    "deep recursion through C": (
        DEPTH,
        "@functools.lru_cache(None)\ndef f(n):\n    return 0 if n == 0 else 1 + f(n - 1)\nprint(f(int(input())))",
    ),
    "deep recursion through C in a thread": (
        DEPTH,
        "import threading\nthreading.stack_size(1 << 28)\n@functools.lru_cache(None)\ndef f(n):\n"
        "    return 0 if n == 0 else 1 + f(n - 1)\n"
        "thread = threading.Thread(target=lambda: print(f(int(input()))))\nthread.start()\nthread.join()",
    ),
    "function": (TOTAL, "def total(xs: List[int]) -> int:\n    return sum(xs)"),
    "class Solution": (TOTAL, "class Solution:\n    def total(self, xs: List[int]) -> int:\n        return sum(xs)"),
    "prints while it works": (TOTAL, "def total(xs):\n    print('working', xs)\n    return sum(xs)"),
    "reads no input": (
        TOTAL,
        "def total(xs): return sum(xs)\nif __name__ == '__main__':\n    print(total(eval(input())))",
    ),
    "numpy scalar": (TOTAL, "import numpy as np\ndef total(xs): return np.array(xs, dtype=int).sum()"),
    "float for an integer": (TOTAL, "def total(xs): return float(sum(xs))"),
    "nested tuples": (PAIRS, "def pairs(a, b): return ((a, b), (b, a + 0.0))"),
    "views, numbers and queues": (
        call_problem("f", ("[]", "[[0.5, 3], [1, 2], [1], [0]]")),
        "from decimal import Decimal\nfrom fractions import Fraction\nfrom collections import deque\n"
        "def f():\n    return deque([[Decimal('0.5'), Fraction(6, 2)], {1: 1, 2: 2}.keys(), {1: 1}.values(), deque([Decimal(0)])])",
    ),
    "1 for true": (IS_EVEN, "def is_even(n): return 1 - n % 2"),
}

WRONG: dict[str, tuple[Problem, str, str]] = {
    "wrong": (ADD, "print(5)", "wrong_answer"),
    "silent": (ADD, "", "wrong_answer"),
    "prefix": (LINES, "n = int(input())\nprint(input())", "wrong_answer"),
    "too much": (LINES, "n = int(input())\nfor _ in range(n): print(input())\nprint(4)", "wrong_answer"),
    "syntax": (ADD, "def f(:\n", "runtime_error"),
    "null byte": (ADD, "print(5)\0", "runtime_error"),
    "exception": (ADD, SUM + "print(a + b)\nraise ValueError('late')", "runtime_error"),
    "exit status": (ADD, SUM + "print(a + b)\nexit(3)", "runtime_error"),
    "exit message": (ADD, "import sys\n" + SUM + "print(a + b)\nsys.exit('done')", "runtime_error"),
    "signal": (ADD, "import os\n" + SUM + "print(a + b, flush=True)\nos.kill(os.getpid(), 15)", "runtime_error"),
    "stdout detached": (
        ADD,
        SUM + "import sys\nraw = sys.stdout.detach()\nraw.write(b'%d\\n' % (a + b))\nraw.flush()",
        "runtime_error",
    ),
    "missing module": (ADD, "import no_such_module", "runtime_error"),
    "input beyond the end": (ADD, SUM + "input()", "runtime_error"),
    "endless recursion": (DEPTH, "def f(n): return f(n + 1)\nf(0)", "runtime_error"),
    "stack overflow": (DEPTH, "def f(n): return sorted([n], key=lambda x: f(n + 1))\nf(0)", "runtime_error"),
    "memory": (ADD, "x = bytearray(4 << 30)", "memory_limit"),
    "memory, little by little": (ADD, "x = []\nwhile True: x.append(bytearray(64 << 20))", "memory_limit"),
    "output": (ADD, "while True: print('x' * 100000)", "output_limit"),
    "call: wrong": (TOTAL, "def total(xs): return len(xs)", "wrong_answer"),
    "call: a string": (TOTAL, "def total(xs): return str(sum(xs))", "wrong_answer"),
    "call: a set": (TOTAL, "def total(xs): return {sum(xs)}", "wrong_answer"),
    "call: nothing": (TOTAL, "def total(xs): print(sum(xs))", "wrong_answer"),
    "call: another name": (TOTAL, "def totals(xs): return sum(xs)", "runtime_error"),
    "call: exits": (TOTAL, "import sys\ndef total(xs): sys.exit(0)", "runtime_error"),
    "call: raises": (TOTAL, "def total(xs): return sum(xs) / 0", "runtime_error"),
    "call: the prelude's function": (call_problem("gcd", ("[4, 6]", "2")), "pass", "runtime_error"),
    "call: NaN": (TOTAL, "def total(xs): return float('nan')", "wrong_answer"),
}
"""The verdict is the last element."""

LOOP = "while True: pass"
SLEEP = "import time\ntime.sleep(1000)"


async def graded(judge: Judge, jobs: dict[str, tuple]) -> dict[str, Grade]:
    grades = await asyncio.gather(*(judge.grade(job[0], job[1]) for job in jobs.values()))
    return dict(zip(jobs, grades, strict=True))
