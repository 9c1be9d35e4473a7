"""Known submissions with the verdict each must get, over problems of `data/mini` and of an olympiad.

A bundled problem is given by how its input is parsed, what is right and what is not quite; a style is everything around
that: how a program reads, computes, prints, ends or fails. Each style meets two problems, the costliest one of them.
The olympiad's solutions are written out.
"""

# One program, one string: long lines are kept.
# ruff: noqa: E501

from dataclasses import dataclass

COUNTED = "list(map(int, data.split()))[1:]"
COMMAS = "[int(x) for x in data.strip().split(',')]"


@dataclass(frozen=True)
class Bundled:
    """Line `line` of `data/mini/<file>.jsonl`: expressions over the text `data` and the list `a`."""

    file: str
    line: int
    parsed: str
    right: str
    wrong: str


STDIN_PROBLEMS = (
    Bundled(
        "primeintellect-train",
        9,
        COUNTED,
        "(lambda b: max(b) - min(b))([-x for x in a if 10 <= abs(x) <= 99])",
        "max(a) - min(a)",
    ),
    Bundled(
        "codeforces-test",
        4,
        COUNTED,
        "(lambda b: b[(len(b) - 1) // 2])(sorted(x for x in a if x >= 2))",
        "sorted(a)[len(a) // 2]",
    ),
    Bundled("codeforces-test", 9, COMMAS, "max([x * x for x in a if x > 7], default=0)", "max(x * x for x in a)"),
    Bundled(
        "lcbv5-train",
        9,
        COUNTED,
        "max([x - 2 for x in a if x <= 6], default=0)",
        "max([x - 2 for x in a if x <= 6], default=-1)",
    ),
)
CALL_PROBLEMS = (
    Bundled(
        "taco-train", 4, "process(a, k)", "(lambda b: max(b) + min(b))([x for x in a if x > k])", "max(a) + min(a)"
    ),
    Bundled(
        "taco-train", 9, "summarize(a)", "(lambda b: sum(b) // len(b))([x for x in a if x % 3])", "int(sum(a) / len(a))"
    ),
)

