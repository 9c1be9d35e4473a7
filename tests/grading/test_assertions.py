"""Assertion tests: what they may do, what their values are, and programs that look for what they expect."""

# Programs are shown on a line each.
# ruff: noqa: E501

import asyncio
import hashlib
import json
import math
import re
import runpy
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from coderl_tasks.grading import Judge, Verdict
from coderl_tasks.grading.client import RunRequest, RunResult
from coderl_tasks.problems.problem import Problem, Test
from coderl_tasks.problems.raw_row import problem_from_row
from coderl_tasks.sandbox_programs import OPERATIONS_DRIVER, PAYLOAD


def problem(*scripts: str, starter_code: str = "") -> Problem:
    tests = tuple(Test("", script) for script in scripts)
    return Problem("p", "", "", starter_code, "assert", "f", tests, len(tests), len(tests), None, (), 0)


STACK = """
class Stack:
    def __init__(self):
        self.items = []
    def push(self, item):
        self.items.append(item)
        return self
    def pop(self):
        return self.items.pop()
    def __len__(self):
        return len(self.items)
    def __eq__(self, other):
        return isinstance(other, Stack) and self.items == other.items
"""
ECHO = "def f(x):\n    return x"
PASSING = {
    "values of any type": (
        "from decimal import Decimal\nfrom fractions import Fraction\nimport datetime, math\n"
        "from collections import deque, OrderedDict, Counter, defaultdict\n"
        "for x in [None, True, 10**50, -0.0, 1e300, 2 + 3j, '\\ud800é', b'\\x00', bytearray(b'a'), [1, [2]], (1, (2,)),\n"
        "          {1, 'a'}, frozenset([(1, 2)]), {(1, 2): {None: [3]}, 1.5: 'x'}, range(3, 9, 2), slice(1, None),\n"
        "          Decimal('1.10'), Fraction(1, 3), datetime.date(2024, 2, 29), datetime.time(1, 2, 3),\n"
        "          datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc), datetime.timedelta(-1, 5), deque([1], 3),\n"
        "          OrderedDict(a=1), Counter('aab'), int, ValueError, ..., {1: 2}.keys()]:\n"
        "    y = f(x)\n"
        "    assert y == x or list(y) == list(x), x\n"
        "    assert type(y) is type(x), (type(y), type(x))\n"
        "assert math.copysign(1, f(-0.0)) == -1 and math.isnan(f(math.nan)) and f(math.inf) == math.inf\n"
        "assert str(f(Decimal('1.10'))) == '1.10' and f(deque([1], 3)).maxlen == 3",
        ECHO,
    ),
    "arrays": (
        "import numpy as np\na = np.arange(4.0)\nassert (f(a) == a).all() and f(a).dtype == a.dtype\n"
        "assert f(np.int8(3)) == 3 and type(f(np.int8(3))) is np.int8\n"
        "assert f(np.array(['a', None], dtype=object))[1] is None",
        ECHO,
    ),
    "an argument that comes back is the same object": (
        "a = [1]\nb = [a, a]\nassert f(b) is b and f(b)[0] is a and f((a,))[0] is a",
        ECHO,
    ),
    "a list that the program keeps": (
        "a = [1]\ns = Stack(a)\ns.push(2)\nassert a == [1, 2]\na.append(3)\nassert s.pop() == 3 and a == [1, 2]\n"
        "a.clear()\nassert len(s) == 0",
        STACK.replace("(self):\n        self.items = []", "(self, items):\n        self.items = items"),
    ),
    "a class whose class knows few names": (
        "assert make().value() == 3",
        "class Known(type):\n    names = {'red': 1}\n    def __getattr__(cls, name):\n        return cls.names[name]\n"
        "class Color(metaclass=Known):\n    def value(self):\n        return 3\ndef make():\n    return Color()",
    ),
    "a list of an object": (
        "s = Stack()\nitems = s.items\ns.push(1)\nassert items == [1] and s.items is items\nitems.append([2])\nassert s.pop() == [2]\n"
        "s.items.extend([[4], 5])\nassert len(s) == 3 and s.pop() == 5\ns.items[-1].append(6)\nassert s.pop() == [4, 6]",
        STACK,
    ),
    "a list that the program copies": (
        "a = [1]\ns = Stack(a)\na.append(2)\nassert s.items == [1]\ns.push(3)\nassert a == [1, 2]\n"
        "s.copy().append(4)\nassert s.items == [1, 3]",
        STACK.replace("(self):\n        self.items = []", "(self, items):\n        self.items = list(items)")
        + "    def copy(self):\n        return list(self.items)\n",
    ),
    "a list that a generator beside it changes": (
        "items, more = f()\nassert list(more) == [1, 2] and size() == 2 and items == [1, 2]\n"
        "items.append(3)\nassert size() == 3",
        "kept = []\ndef g():\n    for i in (1, 2):\n        kept.append(i)\n        yield i\ndef f():\n    return kept, g()\ndef size():\n    return len(kept)",
    ),
    "an ordered dictionary": (
        "from collections import OrderedDict\nd = f()\nassert list(d.items()) == [(1, 2), (3, 4)]\nassert g(OrderedDict(a=1, b=2)) == ['b', 'a']\n"
        "d.move_to_end(1)\nassert first() == 3",
        "from collections import OrderedDict\nkept = OrderedDict([(1, 2), (3, 4)])\ndef f():\n    return kept\ndef first():\n    return next(iter(kept))\n"
        "def g(d):\n    d.move_to_end('a')\n    return list(d)",
    ),
    "a view that the program keeps": (
        "k = f()\nassert list(k) == []\nput(1)\nassert list(f()) == [1] and len(f()) == 1",
        "d = {}\nview = d.keys()\ndef f():\n    return view\ndef put(x):\n    d[x] = x",
    ),
    "containers of every kind that are shared": (
        "import numpy as np\nfrom collections import deque\nb = Box()\n"
        "for x, change in (([], lambda x: x.append(1)), ({}, lambda x: x.update(a=[1])), (set(), lambda x: x.add(1)),\n"
        "                  (deque(), lambda x: x.append(1)), (bytearray(), lambda x: x.append(1))):\n"
        "    b.put(x)\n    change(x)\n    assert b.size() == 1 and b.x is x\n    b.clear()\n    assert not x\n"
        "a = np.zeros(3)\nb.put(a)\na[1] = 2\nassert b.total() == 2\nb.fill(5)\nassert a.sum() == 15",
        "class Box:\n    def put(self, x): self.x = x\n    def size(self): return len(self.x)\n    def clear(self): self.x.clear()\n"
        "    def total(self): return float(self.x.sum())\n    def fill(self, n): self.x[:] = n",
    ),
    "many large lists": (
        "cases = [(list(range(i, i + 3000)), 3000) for i in range(200)]\nfor a, n in cases:\n    assert len(f(a)) == n\n"
        "assert f(cases[0][0]) == cases[0][0]",
        ECHO,
    ),
    "a list that holds itself": ("a = []\na.append(a)\nassert f(a)[0] is a", ECHO),
    "arguments changed in place": (
        "a, b, c = [3, 1], {}, {1}\ninner = [0]\nd = {'k': inner}\nf(a, b, c, d)\n"
        "assert a == [1, 3] and b == {'x': 1} and c == {1, 2} and inner == [0, 9]",
        "def f(a, b, c, d):\n    a.sort()\n    b['x'] = 1\n    c.add(2)\n    d['k'].append(9)",
    ),
    "an array changed in place": (
        "import numpy as np\na = np.zeros((2, 2))\nf(a)\nassert a[1, 1] == 7",
        "def f(a):\n    a[1, 1] = 7",
    ),
    "exceptions": (
        "try:\n    f(-1)\nexcept ValueError as error:\n    assert str(error) == 'negative' and error.args == ('negative',)\n"
        "else:\n    assert False",
        "def f(x):\n    raise ValueError('negative')",
    ),
    "the program's own exceptions": (
        "from solution import Base, Mine\nfor kind in (Mine, Base, LookupError):\n"
        "    try:\n        f()\n        assert False, 'no error'\n    except kind as error:\n        assert 'k' in str(error)",
        "class Base(KeyError): pass\nclass Mine(Base): pass\ndef f():\n    raise Mine('k')",
    ),
    "objects of the program": (
        "from solution import Stack\ns = Stack()\ns.push(1).push(2)\nassert s.pop() == 2 and len(s) == 1 and s.items == [1]\n"
        "assert s == Stack().push(1) and s != Stack() and isinstance(s, Stack) and s\ns.items = [5]\nassert s.pop() == 5\n"
        "assert not hasattr(s, 'nothing')",
        STACK,
    ),
    "objects that go back to the program": (
        "assert total(tree(3)) == 6",
        "class Node:\n    def __init__(self, value, below):\n        self.value, self.below = value, below\n"
        "def tree(n):\n    return Node(n, tree(n - 1)) if n else None\n"
        "def total(node):\n    return node.value + total(node.below) if node else 0",
    ),
    "an object that extends a builtin type": (
        "assert f(3) == 4 and f(3) + 1 == 5 and 1 + f(3) == 5 and f(3) < 5 and isinstance(f(3), int) and [f(3)] == [4]\n"
        "assert {f(3): 1}[4] == 1 and sorted([f(3), 1]) == [1, 4]",
        "class Age(int): pass\ndef f(x):\n    return Age(x + 1)",
    ),
    "a list of the program's own kind": (
        "s = f([1])\nassert s == [1]\ns.push(2)\nassert s == [1, 2] and 2 in s and list(s) == [1, 2] and s[0] == 1",
        "class S(list):\n    def push(self, x):\n        self.append(x)\ndef f(x):\n    return S(x)",
    ),
    "named tuples": (
        "assert f().x == 1 and f() == (1, 2)",
        "from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f():\n    return P(1, 2)",
    ),
    "enumerations": (
        "from solution import Color\nassert f(1) == Color.RED and f(1).name == 'RED' and f(1) is Color.RED",
        "from enum import Enum\nclass Color(Enum):\n    RED = 1\ndef f(x):\n    return Color(x)",
    ),
    "an object that extends a builtin type is the same each time": (
        "from solution import Color, Level\nassert f(2) is Color.RED and f(2) is f(2) and f('a') is Level.A and f('a') is not f('b')\n"
        "n = Node([1])\nassert n.me() is n and n.items is n.items and n.items == {} and {f(2): 1}[Color.RED] == 1 and n in [n.me()]\n"
        "n.pair[0].append(1)\nn.keep([[i] for i in range(300)])\nn.keep([])\nn.grow()\nassert n.pair == ([1, 7],) and n.pair is n.pair",
        "from enum import Enum, IntEnum\nclass Color(IntEnum):\n    RED = 2\nclass Level(str, Enum):\n    A = 'a'\n    B = 'b'\n"
        "def f(x):\n    return Color(x) if x == 2 else Level(x)\nclass Items(dict): pass\nclass Pair(tuple): pass\n"
        "class Node(list):\n    def __init__(self, x):\n        super().__init__(x)\n        self.items, self.pair, self.all = Items(), Pair([[]]), []\n"
        "    def me(self): return self\n    def keep(self, x): self.all.append(x)\n    def grow(self): self.pair[0].append(7)",
    ),
    "generators": (
        "import itertools, types\ng = f(5)\nassert isinstance(g, types.GeneratorType) and next(g) == 0 and list(g) == [1, 2, 3, 4]\n"
        "assert list(itertools.islice(f(10**12), 3)) == [0, 1, 2] and sum(f(3500)) == 6123250",
        "def f(n):\n    i = 0\n    while i < n:\n        yield i\n        i += 1",
    ),
    "a generator that fails": (
        "g = f()\nassert next(g) == 1\ntry:\n    next(g)\n    assert False\nexcept KeyError:\n    pass",
        "def f():\n    yield 1\n    raise KeyError('end')",
    ),
    "iterators": ("assert list(f([1, 2])) == [2, 1] and list(zip(f([1]), f([2]))) == [(1, 2)]", "def f(x):\n    return reversed(x)"),
    "functions that are returned": (
        "assert f(2)(3) == 5 and list(map(f(1), [1, 2])) == [2, 3]",
        "def f(a):\n    return lambda b: a + b",
    ),
    "builtin functions as arguments": (
        "import operator\nassert f(len, 'abc') == 3 and f(operator.neg, 2) == -2 and f(str.upper, 'a') == 'A' and f(int, '7') == 7",
        "def f(function, x):\n    return function(x)",
    ),
    "a call of what a call returned": ("assert f(f(f(2))) == 5", "def f(x):\n    return x + 1"),
    "a call that depends on a result": (
        "x = 1\nfor _ in range(5):\n    x = f(x)\nassert x == 32\nif f(1) == 2:\n    assert f(5) == 10",
        "def f(x):\n    return 2 * x",
    ),
    "a hundred calls with drawn arguments": (
        "import random\nfor _ in range(100):\n    x = random.randint(0, 10**9)\n    assert f(x) == x",
        ECHO,
    ),
    "state between the calls of a test": ("assert f() == 1\nassert f() == 2", "n = 0\ndef f():\n    global n\n    n += 1\n    return n"),
    "a global of the program in a loop": (
        "for number in range(400):\n    assert f(number) == number % limit",
        "limit = 7\ndef f(x):\n    return x % limit",
    ),
    "warnings that are of no interest, and the word for files": (
        "import warnings\nwith warnings.catch_warnings():\n    warnings.simplefilter('ignore')\n"
        "    assert f('open(x)') == 'open(x)' and f('tempfile') == 'tempfile'\n"
        "    assert f('the patch notes') == f(f'the patch note{chr(115)}') and f('os.environ') and f('w')  # a mock",
        ECHO,
    ),
    "loops that results end": (
        "n = 0\nwhile f(n < 3):\n    n += 1\nassert n == 3\nfor i in range(10**4):\n    if not f(i < 3):\n        break\nassert i == 3"
        "\nassert next(i for i in range(10**4) if not f(i < 3)) == 3",
        ECHO,
    ),
    "comparisons of what may be empty": (
        "import numpy as np\nimport pytest\nassert np.allclose(f([]), []) and np.allclose(f(range(0)), []) and np.allclose([], f([]))\n"
        "matrix = np.array(f([[1.0]]))\nassert np.allclose(matrix[~np.eye(1, dtype=bool)], 0) and np.allclose(np.diff(f([1])), 2)\n"
        "assert matrix[~np.eye(1, dtype=bool)] == pytest.approx(0)\nnp.testing.assert_equal(f(([1, 2], 3)), ([1, 2], 3))\n"
        "np.testing.assert_array_equal(np.array(f([1]))[1:], 0)\nnp.testing.assert_equal(f([[1], [1, 2]]), [[1], [1, 2]])",
        ECHO,
    ),
    "keywords": ("assert f(1, b=2, *[3]) == (1, 3, 2)", "def f(a, c, b=0):\n    return a, c, b"),
    "constants": ("import solution\nfrom solution import *\nassert solution.LIMIT == 3 and LIMIT == 3", "LIMIT = 3\ndef f(): pass"),
    "a method of Solution": ("assert f(1) == 2 and Solution().f(2) == 3", "class Solution:\n    def f(self, x):\n        return x + 1"),
    "the test's own use of the library": ("assert math.isclose(f(1), 1.0) and len(set([f(1), f(1)])) == 1", ECHO),
    "pytest": (
        "import pytest\nfrom solution import f\n"
        "@pytest.fixture\ndef two():\n    return 2\n"
        "@pytest.mark.parametrize('x, y', [(1, 2), (2, 3)])\ndef test_values(x, y, two):\n    assert f(x) == pytest.approx(y + 1e-9)\n"
        "def test_error():\n    with pytest.raises(TypeError, match='str') as caught:\n        f('a')\n    assert caught.value\n"
        "class TestF:\n    def setup_method(self):\n        self.x = 1\n    def test_it(self):\n        assert f(self.x) == 2",
        "def f(x):\n    return x + 1",
    ),
    "fixtures of several scopes": (
        "import pytest\nmade = []\n"
        "@pytest.fixture\ndef stack():\n    made.append('stack')\n    return Stack()\n"
        "@pytest.fixture\ndef full(stack, n=2):\n    return stack.push(n)\n"
        "@pytest.fixture(scope='module')\ndef shared():\n    made.append('shared')\n    yield Stack()\n    assert sorted(made) == ['shared', 'stack', 'stack']\n"
        "@pytest.mark.parametrize('x', [1, 2])\ndef test_it(stack, full, x, *, shared):\n"
        "    assert full is stack and stack.pop() == 2 and len(shared.push(x)) == x\n"
        "def test_end():\n    assert sorted(made) == ['shared', 'stack', 'stack']",
        STACK,
    ),
    "a class of tests": (
        "class Base:\n    def test_z(self):\n        assert f('z') == 'z' and self.seen == ['class', 'setup test_z']\n        self.seen.append('z')\n"
        "class TestIt(Base):\n    seen = []\n    @classmethod\n    def setup_class(cls):\n        cls.seen.append('class')\n"
        "    def teardown_class(cls):\n        assert cls.seen == ['class', 'setup test_z', 'z', 'down', 'setup test_b', 'b', 'down', 'setup test_a', 'down']\n"
        "    def setup_method(self, method):\n        self.seen.append('setup ' + method.__name__)\n"
        "    def teardown_method(self):\n        self.seen.append('down')\n"
        "    def test_b(self):\n        self.seen.append('b')\n"
        "    @staticmethod\n    def test_a():\n        assert f(1) == 1",
        ECHO,
    ),
    "pytest.approx of items": (
        "import numpy as np, pytest\nfor a, b in [([0.1, 0.2], (0.1, 0.2)), ((1.0,), [1.0]), (np.array([1.0, 2.0]), [1.0, 2.0]), (range(3), [0, 1, 2])]:\n"
        "    assert f(a) == pytest.approx(b) and pytest.approx(b) == f(a)\n"
        "    assert f(a) != pytest.approx([5.0] * len(b)) and f(a) != pytest.approx([*b, 0.0])",
        ECHO,
    ),
    "a class of named tuples": (
        "assert isinstance(f(1), P) and not isinstance(f(1), Q) and isinstance(f(1), tuple) and f(1) == (1,) and f(1).x == 1",
        "from collections import namedtuple\nP = namedtuple('P', 'x')\nQ = namedtuple('Q', 'x')\ndef f(x): return P(x)",
    ),
    "what pytest.raises says": (
        "import pytest\nwith pytest.raises(expected_exception=ValueError) as e:\n    f(-1)\n"
        "assert e.match('neg') and e.typename == 'ValueError' and e.type is ValueError and 'neg' in str(e.value)\n"
        "@pytest.mark.parametrize(argnames='x', argvalues=[1, 2])\ndef test_it(x):\n    assert f(x) == x",
        "def f(x):\n    if x < 0:\n        raise ValueError('neg')\n    return x",
    ),
    "a class that extends a builtin type": (
        "import math\nassert f('')['a'] == 'a!' and f('') == {} and math.floor(g(2.5)) == 2 and float(g(2.5)) == 2.5 and round(g(2.5)) == 2\n"
        "assert len(h(3)) == 3 and h(3)[1:] == [1, 2] and 2 in h(3) and [*h(3)] == [0, 1, 2] and bool(h(0)) is False\n"
        "assert len(Odd([1])) == 7",
        "class Memo(dict):\n    def __missing__(self, key): return key + '!'\nclass Metres(float): pass\nclass Row(list): pass\n"
        "class Odd(list):\n    def __len__(self): return 7\ndef f(x): return Memo(x)\ndef g(x): return Metres(x)\ndef h(n): return Row(range(n))",
    ),
    "unittest": (
        "import unittest\nfrom solution import f\nclass T(unittest.TestCase):\n"
        "    def setUp(self):\n        self.x = 1\n"
        "    def test_it(self):\n        self.assertEqual(f(self.x), 2)\n        with self.assertRaises(TypeError):\n            f('a')\n"
        "if __name__ == '__main__':\n    unittest.main()",
        "def f(x):\n    return x + 1",
    ),
    "a class that counts down": (
        "assert list(Countdown(3)) == [3, 2, 1]\nc = Countdown(2)\nassert next(c) == 2 and next(c) == 1\nassert list(c) == []",
        "class Countdown:\n    def __init__(self, n):\n        self.n = n\n    def __iter__(self):\n        return self\n"
        "    def __next__(self):\n        if self.n == 0: raise StopIteration\n        self.n -= 1\n        return self.n + 1",
    ),
    "a set of objects": (
        "assert f() == {P(1, 2), P(3, 4)}",
        "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass P:\n    x: int\n    y: int\ndef f():\n    return {P(1, 2), P(3, 4)}",
    ),
    "hashes of objects": (
        "assert len({P(1, 2), P(1, 2)}) == 1 and {P(1, 2): 'a'}[P(1, 2)] == 'a'",
        "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass P:\n    x: int\n    y: int\ndef f():\n    return {P(1, 2), P(3, 4)}",
    ),
    "a named tuple with a method": (
        "p = Point(3, 4)\nassert p.norm() == 5 and isinstance(p, Point) and p.x == 3 and p == (3, 4)",
        "from typing import NamedTuple\nclass Point(NamedTuple):\n    x: int\n    y: int\n    def norm(self):\n        return (self.x ** 2 + self.y ** 2) ** 0.5",
    ),
    "exceptions that say more": (
        "import json, pytest\nfrom solution import E, f, g\ntry:\n    f()\nexcept ValueError as e:\n    assert isinstance(e, E) and e.balance == 5 and str(e) == 'need 5'\n"
        "with pytest.raises(json.JSONDecodeError):\n    g('{')\nwith pytest.raises(UnicodeDecodeError):\n    g(b'\\xff')",
        "import json\nclass B(Exception): pass\nclass E(B, ValueError):\n    def __init__(self, balance):\n        self.balance = balance\n"
        "    def __str__(self):\n        return f'need {self.balance}'\ndef f():\n    raise E(5)\ndef g(x):\n    return x.decode() if isinstance(x, bytes) else json.loads(x)",
    ),
    "an iterator that goes back to the program": ("assert dec(enc('abc')) == 'abc'", "def enc(x):\n    yield from x\ndef dec(x):\n    return ''.join(x)"),
    "a copy of an iterator": (
        "import copy\na = f()\nb = copy.copy(a)\na.n = 1\nassert next(a) == 1 and list(b) == [2, 3]",
        "def f(): return map(int, [1, 2, 3])",
    ),
    "raises calls with arguments of any name": (
        "import pytest\npytest.raises(ValueError, f, -1, expected=3, test=4)",
        "def f(x, expected, test):\n    raise ValueError(expected)",
    ),
    "costly items of an endless generator": (
        "g = f()\nassert [next(g) for _ in range(3)] == [6, 28, 496]",
        "def f():\n    n = 1\n    while True:\n        n += 1\n        if sum(d for d in range(1, n) if n % d == 0) == n:\n            yield n",
    ),
    "a defaultdict": ("d = f()\nassert d['zz'] == 0 and d == {'a': 1, 'zz': 0}", "from collections import defaultdict\ndef f():\n    return defaultdict(int, a=1)"),
    "docstrings and names that stand-ins have": ("assert f.__doc__ == 'Doc.' and N()._key == 5", "def f():\n    'Doc.'\nclass N:\n    _key = 5"),
    "many assertions of unittest": (
        "import unittest\nclass T(unittest.TestCase):\n    def test_it(self):\n        for i in range(400):\n            self.assertFalse(f(i))\n            a, b = g(i)\n            self.assertEqual((a, b), (i, i))",
        "def f(x):\n    return False\ndef g(x):\n    return x, x",
    ),
    "deep values": ("x = []\nfor _ in range(5000):\n    x = [x]\ny = f(x)\nn = 0\nwhile y:\n    y, n = y[0], n + 1\nassert n == 5000", ECHO),
}  # fmt: skip


