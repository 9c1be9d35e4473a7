"""Checkers: problems with several right answers, and attacks on checkers.

    python benchmarks/checkers.py [--seed 1] [--tests 5]

Ten kinds of problems with six parameters each. The recipe draws their tests with the seed. Each problem has four
checkers, two in Python (a function, a Kattis output validator) and two in C++ (an output validator, testlib's
protocol), programs that are right in different ways, and programs that are wrong. All programs are graded with each
checker on the embedded sandbox. Then the problems are written to disk as packages in five layouts, `coderl validate`
reads them, and `coderl grade` grades the same programs. The attacks are outputs that try to buy a verdict, with each of
the four checkers, and checkers that fail by themselves, with a right and with a wrong program.

Exit code 1 if a right program fails, a wrong one passes, or an attack gets what it should not.
"""

import argparse
import asyncio
import contextlib
import io
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import polars as pl
from rich.console import Console
from rich.table import Table

from coderl_tasks.grading import Judge, SandboxClient, Verdict
from coderl_tasks.grading.scoring import Grade
from coderl_tasks.problems.problem import Problem
from coderl_tasks.problems.raw_row import problem_from_row
from coderl_tasks.services import embedded_sandbox

PARAMETERS = range(1, 7)
HOLES = ("CHOICE", "AGAIN", "ORDER", "END")

# ---------------------------------------------------------------------------------------- the frame of a checker

# Both read words strictly: int() and std::stoll take numbers in other scripts, with underscores, or with a rest.
WORDS_PY = """
import re

class Words:
    def __init__(self, text):
        self.words = iter(re.findall(r"[^ \\t\\r\\n]+", text))

    def word(self):
        return next(self.words)

    def number(self):
        word = self.word()
        if not re.fullmatch(r"-?[0-9]{1,18}", word):
            raise ValueError(word)
        return int(word)

    def real(self):
        word = self.word()
        if not re.fullmatch(r"-?[0-9]{1,30}(\\.[0-9]{0,30})?(e[+-]?[0-9]{1,3})?", word):
            raise ValueError(word)
        return float(word)

def judged(right, given, said, answer, k):
    given, said, answer = map(Words, (given, said, answer))
    try:
        return bool(right(given, said, answer, k)) and next(said.words, None) is None
    except (ValueError, StopIteration):  # of the program's words
        return False
"""
WORDS_H = """
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>
using std::string; using std::vector;

struct Words {
    vector<string> words;
    size_t next = 0;
    explicit Words(std::istream &in) { for (string w; in >> w;) words.push_back(w); }
    string word() {
        if (next == words.size()) throw std::runtime_error("too few words");
        return words[next++];
    }
    long long number() {
        string w = word(), digits = w[0] == '-' ? w.substr(1) : w;
        if (digits.empty() || digits.size() > 18 || digits.find_first_not_of("0123456789") != string::npos)
            throw std::runtime_error("no number");
        return std::stoll(w);
    }
    double real() {
        string w = word();
        char *end;
        double value = strtod(w.c_str(), &end);
        if (w.find_first_not_of("-+.e0123456789") != string::npos || *end || !std::isfinite(value))
            throw std::runtime_error("no number");
        return value;
    }
};
bool right(Words &given, Words &said, Words &answer, long long k);
inline bool judged(std::istream &given, std::istream &said, std::istream &answer, const char *k) {
    Words g(given), s(said), a(answer);
    try { return right(g, s, a, atoi(k)) && s.next == s.words.size(); } catch (std::runtime_error &) { return false; }
}
"""
CHECK_END = """
from words import judged
def check(input, output, expected):
    return judged(right, input, output, expected, {k})
"""
KATTIS_PY_END = """
import sys
from words import judged
if __name__ == "__main__":
    texts = [open(name, encoding="utf-8", errors="replace").read() for name in (sys.argv[1], 0, sys.argv[2])]
    sys.exit(42 if judged(right, *texts, int(sys.argv[4])) else 43)
"""
KATTIS_CPP_END = """
int main(int, char **v) {
    std::ifstream given(v[1]), answer(v[2]);
    return judged(given, std::cin, answer, v[4]) ? 42 : 43;
}
"""
TESTLIB_CPP_END = """
int main(int, char **v) {
    std::ifstream given(v[1]), said(v[2]), answer(v[3]);
    return judged(given, said, answer, v[4]) ? 0 : 1;
}
"""

# ---------------------------------------------------------------------------------------------- kinds of problems


@dataclass(frozen=True)
class Kind:
    """Problems with a parameter K, and a test of size n >= 1.

    `python` and `cpp` are the bodies of right(given, said, answer, k). A right or a wrong program is `program` with
    texts (split by "|") in place of what stands in HOLES. The answer of a test is what the first right one prints.
    """

    statement: str
    make_test: Callable[[Random, int, int], str]
    python: str
    cpp: str
    program: str
    right: tuple[str, ...]
    wrong: tuple[str, ...]


def graph(edges: Sequence[tuple[int, int]], *sizes: int) -> str:
    return "\n".join([" ".join(map(str, (*sizes, len(edges)))), *(f"{a} {b}" for a, b in edges)]) + "\n"


def tasks(random: Random, k: int, n: int) -> str:
    n += 2
    hidden = random.sample(range(k, k + n), n)
    pairs = [(hidden[a], hidden[b]) for b in range(1, n) for a in random.sample(range(b), min(b, 2))]
    if n % 3 == 0:
        pairs.append(pairs[0][::-1])
    return graph(random.sample(pairs, len(pairs)), n)