# `numbers(data)` and `answer(a)` are defined above these; WRONG(a) is the wrong expression.
RIGHT_STYLES = {
    "open(0)": "print(answer(numbers(open(0).read())))",
    "sys.stdin.read": "import sys\nprint(answer(numbers(sys.stdin.read())))",
    "sys.stdin.buffer": "import sys\nsys.stdout.buffer.write(b'%d\\n' % answer(numbers(sys.stdin.buffer.read().decode())))",
    "lines of stdin": "import sys\nprint(answer(numbers(''.join(line for line in sys.stdin))))",
    "readlines": "from sys import stdin, stdout\nstdout.write(str(answer(numbers(' '.join(stdin.readlines())))))",
    "readline as input": "import sys\ninput = sys.stdin.readline\nlines = []\nwhile line := input(): lines.append(line)\nprint(answer(numbers(''.join(lines))))",
    "input to EOF": "lines = []\ntry:\n    while True: lines.append(input())\nexcept EOFError: pass\nprint(answer(numbers('\\n'.join(lines))))",
    "os.read": "import os\nos.write(1, str(answer(numbers(os.read(0, 1 << 20).decode()))).encode())",
    "fileinput": "import fileinput\nprint(answer(numbers(''.join(fileinput.input()))))",
    "io.BytesIO": "import io, os, sys\nsys.stdin = io.TextIOWrapper(io.BytesIO(os.read(0, os.fstat(0).st_size)))\nprint(answer(numbers(sys.stdin.read())))",
    "print(end='')": "print(answer(numbers(open(0).read())), end='')",
    "white space at the end": "print(answer(numbers(open(0).read())), '  \\n\\n')",
    "CRLF": "print(answer(numbers(open(0).read())), end='\\r\\n')",
    "digit by digit": "for c in str(answer(numbers(open(0).read()))): print(c, end='', flush=True)\nprint()",
    "main guard": "def main():\n    print(answer(numbers(open(0).read())))\nif __name__ == '__main__':\n    main()",
    "a class": "class Solver:\n    def __init__(self, data): self.a = numbers(data)\n    def __str__(self): return str(answer(self.a))\nprint(Solver(open(0).read()))",
    "global state": "result = None\ndef solve():\n    global result\n    result = answer(numbers(open(0).read()))\nsolve()\nprint(result)",
    "a generator": "def solve():\n    yield answer(numbers(open(0).read()))\nprint(*solve())",
    "exit()": "print(answer(numbers(open(0).read())))\nexit()\n1 / 0",
    "sys.exit(0)": "import sys\nprint(answer(numbers(open(0).read())))\nsys.exit(0)",
    "quit(0) in a function": "def f():\n    print(answer(numbers(open(0).read())))\n    quit(0)\nf()",
    "os._exit(0)": "import os\nprint(answer(numbers(open(0).read())), flush=True)\nos._exit(0)",
    "an exit handler": "import atexit\natexit.register(lambda: print(answer(numbers(open(0).read()))))",
    "a thread with a deep stack": "import sys, threading\nsys.setrecursionlimit(10**7)\nthreading.stack_size(1 << 26)\nt = threading.Thread(target=lambda: print(answer(numbers(open(0).read()))))\nt.start()\nt.join()",
    "a thread left running": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.05), print(answer(numbers(open(0).read()))))).start()",
    "deep recursion": "def depth(n): return 0 if n == 0 else 1 + depth(n - 1)\nprint(answer(numbers(open(0).read())) + depth(20000) - 20000)",
    "a cached recursion": "@lru_cache(maxsize=None)\ndef depth(n): return 0 if n == 0 else 1 + depth(n - 1)\nprint(answer(numbers(open(0).read())) + depth(5000) - 5000)",
    "big integers": "big = 7 ** 5000\nprint(answer(numbers(open(0).read())) + big - big)",
    "big integers as text": "big = str(10 ** 5000)\nprint(answer(numbers(open(0).read())) + int(big) - 10 ** 5000)",
    "a float without a fraction": "print(float(answer(numbers(open(0).read()))))",
    "formatted": "print(f'{float(answer(numbers(open(0).read()))):.0f}')",
    "fractions": "from fractions import Fraction\nprint(Fraction(answer(numbers(open(0).read())) * 3, 3))",
    "numpy": "import numpy as np\nprint(np.array([answer(numbers(open(0).read()))])[0])",
    "asyncio": "import asyncio\nasync def main(): print(answer(numbers(open(0).read())))\nasyncio.run(main())",
    "a pool of threads": "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(2) as pool: print(*pool.map(answer, [numbers(open(0).read())]))",
    "a child process": "import os\npid = os.fork()\nif pid == 0:\n    print(answer(numbers(open(0).read())), flush=True)\n    os._exit(0)\nos.waitpid(pid, 0)",
    "exec": "exec('print(answer(numbers(open(0).read())))')",
    "print replaced": "import builtins, sys\ndef print(*a): sys.stdout.write(' '.join(map(str, a)) + '\\n')\nprint(answer(numbers(open(0).read())))",
    "notes on stderr": "import sys\nx = answer(numbers(open(0).read()))\nprint('x =', x, file=sys.stderr)\nprint(x)",
    "a caught error": "try: 1 / 0\nexcept ZeroDivisionError: print(answer(numbers(open(0).read())))",
    "types of the prelude": "def solve(a: List[int]) -> Optional[int]: return answer(a)\nprint(solve(numbers(open(0).read())))",
    "a heap and a counter": "h = []\nheappush(h, answer(numbers(open(0).read())))\nc = Counter(h)\nprint(*c)",
    "globals at work": "globals()['x'] = answer(numbers(open(0).read()))\nprint(x)",
}