@pytest.mark.parametrize("name", PASSING)
async def test_right_programs_pass(embedded_judge: Judge, name: str) -> None:
    script, code = PASSING[name]
    grade = await embedded_judge.grade(problem(script), code)
    assert grade.verdict is Verdict.PASSED, grade.reason


ON_EACH_SERVER = (
    *("values of any type", "arrays", "containers of every kind that are shared", "many large lists", "generators"),
    *("exceptions that say more", "a set of objects", "enumerations", "pytest", "unittest"),
    *("state between the calls of a test", "a hundred calls with drawn arguments"),
)
"""What a server may make a difference to: its packages and limits, hashes that are other ones in each process, and
programs that run anew for what their tests ask next."""


async def test_right_programs_pass_on_a_stock_server(stock_judge: Judge) -> None:
    # At once: a group of programs, or of their tests, starts one interpreter there, where each alone would start dozens.
    chosen = [PASSING[name] for name in ON_EACH_SERVER]
    grades = await asyncio.gather(*(stock_judge.grade(problem(script), code) for script, code in chosen))
    assert {name: grade.reason for name, grade in zip(ON_EACH_SERVER, grades, strict=True) if not grade.passed} == {}


NUMBERS = (
    *("True", "False", "0", "1", "1.0", "1 + 1e-9", "1.001", "2", "1 + 0j", "Decimal(1)", "Fraction(1, 3)", "math.nan"),
    *("math.inf", "-math.inf", "1e-13"),
)
ARRAYS = ("np.array([1.0, 1.0])", "np.array([1.0, 2.0])", "np.array([[1.0, 1.0]])")
COMPARED = (
    *product((*NUMBERS, *ARRAYS), (*NUMBERS, "np.float64(1)", "np.int64(1)", *ARRAYS)),
    *product(("'1'", "None", "[1]", "[True]", "(1,)", "[1.0, 1.0]", "[math.nan]", "{'a': 1}", "{'a': True}"), repeat=2),
    *product(("[1]", "[1.0, 1.0]", "[1.0, math.nan]"), ARRAYS[:2]),
)