def roads(random: Random, k: int, n: int) -> str:
    last = n + 4
    edges = {(random.randint(max(1, b - 2), b - 1), b) for b in range(2, last + n % 2)}  # else the last has none
    edges |= {(a, a + 2) for a in range(1, last - 2) if random.random() < 0.5}
    return graph([random.choice([(a, b), (b, a)]) for a, b in sorted(edges - {(1, last)})], last)


def wires(random: Random, k: int, n: int) -> str:
    n += k + 3
    edges = [(1, 2), (2, 3), (1, 3), *((random.randint(1, b - 1), b) for b in range(4, n + 1))]
    more = (random.sample(range(1, n + 1), 2) for _ in range(n))
    return graph([*edges, *((a, b) for a, b in more)], n)


def values(random: Random, k: int, n: int) -> str:
    if n % 3 == 1:  # none of these
        return f"1\n{1 + (k + 1) * random.randint(0, 9)}\n"
    while True:
        found = [random.randint(1, 99) for _ in range(n + 2)]
        if sum(found) % (k + 1) and found[0] % (k + 1):
            return f"{len(found)}\n{' '.join(map(str, found))}\n"


def pipes(random: Random, k: int, n: int) -> str:
    count, degree = 2 * n + k, Counter[int]()
    edges: set[tuple[int, int]] = {(1, 2)}
    degree.update((1, 2))
    for _ in range(9 * count):
        a, b = sorted(random.sample(range(1, count + 1), 2)) if count > 1 else (1, 1)
        if a != b and (a, b) not in edges and max(degree[a], degree[b]) < k:
            edges.add((a, b))
            degree.update((a, b))
    return graph(sorted(edges), count)


def couples(random: Random, k: int, n: int) -> str:
    edges = {(1, 1), (1, 2), (2, 1)}  # who takes the first that is free leaves the second alone
    edges |= {(random.randint(3, n + 2), random.randint(3, n + k + 2)) for _ in range(2 * n)}
    return graph(sorted(edges), n + 2, n + k + 2)