OTHER_STYLES = {
    "wrong": ("print(WRONG(numbers(open(0).read())))", "wrong_answer"),
    "off by one": ("print(answer(numbers(open(0).read())) + 1)", "wrong_answer"),
    "off by a little": ("print(answer(numbers(open(0).read())) + 1e-7)", "wrong_answer"),
    "a fraction": ("print(answer(numbers(open(0).read())) + 0.5)", "wrong_answer"),
    "another sign": ("print(-answer(numbers(open(0).read())) - 1)", "wrong_answer"),
    "silent": ("answer(numbers(open(0).read()))", "wrong_answer"),
    "blank": ("print()", "wrong_answer"),
    "twice": ("x = answer(numbers(open(0).read()))\nprint(x)\nprint(x)", "wrong_answer"),
    "twice on a line": ("x = answer(numbers(open(0).read()))\nprint(x, x)", "wrong_answer"),
    "a label": ("print('Answer:', answer(numbers(open(0).read())))", "wrong_answer"),
    "a prompt": ("import sys\nn = input('n = ')\nprint(answer(numbers(n + '\\n' + sys.stdin.read())))", "wrong_answer"),
    "a blank line first": ("print()\nprint(answer(numbers(open(0).read())))", "wrong_answer"),
    "a leading zero": ("print('0' + str(answer(numbers(open(0).read()))))", "wrong_answer"),
    "repr of text": ("print(repr(str(answer(numbers(open(0).read())))))", "wrong_answer"),
    "a list": ("print([answer(numbers(open(0).read()))])", "wrong_answer"),
    "the input again": ("print(open(0).read())", "wrong_answer"),
    "not flushed": ("import os\nprint(answer(numbers(open(0).read())))\nos._exit(0)", "wrong_answer"),
    "exits early": ("import sys\nsys.exit()\nprint(answer(numbers(open(0).read())))", "wrong_answer"),
    "on stderr": ("import sys\nprint(answer(numbers(open(0).read())), file=sys.stderr)", "wrong_answer"),
    "None": ("print(print(answer(numbers(open(0).read()))))", "wrong_answer"),
    "fails late": ("print(answer(numbers(open(0).read())))\n[][0]", "runtime_error"),
    "divides by zero": ("1 // 0", "runtime_error"),
    "status 1": ("import sys\nprint(answer(numbers(open(0).read())))\nsys.exit(1)", "runtime_error"),
    "exit with words": ("print(answer(numbers(open(0).read())))\nexit('done')", "runtime_error"),
    "asserts": ("x = answer(numbers(open(0).read()))\nprint(x)\nassert False, 'not so'", "runtime_error"),
    "reads on at EOF": ("print(answer(numbers(open(0).read())))\ninput()", "runtime_error"),
    "no such name": ("print(answr(numbers(open(0).read())))", "runtime_error"),
    "no such module": ("import coderl_tasks\nprint(answer(numbers(open(0).read())))", "runtime_error"),
    "a syntax error": ("print(answer(numbers(open(0).read()))", "runtime_error"),
    "a bad indent": ("if True:\nprint(answer(numbers(open(0).read())))", "runtime_error"),
    "endless recursion": ("def f(): return 1 + f()\nf()", "runtime_error"),
    "endless recursion in a class": ("class A:\n    def __repr__(self): return repr([self])\nrepr(A())", "runtime_error"),
    "a signal": ("import os\nprint(answer(numbers(open(0).read())), flush=True)\nos.kill(os.getpid(), 11)", "runtime_error"),
    "aborts": ("import os\nos.abort()", "runtime_error"),
    "a closed output": ("import sys\nx = answer(numbers(open(0).read()))\nsys.stdout.close()\nprint(x)", "runtime_error"),
    "text that is no number": ("print(int(open(0).read() + 'x'))", "runtime_error"),
    "unpacks too much": ("a, b, c, d, e, f, g, h, i, j, k, l, m = numbers(open(0).read())", "runtime_error"),
    "exit status of a handler": ("import atexit, os\nprint(answer(numbers(open(0).read())), flush=True)\natexit.register(lambda: os._exit(4))", "runtime_error"),
    "spins": ("while True: pass", "time_limit"),
    "spins after the answer": ("print(answer(numbers(open(0).read())), flush=True)\nwhile True: pass", "time_limit"),
    "counts far": ("sum(1 for _ in range(10 ** 10))", "time_limit"),
    "a huge power": ("x = 3 ** (10 ** 9)", "time_limit"),
    "a regular expression that backtracks": ("import re\nre.match('(a+)+$', 'a' * 40 + 'b')", "time_limit"),
    "spins in a thread": ("import threading\ndef spin():\n    while True: pass\nthreading.Thread(target=spin).start()", "time_limit"),
    "catches everything": ("while True:\n    try:\n        while True: pass\n    except BaseException: pass", "time_limit"),
    "allocates at once": ("x = [0] * (1 << 30)\nprint(answer(numbers(open(0).read())))", "memory_limit"),
    "allocates bit by bit": ("x = []\nwhile True: x.append(' ' * (64 << 20) + str(len(x)))", "memory_limit"),
    "prints for ever": ("while True: print('x' * 1000000)", "output_limit"),
}  # fmt: skip