async def test_approx_decides_as_pytests_own(embedded_judge: Judge) -> None:
    names = {"math": math, "np": np, "Decimal": Decimal, "Fraction": Fraction, "pytest": pytest}
    lines = [
        "import math, pytest",
        "import numpy as np",
        "from decimal import Decimal",
        "from fractions import Fraction",
        "def test_values():",
        "    assert f(1) == 1",
    ]
    for (expected, actual), options in product(COMPARED, ("", ", abs=1e-2", ", nan_ok=True")):
        approx = f"pytest.approx({expected}{options})"
        with suppress(TypeError):  # what pytest itself refuses to compare
            lines.append(f"    assert ({actual} == {approx}) is {bool(eval(f'{actual} == {approx}', names))}")
    assert len(lines) > 1000
    grade = await embedded_judge.grade(problem("\n".join(lines)), ECHO)
    assert grade.verdict is Verdict.PASSED, grade.reason


FAILING = [
    ("assert f(1) == 2", "def f(x):\n    return 3", Verdict.WRONG_ANSWER, "assert f.1. == 2", "3"),
    ("assert f(1) == 2, 'not two'", "def f(x):\n    return 3", Verdict.WRONG_ANSWER, "not two", "3"),
    ("assert f(1) > 2", "def f(x):\n    return None", Verdict.WRONG_ANSWER, "TypeError", "None"),
    ("assert f(1) == 2 or f(2) > 2", "class A(int): pass\nclass B: pass\ndef f(x):\n    return B() if x == 2 else A()", Verdict.WRONG_ANSWER, "TypeError", None),
    ("assert f(1) == 2", "def f(x):\n    return x / 0", Verdict.RUNTIME_ERROR, "ZeroDivisionError: .* \\(line 2\\)", None),
    ("assert f(1) == 2", "def g(x):\n    return 2", Verdict.RUNTIME_ERROR, "NameError: name 'f' is not defined", None),
    ("assert f(1) == 2", "def f(x) return 2", Verdict.RUNTIME_ERROR, "SyntaxError", None),
    ("assert f(1) == 2", "raise SystemExit(0)", Verdict.RUNTIME_ERROR, "ended before", None),
    ("assert f(1) == 2", "import os\ndef f(x):\n    os._exit(0)", Verdict.RUNTIME_ERROR, "ended before", None),
    ("assert f(1) == 2", "import sys\ndef f(x):\n    sys.exit(0)", Verdict.RUNTIME_ERROR, "SystemExit", None),
    ("assert f(1) == 2", "def f(x):\n    while True: pass", Verdict.TIME_LIMIT, "0.5 s of CPU", None),
    ("assert f(1) == 2\nassert f(2) == 3", "def f(x):\n    while x == 2: pass\n    return 0", Verdict.WRONG_ANSWER, "f\\(1\\)", "0"),
    ("assert f(1) == 2\nassert f(2) == 3", "def f(x):\n    while x == 2: pass\n    return 2", Verdict.TIME_LIMIT, "", None),
    ("assert f(1) == 2", "def f(x):\n    return [0] * 10**10", Verdict.MEMORY_LIMIT, "", None),
    ("assert f(1) == 'x'", "def f(x):\n    return 'x' * (17 << 20)", Verdict.OUTPUT_LIMIT, "", None),
    ("assert list(f()) == [1]", "def f():\n    while True:\n        yield 1", Verdict.TIME_LIMIT, "", None),
    ("a = [1]\ns = f(a)\na.append(2)\nassert s.items == [1]", "class S: pass\ndef f(x):\n    s = S()\n    s.items = x\n    return s", Verdict.WRONG_ANSWER, "s.items == ", "[1, 2]"),
    ("a = f(3)\na[0] = 5\nassert f(3) == [3]", "kept = {}\ndef f(x):\n    return kept.setdefault(x, [x])", Verdict.WRONG_ANSWER, "f\\(3\\)", "[5]"),
    ("assert f(-1)", "def f(x):\n    assert x > 0", Verdict.RUNTIME_ERROR, "AssertionError", None),
    ("import itertools\nassert isinstance(f(), itertools.chain)", "def f(): return map(int, [1])", Verdict.WRONG_ANSWER, "isinstance", None),
    ("a = f()\nassert type(a).__str__('b') == 'b'", "class S(str): pass\ndef f(): return S('a')", Verdict.WRONG_ANSWER, "", None),
    ("assert f(1) == (2, 3), f(1)", "def f(x):\n    return f, 3", Verdict.WRONG_ANSWER, "object of the class function", "(<an object of the class function>, 3)"),
    ("import pytest\ndef test_it():\n    with pytest.raises(ValueError):\n        f()", "def f(): pass", Verdict.WRONG_ANSWER, "raise", "None"),
    ("import pytest\nassert f(3) == pytest.approx(2.5)", "import numpy\ndef f(x): return numpy.array([])", Verdict.WRONG_ANSWER, "approx", None),
    ("import numpy as np\nassert np.allclose(f(3), 2.5)", "def f(x): return []", Verdict.WRONG_ANSWER, "allclose", "[]"),
    ("assert np.allclose(f(3), [1.0, 2.0])", "import numpy\ndef f(x): return numpy.zeros((0, 1))", Verdict.WRONG_ANSWER, "allclose", None),
    ("import numpy as np\nnp.testing.assert_allclose(f(3), 2.5)", "def f(x): return []", Verdict.WRONG_ANSWER, "no elements", "[]"),
    ("import numpy\nassert numpy.isclose(a=2.5, b=f(3)).all()", "def f(x): return []", Verdict.WRONG_ANSWER, "isclose", "[]"),
    ("import numpy as np\nassert np.allclose(np.array(f(3)), 2.5)", "def f(x): return []", Verdict.WRONG_ANSWER, "allclose", "[]"),
    ("import numpy as np\nx, y = f(3)\nassert np.allclose(x, 1) and np.allclose(y, 2)", "def f(x): return [], []", Verdict.WRONG_ANSWER, "allclose", None),
    ("import pytest\nassert f(3) == pytest.approx((1.0, 2.0))", "import numpy\ndef f(x): return (numpy.array([]),) * 2", Verdict.WRONG_ANSWER, "approx", None),
    ("import numpy as np\nassert not np.allclose(f(3), [1.0, 2.0])", "def f(x): return []", Verdict.WRONG_ANSWER, "ValueError", "[]"),
    ("from numpy.testing import assert_array_equal\nassert_array_equal(f(3), 2)", "def f(x): return []", Verdict.WRONG_ANSWER, "no elements", "[]"),
]  # fmt: skip