KINDS = {
    "order": Kind(
        "Tasks K to K+n-1; of each pair the first comes before the second. Print an order, or -1 if there is none.",
        tasks,
        """
    n, m = given.number(), given.number()
    pairs = [(given.number(), given.number()) for _ in range(m)]
    first = said.number()
    if first == -1:
        return answer.number() == -1
    order = [first] + [said.number() for _ in range(n - 1)]
    place = {task: number for number, task in enumerate(order)}
    return sorted(order) == list(range(k, k + n)) and all(place[a] < place[b] for a, b in pairs)
""",
        """
    long long n = given.number(), m = given.number(), first = said.number();
    if (first == -1) return answer.number() == -1;
    vector<long long> place(n, -1);
    for (long long i = 0, task = first; i < n; i++) {
        if (i) task = said.number();
        if (task < k || task >= k + n || place[task - k] >= 0) return false;
        place[task - k] = i;
    }
    bool good = true;
    while (m--) { long long a = given.number(), b = given.number(); good &= place[a - k] < place[b - k]; }
    return good;
""",
        """
n, m = data[:2]
after, need = {v: [] for v in range(K, K + n)}, dict.fromkeys(range(K, K + n), 0)
for a, b in zip(data[2::2], data[3::2]):
    after[a].append(b)
    need[b] += 1
ready, order = [v for v in after if not need[v]], []
while ready:
    order.append(ready.pop(CHOICE))
    for v in after[order[-1]]:
        need[v] -= 1
        if not need[v]: ready.append(v)
print(*END)
""",
        ("-1|order if len(order) == n else [-1]", "0|order if len(order) == n else [-1]"),
        (
            "-1|order",
            "-1|order[::-1] if len(order) == n else [-1]",
            "-1|[v + 1 for v in order] if len(order) == n else [-1]",
            "-1|order[:-1] if len(order) == n else [-1]",
            "-1|after",
        ),
    ),
    "path": Kind(
        "Print the number of nodes of a path from 1 to n, then the nodes, with at most K edges more than the shortest, "
        "or -1 if there is none.",
        roads,
        """
    n, m = given.number(), given.number()
    edges = {(given.number(), given.number()) for _ in range(m)}
    count, best = said.number(), answer.number()
    if count == -1 or best == -1:
        return count == best
    if not 2 <= count <= best + k:
        return False
    path = [said.number() for _ in range(count)]
    return (path[0], path[-1]) == (1, n) and all({(a, b), (b, a)} & edges for a, b in zip(path, path[1:]))
""",
        """
    long long n = given.number(), m = given.number(), count = said.number(), best = answer.number();
    if (count == -1 || best == -1) return count == best;
    if (count < 2 || count > best + k) return false;
    std::set<std::pair<long long, long long>> edges;
    while (m--) { long long a = given.number(), b = given.number(); edges.insert({a, b}); edges.insert({b, a}); }
    long long last = said.number();
    bool good = last == 1;
    while (--count) { long long v = said.number(); good &= edges.count({last, v}) > 0; last = v; }
    return good && last == n;
""",
        """
n, m = data[:2]
near = {v: [] for v in range(1, n + 1)}
for a, b in zip(data[2::2], data[3::2]):
    near[a].append(b)
    near[b].append(a)
START, GOAL = CHOICE
before, queue = {START: 0}, [START]
for v in queue:
    for w in ORDER(near[v]):
        if w not in before:
            before[w] = v
            queue.append(w)
path = [GOAL] if GOAL in before else []
while path and path[-1] != START: path.append(before[path[-1]])
if START == 1: path.reverse()
END
""",
        ("1, n|sorted|print(len(path) or -1, *path)", "n, 1|reversed|print(len(path) or -1, *path)"),
        (
            "1, n|sorted|path = path[:2] * K + path\nprint(len(path) or -1, *path)",
            "1, n|sorted|print(2, 1, n)",
            "1, n|sorted|print(len(path), *path)",
            "1, n|sorted|print(len(path[1:]) or -1, *path[1:])",
            "1, n|sorted|print(len(path) - 1, *path)",
            "1, n|sorted|print(len(path[:-1]) or -1, *path[:-1])",
        ),
    ),
    "forest": Kind(
        "Print the numbers, from 1, of edges that join all n nodes into exactly K trees.",
        wires,
        """
    n, m = given.number(), given.number()
    edges = [(given.number(), given.number()) for _ in range(m)]
    parent = list(range(n + 1))
    def root(v):
        while parent[v] != v: v = parent[v]
        return v
    for _ in range(n - k):
        number = said.number()
        if not 1 <= number <= m: return False
        a, b = map(root, edges[number - 1])
        if a == b: return False
        parent[a] = b
    return True
""",
        """
    long long n = given.number(), m = given.number();
    vector<long long> a(m + 1), b(m + 1), parent(n + 1);
    for (long long i = 1; i <= m; i++) a[i] = given.number(), b[i] = given.number();
    std::iota(parent.begin(), parent.end(), 0);
    auto root = [&](long long v) { while (parent[v] != v) v = parent[v]; return v; };
    for (long long i = 0; i < n - k; i++) {
        long long e = said.number();
        if (e < 1 || e > m || root(a[e]) == root(b[e])) return false;
        parent[root(a[e])] = root(b[e]);
    }
    return true;
""",
        """
n, m = data[:2]
edges = list(enumerate(zip(data[2::2], data[3::2]), 1))
group, found = list(range(n + 1)), []
for number, (a, b) in CHOICE:
    if group[a] != group[b] and len(found) < n - K:
        found.append(number)
        group = [group[b] if g == group[a] else g for g in group]
print(*END)
""",
        ("edges|found", "edges[::-1]|found"),
        (
            "edges|range(1, n - K + 1)",
            "edges|found[:-1]",
            "edges|found[:1] * (n - K)",
            "edges|[number - 1 for number in found]",
            "edges|[-number for number in found]",
        ),
    ),
    "subset": Kind(
        "Print how many, then the positions (from 1) of some of the n numbers, whose sum K+1 divides, or -1.",
        values,
        """
    n = given.number()
    numbers = [given.number() for _ in range(n)]
    count = said.number()
    if count == -1:
        return answer.number() == -1
    places = [said.number() for _ in range(min(count, n + 1))]
    if not 1 <= count <= n or len(set(places)) < count or not all(1 <= place <= n for place in places):
        return False
    return sum(numbers[place - 1] for place in places) % (k + 1) == 0
""",
        """
    long long n = given.number(), count = said.number();
    vector<long long> numbers(n), places;
    for (auto &number : numbers) number = given.number();
    if (count == -1) return answer.number() == -1;
    if (count < 1 || count > n) return false;
    long long sum = 0;
    while (count--) {
        long long place = said.number();
        if (place < 1 || place > n || std::count(places.begin(), places.end(), place)) return false;
        places.push_back(place);
        sum += numbers[place - 1];
    }
    return sum % (k + 1) == 0;
""",
        """
from itertools import combinations
n, *numbers = data
found = [-1]
for size in CHOICE:
    for places in combinations(range(1, n + 1), size):
        if found == [-1] and sum(numbers[place - 1] for place in places) % (K + 1) == 0:
            found = [size, *places]
print(*END)
""",
        ("range(1, n + 1)|found", "range(n, 0, -1)|found"),
        (
            "[]|[n, *range(1, n + 1)]",
            "[0]|[0]",
            "[]|[K + 1] + [1] * (K + 1)",
            "range(1, n + 1)|[found[0], *(place - 1 for place in found[1:])]",
            "range(1, n + 1)|found[1:] or found",
        ),
    ),
    "pair": Kind(
        "Print two numbers of at least 2 whose sum is n and whose greatest common divisor is K, or -1.",
        lambda random, k, n: f"{[k * n + 4 * k, 2 * k * n, 3, k * (n + 9) + (k > 1), 4 * k * (n + 2)][n % 5] or 1}\n",
        """
    from math import gcd
    n, a = given.number(), said.number()
    if a == -1:
        return answer.number() == -1
    b = said.number()
    return a >= 2 and b >= 2 and a + b == n and gcd(a, b) == k
""",
        """
    long long n = given.number(), a = said.number();
    if (a == -1) return answer.number() == -1;
    long long b = said.number();
    return a >= 2 && b >= 2 && a + b == n && std::gcd(a, b) == k;
""",
        """
from math import gcd
(n,) = data
found = [(a, n - a) for a in range(2, n - 1) if gcd(a, n - a) == K] or [(-1,)]
print(*CHOICE)
""",
        ("found[0]", "found[-1]", "found[len(found) // 2]"),
        ("(K, n - K)", "(2, n - 2)", "(found[0][0], n + 1 - found[0][0])", "found[0][:1]", "(n // 2, n - n // 2)"),
    ),
    "colours": Kind(
        "Print a colour from 1 to K+1 for each of n nodes; those of an edge differ. No node has more than K edges.",
        pipes,
        """
    n, m = given.number(), given.number()
    colours = [said.number() for _ in range(n)]
    edges = [(given.number(), given.number()) for _ in range(m)]
    return all(1 <= one <= k + 1 for one in colours) and all(colours[a - 1] != colours[b - 1] for a, b in edges)
""",
        """
    long long n = given.number(), m = given.number();
    vector<long long> colour(n + 1);
    for (long long v = 1; v <= n; v++)
        if ((colour[v] = said.number()) < 1 || colour[v] > k + 1) return false;
    while (m--) { long long a = given.number(), b = given.number(); if (colour[a] == colour[b]) return false; }
    return true;
""",
        """
n, m = data[:2]
edges = list(zip(data[2::2], data[3::2]))
colour = [0] * (n + 1)
for v in CHOICE:
    taken = {colour[a + b - v] for a, b in edges if v in (a, b)}
    colour[v] = next(c for c in ORDER if c not in taken)
print(*END)
""",
        ("range(1, n + 1)|range(1, K + 2)|colour[1:]", "range(n, 0, -1)|range(K + 1, 0, -1)|colour[1:]"),
        (
            "range(1, n + 1)|range(1, K + 2)|[1] * n",
            "range(1, n + 1)|range(1, K + 2)|[c - 1 for c in colour[1:]]",
            "range(1, n + 1)|range(1, K + 2)|[colour[2], *colour[2:]]",
            "range(1, n + 1)|range(1, K + 2)|colour[2:]",
            "range(1, n + 1)|range(1, K + 2)|range(1, n + 1)",
        ),
    ),
    "permutation": Kind(
        "Print a permutation of 1 to n whose number at each position i differs from i by at least K, or -1.",
        lambda random, k, n: f"{[2 * k - 1, 2 * k, 2 * k + n, 3 * k + n][n % 4]}\n",
        """
    n, first = given.number(), said.number()
    if first == -1:
        return answer.number() == -1
    numbers = [first] + [said.number() for _ in range(n - 1)]
    return sorted(numbers) == list(range(1, n + 1)) and all(abs(one - i) >= k for i, one in enumerate(numbers, 1))
""",
        """
    long long n = given.number(), first = said.number();
    if (first == -1) return answer.number() == -1;
    vector<bool> seen(n + 1);
    for (long long i = 1, one = first; i <= n; i++) {
        if (i > 1) one = said.number();
        if (one < 1 || one > n || seen[one] || std::abs(one - i) < k) return false;
        seen[one] = true;
    }
    return true;
""",
        """
(n,) = data
numbers = list(range(1, n + 1))
by = CHOICE
print(*(END) if n >= 2 * K else [-1])
""",
        ("K|numbers[by:] + numbers[:by]", "n - K|numbers[by:] + numbers[:by]"),
        (
            "0|numbers",
            "K - 1|numbers[by:] + numbers[:by]",
            "K|[min(n, i + K) for i in numbers]",
            "K|[i - 1 for i in numbers[by:] + numbers[:by]]",
            "K|numbers[by:] + numbers[:by - 1]",
        ),
    ),
    "text": Kind(
        "Print n lowercase letters, exactly K+1 different ones, neighbours never equal, or `impossible`.",
        lambda random, k, n: f"{[k, k + 1, k + n + 1, 9 * k + n][n % 4]}\n",
        """
    n, word = given.number(), said.word()
    if n < k + 1 or word == "impossible":
        return n < k + 1 and word == "impossible"
    if not re.fullmatch("[a-z]+", word) or len(word) != n:
        return False
    return len(set(word)) == k + 1 and all(a != b for a, b in zip(word, word[1:]))
""",
        """
    long long n = given.number();
    string word = said.word();
    if (n < k + 1 || word == "impossible") return n < k + 1 && word == "impossible";
    for (size_t i = 0; i < word.size(); i++)
        if (word[i] < 'a' || word[i] > 'z' || (i && word[i] == word[i - 1])) return false;
    return (long long)word.size() == n && (long long)std::set<char>(word.begin(), word.end()).size() == k + 1;
""",
        """
(n,) = data
letters = CHOICE[:K + 1]
word = (letters * n)[:n]
print(END)
""",
        (
            "'abcdefgh'|word if n > K else 'impossible'",
            "'zyxwvuts'|word if n > K else 'impossible'",
            "'abcdefgh'|word[::-1] if n > K else 'impossible'",
        ),
        (
            "'abcdefgh'[1:]|word",
            "'abcdefgh'|word[:1] + word[:-1] if n > K else 'impossible'",
            "'ABCDEFGH'|word if n > K else 'impossible'",
            "'abcdefgh'|word + 'a' if n > K else 'impossible'",
            "'abcdefgh'|' '.join(word) if n > K else 'impossible'",
            "'\\u00e0\\u00e1\\u00e2\\u00e3\\u00e4\\u00e5\\u00e6\\u00e7'|word if n > K else 'impossible'",
        ),
    ),
    "root": Kind(
        "Print x with x*x*x + K*x = c, to a relative or absolute error of 1e-6.",
        lambda random, k, n: f"{random.randint(1, 10 ** n) * (k + 1) * 7 + 3}\n",
        """
    found, wanted = said.real(), answer.real()
    return abs(found - wanted) <= 1e-6 * max(1, abs(wanted))
""",
        """
    double found = said.real(), wanted = answer.real();
    return std::abs(found - wanted) <= 1e-6 * std::max(1.0, std::abs(wanted));
""",
        """
(c,) = data
low, high = 0.0, c + 1.0
for _ in range(200):
    x = (low + high) / 2
    low, high = (x, high) if x * x * x + K * x < c else (low, x)
print(CHOICE)
""",
        ("x", "f'{x:.12f}'", "f'{x:.9e}'", "f'{x + 3e-7:.10f}'", "f'{x:020.10f}'"),
        ("f'{x:.3f}'", "int(x)", "'nan'", "'inf'", "'1e999'", "x + 1e-2", "x, x", "x.hex()", "f'-{x}'"),
    ),
    "matching": Kind(
        "Who can do which job. Print how many people can each have a job of their own, at most, then their pairs.",
        couples,
        """
    n, jobs, m = given.number(), given.number(), given.number()
    edges = {(given.number(), given.number()) for _ in range(m)}
    count = said.number()
    if count != answer.number():
        return False
    pairs = [(said.number(), said.number()) for _ in range(count)]
    return set(pairs) <= edges and all(len({pair[side] for pair in pairs}) == count for side in (0, 1))
""",
        """
    given.number(); given.number();
    long long m = given.number(), count = said.number();
    if (count != answer.number()) return false;
    std::set<std::pair<long long, long long>> edges;
    std::set<long long> people, jobs;
    while (m--) { long long a = given.number(), b = given.number(); edges.insert({a, b}); }
    for (long long i = 0; i < count; i++) {
        long long a = said.number(), b = said.number();
        if (!edges.count({a, b}) || !people.insert(a).second || !jobs.insert(b).second) return false;
    }
    return true;
""",
        """
n, jobs, m = data[:3]
edges = list(zip(data[3::2], data[4::2]))
of_job = {}
def find(person, seen):
    for job in [b for a, b in CHOICE if a == person and b not in seen]:
        seen.add(job)
        if job not in of_job or AGAIN:
            of_job[job] = person
            return True
for person in ORDER: find(person, set())
pairs = [(person, job) for job, person in of_job.items()]
END
""",
        (
            "edges|find(of_job[job], seen)|range(1, n + 1)|print(len(pairs), *sum(pairs, ()))",
            "edges[::-1]|find(of_job[job], seen)|range(n, 0, -1)|print(len(pairs), *sum(pairs, ()))",
        ),
        (
            "edges|False|range(1, n + 1)|print(len(pairs), *sum(pairs, ()))",
            "edges|True|range(1, n + 1)|print(len(pairs), *sum(pairs, ()))",
            "edges|find(of_job[job], seen)|range(1, n + 1)|print(len(pairs), *sum(pairs[:1] * len(pairs), ()))",
            "edges|find(of_job[job], seen)|range(1, n + 1)|print(len(pairs), *sum([(b, a) for a, b in pairs], ()))",
            "edges|find(of_job[job], seen)|range(1, n + 1)|print(len(pairs) + 1, *sum(pairs, ()), 9, 9)",
            "edges|find(of_job[job], seen)|range(1, n + 1)|print(len(pairs), *sum(pairs[1:], ()))",
        ),
    ),
}  # fmt: skip
# What any right output may look like, and what is never one.
REPRINTED = """
import io
real, sys.stdout = sys.stdout, io.StringIO()
{program}
real.write({expression})
"""
WORDS = "sys.stdout.getvalue().split()"
LAYOUTS = {
    "a word per line": f"'\\n'.join({WORDS}) + '\\n\\n'",
    "no line end": f"' '.join({WORDS})",
    "CRLF and spaces": f"'  ' + ' \\r\\n'.join({WORDS}) + '\\t\\r\\n'",
}
ALWAYS_WRONG = ("pass", "print(-1)", "print('impossible')", "print(0)", "print('\\x00')")