# {signature} is `name(arguments)`, {name} the name alone.
CALL_STYLES = {
    "a function": ("def {signature}:\n    return {right}", "passed"),
    "a method": ("class Solution:\n    def {self_signature}:\n        return {right}", "passed"),
    "a static method": ("class Solution:\n    @staticmethod\n    def {signature}:\n        return {right}", "passed"),
    "a lambda": ("{name} = lambda {arguments}: {right}", "passed"),
    "a decorated function": ("def same(f): return f\n@same\ndef {signature}:\n    return {right}", "passed"),
    "a float": ("def {signature}:\n    return float({right})", "passed"),
    "prints beside": ("def {signature}:\n    print('hello')\n    return {right}\nprint('bye')", "passed"),
    "numpy": ("import numpy as np\ndef {signature}:\n    return np.int64({right})", "passed"),
    "wrong": ("def {signature}:\n    return {wrong}", "wrong_answer"),
    "prints": ("def {signature}:\n    print({right})", "wrong_answer"),
    "a string": ("def {signature}:\n    return str({right})", "wrong_answer"),
    "a list": ("def {signature}:\n    return [{right}]", "wrong_answer"),
    "a fraction more": ("def {signature}:\n    return {right} + 0.25", "wrong_answer"),
    "raises": ("def {signature}:\n    raise ValueError", "runtime_error"),
    "too few arguments": ("def {name}(): return 0", "runtime_error"),
    "another name": ("def other(*a): return 0", "runtime_error"),
    "exits": ("def {signature}:\n    exit()", "runtime_error"),
    "spins": ("def {signature}:\n    while True: pass", "time_limit"),
    "allocates": ("def {signature}:\n    return len(bytearray(8 << 30))", "memory_limit"),
}  # fmt: skip

PATH_WITH_LETTERS = "n, m = map(int, input().split())\nrows = [input() for _ in range(n)]\n"
LAND = """
import sys
def main():
    data = sys.stdin.read().split()
    r, c, u = int(data[0]), int(data[1]), int(data[2])
    rows = [list(row) for row in data[3:3 + r]]
    changes = [(int(data[i]) - 1, int(data[i + 1]) - 1) for i in range(3 + r, 3 + r + 2 * u, 2)]
    parent = list(range(r * c)); size = [1] * (r * c)
    def find(x):
        while parent[x] != x:
            parent[x] = parent[parent[x]]
            x = parent[x]
        return x
    def join(x, y):
        x, y = find(x), find(y)
        if x != y:
            parent[x] = y
            size[y] += size[x]
    def connect(i, j):
        for k, l in ((i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1)):
            if 0 <= k < r and 0 <= l < c and rows[k][l] != '.':
                join(i * c + j, k * c + l)
    for i in range(r):
        for j in range(c):
            if rows[i][j] == 'S': s = i * c + j
            if rows[i][j] != '.': connect(i, j)
    print(size[find(s)])
    for i, j in changes:
        if rows[i][j] == '.':
            rows[i][j] = '#'
            connect(i, j)
        print(size[find(s)])
main()
"""

