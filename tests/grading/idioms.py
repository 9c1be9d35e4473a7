"""Honest programs with the habits of contestants, by where these come from: each has to do in the sandbox what it does
on bare Python.

Programs of Codeforces and AtCoder read `INPUTS`; those of LeetCode define `solve(nums, k)`, or a class that has it,
which is called with `ARGUMENTS`. Where there are two names alike, they differ in what Python does at the end.
"""

# One program, one string: long lines are kept.
# ruff: noqa: E501

INPUTS = ("5\n3 1 4 1 5\n", "3\r\n-7 20 11")
"""The second as a file of Windows has it, without a newline at its end."""
ARGUMENTS = ("[[3, 1, 4, 1, 5], 2]", "[[7, -2, 9], 1]")

READ = "n = int(input())\na = list(map(int, input().split()))\n"

# What a template that replaces the streams looks like: buffers of bytes, written in `flush`, which names globals.
FAST_IO = """
import os, sys
from io import BytesIO, IOBase
CHUNK = 4096
class FastIO(IOBase):
    newlines = 0
    def __init__(self, file):
        self._fd, self.buffer, self.writable = file.fileno(), BytesIO(), 'r' not in file.mode
        self.write = self.buffer.write if self.writable else None
    def fill(self):
        chunk, at = os.read(self._fd, max(os.fstat(self._fd).st_size, CHUNK)), self.buffer.tell()
        self.buffer.seek(0, 2), self.buffer.write(chunk), self.buffer.seek(at)
        return chunk
    def read(self):
        while self.fill(): pass
        self.newlines = 0
        return self.buffer.read()
    def readline(self):
        while self.newlines == 0:
            chunk = self.fill()
            self.newlines = chunk.count(b'\\n') + (not chunk)
        self.newlines -= 1
        return self.buffer.readline()
    def flush(self):
        if self.writable:
            os.write(self._fd, self.buffer.getvalue())
            self.buffer.truncate(0), self.buffer.seek(0)
class IOWrapper(IOBase):
    def __init__(self, file):
        self.buffer = FastIO(file)
        self.flush, self.writable = self.buffer.flush, self.buffer.writable
        self.write = lambda text: self.buffer.write(text.encode('ascii'))
        self.read = lambda: self.buffer.read().decode('ascii')
        self.readline = lambda: self.buffer.readline().decode('ascii')
sys.stdin, sys.stdout = IOWrapper(sys.stdin), IOWrapper(sys.stdout)
"""
BOOTSTRAP = """
from types import GeneratorType
def bootstrap(f, stack=[]):
    def wrapped(*args):
        if stack: return f(*args)
        to = f(*args)
        while True:
            if type(to) is GeneratorType:
                stack.append(to)
                to = next(to)
            else:
                stack.pop()
                if not stack: return to
                to = stack[-1].send(to)
    return wrapped
"""
# Its end reaches the class itself, `os` and a constant: by then they have to be there.
LAST_WORDS = "class Out:\n    lines = []\n    def write(self, s): Out.lines.append(s)\n    def flush(self):\n        os.write(FD, ''.join(Out.lines).encode()); Out.lines.clear()\nimport os, sys\nFD = 1\n"