@dataclass(frozen=True)
class Program:
    code: str
    is_right: bool


def written(kind: Kind, k: int, choice: str) -> str:
    text = kind.program
    holes = [hole for hole in HOLES if hole in text]
    for hole, part in zip(holes, choice.split("|"), strict=True):
        text = text.replace(hole, part)
    return f"import sys\nK = {k}\ndata = list(map(int, sys.stdin.read().split()))\n{text}"


def programs_of(kind: Kind, k: int) -> list[Program]:
    """Right programs, the first one in other layouts too, and wrong ones."""
    right = [written(kind, k, choice) for choice in kind.right]
    right += [REPRINTED.format(program=right[0], expression=expression) for expression in LAYOUTS.values()]
    wrong = [*ALWAYS_WRONG, f"{right[0]}\nprint(0)", *(written(kind, k, choice) for choice in kind.wrong)]
    return [*(Program(code, is_right=True) for code in right), *(Program(code, is_right=False) for code in wrong)]


def printed(code: str, given: str) -> str:
    output = io.StringIO()
    with contextlib.redirect_stdout(output), patch.object(sys, "stdin", io.StringIO(given)):
        exec(code, {"__name__": "__main__"})
    return output.getvalue()


def tests_of(kind: Kind, k: int, n_tests: int, random: Random) -> list[dict[str, str]]:
    """Different tests, of sizes from 1 on."""
    inputs: dict[str, None] = {}
    for n in count(1):
        if len(inputs) == n_tests:
            break
        inputs.setdefault(kind.make_test(random, k, n))
    return [{"input": given, "output": printed(written(kind, k, kind.right[0]), given)} for given in inputs]