@pytest.mark.parametrize(("script", "code", "verdict", "reason", "shown"), FAILING)
async def test_wrong_programs_fail_for_a_reason(
    embedded_judge: Judge, script: str, code: str, verdict: Verdict, reason: str, shown: str | None
) -> None:
    embedded_judge = Judge(embedded_judge.client, timeout_s=0.5)
    grade = await embedded_judge.grade(problem(script), code)
    assert grade.verdict is verdict and grade.first_failed == 0, grade
    assert re.search(reason, grade.reason), grade.reason
    if shown is not None:
        assert grade.output == shown


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("assert f(lambda x: x) == 2", "a function of the test cannot be given"),
        ("class A: pass\nassert f(A()) == 2", "an object of the class A of the test cannot be given"),
        ("import nothing_of_this_name\nassert f(1) == 2", "ModuleNotFoundError"),
        ("assert undefined_helper.x + f(1) == 2 if False else 1 / 0", "ZeroDivisionError"),
        ("import os\nos._exit(1)\nassert f(1)", "ended without a result"),
        ("f(1)\nwhile True: pass", "takes too long"),
        ("import pytest\n@pytest.mark.skip\ndef test_it():\n    assert f(1)", "pytest.mark.skip is not supported"),
        ("from solution import f\nasync def test_it():\n    assert await f(1) == 2", "a coroutine"),
        ("from solution import f\ndef run():\n    assert f(1) == 2", "calls nothing of the program"),
        ("assert str(Fraction(2, 4)) == '1/2'", "call nothing of the program"),
        ("import sys\nf(1)\nassert sys.stdout.getvalue() == '1'", "sys.stdout"),
        ("class B(A): pass\nassert B() and f(1)", "extends one of the program"),
        ("def test_it(tmp_path):\n    assert f(1)", "no fixture tmp_path"),
        ("import asyncio\nassert asyncio.run(f(1)) == 1", "asyncio.run"),
        ("import inspect\nassert len(inspect.signature(f).parameters) == 1", "inspect.signature"),
        ("from dataclasses import dataclass, asdict\nassert asdict(f(1)) == {}", "asdict"),
        ("import pytest\nwith pytest.raises(TypeError) as e:\n    f()\nassert e.getrepr()", "getrepr"),
        ("with open('a', 'w') as file:\n    file.write('1')\nassert f('a') == 1", "open("),
        ("import pathlib\npathlib.Path('a').write_text('1')\nassert f('a') == 1", "write_text"),
        ("import os\nos.environ['A'] = '1'\nassert f('A') == '1'", "os.environ"),
        ("import solution\nsolution.LIMIT = 3\nassert solution.f(3) == 3", "changes LIMIT"),
        (
            "import unittest\nclass T(unittest.TestCase):\n    def test_it(self):\n        with self.assertWarns(UserWarning):\n            f(1)",
            "assertWarns",
        ),
        ("import asyncio\nassert asyncio.new_event_loop().run_until_complete(f(1)) == 1", "run_until_complete"),
        ("def setUpModule():\n    f(1)\ndef test_it():\n    assert f(1)", "setUpModule"),
        (
            "import pytest\n@pytest.fixture(scope='class')\ndef x():\n    return 1\ndef test_it(x):\n    assert f(x)",
            "scope='class'",
        ),
        ("assert f(1) == 1\nlarge = [0] * 10**15", "MemoryError"),
        ("import uuid\nassert f(str(uuid.uuid4()))", "differ in each run"),
    ],
)
async def test_a_test_that_fails_by_itself_is_no_verdict(
    embedded_judge: Judge, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    monkeypatch.setattr("coderl_tasks.grading.judge_programs.JUDGE_S", 1.0)
    grade = await embedded_judge.grade(problem(script), ECHO)
    assert grade.verdict is Verdict.CHECKER_ERROR and reason in grade.reason, grade.reason
    assert grade.reason.startswith("problem p: ") and not grade.gradable and grade.first_failed is None


@pytest.mark.parametrize(
    ("script", "code", "reason"),
    [
        (
            "assert ','.join(f()) == 'a,b'",
            "from enum import Enum\nclass Tag(str, Enum):\n    A = 'a'\n    B = 'b'\ndef f():\n    return list(Tag)",
            "extends a builtin type",
        ),
        ("g = f()\nassert next(g) == 0 and g.send(3) == 3", "def f():\n    x = yield 0\n    yield x", "sends a value"),
        (
            "g = f()\nassert next(g) == 0 and g.throw(KeyError) == 1",
            "def f():\n    try:\n        yield 0\n    except KeyError:\n        yield 1",
            "throws an exception",
        ),
    ],
)
async def test_a_right_program_whose_objects_a_test_cannot_use_is_not_to_blame(
    embedded_judge: Judge, script: str, code: str, reason: str
) -> None:
    grade = await embedded_judge.grade(problem(script), code)
    assert grade.verdict is Verdict.CHECKER_ERROR and reason in grade.reason, grade.reason


async def test_a_value_that_is_too_large_for_the_test_is_the_fault_of_its_program(
    embedded_judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coderl_tasks.grading.judge_programs.JUDGE_S", 1.0)
    scripts = (
        "assert list(f(3)) == [0, 1, 2]",
        "n = 0\nfor x in f(3):\n    n += x\nassert n == 3",
        "assert f(3)[0] == 0",
    )
    tests = [problem(script) for script in scripts]
    code = "def f(x):\n    return range(10**13)"
    grades = await asyncio.gather(*(embedded_judge.grade(one, code) for one in tests))
    assert [grade.verdict for grade in grades] == [Verdict.RUNTIME_ERROR, Verdict.RUNTIME_ERROR, Verdict.PASSED]
    assert "too large" in grades[0].reason and "too large" in grades[1].reason


async def test_a_fault_of_one_test_is_not_that_of_another_program(embedded_judge: Judge) -> None:
    crashing = problem("import os\nf(1)\nos._exit(1)")
    fine = [problem(f"assert f({number}) == {number}") for number in range(5)]
    grades = await asyncio.gather(*(embedded_judge.grade(one, ECHO) for one in (crashing, *fine)))
    assert [grade.verdict for grade in grades] == [Verdict.CHECKER_ERROR, *[Verdict.PASSED] * 5]


async def test_many_tests_have_no_more_time_than_the_sandbox_allows(embedded_judge: Judge) -> None:
    tests = problem(*(f"assert f({number}) == {number}" for number in range(70)))
    grade = await embedded_judge.grade(tests, ECHO, run_all=True)
    assert (grade.verdict, grade.tests_passed) == (Verdict.PASSED, 70), grade.reason


async def test_partial_credit_counts_the_tests_that_pass(embedded_judge: Judge) -> None:
    tests = problem("assert f(1) == 1", "assert f(2) == 3", "assert f(3) == 3")
    grade = await embedded_judge.grade(tests, ECHO, run_all=True)
    assert (grade.tests_passed, grade.tests_run, grade.first_failed) == (2, 3, 1)


async def test_a_program_finds_what_its_starter_code_gives(embedded_judge: Judge) -> None:
    given = problem("assert f(2) == 4", starter_code="def twice(x):\n    return 2 * x\n\ndef f(x):\n    ")
    assert (await embedded_judge.grade(given, "def f(x):\n    return twice(x)")).passed
    assert (await embedded_judge.grade(given, "def twice(x):\n    return 4\ndef f(x):\n    return twice(1)")).passed


async def test_a_program_does_not_answer_for_what_the_test_takes_of_the_library(embedded_judge: Judge) -> None:
    for script, code in (
        ("from solution import *\nassert abs(f(1) - 2.5) < 1e-6", "def f(x): return 0\ndef abs(x): return 0"),
        (
            "assert np.allclose(f(1), [1.0, 2.0])",
            "class np:\n    allclose = staticmethod(lambda *a: True)\ndef f(x): return 0",
        ),
        ("assert Counter(f(1)) == Counter([1, 2])", "def Counter(x): return 0\ndef f(x): return []"),
        ("for got, want in zip(map(f, [1, 2]), [5, 6]):\n    assert got == want", "def f(x): raise StopIteration"),
        (
            "with Pool(3) as p:\n    assert p.size == 4",
            "class Pool:\n    def __init__(self, n): self.size = n\n    def __enter__(self): return self\n    def __exit__(self, *error): return True",
        ),
    ):
        assert not (await embedded_judge.grade(problem(script), code)).passed, script


async def test_a_class_of_the_program_may_have_the_name_of_a_library_class(embedded_judge: Judge) -> None:
    tests = ["assert str(Fraction(2, 4)) == '1/2'", "assert Fraction(1, 2).add(Fraction(1, 3)).parts == (5, 6)"]
    found = problem_from_row({"question": "Write a class Fraction.", "tests": tests}, split="s", source_row=0)
    right = (
        "from math import gcd\nclass Fraction:\n    def __init__(self, a, b): self.parts = a // gcd(a, b), b // gcd(a, b)\n"
        "    def __str__(self): return '%d/%d' % self.parts\n"
        "    def add(self, other):\n        (a, b), (c, d) = self.parts, other.parts\n        return Fraction(a * d + b * c, b * d)"
    )
    codes = (right, right.replace("a // gcd(a, b), b", "a, b"), "x = 1")
    grades = await asyncio.gather(*(embedded_judge.grade(found, code) for code in codes))
    verdicts = [Verdict.PASSED, Verdict.WRONG_ANSWER, Verdict.RUNTIME_ERROR]
    assert [grade.verdict for grade in grades] == verdicts, grades


@pytest.mark.parametrize("asked", ["type(f(1)) is P", "type(f(1)).__name__ == 'P'", "f(1).__class__.__name__ == 'P'"])
@pytest.mark.parametrize("bases", ["", "(str)"])
async def test_the_class_of_an_object_of_the_program_is_never_found_wrong(
    embedded_judge: Judge, asked: str, bases: str
) -> None:
    code = f"class P{bases}: pass\ndef f(x):\n    return P()"
    assert (await embedded_judge.grade(problem(f"assert {asked}"), code)).verdict is Verdict.CHECKER_ERROR
    of_builtin = await embedded_judge.grade(problem("assert type(f(1)) is list"), code)
    assert of_builtin.verdict is Verdict.WRONG_ANSWER, of_builtin


STATEFUL = {
    "a number": (
        "x = f([3, 2])\nassert abs(3 + 2 * float(x)) < 1e-4 and abs(3 + 2 * float(x)) < 1e-4\nassert abs(3 + 2 * float(x)) < 1e-4",
        "class X(float):\n    n = 0\n    def __float__(self):\n        X.n += 1\n        return -1.5\ndef f(xs):\n    return X(0.0)",
    ),
    "a list": (
        "r = f([1, 1, 2, 2])\nassert sorted(r) == [1, 1, 2, 2]\nassert all(a != b for a, b in zip(r, r[1:]))",
        "class L(list):\n    def __getitem__(self, k): return [] if isinstance(k, slice) else list.__getitem__(self, k)\ndef f(x): return L(x)",
    ),
    "the items of a list": (
        "r = f([1, 1])\nassert sorted(r) == [1, 1]\nassert not [x for x in r if list(r).count(x) > 1]",
        "class L(list):\n    n = 0\n    def __iter__(self):\n        L.n += 1\n        return list.__iter__(self) if L.n == 1 else iter([])\ndef f(x): return L(x)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STATEFUL)
async def test_no_object_says_something_else_each_time_it_is_asked(embedded_judge: Judge, name: str) -> None:
    grade = await embedded_judge.grade(problem(STATEFUL[name][0]), STATEFUL[name][1])
    assert grade.verdict is Verdict.WRONG_ANSWER, grade


async def test_an_operator_with_a_plain_value_is_no_verdict_on_a_class_that_the_test_names(
    embedded_judge: Judge,
) -> None:
    code = "class V:\n    def __init__(self, x): self.x = x\n    def __mul__(self, n): return V(self.x * n)"
    grade = await embedded_judge.grade(problem("assert (V(2) * 3).x == 6"), code)
    assert grade.verdict is Verdict.CHECKER_ERROR and "plain value" in grade.reason


async def test_answers_with_many_imports_in_them_hold_nobody_up(embedded_judge: Judge) -> None:
    slow = embedded_judge.grade(problem("assert f(0) == 2"), "def f(x): return 'from ' * 200_000")
    shared = "def f(x):\n    a = []\n    for _ in range(40): a = [a, a]\n    return a"
    grades = await asyncio.gather(slow, embedded_judge.grade(problem("assert f(0) == 2"), shared))
    assert [grade.verdict for grade in grades] == [Verdict.WRONG_ANSWER] * 2


TOGETHER = [
    ECHO,
    "def f(x):\n    return x + 1",
    "def f(x:\n    return x",
    "def f(x):\n    while True: pass",
    "def f(x):\n    raise ValueError('no')",
    "raise SystemExit(3)",
    "import math\nmath.floor = lambda x: 7\ndef f(x):\n    return x",
    "from decimal import getcontext\ngetcontext().prec = 2\ndef f(x):\n    return x",
    "import random\ndef f(x):\n    return x if random.random() < 2 else 0",
    "def f(x):\n    return [x] * (1 << 40)",
    "def f(x):\n    return x if x < 2 else f(x - 2) + 2",
    "import os\ndef f(x):\n    os.kill(os.getppid(), 9)\n    return x",
    "import ctypes\ndef f(x):\n    return x",
    "def f(x):\n    open('../results.json', 'w').write('{}')\n    return x",
    "def f(x):\n    return eval('x')",
]
"""Right and wrong programs, and those that reach for more than their own process."""
MAY_DO_HARM = re.compile("getcontext|import os|ctypes|open|eval")


@pytest.mark.parametrize(
    "scripts", [["assert f(5001) == 5001"], ["import math\nassert f(math.floor(2.5)) == 2", "assert f(3) == 3"]]
)
async def test_programs_in_one_sandbox_get_the_verdicts_that_they_get_alone(
    embedded_judge: Judge, monkeypatch: pytest.MonkeyPatch, scripts: list[str]
) -> None:
    judge, tests, sizes = Judge(embedded_judge.client, timeout_s=0.5), problem(*scripts), []
    run_code = judge.client.run_code

    async def counted(request: RunRequest, *, at: str | None = None) -> RunResult:
        if request.code == OPERATIONS_DRIVER:
            sizes.append(len(json.loads(request.files["tests.json"]).get("group", "1")))
        return await run_code(request, at=at)

    alone = [await judge.grade(tests, code) for code in TOGETHER]
    monkeypatch.setattr(judge.client, "run_code", counted)
    together = await asyncio.gather(*(judge.grade(tests, code) for code in TOGETHER))
    for code, one, other in zip(TOGETHER, alone, together, strict=True):
        one, other = (replace(grade, run_seconds=0, test_seconds=(), sandbox=None) for grade in (one, other))
        assert other == one, code
    n_harmful = sum(MAY_DO_HARM.search(code) is not None for code in TOGETHER)
    assert max(sizes) > len(TOGETHER) / 2 and n_harmful <= sizes.count(1) < len(TOGETHER)


@pytest.mark.parametrize(
    "rogue",
    [
        "import os\nos.kill(os.getppid(), 9)",
        "import os\nif os.fork() == 0:\n    os.setsid()\n    while True: pass",
        "import os\nfor name in ('../test-1', '../test-2', '../results.json'):\n    os.makedirs(name + '/solution.py', exist_ok=True)",
        "import sys\nfor path in ('..', '/tmp'):\n    open(path + '/math.py', 'w').write('floor = len')\nsys.path.insert(0, '..')",
        "import builtins, math\nbuiltins.len = math.floor = lambda x: 3",
        "import os\nfor number in range(600):\n    try: os.write(number, b'{}\\n')\n    except OSError: pass",
        "import sys, json\nframe = sys._getframe()\nwhile frame:\n    seen = repr(frame.f_locals)\n"
        "    assert 'len([math' not in seen and \"'id'\" not in seen, seen\n    frame = frame.f_back\n"
        "open('../found', 'w')\nopen('../results.json', 'w').write(json.dumps({'group': [{'tests': []}] * 4}))",
    ],
)
async def test_a_program_that_is_taken_for_harmless_changes_nothing_for_those_after_it(
    embedded_judge: Judge, monkeypatch: pytest.MonkeyPatch, rogue: str
) -> None:
    start = "def is_harmless(source: bytes, code: CodeType) -> bool:\n"
    assert start in OPERATIONS_DRIVER
    trusting = OPERATIONS_DRIVER.replace(start, f"{start}    return True\n")
    monkeypatch.setattr("coderl_tasks.grading.judge.OPERATIONS_DRIVER", trusting)
    right = "import math\ndef f(x):\n    return len([math.floor(x)]) + math.floor(x)"
    wrong = "import math\ndef f(x):\n    return len([math.floor(x)])"
    judge = Judge(embedded_judge.client, timeout_s=1.0)
    programs = [f"{rogue}\n{wrong}", right, wrong, right]
    grades = await asyncio.gather(*(judge.grade(problem("assert f(2.5) == 3"), code) for code in programs))
    assert [grade.passed for grade in grades] == [False, True, False, True], grades
    assert grades[2].verdict is Verdict.WRONG_ANSWER


async def test_a_test_that_changes_its_process_changes_nothing_for_others(embedded_judge: Judge) -> None:
    plain = problem(
        "from decimal import Decimal\nassert f(1) / Decimal(3) == Decimal('0.3333333333333333333333333333')"
    )
    changing = [
        problem(f"{line}\nassert f(1) is not None")
        for line in (
            "from decimal import getcontext\ngetcontext().prec = 3",
            "import decimal\ndecimal.Decimal = float",
            "import math\nmath.floor = len",
            "import sys\nsys.set_int_max_str_digits(640)",
        )
    ]
    floor = problem("import math\nassert math.floor(2.5) == 2 and f(1)")
    tests = [one for pair in zip(changing, [plain, floor] * 2, strict=True) for one in pair] * 2
    code = "from decimal import Decimal\ndef f(x):\n    return Decimal(x)"
    grades = await asyncio.gather(*(embedded_judge.grade(one, code) for one in tests))
    assert [grade.reason for grade in grades] == [""] * len(tests)


SECRET = 918273645
"""What the canaries look for: the value that the test compares with."""
EVIL = "class E:\n    def __getattr__(self, name):\n        return lambda *a, **k: True\n"
_ALL = "eq ne lt le gt ge add radd sub rsub mul rmul truediv rtruediv mod rmod and rand or ror xor rxor contains"
EVIL_OPERATORS = "".join(
    f"    def __{name}__(self, other):\n        seen.append(other)\n        return True if {name in 'eq le ge contains'} else 0\n"
    for name in _ALL.split()
)
LOOK = f"""
import hashlib, re
found = []
def look(text):
    text = text if isinstance(text, bytes) else str(text).encode("utf-8", "replace")
    for digits in re.findall(rb"\\d{{9}}", text):
        if hashlib.sha256(digits).hexdigest() == "{hashlib.sha256(str(SECRET).encode()).hexdigest()}":
            found.append(int(digits))
"""
CANARIES = {
    # Programs that look for the expected value, and return it if they find it.
    "its own memory": LOOK + "import gc\ndef f(x):\n    for o in gc.get_objects():\n        try: look(o)\n        except Exception: pass\n    return found[0] if found else 0",
    "frames": LOOK + "import sys\ndef f(x):\n    frame = sys._getframe()\n    while frame:\n        look(frame.f_locals); look(frame.f_globals.get('tests'))\n        frame = frame.f_back\n    return found[0] if found else 0",
    "files here": LOOK + "import os\ndef f(x):\n    for folder, _, names in os.walk('/tmp'):\n        for name in names:\n            try: look(open(os.path.join(folder, name), 'rb').read())\n            except OSError: pass\n    return found[0] if found else 0",
    "/proc": LOOK + "import os\ndef f(x):\n    for pid in filter(str.isdigit, os.listdir('/proc')):\n        for name in ('cmdline', 'environ', 'stat', 'maps'):\n            try: look(open(f'/proc/{{pid}}/{{name}}', 'rb').read())\n            except OSError: pass\n    return found[0] if found else 0",
    "the parent's memory": LOOK + "import os\ndef f(x):\n    for pid in (1, os.getppid()):\n        try:\n            for line in open(f'/proc/{{pid}}/maps'):\n                a, b = (int(v, 16) for v in line.split()[0].split('-'))\n                with open(f'/proc/{{pid}}/mem', 'rb') as m:\n                    m.seek(a); look(m.read(min(b - a, 1 << 20)))\n        except (OSError, OverflowError, ValueError): pass\n    return found[0] if found else 0",
    "descriptors": LOOK + "import os\ndef f(x):\n    for fd in range(64):\n        try: os.lseek(fd, 0, 0); look(os.read(fd, 1 << 20))\n        except OSError: pass\n    return found[0] if found else 0",
    "ptrace": LOOK + "import ctypes, os\ndef f(x):\n    c = ctypes.CDLL(None)\n    look(c.ptrace(16, os.getppid(), 0, 0))\n    return found[0] if found else 0",
    "environment": LOOK + "import os, sys\ndef f(x):\n    look(os.environ); look(sys.argv); look(sys.orig_argv)\n    return found[0] if found else 0",
    "standard input": LOOK + "import sys\ndef f(x):\n    look(sys.stdin.read())\n    return found[0] if found else 0",
    "the module of the tests": LOOK + "import sys\ndef f(x):\n    for name, module in list(sys.modules.items()):\n        look(getattr(module, '__dict__', None) if name in ('tests', 'solution', '__main__') else name)\n    return found[0] if found else 0",
    "tracing": LOOK + "import sys\ndef spy(frame, event, arg):\n    try: look(frame.f_locals)\n    except Exception: pass\n    return spy\nsys.settrace(spy)\ndef f(x):\n    return found[0] if found else 0",
    "a patched decoder": LOOK + "import json\nold = json.loads\ndef loads(text, *a, **k):\n    look(text)\n    return old(text, *a, **k)\njson.loads = loads\ndef f(x):\n    return found[0] if found else 0",
    "threads that wait": LOOK + "import threading, time, sys\ndef watch():\n    for _ in range(20):\n        time.sleep(0.01)\n        for frame in sys._current_frames().values(): look(frame.f_locals)\ndef f(x):\n    threading.Thread(target=watch).start(); time.sleep(0.2)\n    return found[0] if found else 0",
    # Values that try to be what is compared with.
    "equal to everything": "class E:\n    def __eq__(self, other):\n        return True\n    __hash__ = None\ndef f(x):\n    return E()",
    "equal in a list": "class E:\n    def __eq__(self, other):\n        return True\ndef f(x):\n    return E() if x < 5 else [E()]",
    "an int that equals everything": "class E(int):\n    def __eq__(self, other):\n        return True\n    __hash__ = int.__hash__\ndef f(x):\n    return E(7)",
    "a str that equals everything": "class E(str):\n    def __eq__(self, other):\n        return True\n    __hash__ = str.__hash__\ndef f(x):\n    return E('a')",
    "a float whose difference is 0": "class E(float):\n    def __sub__(self, other):\n        return 0.0\n    __rsub__ = __sub__\n    def __eq__(self, other): return True\ndef f(x):\n    return E(1)",
    "a list that equals everything": "class E(list):\n    def __eq__(self, other):\n        return True\n    def __contains__(self, other):\n        return True\ndef f(x):\n    return E([1])",
    "a dict that equals everything": "class E(dict):\n    def __eq__(self, other):\n        return True\n    def __missing__(self, key):\n        return key\ndef f(x):\n    return E()",
    "all operators": f"seen = []\nclass E:\n{EVIL_OPERATORS}def f(x):\n    if seen: return seen[-1]\n    return E()",
    "an object that answers to every name": EVIL + "def f(x):\n    return E()",
    "a class in the function's place": "class f:\n    def __init__(self, x): pass\n    def __eq__(self, other): return True\n    def __sub__(self, other): return 0\n    def __lt__(self, other): return True",
    "a hash that fits": "class E:\n    def __hash__(self): return hash({0})\n    def __eq__(self, other): return True\ndef f(x):\n    return E()",
    "a class that lies": "class E:\n    @property\n    def __class__(self): return int\n    def __eq__(self, other): return True\n    def __index__(self): return 3\ndef f(x):\n    return E()",
    "reduce": "class E:\n    def __reduce__(self): return (eval, ('{0}',))\n    def __eq__(self, other): return True\ndef f(x):\n    return E()",
    "a metaclass": "class M(type):\n    def __eq__(self, other): return True\n    __hash__ = type.__hash__\nclass E(metaclass=M): pass\ndef f(x):\n    return E",
    "an exception that is none": "class E(AssertionError):\n    def __str__(self): raise SystemExit\ndef f(x):\n    raise E()",
    "an exit": "def f(x):\n    raise SystemExit(0)",
    "a generator's exit": "def f(x):\n    raise GeneratorExit",
    "a stop": "def f(x):\n    raise StopIteration",
    "an endless iterator": "import itertools\ndef f(x):\n    return itertools.repeat({0} + 1)",
    "an iterator that counts": "def f(x):\n    def g():\n        n = 0\n        while True:\n            yield n\n            n += 1\n    return g()",
    "a giant value": "def f(x):\n    return 10 ** 2_000_000",
    "a giant range": "def f(x):\n    return range(10 ** 18)",
    # Messages that are forged: written to the descriptor of the values, in place of the real ones.
    "a forged answer": "import os\nos.write(3, b'{{\"root\": true, \"nodes\": []}}\\n' * 50)\ndef f(x):\n    return 0",
    "a forged end": "import os\nos.write(3, b'{{\"end\": \"passed\"}}\\n' * 50)\ndef f(x):\n    return 0",
    "a forged builtin": "import os\nos.write(3, b'{{\"root\": [0, -1], \"nodes\": [[\"type\", \"exec\"]]}}\\n' * 50)\ndef f(x):\n    return 0",
    "a forged object": "import os\nos.write(3, b'{{\"root\": [0, -1], \"nodes\": [[\"reference\", 0, 0, null, \"x\", \"list\", true]]}}\\n' * 50)\ndef f(x):\n    return 0",
    "a forged function": "import os\nos.write(3, b'{{\"root\": [0, -1], \"nodes\": [[\"function\", \"os\", \"system\"]]}}\\n' * 50)\ndef f(x):\n    return 0",
    "a forged cycle": "import os\nos.write(3, b'{{\"root\": [0, -1], \"nodes\": [[\"tuple\", [[0, -1]]]]}}\\n' * 50)\ndef f(x):\n    return 0",
    "a forged change": "import os\nos.write(3, b'{{\"root\": 1, \"nodes\": [], \"changed\": [[[0, 0], [\"list\", []]]]}}\\n' * 50)\ndef f(x):\n    return 0",
    "a builtin that is patched": "import builtins\nbuiltins.isinstance = lambda *a: True\nbuiltins.len = lambda *a: 0\ndef f(x):\n    return 0",
    "the report": "import os, json\ndef f(x):\n    for name in ('../results.json', 'results.json'):\n        try: open(name, 'w').write('{{\"tests\": [{{\"ended\": \"exit\"}}]}}')\n        except OSError: pass\n    return 0",
}  # fmt: skip
TESTS = [
    f"assert f(1) == {SECRET}",
    f"assert abs(f(1) - {SECRET}.5) < 0.1",
    f"assert {SECRET} in [f(1)] and f(1) in ({SECRET}, 1)",
    f"x = f(1)\nassert x > {SECRET - 1} and x < {SECRET + 1} and not x != {SECRET}",
    f"assert f(7) == [{SECRET}] and f(1) is not None",
    f"assert list(f(1)) == [{SECRET}] * 3",
    f"assert {{{SECRET}: 1}}.get(f(1)) == 1",
    f"from solution import f\nimport pytest\ndef test_it():\n    assert f(1) == pytest.approx({SECRET})",
]


ENDLESS = ("a giant value", "an endless iterator", "an iterator that counts")
"""They use up any limit of time, in one test or in each."""


async def test_no_program_finds_or_imitates_what_a_test_expects(embedded_judge: Judge) -> None:
    """All at once: they share requests, and the tests are rehearsed once for all."""
    judge, hasty = (Judge(embedded_judge.client, timeout_s=seconds) for seconds in (2.0, 0.2))

    async def passed(name: str) -> list[str]:
        code = CANARIES[name].replace("{0}", str(SECRET + 1)).replace("{{", "{").replace("}}", "}")
        one = hasty if name in ENDLESS else judge
        grades = await asyncio.gather(*(one.grade(problem(script), code) for script in TESTS))
        return [script for script, grade in zip(TESTS, grades, strict=True) if grade.passed]

    found = await asyncio.gather(*map(passed, CANARIES))
    assert {name: scripts for name, scripts in zip(CANARIES, found, strict=True) if scripts} == {}


async def test_what_a_program_may_see_is_found_by_the_canaries(embedded_judge: Judge) -> None:
    code = LOOK + "def f(x):\n    look(x)\n    return found[0] if found else 0"
    assert (await embedded_judge.grade(problem(f"assert f({SECRET}) == {SECRET}"), code)).passed


def test_values_come_back_as_they_were_and_nothing_else_does() -> None:
    values = runpy.run_path(str(PAYLOAD / "values.py"))
    malformed = values["MalformedValue"]

    def decoded(message: dict[str, object]) -> object:
        def refuse(decoding: object, node: object) -> object:
            raise malformed("no")

        return values["Decoding"](message, refuse, values["Shared"](), 0, is_result=True).root

    for node in (
        ["tuple", [[0, -1]]], ["tuple", [[0, 0]]], ["tuple", [[1]]], ["tuple", [[[], 0]]], ["set", [[0, -1]]], ["list"],
        ["type", "eval"], ["type", "__import__"],
        ["Decimal", "x"], ["Fraction", 1, 0], ["ndarray", "O", [1], ""], ["ndarray", "<f8", [9], ""], ["bytes", 5], [],
        ["namedtuple", "P", ["x"], []], ["function", "os", "system"], ["reference", 0, 0], ["date", "x"], "list", None,
    ):  # fmt: skip
        with pytest.raises(malformed):
            decoded({"root": [0, -1], "nodes": [node]})
    messages: list[dict[str, object]] = [
        {"root": [0, -1], "nodes": []},
        {"root": 1, "nodes": [], "changed": [[[0, 0], ["list", []]]]},
        {"root": {}, "nodes": []},
        {"nodes": []},
        {"root": 1},
    ]
    for message in messages:
        with pytest.raises(malformed):
            decoded(message)