CODEFORCES = {
    "FastIO": FAST_IO + "input = lambda: sys.stdin.readline().rstrip('\\r\\n')\n" + READ + "print(sum(a))",
    "FastIO, flushed by hand": FAST_IO + "input = lambda: sys.stdin.readline()\n" + READ + "print(sum(a))\nsys.stdout.flush()",
    "FastIO, flushed by atexit": FAST_IO + "import atexit\natexit.register(lambda: sys.stdout.flush())\nn, *a = map(int, sys.stdin.read().split())\nprint(*a)",
    "FastIO, sys.exit": FAST_IO + "n, *a = map(int, sys.stdin.read().split())\nsys.stdout.write(str(sum(a)))\nsys.exit()",
    "FastIO in main": FAST_IO + "def main():\n    input = sys.stdin.readline\n    n = int(input()); a = [int(x) for x in input().split()]\n    for x in a: print(x, end=' ')\nif __name__ == '__main__': main()",
    "a class as stdout": LAST_WORDS + READ + "sys.stdout = Out()\nprint(sum(a))",
    "a class as stdout, written by a thread at the end": LAST_WORDS + READ + "import threading, time\nsys.stdout = Out()\nthreading.Thread(target=lambda: (time.sleep(0.05), print(sum(a)))).start()",
    "a class as stdout, written by an exit handler": LAST_WORDS + READ + "import atexit\nsys.stdout = Out()\natexit.register(print, *a)",
    "a class as stderr": LAST_WORDS + READ + "sys.stderr = Out()\nprint(sum(a), file=sys.stderr)",
    "a class as stdout without flush": READ + "import os, sys\nclass Out:\n    def write(self, s): os.write(1, s.encode())\nold, sys.stdout = sys.stdout, Out()\nprint(sum(a))\nsys.stdout = old",
    "a finaliser prints": READ + "class Last:\n    def __del__(self): print(sum(a))\nlast = Last()",
    "a finaliser flushes": READ + "import sys\nclass Out(list):\n    def __del__(self): sys.__stdout__.write(''.join(self))\nout = Out()\nout.append(str(sum(a)))",
    "stdout is no more": READ + "import sys\nprint(sum(a), flush=True)\ndel sys.stdout",
    "stdout closed": READ + "import sys\nprint(sum(a))\nsys.stdout.close()",
    "stdout detached": READ + "import sys\nraw = sys.stdout.detach()\nraw.write(b'%d\\n' % sum(a))\nraw.flush()",
    "stdout None": READ + "import sys\nprint(sum(a))\nsys.stdout.flush()\nsys.stdout = None",
    "StringIO to stdout at the end": READ + "import io, sys\nout = io.StringIO()\nprint(*a, sep='\\n', file=out)\nsys.stdout.write(out.getvalue())",
    "StringIO as stdout": READ + "import io, sys\nreal, sys.stdout = sys.stdout, io.StringIO()\nprint(sum(a))\nreal.write(sys.stdout.getvalue())",
    "StringIO as stdin": "import io, os, sys\nsys.stdin = io.StringIO(os.read(0, 1 << 16).decode())\n" + READ + "print(sum(a))",
    "BytesIO readline": "import io, os\ninput = io.BytesIO(os.read(0, os.fstat(0).st_size)).readline\n" + READ + "print(sum(a))",
    "readline decoded": "import sys\ninput = lambda: sys.stdin.buffer.readline().decode().rstrip()\n" + READ + "print(sum(a))",
    "readline stripped": "import sys\ninput = lambda: sys.stdin.readline().strip()\n" + READ + "print(sum(a))",
    "input of another name": "II = lambda: int(input())\nMI = lambda: map(int, input().split())\nLI = lambda: list(MI())\nn = II(); a = LI()\nprint(n, *sorted(a))",
    "iter of stdin": "import sys\nit = iter(sys.stdin.read().split())\nn = int(next(it))\nprint(sum(int(next(it)) for _ in range(n)))",
    "tokens by a generator": "import sys\ndef tokens():\n    for line in sys.stdin: yield from line.split()\nt = tokens()\nprint(sum(int(next(t)) for _ in range(int(next(t)))))",
    "map over buffer": "import sys\nn, *a = map(int, sys.stdin.buffer.read().split())\nsys.stdout.buffer.write(b' '.join(b'%d' % x for x in a))",
    "readinto": "import sys\nb = bytearray(1 << 16)\nk = sys.stdin.buffer.readinto(b)\nprint(sum(map(int, b[:k].split()[1:])))",
    "read by character": "import sys\ns = ''\nwhile c := sys.stdin.read(1): s += c\nprint(sum(map(int, s.split()[1:])))",
    "peek": "import sys\nhead = sys.stdin.buffer.peek(1)[:1]\nprint(head, sum(map(int, sys.stdin.buffer.read().split()[1:])))",
    "os.read in parts": "import os\ndata = b''\nwhile part := os.read(0, 3): data += part\nprint(sum(map(int, data.split()[1:])))",
    "mmap of stdin": "import mmap\nwith mmap.mmap(0, 0, access=mmap.ACCESS_READ) as m: print(sum(map(int, m[:].split()[1:])))",
    "seek in stdin": "import sys\nlines = sys.stdin.read().splitlines()\nsys.stdin.seek(0)\nprint(len(lines), sys.stdin.read().split()[0])",
    "open(0, 'rb')": "n, *a = map(int, open(0, 'rb').read().split())\nprint(sum(a))",
    "os.fdopen": "import os\nfin, fout = os.fdopen(0, 'r'), os.fdopen(1, 'w', 1 << 16)\nn, *a = map(int, fin.read().split())\nfout.write(str(sum(a)))",
    "os.fdopen, flushed by close": "import os\nwith os.fdopen(0) as fin, os.fdopen(1, 'w') as fout: fout.write(str(sum(map(int, fin.read().split()))))",
    "dup of stdout": READ + "import os\nwith os.fdopen(os.dup(1), 'w') as f: f.write(str(sum(a)))",
    "dup2 over stdin": "import os\nopen('in.txt', 'w').write(open(0).read())\nos.dup2(os.open('in.txt', os.O_RDONLY), 0)\n" + READ + "print(sum(a))",
    "an output file in a class": READ + "class IO: out = open(1, 'w', closefd=False)\nIO.out.write(str(sum(a)))",
    "an output file as a default": READ + "def put(s, f=open(1, 'w', closefd=False)): f.write(s)\nput(str(sum(a)))",
    "an output file in print": READ + "from functools import partial\nprint = partial(print, file=open(1, 'w', closefd=False))\nprint(sum(a))",
    "an output file in builtins": READ + "import builtins, functools\nbuiltins.print = functools.partial(print, file=open(1, 'w', closefd=False))\nprint(sum(a))",
    "input.txt if it is there": "import os, sys\nif os.path.exists('input.txt'):\n    sys.stdin = open('input.txt'); sys.stdout = open('output.txt', 'w')\n" + READ + "print(sum(a))",
    "input.txt tried": "import sys\ntry:\n    sys.stdin = open('input.txt'); sys.stdout = open('output.txt', 'w')\nexcept FileNotFoundError: pass\n" + READ + "print(sum(a))",
    "ONLINE_JUDGE": "import os, sys\nif os.environ.get('LOCAL_DEBUG'): sys.stdin = open('1.in')\n" + READ + "print(sum(a))",
    "isatty": "import sys\nassert not sys.stdin.isatty() and not sys.stdout.isatty()\n" + READ + "print(sum(a))",
    "print redefined": "import sys\ndef print(*args, sep=' ', end='\\n'): sys.stdout.write(sep.join(map(str, args)) + end)\n" + READ + "print(*a)",
    "print to a list": READ + "import sys\nout = []\nprint = lambda *x: out.append(' '.join(map(str, x)))\nprint(*a); print(n)\nsys.stdout.write('\\n'.join(out))",
    "write bound": READ + "from sys import stdout\nput = stdout.write\nfor x in a: put('%d\\n' % x)",
    "writelines": READ + "import sys\nsys.stdout.writelines(f'{x}\\n' for x in a)",
    "flush=True": READ + "for x in a: print(x, flush=True)",
    "line buffering": READ + "import sys\nsys.stdout.reconfigure(line_buffering=True)\nprint(*a, sep='\\n')",
    "unbuffered": READ + "import io, sys\nsys.stdout = io.TextIOWrapper(open(sys.stdout.fileno(), 'wb', 0, closefd=False), write_through=True)\nprint(*a)",
    "bootstrap": READ + BOOTSTRAP + "@bootstrap\ndef walk(k): yield (0 if k == 0 else 1 + (yield walk(k - 1)))\nprint(walk(5000) + sum(a))",
    "a thread with a deep stack": "import sys, threading\nsys.setrecursionlimit(1 << 20)\nthreading.stack_size(1 << 27)\ndef main():\n    def f(k): return 0 if k == 0 else 1 + f(k - 1)\n    n, *a = map(int, sys.stdin.read().split())\n    print(f(50000) + sum(a))\nt = threading.Thread(target=main)\nt.start()\nt.join()",
    "a thread that exits": "import sys, threading\ndef main():\n    print(sum(map(int, sys.stdin.read().split())))\n    sys.exit(0)\nthreading.Thread(target=main).start()",
    "a stack without limit": "import resource, sys\nresource.setrlimit(resource.RLIMIT_STACK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\nsys.setrecursionlimit(10 ** 6)\n" + READ + "print(sum(a))",
    "a stack of 256 MiB": "import resource, sys\nresource.setrlimit(resource.RLIMIT_STACK, [0x10000000, resource.RLIM_INFINITY])\nsys.setrecursionlimit(0x100000)\n" + READ + "print(sum(a))",
    "hard limit of the stack": "import resource\nhard = resource.getrlimit(resource.RLIMIT_STACK)[1]\nresource.setrlimit(resource.RLIMIT_STACK, (hard, hard))\n" + READ + "print(sum(a))",
    "quit()": READ + "print(sum(a))\nquit()",
    "exit(0) in the loop": READ + "for x in a:\n    if x > 3:\n        print(x)\n        exit(0)",
    "raise SystemExit": READ + "print(sum(a))\nraise SystemExit",
    "sys.exit(print())": READ + "import sys\nsys.exit(print(sum(a)))",
    "os._exit": READ + "import os\nprint(sum(a), flush=True)\nos._exit(0)",
    "os.write, no newline": READ + "import os\nos.write(1, ' '.join(map(str, a)).encode())",
    "assert and except": READ + "try:\n    assert n > 100\nexcept AssertionError:\n    print(sum(a))",
    "finally prints": READ + "import sys\ntry: sys.exit(0)\nfinally: print(sum(a))",
    "all star imports": "from math import *\nfrom collections import *\nfrom itertools import *\nfrom functools import *\nfrom bisect import *\nfrom heapq import *\nfrom string import *\nfrom operator import *\n" + READ + "print(gcd(*a), Counter(a).most_common(1)[0][1], reduce(mul, a), *accumulate(a))",
    "from math import *, pow": "from math import *\n" + READ + "print(pow(2, 10), sqrt(16), floor(log2(n)), hypot(3, 4))",
    "from os import *": READ + "from os import *\nfd = dup(1)\nwrite(fd, str(sum(a)).encode())",
    "a wheel of imports": "import math, collections, bisect, heapq, itertools, functools, string, operator, random, re, copy, time, datetime, decimal, fractions, statistics, array, cmath, enum, types, typing\n" + READ + "print(sum(a))",
    "debug on stderr": READ + "import sys\ndef debug(*x): print(*x, file=sys.stderr)\ndebug('a =', a, '\\ud800')\nprint(sum(a))",
    "heap of tuples": READ + "from heapq import heappush, heappop, heapify, nlargest\nh = [(-x, i) for i, x in enumerate(a)]\nheapify(h)\nprint(*heappop(h), *nlargest(2, a))",
    "bisect with a key": READ + "from bisect import bisect_left, insort\nb = []\nfor x in a: insort(b, x)\nprint(bisect_left(b, 4), bisect_left(range(100), 50, key=lambda x: x * x))",
    "defaultdict of defaultdict": READ + "from collections import defaultdict\nd = defaultdict(lambda: defaultdict(int))\nfor x in a: d[x % 3][x] += 1\nprint(sorted((k, sorted(v.items())) for k, v in d.items()))",
    "deque rotates": READ + "from collections import deque\nd = deque(a, maxlen=4)\nd.rotate(1)\nprint(*d)",
    "a graph by lists": READ + "g = [[] for _ in range(n)]\nfor i in range(1, n): g[i].append(i // 2); g[i // 2].append(i)\nseen, stack = {0}, [0]\nwhile stack:\n    for v in g[stack.pop()]:\n        if v not in seen: seen.add(v); stack.append(v)\nprint(len(seen))",
    "disjoint sets in a class": READ + "class DSU:\n    def __init__(self, n): self.p = list(range(n))\n    def find(self, x):\n        while self.p[x] != x: self.p[x] = x = self.p[self.p[x]]\n        return x\n    def union(self, x, y): self.p[self.find(x)] = self.find(y)\nd = DSU(n)\nfor i in range(0, n - 1, 2): d.union(i, i + 1)\nprint(len({d.find(i) for i in range(n)}))",
    "a sorted list of one's own": READ + "from bisect import bisect_left, insort\nclass SortedList:\n    def __init__(self, it=()): self._lists = [sorted(it)]\n    def add(self, x): insort(self._lists[0], x)\n    def __getitem__(self, i): return self._lists[0][i]\n    def bisect_left(self, x): return bisect_left(self._lists[0], x)\ns = SortedList(a)\ns.add(2)\nprint(s[0], s[-1], s.bisect_left(3))",
    "a segment tree": READ + "size = 8\nt = [0] * 2 * size\nt[size:size + n] = a\nfor i in range(size - 1, 0, -1): t[i] = t[2 * i] + t[2 * i + 1]\nprint(t[1])",
    "a modulus": READ + "M = 10 ** 9 + 7\nf = [1]\nfor i in range(1, 1000): f.append(f[-1] * i % M)\nprint(f[500], pow(f[7], M - 2, M), pow(3, -1, M))",
    "random with a seed": READ + "import random\nrandom.seed(5)\nb = a[:]\nrandom.shuffle(b)\nprint(*b, random.randint(1, 10 ** 9), random.random())",
    "Random of its own": READ + "from random import Random\nr = Random(42)\nprint(r.getrandbits(31), r.sample(range(100), 3))",
    "xor hashing": READ + "import random, time\nrandom.seed(time.time_ns())\nR = random.getrandbits(62)\nd = {x ^ R: 1 for x in a}\nprint(len(d))",
    "time measured": READ + "import time\nstart = time.perf_counter()\nprint(sum(a))\nassert time.perf_counter() - start < 60 and time.process_time() < 60",
    "an alarm ends the search": READ + "import signal, sys\nbest = 0\ndef stop(*_):\n    print(sum(a)); sys.exit(0)\nsignal.signal(signal.SIGALRM, stop)\nsignal.setitimer(signal.ITIMER_REAL, 0.03)\nwhile True: best += 1",
    "an alarm raises": READ + "import signal\nclass Late(Exception): pass\ndef late(*_): raise Late\nsignal.signal(signal.SIGALRM, late)\nsignal.setitimer(signal.ITIMER_REAL, 0.03)\ndef search():\n    while True: pass\ntry: search()\nexcept Late: print(sum(a))",
    "an alarm by the processor's time": READ + "import signal\nold = signal.signal(signal.SIGVTALRM, lambda *_: done.append(1))\ndone = []\nsignal.setitimer(signal.ITIMER_VIRTUAL, 0.03)\nwhile not done: pass\nprint(sum(a), old is signal.SIG_DFL)",
    "signal.alarm and pause": READ + "import signal\nsignal.signal(signal.SIGALRM, lambda *_: None)\nsignal.setitimer(signal.ITIMER_REAL, 0.02)\nsignal.pause()\nprint(signal.alarm(0), sum(a))",
    "a handler of its own": READ + "import os, signal\ngot = []\nsignal.signal(signal.SIGUSR1, lambda s, f: got.append(s))\nos.kill(os.getpid(), signal.SIGUSR1)\nprint(len(got), sum(a))",
    "KeyboardInterrupt": READ + "import signal\ntry: signal.raise_signal(signal.SIGINT)\nexcept KeyboardInterrupt: print(sum(a))",
    "interrupt_main by a timer": READ + "import _thread, threading\nt = threading.Timer(0.03, _thread.interrupt_main)\nt.start()\ndef search():\n    while True: pass\ntry: search()\nexcept KeyboardInterrupt: print(sum(a))",
    "SIGPIPE by default": "from signal import signal, SIGPIPE, SIG_DFL\nsignal(SIGPIPE, SIG_DFL)\n" + READ + "print(sum(a))",
    "faulthandler": "import faulthandler\nfaulthandler.enable()\n" + READ + "print(sum(a))",
    "the main thread": "import threading\nassert threading.current_thread() is threading.main_thread() and threading.active_count() == 1\n" + READ + "print(threading.main_thread().name, sum(a))",
    "gc frozen": "import gc\ngc.disable(); gc.collect(); gc.freeze()\n" + READ + "print(sum(a), gc.isenabled())",
    "its own source": READ + "print(sum(a), len(open(__file__).read()) > 10, open(__file__).readline().strip())",
    "its own source by argv": READ + "import sys\nprint(sum(a), open(sys.argv[0]).read().count('argv'), len(sys.argv))",
    "a quine": READ + "import sys\nsys.stdout.write(open(sys.argv[0]).read())",
    "its folder": READ + "import os\nhere = os.path.dirname(os.path.abspath(__file__))\nos.chdir(here)\nprint(os.path.isabs(__file__), os.getcwd() == here, os.path.exists(__file__), sum(a))",
    "chdir to dirname": READ + "import os\nos.chdir(os.path.dirname(__file__))\nprint(sum(a))",
    "pathlib of its file": READ + "from pathlib import Path\nprint(Path(__file__).resolve().suffix, Path(__file__).read_text().count('Path'), sum(a))",
    "sys.path[0]": READ + "import os, sys\nprint(sys.path[0] == os.path.dirname(os.path.abspath(__file__)), sum(a))",
    "a module that it writes": "open('my_part.py', 'w').write('def total(a): return sum(a)\\n')\nfrom my_part import total\n" + READ + "print(total(a))",
    "inspect.getsource": READ + "import inspect\ndef f(x):\n    return x + 1  # one more\nprint(inspect.getsource(f), sum(a))",
    "traceback of its own": READ + "import traceback\ntry: 1 // 0\nexcept ZeroDivisionError: print(traceback.format_exc().splitlines()[2].strip(), sum(a))",
    "__builtins__": READ + "__builtins__.total = sum\nprint(total(a), type(__builtins__).__name__)",
    "import __main__": READ + "import __main__\n__main__.x = sum(a)\nprint(x, __main__.__name__)",
    "sys.modules": READ + "import sys\nsetattr(sys.modules[__name__], 'x', sum(a))\nprint(x, __name__, __doc__, __spec__, __package__)",
    "globals() filled": READ + "for i, x in enumerate(a): globals()[f'v{i}'] = x\nprint(v0, v1, v2)",
    "exec of a template": READ + "for name, op in (('add', '+'), ('mul', '*')): exec(f'def {name}(x, y): return x {op} y')\nprint(add(a[0], a[1]), mul(a[0], a[1]))",
    "an excepthook": READ + "import os, sys\nsys.excepthook = lambda *e: (print(sum(a), flush=True), os._exit(0))\n1 // 0",
    "walrus and match": READ + "match a:\n    case [x, *rest] if (total := sum(rest)) is not None: print(x, total)\n    case _: print('none')",
    "types as strings": "from typing import List, Optional\ndef f(a: 'List[int]', k: 'Optional[int]' = None) -> 'int': return sum(a)\n" + READ + "print(f(a), f.__annotations__['k'])",
    "names beyond ASCII": READ + "größe = sum(a)\nΔ = größe * 2\nprint(größe, Δ, '→ ответ ✓ 😀')",
    "a shebang and a cookie": "#!/usr/bin/env python3\n# -*- coding: utf-8 -*-\n\"\"\"Solution.\"\"\"\n" + READ + "print(sum(a), __doc__)",
    "a BOM and CRLF": ("\ufeff" + READ + "print(sum(a))\n").replace("\n", "\r\n"),
    "tabs": "def main():\n\tn = int(input())\n\ta = input().split()\n\tif n:\n\t\tprint(*a[::-1])\nmain()",
    "latin-1": READ + "import sys\nsys.stdout.reconfigure(encoding='latin-1')\nprint(sum(a))",
    "long integers": READ + "import sys\nif hasattr(sys, 'set_int_max_str_digits'): sys.set_int_max_str_digits(0)\nprint(len(str(3 ** 20000)), 2 ** 300 + sum(a))",
    "ctypes printf": READ + "import ctypes\nctypes.CDLL(None).printf(b'%d\\n', sum(a))",
    "a fork that works": READ + "import os\nr, w = os.pipe()\nif os.fork() == 0:\n    os.write(w, str(sum(a)).encode())\n    os._exit(0)\nos.wait()\nprint(os.read(r, 100).decode())",
    "a fork that prints": READ + "import os, sys\nif os.fork() == 0:\n    print('child')\n    sys.exit(0)\nos.wait()\nprint(sum(a))",
}  # fmt: skip