def checkers_of(kind: Kind, k: int) -> dict[str, dict[str, Any]]:
    """The checkers of a problem, by form. Those in C++ of one kind differ in their flags alone."""
    python = f"import re\ndef right(given, said, answer, k):{kind.python}"
    cpp = f'#include "words.h"\nbool right(Words &given, Words &said, Words &answer, long long k) {{{kind.cpp}}}\n'
    py_files, cpp_files = {"words.py": WORDS_PY}, {"words.h": WORDS_H}
    return {
        "function": {"source": python + CHECK_END.format(k=k), "protocol": "check", "files": py_files},
        "Kattis, Python": {"source": python + KATTIS_PY_END, "protocol": "kattis", "flags": [k], "files": py_files},
        "Kattis, C++": {"source": cpp + KATTIS_CPP_END, "protocol": "kattis", "flags": [k], "files": cpp_files},
        "testlib, C++": {"source": cpp + TESTLIB_CPP_END, "protocol": "testlib", "flags": [k], "files": cpp_files},
    }


def problem(statement: str, tests: Sequence[Mapping[str, str]], checker: Mapping[str, Any] | str) -> Problem:
    row = {"question": statement, "tests": tests, "checker": checker}
    return problem_from_row(row, split="checkers", source_row=0)


# ------------------------------------------------------------------------------------------------------- packages