OLYMPIAD: dict[str, dict[str, tuple[str, str]]] = {
    "skol/reduplikation": {
        "multiplied": ("s = input()\nprint(s * int(input()))", "passed"),
        "a loop": ("s, n = open(0).read().split()\nfor _ in range(int(n)): print(s, end='')", "passed"),
        "joined bytes": ("import sys\ns, n = sys.stdin.buffer.read().split()\nsys.stdout.buffer.write(s * int(n))", "passed"),
        "recursive": ("def f(s, n): return '' if n == 0 else s + f(s, n - 1)\nprint(f(input().strip(), int(input())))", "passed"),
        "one a line": ("s = input()\nfor _ in range(int(input())): print(s)", "wrong_answer"),
        "spaces between": ("s = input()\nprint(*[s] * int(input()))", "wrong_answer"),
        "upper case": ("s = input()\nprint((s * int(input())).upper())", "wrong_answer"),
        "cut short": ("s = input()\nprint((s * int(input()))[:-1])", "wrong_answer"),
        "adds a number": ("s = input()\nprint(s + int(input()))", "runtime_error"),
        "reads once more": ("s = input()\nn = int(input())\nprint(s * n, input())", "runtime_error"),
        "never counts down": ("s = input()\nn = int(input())\nwhile n > 0: n += 1", "time_limit"),
    },
    "skol/treirad": {
        "counts": ("n = int(input())\na = 0\nwhile (a + 1) * (a + 2) * (a + 3) < n: a += 1\nprint(a)", "passed"),
        "itertools": ("n = int(input())\nprint(sum(1 for _ in itertools.takewhile(lambda a: a * (a + 1) * (a + 2) < n, itertools.count(1))))", "passed"),
        "bisection": ("n = int(input())\nprint(bisect.bisect_left(range(1, 2000), n, key=lambda a: a * (a + 1) * (a + 2)))", "passed"),
        "less or equal": ("n = int(input())\na = 0\nwhile (a + 1) * (a + 2) * (a + 3) <= n: a += 1\nprint(a)", "wrong_answer"),
        "cube root": ("print(int(int(input()) ** (1 / 3)))", "wrong_answer"),
        "every number": ("n = int(input())\nseen = 0\nfor x in range(10 ** 12):\n    if any(a * (a + 1) * (a + 2) == x for a in range(1, 1000)): seen += 1\nprint(seen)", "time_limit"),
        "recursion that ends": ("def f(a, n): return a if (a + 1) * (a + 2) * (a + 3) >= n else f(a + 1, n)\nprint(f(0, int(input())))", "passed"),
        "an empty list": ("n = int(input())\nprint(max(a for a in range(1, 2) if n < 0))", "runtime_error"),
    },
    "online/stadiljus": {
        "greedy": ("n, x, y, *a = map(int, open(0).read().split())\na.sort()\ntotal = count = 0\nfor k, l in enumerate(a, 1):\n    total += l * x\n    if total <= y * k: count = k\nprint(count)", "passed"),
        "accumulate": ("import sys\nfrom itertools import accumulate\nn, x, y, *a = map(int, sys.stdin.buffer.read().split())\nprint(sum(t * x <= y * k for k, t in enumerate(accumulate(sorted(a)), 1)))", "passed"),
        "numpy": ("import numpy as np\nn, x, y, *a = map(int, open(0).read().split())\nprint((np.cumsum(np.sort(a)) * x <= y * np.arange(1, n + 1)).sum())", "passed"),
        "not sorted": ("n, x, y, *a = map(int, open(0).read().split())\ntotal = count = 0\nfor k, l in enumerate(a, 1):\n    total += l * x\n    if total <= y * k: count = k\nprint(count)", "wrong_answer"),
        "each by itself": ("n, x, y, *a = map(int, open(0).read().split())\nprint(sum(l * x <= y for l in a))", "wrong_answer"),
        "sorted by hand": ("n, x, y, *a = map(int, open(0).read().split())\na *= 40\nfor i in range(len(a)):\n    for j in range(10 ** 9):\n        if a[i] > a[j % len(a)]: a[i], a[j % len(a)] = a[j % len(a)], a[i]", "time_limit"),
        "one line too few": ("n = int(input())\nx, y = map(int, input().split())", "runtime_error"),
    },
    "skol/meddelande": {
        "read in order": (PATH_WITH_LETTERS + "print(''.join(rows).replace('.', ''))", "passed"),
        "by diagonals": (PATH_WITH_LETTERS + "print(''.join(rows[i][j] for d in range(n + m) for i in range(n) for j in range(m) if i + j == d and rows[i][j] != '.'))", "passed"),
        "sorted by place": (PATH_WITH_LETTERS + "cells = sorted((i + j, rows[i][j]) for i in range(n) for j in range(m) if rows[i][j].isalpha())\nfor _, c in cells: print(c, end='')", "passed"),
        "by columns, dots too": (PATH_WITH_LETTERS + "print(''.join(map(''.join, zip(*rows))))", "wrong_answer"),
        "a row too many": (PATH_WITH_LETTERS + "print(rows[n])", "runtime_error"),
    },
    "online/sverigekartan": {
        "disjoint sets": (LAND, "passed"),
        "all land counts": (LAND.replace("size[find(s)]", "sum(row.count('#') for row in rows) + 1"), "wrong_answer"),
        "the first answer only": (LAND.replace("        print(size[find(s)])\nmain", "        pass\nmain"), "wrong_answer"),
        "diagonals too": (LAND.replace("((i + 1, j)", "((i + 1, j + 1), (i + 1, j - 1), (i + 1, j)"), "wrong_answer"),
        "no such square": (LAND.replace("if 0 <= k < r and 0 <= l < c and", "if"), "runtime_error"),
    },
}  # fmt: skip