ATCODER = {
    "open(0)": "n, *a = map(int, open(0).read().split())\nprint(sum(a))",
    "open(0) by lines": "n, a = open(0)\nprint(sum(map(int, a.split())))",
    "/dev/stdin": "with open('/dev/stdin') as f: n, *a = map(int, f.read().split())\nprint(sum(a))",
    "/dev/stdin by descriptor": "n, *a = map(int, open('/dev/fd/0').read().split())\nprint(sum(a))",
    "/dev/stdout": READ + "with open('/dev/stdout', 'w') as f: f.write(str(sum(a)))",
    "readlines": "import sys\nn, a = sys.stdin.readlines()\nprint(int(n) + sum(map(int, a.split())))",
    "readline as input": "import sys\ninput = sys.stdin.readline\n" + READ + "print(sum(a))",
    "stdin.buffer as read": "import sys\nread, readline = sys.stdin.buffer.read, sys.stdin.buffer.readline\nn = int(readline())\nprint(sum(map(int, read().split())))",
    "bytes of a line": "import sys\nn = int(sys.stdin.buffer.readline())\nprint(sys.stdin.buffer.readline().rstrip()[0] - 48)",
    "fileinput": "import fileinput\nlines = [line.strip() for line in fileinput.input()]\nprint(len(lines), lines[-1])",
    "input until EOF": "a = []\nwhile True:\n    try: a += map(int, input().split())\n    except EOFError: break\nprint(sum(a[1:]))",
    "print(*)": READ + "print(*sorted(a, reverse=True), sep='\\n')",
    "Yes No": READ + "print(['No', 'Yes'][sum(a) % 2 == 0])\nprint('Yes' if n > 3 else 'No')",
    "recursion limit": "import sys\nsys.setrecursionlimit(10 ** 9)\n" + READ + "def f(k): return 0 if k == 0 else 1 + f(k - 1)\nprint(f(20000) + sum(a))",
    "recursion limit just large enough": "import sys\n" + READ + "def f(k): return 0 if k == 0 else 1 + f(k - 1)\nsys.setrecursionlimit(n + 10)\nprint(f(n + 2) + sum(a))",
    "recursion limit too large for C": "import sys\nsys.setrecursionlimit(2 ** 31 - 1)\n" + READ + "print(sum(a))",
    "a cache for recursion": "import sys\nfrom functools import lru_cache, cache\nsys.setrecursionlimit(10 ** 6)\n" + READ + "@cache\ndef f(k): return k if k < 2 else f(k - 1) + f(k - 2)\n@lru_cache(maxsize=None)\ndef g(k): return 0 if k == 0 else g(k - 1) + 1\nprint(f(300), g(300), sum(a), f.cache_info().hits)",
    "main": "import sys\ndef main():\n    input = sys.stdin.readline\n    n = int(input())\n    a = list(map(int, input().split()))\n    print(max(a) - min(a))\nif __name__ == '__main__':\n    main()",
    "main with arguments": "def main(argv=None):\n    n, *a = map(int, open(0).read().split())\n    print(sum(a))\n    return 0\nif __name__ == '__main__':\n    import sys\n    sys.exit(main(sys.argv[1:]))",
    "solve is called by main": "def solve(N: int, A: 'list[int]') -> int: return sum(A)\ndef main():\n    import sys\n    def tokens():\n        for line in sys.stdin:\n            for word in line.split(): yield word\n    t = tokens()\n    N = int(next(t))\n    A = [int(next(t)) for _ in range(N)]\n    print(solve(N, A))\nmain()",
    "numpy from text": "import sys\nimport numpy as np\nd = np.array(sys.stdin.buffer.read().split(), np.int64)\nprint(d[1:].sum(), d.dtype)",
    "numpy fromstring": "import numpy as np\nn = int(input())\na = np.fromstring(input(), dtype=np.int64, sep=' ')\nprint(a.max(), np.cumsum(a)[-1])",
    "numpy loadtxt": "import sys\nimport numpy as np\na = np.loadtxt(sys.stdin, skiprows=1, dtype=int)\nprint(a.tolist())",
    "numpy savetxt": READ + "import sys\nimport numpy as np\nnp.savetxt(sys.stdout, np.array(a).reshape(1, -1), fmt='%d')",
    "numpy prints": READ + "import numpy as np\nnp.set_printoptions(linewidth=1000)\nprint(np.array(a), np.outer(a, a).trace())",
    "numpy with a seed": READ + "import numpy as np\nprint(np.random.default_rng(1).integers(0, 100, 3), np.unique(a).size)",
    "numpy matrix power": READ + "import numpy as np\nm = np.array([[1, 1], [1, 0]], dtype=object)\nr = np.linalg.matrix_power(m, 90)\nprint(r[0][0], sum(a))",
    "numba if there": "try:\n    from numba import njit\nexcept ImportError:\n    njit = lambda f: f\n" + READ + "@njit\ndef total(a):\n    s = 0\n    for x in a: s += x\n    return s\nprint(total(a))",
    "compiled ahead if asked": "import sys\nif sys.argv[-1] == 'ONLINE_JUDGE':\n    raise SystemExit(3)\n" + READ + "print(sum(a))",
    "runs itself": "import os, subprocess, sys\nif len(sys.argv) == 1: sys.exit(subprocess.run([sys.executable, __file__, 'again']).returncode)\n" + READ + "print(sum(a), sys.argv[1])",
    "replaces itself": "import os, sys\nif 'AGAIN' not in os.environ:\n    os.environ['AGAIN'] = '1'\n    os.execv(sys.executable, [sys.executable] + sys.argv)\n" + READ + "print(sum(a))",
    "a subprocess computes": READ + "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'print(sum(map(int, input().split())))'], input=' '.join(map(str, a)), capture_output=True, text=True).stdout)",
    "a shell": READ + "import os, sys\nsys.stdout.flush()\nos.system('echo %d' % sum(a))",
    "runpy": "import os, runpy\nif __name__ == '__main__':\n    runpy.run_path(__file__, run_name='again')\nelse:\n    n, *a = map(int, open(0).read().split())\n    print(sum(a), __name__)",
    "a Pool": READ + "from multiprocessing import Pool\ndef square(x): return x * x\nif __name__ == '__main__':\n    with Pool(2) as p: print(sum(p.map(square, a)))",
    "a Process and a Queue": READ + "from multiprocessing import Process, Queue\ndef work(q, a): q.put(sum(a))\nif __name__ == '__main__':\n    q = Queue()\n    p = Process(target=work, args=(q, a))\n    p.start()\n    print(q.get())\n    p.join()",
    "spawn": "import multiprocessing\ndef work(q, a): q.put(sum(a))\nif __name__ == '__main__':\n    n, *a = map(int, open(0).read().split())\n    c = multiprocessing.get_context('spawn')\n    q = c.SimpleQueue()\n    p = c.Process(target=work, args=(q, a))\n    p.start()\n    p.join()\n    print(q.get(), p.exitcode)",
    "spawn by default": "import multiprocessing as mp\nfrom concurrent.futures import ProcessPoolExecutor\ndef square(x): return x * x\nif __name__ == '__main__':\n    mp.set_start_method('spawn')\n    n, *a = map(int, open(0).read().split())\n    with ProcessPoolExecutor(1) as e: print(sum(e.map(square, a)))",
    "forkserver": "import multiprocessing as mp\ndef work(c, a): c.send(sum(a))\nif __name__ == '__main__':\n    n, *a = map(int, open(0).read().split())\n    c = mp.get_context('forkserver')\n    here, there = c.Pipe()\n    p = c.Process(target=work, args=(there, a))\n    p.start()\n    print(here.recv())\n    p.join()",
    "processes with values": "import multiprocessing as mp\ndef work(v, arr):\n    with v.get_lock(): v.value += sum(arr)\nif __name__ == '__main__':\n    n, *a = map(int, open(0).read().split())\n    v, arr = mp.Value('i', 0), mp.Array('i', a)\n    p = mp.Process(target=work, args=(v, arr))\n    p.start(); p.join()\n    print(v.value)",
    "a Manager": "import multiprocessing as mp\ndef work(d, a): d['s'] = sum(a)\nif __name__ == '__main__':\n    n, *a = map(int, open(0).read().split())\n    with mp.Manager() as m:\n        d = m.dict()\n        p = mp.Process(target=work, args=(d, a))\n        p.start(); p.join()\n        print(d['s'])",
    "ProcessPoolExecutor": READ + "from concurrent.futures import ProcessPoolExecutor\ndef square(x): return x * x\nif __name__ == '__main__':\n    with ProcessPoolExecutor(max_workers=2) as e: print(*e.map(square, a))",
    "ThreadPoolExecutor": READ + "from concurrent.futures import ThreadPoolExecutor\ne = ThreadPoolExecutor(4)\nprint(sum(e.map(lambda x: x * x, a)))",
    "ThreadPoolExecutor, not shut down": READ + "from concurrent.futures import ThreadPoolExecutor\nimport time\ne = ThreadPoolExecutor(2)\ne.submit(lambda: (time.sleep(0.05), print(sum(a))))",
    "a pool of threads": READ + "from multiprocessing.pool import ThreadPool\nprint(sum(ThreadPool(2).map(abs, a)))",
    "asyncio.run": READ + "import asyncio\nasync def f(x):\n    await asyncio.sleep(0)\n    return x\nasync def main(): return sum(await asyncio.gather(*map(f, a)))\nprint(asyncio.run(main()))",
    "asyncio in threads": "import asyncio, sys\nasync def main():\n    loop = asyncio.get_running_loop()\n    lines = [await loop.run_in_executor(None, sys.stdin.readline) for _ in range(2)]\n    print(sum(map(int, lines[1].split())))\nasyncio.run(main())",
    "asyncio with signals": READ + "import asyncio, os, signal\nasync def main():\n    got = asyncio.Event()\n    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, got.set)\n    os.kill(os.getpid(), signal.SIGUSR1)\n    await asyncio.wait_for(got.wait(), 5)\n    print(sum(a))\nasyncio.run(main())",
    "asyncio with a subprocess": READ + "import asyncio, sys\nasync def main():\n    p = await asyncio.create_subprocess_exec(sys.executable, '-c', 'print(6 * 7)', stdout=asyncio.subprocess.PIPE)\n    out, _ = await p.communicate()\n    print(out.decode().strip(), sum(a))\nasyncio.run(main())",
    "Decimal": READ + "from decimal import Decimal, getcontext, ROUND_HALF_UP\ngetcontext().prec = 50\nprint(Decimal(sum(a)) / 7, Decimal('2.5').quantize(Decimal('1'), ROUND_HALF_UP))",
    "Fraction": READ + "from fractions import Fraction\nprint(sum(Fraction(1, abs(x)) for x in a))",
    "itertools": READ + "from itertools import accumulate, chain, combinations, groupby, permutations, product\nprint(sum(x * y for x, y in combinations(a, 2)), len(list(permutations(a))), [(k, len(list(g))) for k, g in groupby(sorted(a))], *accumulate(a, max))",
    "pairwise": READ + "from itertools import pairwise\nprint(*[y - x for x, y in pairwise(a)])",
    "math of integers": READ + "import math\nprint(math.isqrt(10 ** 40), math.comb(50, 25), math.lcm(*range(1, 20)), math.prod(a), math.inf)",
    "string methods": READ + "s = ','.join(map(str, a))\nprint(s.translate(str.maketrans('123', 'abc')), s.rjust(20, '*'), s.removeprefix('3'), f'{sum(a):08.3f}', '%05d' % n)",
    "datetime": READ + "from datetime import date, datetime, timedelta\nprint(date(2024, 2, 28) + timedelta(days=sum(a)), datetime.strptime('2020-01-01 10:00', '%Y-%m-%d %H:%M').weekday())",
    "time zones": READ + "from datetime import datetime, timezone, timedelta\nprint(datetime.fromtimestamp(0, timezone(timedelta(hours=9))).isoformat(), sum(a))",
    "calendar": READ + "import calendar\nprint(calendar.isleap(2024), calendar.monthrange(2023, 2), sum(a))",
    "re": READ + "import re\nprint(re.findall(r'\\d+', ' '.join(map(str, a))), re.sub(r'(\\d)(\\d)', r'\\2\\1', '1234'), bool(re.fullmatch('[a-z]+', 'abc')))",
    "struct and array": READ + "import struct\nfrom array import array\nb = array('q', a)\nprint(struct.unpack('<q', struct.pack('<q', b[0])), b.tolist(), b.itemsize)",
    "heapq merge": READ + "import heapq\nprint(*heapq.merge(sorted(a), range(3)), heapq.nsmallest(2, a))",
    "cmp_to_key": READ + "from functools import cmp_to_key\nprint(*sorted(map(str, a), key=cmp_to_key(lambda x, y: (x + y < y + x) - (x + y > y + x))))",
    "operator": READ + "from operator import itemgetter, mul, xor\nfrom functools import reduce\nprint(reduce(xor, map(abs, a)), sorted(enumerate(a), key=itemgetter(1))[0])",
    "sets as keys": READ + "print(sorted(map(sorted, {frozenset(x) for x in ('ab', 'ba', 'c')})), len({tuple(a)}))",
    "order of a dict": READ + "d = {}\nfor x in a: d[x] = d.get(x, 0) + 1\nprint(*d, *d.values())",
    "a class with order": READ + "from functools import total_ordering\n@total_ordering\nclass P:\n    def __init__(self, x): self.x = x\n    def __lt__(self, o): return self.x < o.x\n    def __eq__(self, o): return self.x == o.x\nprint(max(map(P, a)).x)",
    "dataclasses": READ + "from dataclasses import dataclass, field\n@dataclass(order=True)\nclass E:\n    cost: int\n    to: int = field(compare=False)\nprint(min(E(x, i) for i, x in enumerate(a)))",
    "slots and NamedTuple": READ + "from typing import NamedTuple\nclass P(NamedTuple):\n    x: int\n    y: int = 0\nclass Q:\n    __slots__ = ('v',)\nprint(P(a[0]), Q.__slots__)",
    "Enum": READ + "from enum import Enum, IntEnum, auto\nclass C(Enum):\n    RED = auto()\nclass D(IntEnum):\n    UP = 1\nprint(C.RED, D.UP + sum(a))",
    "pickle and copy": READ + "import copy, pickle\nclass T:\n    def __init__(self, a): self.a = a\nprint(pickle.loads(pickle.dumps(T(a))).a, copy.deepcopy(T(a)).a)",
    "json": READ + "import json\nprint(json.dumps({'a': a}), json.loads('[1, 2]'))",
    "text of columns": READ + "import textwrap, string\nprint(textwrap.fill(' '.join(map(str, a * 10)), 20), string.ascii_lowercase[:n])",
    "hashlib and zlib": READ + "import base64, hashlib, zlib\nprint(hashlib.md5(str(a).encode()).hexdigest(), zlib.crc32(b'x'), base64.b64encode(b'abc').decode())",
    "an embedded table": READ + "import base64, zlib\ntable = base64.b85encode(zlib.compress(b'1 2 3 4 5'))\nprint(*map(int, zlib.decompress(base64.b85decode(table)).split()), sum(a))",
    "a temporary file": READ + "import tempfile\nwith tempfile.TemporaryFile('w+') as f:\n    f.write(str(sum(a))); f.seek(0); print(f.read())",
    "a temporary folder": READ + "import os, tempfile\nwith tempfile.TemporaryDirectory() as d:\n    open(os.path.join(d, 'x'), 'w').write('1')\n    print(os.listdir(d), sum(a))",
    "a file in /tmp": READ + "import os\nname = f'/tmp/x{os.getpid()}'\nopen(name, 'w').write('1')\nos.remove(name)\nprint(sum(a))",
    "a shelf of files": READ + "import os, shutil\nos.makedirs('d/e', exist_ok=True)\nopen('d/e/f', 'w').write('1')\nprint(sorted(os.listdir('d')), sum(a))\nshutil.rmtree('d')",
    "home": READ + "import os\nprint(os.path.isdir(os.path.expanduser('~')), sum(a))",
    "locale": READ + "import locale\nlocale.setlocale(locale.LC_ALL, '')\nprint(locale.getpreferredencoding(), sum(a))",
    "sqlite": READ + "import sqlite3\nc = sqlite3.connect(':memory:')\nc.execute('create table t(x)')\nc.executemany('insert into t values (?)', [(x,) for x in a])\nprint(*c.execute('select sum(x) from t').fetchone())",
    "contextlib": READ + "import contextlib, io\nout = io.StringIO()\nwith contextlib.redirect_stdout(out): print(sum(a))\nprint(out.getvalue(), end='')",
    "warnings as errors": READ + "import warnings\nwith warnings.catch_warnings(record=True) as seen:\n    warnings.simplefilter('always')\n    warnings.warn('x')\nprint(len(seen), sum(a))",
    "logging": READ + "import logging, sys\nlogging.basicConfig(level=logging.INFO, stream=sys.stdout, format='%(message)s')\nlogging.info('%d', sum(a))",
    "logging, flushed at the end": READ + "import logging, logging.handlers, sys\nh = logging.handlers.MemoryHandler(100, target=logging.StreamHandler(sys.stdout))\nlog = logging.getLogger()\nlog.addHandler(h)\nlog.warning('%d', sum(a))",
    "a finaliser of weakref": READ + "import weakref\nclass T: pass\nt = T()\nweakref.finalize(t, print, sum(a))",
    "argparse": READ + "import argparse\np = argparse.ArgumentParser()\np.add_argument('--x', type=int, default=3)\nprint(p.parse_args().x + sum(a), p.parse_args([]).x)",
    "doctest": "def f(a):\n    \"\"\"\n    >>> f([1, 2])\n    3\n    \"\"\"\n    return sum(a)\nimport doctest\n" + READ + "print(doctest.testmod().failed, f(a))",
    "unittest on demand": READ + "import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(1, 1)\nr = unittest.TestResult()\nunittest.defaultTestLoader.loadTestsFromTestCase(T).run(r)\nprint(r.testsRun, sum(a))",
    "sys of its own": READ + "import sys\nprint(sys.byteorder, sys.maxsize, sys.version_info[:2], sys.stdin.encoding, sys.stdout.encoding, sys.stdout.errors, sys.getdefaultencoding(), sys.flags.optimize, sys.stdin.name, sys.stdout.name)",
    "streams of its own": READ + "import sys\nprint(sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stdin.fileno(), sys.stdout.fileno(), sys.stdout.line_buffering, sys.stdin.mode, sys.stdout.mode, sys.stdout.writable())",
    "bytes that are no text": READ + "import sys\nsys.stdout.buffer.write(bytes([0xC3, 0xA9, 10]))\nprint(b'\\xff'.decode('utf-8', 'surrogateescape') != '', sum(a))",
    "a lazy segment of bits": READ + "x = 0\nfor v in a: x |= 1 << abs(v)\nprint(bin(x).count('1'), x.bit_length(), int('101', 2), f'{x:b}')",
    "complex": READ + "z = complex(*a[:2])\nprint(abs(z) > 0, (z * 1j).real, sum(a))",
    "a generator's return": READ + "def g():\n    yield from a\n    return sum(a)\ni = g()\nwhile True:\n    try: next(i)\n    except StopIteration as e:\n        print(e.value)\n        break",
    "metaclass": READ + "class M(type):\n    def __call__(cls, *x): return sum(x)\nclass S(metaclass=M): pass\nprint(S(*a))",
    "a decorator with arguments": READ + "def times(k):\n    def wrap(f):\n        return lambda *x: f(*x) * k\n    return wrap\n@times(3)\ndef f(x): return x\nprint(f(sum(a)))",
    "nonlocal": READ + "def counter():\n    c = 0\n    def step():\n        nonlocal c\n        c += 1\n        return c\n    return step\ns = counter()\nfor _ in a: last = s()\nprint(last)",
    "exception groups of habits": READ + "class Found(Exception): pass\ntry:\n    for x in a:\n        for y in a:\n            if x + y == 5: raise Found((x, y))\n    print('none')\nexcept Found as e: print(*e.args[0])\nelse: print('else')",
    "an unhandled error in a thread": READ + "import threading\nt = threading.Thread(target=lambda: 1 // 0)\nt.start(); t.join()\nprint(sum(a))",
    "a daemon thread": READ + "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\nprint(sum(a))",
    "locks and events": READ + "import queue, threading\nq, lock = queue.Queue(), threading.Lock()\ndef work():\n    while (x := q.get()) is not None:\n        with lock: total.append(x)\ntotal = []\nts = [threading.Thread(target=work) for _ in range(3)]\n[t.start() for t in ts]\n[q.put(x) for x in a + [None] * 3]\n[t.join() for t in ts]\nprint(sum(total))",
}  # fmt: skip