def package_files(name: str, k: int, tests: Sequence[Mapping[str, str]], programs: Sequence[Program]) -> dict[str, str]:
    """The files of a problem as a package, in one of five layouts."""
    kind = KINDS[name]
    checkers = checkers_of(kind, k)
    python, cpp = checkers["Kattis, Python"]["source"], checkers["Kattis, C++"]["source"]
    is_new = k % 4 in (2, 3)
    files = {
        f"{'statement' if is_new else 'problem_statement'}/problem.en.{'md' if is_new else 'tex'}": kind.statement,
        "submissions/accepted/other.cpp": "int main() {}",
        "submissions/accepted/Other.java": "class Other {}",
        "submissions/accepted/old.py": "print 1",
        "submissions/time_limit_exceeded/slow.py": "while True: pass",
        "submissions/run_time_error/crash.py": "1 / 0",
    }
    about: dict[str, Any] = {"name": {"sv": "Namn", "en": f"{name} {k}"}}
    if name == "root":  # the default validator
        about["validator_flags"] = "float_tolerance 1e-6"
    elif k % 4 == 0:  # a single file, and the flag of all tests
        about |= {"validation": "custom", "validator_flags": f"{k}"}
        files["output_validators/validate.py"] = f"{WORDS_PY}\n{python.replace('from words import judged', '')}"
    elif k % 4 == 1:  # a folder with several files, and the flag of a group
        about["validation"] = "custom"
        files |= {
            f"output_validators/{name}/{file}": text for file, text in (("validate.cpp", cpp), ("words.h", WORDS_H))
        }
        files["data/testdata.yaml"] = f"output_validator_flags: {{name: {name}, flags: '{k}'}}"
        files["data/secret/2-large/testdata.yaml"] = "on_reject: break"
    else:
        about |= {"problem_format_version": ("2023-07-draft", "2025-09")[k % 4 == 3], "type": "pass-fail"}
        about |= {"limits": {"time_limit": 6.0}, "constants": {"end": 42}}
        files["data/test_group.yaml"] = f"output_validator_args: ['{k}']"
        if k % 4 == 2:
            files |= {"output_validator/main.cc": cpp.replace("? 42", "? {{end}}"), "output_validator/words.h": WORDS_H}
        else:
            files |= {
                "output_validator/__main__.py": python,
                "output_validator/words.py": WORDS_PY,
                "output_validator/__init__.py": "",
            }
    if name == "root" and is_new:
        about["problem_format_version"] = "legacy"
    files["problem.yaml"] = json.dumps(about)
    for number, test in enumerate(tests):
        place = "sample" if number == 0 else "secret/1-small" if number < 3 else "secret/2-large"
        files |= {f"data/{place}/{number}.in": test["input"], f"data/{place}/{number}.ans": test["output"]}
    for number, program in enumerate(programs):
        files[f"submissions/{'accepted' if program.is_right else 'wrong_answer'}/{number}.py"] = program.code
    return files


def write_packages(folder: Path, problems: Mapping[str, tuple[str, int, list[dict[str, str]]]]) -> None:
    for name, (kind, k, tests) in problems.items():
        for file, text in package_files(kind, k, tests, programs_of(KINDS[kind], k)).items():
            (folder / name / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / name / file).write_text(text)


def coderl(*words: str, address: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "coderl_tasks.cli", *words]
    return subprocess.run(command, env=os.environ | {"SANDBOX_URL": address}, capture_output=True, text=True)


# -------------------------------------------------------------------------------------------------------- attacks

# Nothing that these print is right: the problem is "two numbers of at least 2 whose sum is 5", and only "2 3" and "3 2"
# are. Those that print one of them do not end as they should.
OUTPUTS = {
    "a word of 24 MiB": "print('2' * (24 << 20))",
    "a million words": "print('2 ' * 1_000_000)",
    "wrong, many spaces, right": "print('9 9' + ' ' * 65536 + '2 3')",
    "right, spaces without end": "print(2, 3)\nwhile True: print(' ' * 65536)",
    "right twice": "print(2, 3)\nprint(2, 3)",
    "invalid UTF-8 behind": "import sys\nsys.stdout.buffer.write(b'2 3\\xff')",
    "UTF-16": "import sys\nsys.stdout.buffer.write('2 3'.encode('utf-16'))",
    "a byte order mark": "import sys\nsys.stdout.buffer.write(b'\\xef\\xbb\\xbf2 3')",
    "a no-break space": "print('2\\u00a03')",
    "fullwidth digits": "print('\\uff12 \\uff13')",
    "hexadecimal": "print('0x2 0x3')",
    "underscores": "print('0_2 0_3')",
    "exponents": "print('2e0 3e0')",
    "decimals": "print('2.0 3.0')",
    "minus zero": "print('-0 5')",
    "infinite numbers": "print('1e999 -1e999')",
    "thirty zeros": "print('0' * 30 + '2', 3)",
    "around 2**32": "print(2**32 + 2, 3 - 2**32)",
    "commas": "print('2,3')",
    "an escape sequence before": "print('\\x1b[2K\\x1b[1G2 3')",
    "a message of the runner": "print('{\"id\": \"\", \"results\": [{\"end\": \"passed\", \"reason\": \"\"}]}')",
    "base64": "print('MiAzCg==')",
    "format strings": "print('%s%n%n {0.__class__} {{end}}')",
    "deep brackets": "print('[' * 100_000)",
    "exit status 42": "import os\nprint(2, 3, flush=True)\nos._exit(42)",
    "right, then sleep": "import time\nprint(2, 3, flush=True)\ntime.sleep(99)",
    "right, then a crash": "import os\nprint(2, 3, flush=True)\nos.abort()",
    "a late child": "import os, time\nif os.fork() == 0:\n    time.sleep(0.3)\n    print(2, 3, flush=True)",
    "modules of the checker": (
        "import os\nfor folder in ('.', '..', '/tmp', os.path.expanduser('~')):\n"
        "    for name in ('checker.py', 'words.py', 're.py', 'sitecustomize.py', 'results.json', 'checker/words.py'):\n"
        "        try: open(f'{folder}/{name}', 'w').write('raise SystemExit(42)')\n"
        "        except OSError: pass\nprint(9, 9)"
    ),
    "its output as a link": "import os\nos.symlink('/proc/self/fd/0', 'output')\nprint(open('output').read() * 2)",
}  # fmt: skip
CPP = "#include <bits/stdc++.h>\n#include <unistd.h>\nint main(int c, char **v) {"
BROKEN: dict[str, Mapping[str, Any] | str] = {
    "C++: a null pointer": CPP + "volatile int *p = nullptr; *p = 1; return 42; }",
    "C++: an exception": CPP + 'throw std::runtime_error("broken"); }',
    "C++: endless": CPP + "for (volatile int i = 0;; i++); }",
    "C++: all memory": CPP + "for (std::vector<char *> all;;) all.push_back(new char[1 << 24]()); }",
    "C++: exit status 1": CPP + "return 1; }",
    "C++: a child with 42": CPP + "return fork() ? 0 : 42; }",
    "C++: gigabytes of feedback": CPP + (
        'FILE *f = fopen((std::string(v[3]) + "judgemessage.txt").c_str(), "w");'
        'for (long i = 0; i < 1L << 24; i++) fprintf(f, "%0128ld", i); return 42; }'
    ),
    "C++: output without end": CPP + "for (;;) puts(v[0]); }",
    "C++: a file of its own folder": CPP + 'std::ifstream in("words.txt"); std::string w; return in >> w ? 42 : 3; }',
    "C++: does not compile": CPP + "return fortytwo; }",
    "Python: an exception": {"source": "import sys\nraise SystemExit('42')", "protocol": "kattis"},
    "Python: ends the runner": "import os, signal\ndef check(i, o, e): os.kill(os.getppid(), signal.SIGKILL)",
    "Python: endless recursion": "def check(i, o, e): return check(i, o, e)",
    "Python: a child that stays": "import os, time\ndef check(*texts): return os.fork() > 0 or time.sleep(99)",
    "Python: testlib's failure": {"source": "import sys\nsys.exit(3)", "protocol": "testlib"},
}  # fmt: skip
PAIR_TESTS = [{"input": "5\n", "output": "2 3\n"}] * 2


# ----------------------------------------------------------------------------------------------------------- runs


async def grades_of(judge: Judge, jobs: Sequence[tuple[Problem, str]]) -> list[Grade]:
    return list(await asyncio.gather(*(judge.grade(problem, code) for problem, code in jobs)))