LEETCODE = {
    "a method": "class Solution:\n    def solve(self, nums: List[int], k: int) -> int:\n        return sum(nums) + k",
    "a function": "def solve(nums, k): return sum(nums) + k",
    "own imports": "from typing import List, Optional, Dict, Tuple\nfrom collections import defaultdict, deque, Counter\nclass Solution:\n    def solve(self, nums: List[int], k: int) -> List[int]:\n        return [x for x, _ in Counter(nums).most_common(k)]",
    "types as strings": "class Solution:\n    def solve(self, nums: 'list[int]', k: 'int') -> 'Matrix': return sum(nums)",
    "Optional of unions": "class Solution:\n    def solve(self, nums: 'Optional[List[int]]', k: int | None = None) -> int: return len(nums)",
    "a cached method": "class Solution:\n    @lru_cache(None)\n    def f(self, k): return k if k < 2 else self.f(k - 1) + self.f(k - 2)\n    def solve(self, nums, k): return self.f(60 + k)",
    "a cached closure": "class Solution:\n    def solve(self, nums, k):\n        @cache\n        def f(i): return 0 if i == len(nums) else max(f(i + 1), nums[i] + f(i + 1))\n        r = f(0)\n        f.cache_clear()\n        return r",
    "deep recursion": "class Solution:\n    def solve(self, nums, k):\n        def f(i): return 0 if i == 0 else 1 + f(i - 1)\n        return f(900) + k",
    "recursion limit": "import sys\nsys.setrecursionlimit(10 ** 6)\nclass Solution:\n    def solve(self, nums, k):\n        def f(i): return 0 if i == 0 else 1 + f(i - 1)\n        return f(30000) + k",
    "helpers beside it": "def gcd_all(nums): return reduce(math.gcd, nums)\nMOD = 10 ** 9 + 7\nclass Solution:\n    def solve(self, nums, k): return gcd_all(nums) % MOD",
    "state of the class": "class Solution:\n    memo = {}\n    def __init__(self): self.best = 0\n    def solve(self, nums, k):\n        for x in nums: self.best = max(self.best, x)\n        Solution.memo[k] = self.best\n        return Solution.memo[k]",
    "a static method": "class Solution:\n    @staticmethod\n    def solve(nums, k): return nums[k]",
    "a class method": "class Solution:\n    @classmethod\n    def solve(cls, nums, k): return cls.__name__ + str(nums[k])",
    "a base class": "class Base:\n    def solve(self, nums, k): return nums[-k]\nclass Solution(Base): pass",
    "a property is a function": "class Solution:\n    solve = lambda self, nums, k: sorted(nums)[k]",
    "a partial": "class Solution:\n    solve = staticmethod(functools.partial(lambda extra, nums, k: sum(nums) + extra, 5))",
    "a callable object": "class F:\n    def __call__(self, nums, k): return nums[k]\nsolve = F()",
    "a linked list": "class ListNode:\n    def __init__(self, val=0, next=None): self.val, self.next = val, next\nclass Solution:\n    def solve(self, nums: List[int], k: int) -> Optional[int]:\n        head = None\n        for x in reversed(nums): head = ListNode(x, head)\n        for _ in range(k): head = head.next\n        return head.val",
    "a tree": "class TreeNode:\n    def __init__(self, val=0, left=None, right=None):\n        self.val, self.left, self.right = val, left, right\nclass Solution:\n    def solve(self, nums, k):\n        def insert(t, v):\n            if t is None: return TreeNode(v)\n            if v < t.val: t.left = insert(t.left, v)\n            else: t.right = insert(t.right, v)\n            return t\n        t = None\n        for x in nums: t = insert(t, x)\n        def walk(t): return walk(t.left) + [t.val] + walk(t.right) if t else []\n        return walk(t)",
    "if main": "class Solution:\n    def solve(self, nums, k): return len(nums)\nif __name__ == '__main__':\n    print(Solution().solve(eval(input()), 1))\n    raise SystemExit(1)",
    "prints beside it": "class Solution:\n    def solve(self, nums, k):\n        print('debug', nums)\n        return k",
    "defined by exec": "exec('def solve(nums, k): return nums[k]')",
    "defined by globals": "globals()['solve'] = lambda nums, k: nums[k] + 1",
    "defined by setattr": "import sys\nsetattr(sys.modules[__name__], 'solve', lambda nums, k: nums[k] + 2)",
    "defined by update": "globals().update(solve=lambda nums, k: nums[k] + 3)",
    "a class made by type": "Solution = type('Solution', (), {'solve': lambda self, nums, k: nums[k]})",
    "a class made by exec": "exec('class Solution:\\n    def solve(self, nums, k): return nums[k]')",
    "a method set later": "class Solution: pass\ndef solve(self, nums, k): return max(nums) - k\nSolution.solve = solve",
    "a method by setattr": "class Solution: pass\nsetattr(Solution, 'solve', lambda self, nums, k: min(nums) - k)",
    "a dataclass": "from dataclasses import dataclass\n@dataclass(order=True)\nclass P:\n    x: int\n    y: int = 0\nclass Solution:\n    def solve(self, nums, k): return [p.x for p in sorted(map(P, nums))]",
    "a heap": "class Solution:\n    def solve(self, nums, k):\n        h = nums[:]\n        heapq.heapify(h)\n        return [heapq.heappop(h) for _ in range(k)]",
    "heapq by name": "class Solution:\n    def solve(self, nums, k):\n        return heapq.nlargest(k, nums) + [heappop(nums)]",
    "inf": "class Solution:\n    def solve(self, nums, k):\n        best = inf\n        for x in nums: best = min(best, x)\n        return best if best < float('inf') else -1",
    "accumulate and pairwise": "class Solution:\n    def solve(self, nums, k): return list(accumulate(nums)) + [y - x for x, y in pairwise(nums)]",
    "bisect": "class Solution:\n    def solve(self, nums, k):\n        nums.sort()\n        return bisect_left(nums, 4) + bisect.bisect_right(nums, 1)",
    "a sorted list if there": "try:\n    from sortedcontainers import SortedList\nexcept ImportError:\n    SortedList = sorted\nclass Solution:\n    def solve(self, nums, k): return list(SortedList(nums))",
    "numpy": "import numpy as np\nclass Solution:\n    def solve(self, nums, k): return np.cumsum(np.array(nums)).tolist()",
    "math": "class Solution:\n    def solve(self, nums, k): return [math.comb(10, k), gcd(12, 18), isqrt(17), ceil(2.1), math.perm(5, 2)]",
    "strings": "class Solution:\n    def solve(self, nums, k): return ascii_lowercase[:k] + string.digits[k] + '-'.join(map(str, nums))",
    "nested results": "class Solution:\n    def solve(self, nums, k): return [[x] * k for x in nums] + [(1, 2)]",
    "a bool and a None": "class Solution:\n    def solve(self, nums, k): return [nums[0] > k, None, 1.5]",
    "a trie of dicts": "class Trie:\n    def __init__(self): self.root = {}\n    def insert(self, w):\n        t = self.root\n        for c in w: t = t.setdefault(c, {})\n        t['#'] = True\nclass Solution:\n    def solve(self, nums, k):\n        t = Trie()\n        for x in nums: t.insert(str(x))\n        return len(t.root)",
    "in place": "class Solution:\n    def solve(self, nums, k):\n        nums[:] = nums[k:] + nums[:k]\n        return nums",
    "random": "class Solution:\n    def solve(self, nums, k):\n        random.seed(3)\n        return random.choice(nums)",
    "pickled": "import pickle\nclass T:\n    def __init__(self, v): self.v = v\nclass Solution:\n    def solve(self, nums, k): return pickle.loads(pickle.dumps(T(nums))).v",
    "its own source": "import inspect\nclass Solution:\n    def solve(self, nums, k): return inspect.getsource(Solution.solve).strip()[:10] + str(k)",
    "its own file": "class Solution:\n    def solve(self, nums, k): return open(__file__).read().count('solve') > 1",
    "a thread": "import threading\nclass Solution:\n    def solve(self, nums, k):\n        out = []\n        t = threading.Thread(target=lambda: out.append(sum(nums)))\n        t.start()\n        t.join()\n        return out[0]",
    "an alarm": "import signal\nclass Late(Exception): pass\ndef late(*_): raise Late\nclass Solution:\n    def solve(self, nums, k):\n        signal.signal(signal.SIGALRM, late)\n        signal.setitimer(signal.ITIMER_REAL, 0.03)\n        def search():\n            while True: pass\n        try: search()\n        except Late: return k",
    "processes": "from multiprocessing import Pool\ndef square(x): return x * x\nclass Solution:\n    def solve(self, nums, k):\n        with Pool(2) as p: return p.map(square, nums)",
    "stdin is empty": "import sys\nclass Solution:\n    def solve(self, nums, k): return sys.stdin.read() + str(k)",
    "leaves at exit": "import atexit, sys\natexit.register(lambda: print('bye'))\nclass Solution:\n    def solve(self, nums, k): return k",
    "two classes": "class Other:\n    def solve(self, nums, k): return -1\nclass Solution:\n    def solve(self, nums, k): return Other().solve(nums, k) + k",
    "an abstract base": "from abc import ABC, abstractmethod\nclass S(ABC):\n    @abstractmethod\n    def solve(self, nums, k): ...\nclass Solution(S):\n    def solve(self, nums, k): return k * 2",
    "a generator": "class Solution:\n    def solve(self, nums, k):\n        def g():\n            yield from (x for x in nums if x > k)\n        return list(g())",
    "matching": "class Solution:\n    def solve(self, nums, k):\n        match nums:\n            case [x, *_, y]: return x + y\n            case _: return 0",
    "operators of its own": "class M:\n    def __init__(self, v): self.v = v\n    def __matmul__(self, o): return M(self.v * o.v)\nclass Solution:\n    def solve(self, nums, k): return reduce(lambda x, y: x @ y, map(M, nums)).v",
}  # fmt: skip