async def grade_kinds(judge: Judge, tests: Mapping[tuple[str, int], list[dict[str, str]]], console: Console) -> int:
    """Prints what became of the programs of each kind, with each form of its checkers. Returns how many went wrong."""
    table = Table("kind", "problems", "programs", "grades", "right failed", "wrong passed", "no verdict", "seconds")
    totals = Counter[str]()
    for name, kind in KINDS.items():
        jobs, expected, codes = [], [], set()
        for k in PARAMETERS:
            for checker in checkers_of(kind, k).values():
                with_checker = problem(f"{kind.statement} K = {k}.", tests[name, k], checker)
                for program in programs_of(kind, k):
                    jobs.append((with_checker, program.code))
                    expected.append(program.is_right)
                    codes.add(program.code)
        started = time.monotonic()
        grades = await grades_of(judge, jobs)
        found = counted(zip(expected, grades, strict=True))
        for (_, code), is_right, grade in zip(jobs, expected, grades, strict=True):
            if grade.passed != is_right or not grade.gradable:
                console.print(f"{name}: {grade.verdict.value}: {grade.reason}\n{code}", markup=False)
        numbers = [len(PARAMETERS), len(codes), len(jobs), *(found[what] for what in OUTCOMES)]
        table.add_row(name, *map(str, numbers), f"{time.monotonic() - started:.0f}")
        totals += found
    console.print(table)
    return totals.total()


OUTCOMES = ("right failed", "wrong passed", "no verdict")


def counted(grades: Iterator[tuple[bool, Grade]] | Sequence[tuple[bool, Grade]]) -> Counter[str]:
    found = Counter[str]()
    for is_right, grade in grades:
        if not grade.gradable:
            found["no verdict"] += 1
        elif grade.passed != is_right:
            found["right failed" if is_right else "wrong passed"] += 1
    return found


def grade_packages(tests: Mapping[tuple[str, int], list[dict[str, str]]], address: str, console: Console) -> int:
    """The problems as packages on disk, by the commands. Returns how many programs were judged wrongly."""
    with TemporaryDirectory() as place:
        folder = Path(place) / "packages"
        write_packages(folder, {f"{name}{k}": (name, k, found) for (name, k), found in tests.items()})
        validated = coderl("validate", str(folder), "--format", "json", address=address)
        rows = [
            {"problem_id": f"{name}{k}", "code": program.code, "is_right": program.is_right}
            for name, k in tests
            for program in programs_of(KINDS[name], k)
        ]
        completions, verdicts = Path(place) / "completions.parquet", Path(place) / "verdicts.parquet"
        pl.DataFrame(rows).write_parquet(completions)
        started = time.monotonic()
        files = ("--completions", str(completions), "--out", str(verdicts))
        graded = coderl("grade", "--problems", str(folder), *files, address=address)
        if validated.returncode or graded.returncode:
            console.print(validated.stdout[-3000:], validated.stderr, graded.stderr, markup=False)
            return 1
        table = pl.read_parquet(verdicts).with_columns(pl.Series("is_right", [row["is_right"] for row in rows]))
        judged_wrongly = table.filter((pl.col("verdict") == "passed") != pl.col("is_right"))
        for row in judged_wrongly.iter_rows(named=True):
            console.print(row["problem_id"], row["verdict"], row["reason"], markup=False)
    print(
        f"As {len(tests)} packages: coderl validate keeps all; coderl grade: {len(rows)} programs, "
        f"{judged_wrongly.height} judged wrongly, {time.monotonic() - started:.0f} s"
    )
    return judged_wrongly.height


async def attack(client: SandboxClient, console: Console) -> int:
    """Prints what the attacks got. Returns how many got what they should not."""
    judge = Judge(client, timeout_s=2.0)
    forms = checkers_of(KINDS["pair"], 1)
    jobs = [
        (problem(KINDS["pair"].statement, PAIR_TESTS, checker), code)
        for checker in forms.values()
        for code in OUTPUTS.values()
    ]
    names = [f"{name} ({form})" for form in forms for name in OUTPUTS]
    bad = 0
    for name, grade in zip(names, await grades_of(judge, jobs), strict=True):
        if grade.passed or not grade.gradable:
            bad += 1
            console.print(f"{name}: {grade.verdict.value}: {grade.reason}", markup=False)
    codes = ("print(2, 3)", "print(9, 9)")
    broken = [
        (problem(KINDS["pair"].statement, PAIR_TESTS, checker), code) for checker in BROKEN.values() for code in codes
    ]
    with patch.multiple("coderl_tasks.grading.judge_programs", JUDGE_S=1.0, CHECKER_WALL_S=2.0):
        grades = await grades_of(judge, broken)
    for name, grade in zip((name for name in BROKEN for _ in codes), grades, strict=True):
        if grade.verdict is not Verdict.CHECKER_ERROR:
            bad += 1
            console.print(f"{name}: {grade.verdict.value}: {grade.reason}", markup=False)
    print(
        f"{len(OUTPUTS)} outputs with {len(forms)} checkers each, {len(BROKEN)} broken checkers with {len(codes)} "
        f"programs each: {bad} of {len(jobs) + len(broken)} got what they should not"
    )
    return bad


async def run(address: str, tests: Mapping[tuple[str, int], list[dict[str, str]]], console: Console) -> int:
    async with SandboxClient([address]) as client:
        return await grade_kinds(Judge(client), tests, console) + await attack(client, console)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tests", type=int, default=5, help="per problem, at least 5 (default: 5)")
    options = parser.parse_args()
    console = Console(width=140)
    random = Random(options.seed)
    tests = {
        (name, k): tests_of(kind, k, max(5, options.tests), random) for name, kind in KINDS.items() for k in PARAMETERS
    }
    with embedded_sandbox() as server:
        wrong = asyncio.run(run(server.address, tests, console)) + grade_packages(tests, server.address, console)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
