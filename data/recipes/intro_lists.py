"""Kinds of first programs with lists and dictionaries: searching, counting, filtering, and small tables."""

import math
import random
from collections import Counter
from collections.abc import Callable
from itertools import accumulate, chain, pairwise
from typing import Any

from data.recipes.intro_kind import NAMES, WORDS, Kind, ints, scores, variant, words

NUMBERS = "numbers|values|nums|items"
ITEMS = f"{NUMBERS}: list[int]"


def numbers(rng: random.Random, _: object) -> tuple[list[int]]:
    return (ints(rng, -15, 25),)


def small(rng: random.Random, _: object) -> tuple[list[int]]:
    """Few different numbers, so that some come again."""
    return (ints(rng, 0, 5, 1, 8),)


def names(rng: random.Random, _: object) -> tuple[list[str]]:
    return (words(rng),)


KINDS = (
    Kind(
        "item_at",
        f"{ITEMS} -> int",
        "",
        """
        Return $np. The list has at least $least.

        The list $a holds at least $least. Give back $np.

        [queue] The numbers of waiting customers are in the list $a, which has $least or more. Return $np.

        Use an index to get $np. You may rely on a list with $least or more.

        Which number is $np? The function returns it. There are always $least or more in the list.
        """,
        (
            variant(
                names="first_item|first_of",
                np="the first element of $a",
                least="one element",
                ex="$a[0]",
                fn=lambda x: next(iter(x)),
                slips=("return $a[1]", "return $a[-1]"),
            ),
            variant(
                names="last_item|last_of",
                np="the last element of $a",
                least="one element",
                ex="$a[-1]",
                fn=lambda x: next(reversed(x)),
                slips=("return $a[0]", "return $a[len($a)]"),
            ),
            variant(
                names="second_item|second_of",
                np="the second element of $a",
                least="two elements",
                ex="$a[1]",
                fn=lambda x: next(iter(x[1:])),
                slips=("return $a[2]", "return $a[0]"),
            ),
            variant(
                names="second_last|one_before_last",
                np="the second-last element of $a",
                least="two elements",
                ex="$a[-2]",
                fn=lambda x: list(reversed(x))[1],
                slips=("return $a[-1]", "return $a[2]"),
            ),
            variant(
                names="sum_of_ends|first_plus_last",
                np="the sum of the first and the last element of $a",
                least="one element",
                ex="$a[0] + $a[-1]",
                fn=lambda x: sum([*x[:1], *list(reversed(x))[:1]]),
                edges=(([6],),),
                slips=("return sum($a)", "return $a[0]"),
            ),
            variant(
                names="middle_item|item_in_the_middle",
                np="the element in the middle of $a (the number of elements is odd)",
                least="one element",
                ex="$a[len($a) // 2]",
                fn=lambda x: next(n for i, n in enumerate(x) if 2 * i + 1 == len(x)),
                draw=lambda r, v: (ints(r, -9, 20, (k := r.choice((1, 3, 5, 7))), k),),
                edges=(([6],),),
                slips=("return $a[1]", "return sorted($a)[len($a) // 2]"),
            ),
            variant(
                names="third_item|third_of",
                least="three elements",
                np="the third element of $a",
                ex="$a[2]",
                fn=lambda x: x[:3][-1],
                draw=lambda r, v: (ints(r, -15, 25, 3, 7),),
                slips=("return $a[3] if len($a) > 3 else 0", "return $a[1]"),
            ),
            variant(
                names="sum_of_first_two|first_plus_second",
                least="two elements",
                np="the sum of the first two elements of $a",
                ex="$a[0] + $a[1]",
                fn=lambda x: sum(x[:2]),
                slips=("return $a[0] + $a[-1]", "return sum($a)"),
            ),
            variant(
                names="product_of_ends|first_times_last",
                least="one element",
                np="the product of the first and the last element of $a",
                ex="$a[0] * $a[-1]",
                fn=lambda x: sum(x[-1:] * x[0]) if x[0] > 0 else -sum(x[-1:] * -x[0]),
                slips=("return $a[0] + $a[-1]", "return $a[0] * $a[1]"),
            ),
            variant(
                names="double_first|twice_the_first",
                least="one element",
                np="twice the first element of $a",
                ex="2 * $a[0]",
                fn=lambda x: sum(x[:1] * 2),
                slips=("return $a[0]", "return 2 * $a[-1]"),
            ),
        ),
        lambda r, v: (ints(r, -15, 25, 2, 7),),
        edges=(([4, 9, 7],), ([5, 1, 2, 8, 3],)),
    ),
    Kind(
        "list_size",
        f"{NUMBERS}: list[int]",
        "",
        """
        Return $np.

        The list $a may be empty. Find $np.

        [orders] A shop keeps its orders of the day in the list $a. Return $np.

        Use the len function to get $np.

        Given a list of integers, $a, the function has to give back $np.
        """,
        (
            variant(
                names="count_items|size",
                args=f"{ITEMS} -> int",
                np="the number of elements in $a",
                ex="len($a)",
                fn=lambda x: sum(1 for _ in x),
                slips=("return len($a) - 1", "return sum($a)"),
            ),
            variant(
                names="has_items|not_empty",
                args=f"{ITEMS} -> bool",
                np="True if $a has at least two elements, and False otherwise",
                ex="len($a) >= 2",
                fn=lambda x: x[1:] != [],
                edges=(([1, 2],), ([0],)),
                draw=lambda r, v: (ints(r, -5, 9, 0, 3),),
                slips=("return len($a) > 2", "return len($a) > 0"),
            ),
            variant(
                names="is_long_list|many_items",
                k=[3, 4, 5],
                args=f"{ITEMS} -> bool",
                np="True if $a has more than $k elements, else False",
                ex="len($a) > $k",
                draw=lambda r, v: (ints(r, -9, 20, v.k - 2, v.k + 2),),
                slips=("return len($a) >= $k", "return sum($a) > $k"),
            ),
            variant(
                names="last_index|highest_index",
                args=f"{ITEMS} -> int",
                np="the index of the last element of $a, counted from 0, or -1 if $a is empty",
                ex="len($a) - 1",
                fn=lambda x: max((i for i, _ in enumerate(x)), default=-1),
                slips=("return len($a)", "return $a[-1] if $a else -1"),
            ),
            variant(
                names="even_count|can_be_paired",
                args=f"{ITEMS} -> bool",
                np="True if the elements of $a can be put into pairs with none left over, else False "
                "(an empty list can)",
                ex="len($a) % 2 == 0",
                fn=lambda x: len(x) == len(x[::2]) * 2,
                slips=("return sum($a) % 2 == 0", "return len($a) % 2 == 1"),
            ),
            variant(
                names="double_size|twice_as_many",
                args=f"{ITEMS} -> int",
                np="twice the number of elements in $a",
                ex="2 * len($a)",
                fn=lambda x: len(x + x),
                slips=("return len($a)", "return 2 * sum($a)"),
            ),
            variant(
                names="size_plus_one|one_more",
                args=f"{ITEMS} -> int",
                np="one more than the number of elements in $a",
                ex="len($a) + 1",
                fn=lambda x: len([*x, 0]),
                slips=("return len($a)", "return len($a) - 1"),
            ),
            variant(
                names="half_size|half_of_the_count",
                args=f"{ITEMS} -> int",
                np="half the number of elements in $a, rounded down",
                ex="len($a) // 2",
                fn=lambda x: len(x[1::2]),
                slips=("return len($a) / 2", "return len($a)"),
            ),
            variant(
                names="has_three_items|exactly_three",
                args=f"{ITEMS} -> bool",
                np="True if $a has exactly three elements, else False",
                ex="len($a) == 3",
                fn=lambda x: x[2:] != [] and x[3:] == [],
                draw=lambda r, v: (ints(r, -5, 9, 2, 4),),
                slips=("return len($a) >= 3", "return len($a) > 3"),
            ),
        ),
        lambda r, v: (ints(r, -15, 25, 0, 8),),
        truth=lambda v, x: x[v.k :] != [],
        edges=(([],), ([7],), ([1, 2, 3],)),
    ),
    Kind(
        "list_total",
        f"{ITEMS} -> int",
        "",
        """
        Return $np. For an empty list return $none.

        Given a list of integers $a, compute $np. An empty list gives $none.

        Go through all elements of $a in a loop to find $np. If there are no elements, the answer is $none.

        [points] The points of a game are written in the list $a. Return $np ($none if nothing is written there yet).

        What is $np? Return it, and $none when $a is empty.
        """,
        (
            variant(
                names="total|sum_list|add_all",
                np="the sum of all numbers in $a",
                none="0",
                code="total = 0\nfor x in $a:\n    total += x\nreturn total",
                fn=lambda x: sum(x),
                slips=("return len($a)", "return sum($a[1:])"),
            ),
            variant(
                names="product_of_all|multiply_all",
                np="the product of all numbers in $a",
                none="1",
                code="result = 1\nfor x in $a:\n    result *= x\nreturn result",
                fn=lambda x: math.prod(x),
                slips=("result = 0\nfor x in $a:\n    result *= x\nreturn result", "return sum($a)"),
            ),
            variant(
                names="sum_of_squares|add_squares",
                np="the sum of the squares of all numbers in $a",
                none="0",
                code="total = 0\nfor x in $a:\n    total += x * x\nreturn total",
                fn=lambda x: sum(n**2 for n in x),
                slips=("return sum($a) ** 2", "return sum($a)"),
            ),
            variant(
                names="double_total|twice_the_sum",
                np="twice the sum of all numbers in $a",
                none="0",
                code="return 2 * sum($a)",
                fn=lambda x: sum(x + x),
                slips=("return sum($a)", "return sum($a) + 2"),
            ),
            variant(
                names="sum_without_signs|total_size",
                np="the sum of the absolute values of the numbers in $a",
                none="0",
                code="total = 0\nfor x in $a:\n    total += abs(x)\nreturn total",
                fn=lambda x: sum(max(n, -n) for n in x),
                slips=("return abs(sum($a))", "return sum($a)"),
            ),
        ),
        numbers,
        edges=(([],), ([5],), ([2, -3, 4],), ([1, 1, 1],)),
    ),
    Kind(
        "extreme_item",
        f"{ITEMS} -> int",
        "",
        """
        Return $np. The list is not empty.

        The list $a has at least one number. Find $np.

        [temperatures] Every day the temperature is noted in the list $a, which has at least one entry. Return $np.

        Search the non-empty list $a and give back $np.

        Look for $np and return it. You can assume that $a contains one number or more.
        """,
        (
            variant(
                names="largest|maximum|biggest",
                np="the largest number in $a",
                ex="max($a)",
                fn=lambda x: sorted(x)[-1],
                slips=("return $a[-1]", "return max($a, default=0) if $a[0] > 0 else 0", "return min($a)"),
            ),
            variant(
                names="smallest|minimum|lowest",
                np="the smallest number in $a",
                ex="min($a)",
                fn=lambda x: sorted(x)[0],
                slips=("return $a[0]", "return max($a)"),
            ),
            variant(
                names="value_range|spread",
                np="the difference between the largest and the smallest number in $a",
                ex="max($a) - min($a)",
                fn=lambda x: sorted(x)[-1] - sorted(x)[0],
                slips=("return $a[-1] - $a[0]", "return max($a)"),
            ),
            variant(
                names="index_of_largest|where_is_max",
                np="the index (from 0) of the largest number in $a; if it appears several times, the first such index",
                ex="$a.index(max($a))",
                fn=lambda x: max(range(len(x)), key=lambda i: (x[i], -i)),
                slips=(
                    "return max($a)",
                    "return $a.index(max($a)) + 1",
                    "return max((x, i) for i, x in enumerate($a))[1]",
                ),
            ),
            variant(
                names="ends_of_range|min_plus_max",
                np="the sum of the largest and the smallest number in $a",
                ex="max($a) + min($a)",
                fn=lambda x: sorted(x)[-1] + sorted(x)[0],
                slips=("return $a[0] + $a[-1]", "return max($a)"),
            ),
            variant(
                names="twice_the_largest|double_maximum",
                np="twice the largest number in $a",
                ex="2 * max($a)",
                fn=lambda x: sorted(n + n for n in x)[-1],
                slips=("return max($a)", "return 2 * $a[-1]"),
            ),
            variant(
                names="above_maximum|largest_plus_one",
                np="one more than the largest number in $a",
                ex="max($a) + 1",
                fn=lambda x: sorted(n + 1 for n in x)[-1],
                slips=("return max($a)", "return len($a) + 1"),
            ),
            variant(
                names="index_of_smallest|where_is_min",
                np="the index (from 0) of the smallest number in $a; if it appears several times, the first such index",
                ex="$a.index(min($a))",
                fn=lambda x: next(i for i, n in enumerate(x) if all(n <= m for m in x)),
                slips=("return min($a)", "return $a.index(max($a))"),
            ),
            variant(
                names="min_times_max|product_of_extremes",
                np="the product of the largest and the smallest number in $a",
                ex="max($a) * min($a)",
                fn=lambda x: sorted(x)[-1] * sorted(x)[0],
                slips=("return max($a) + min($a)", "return $a[0] * $a[-1]"),
            ),
        ),
        numbers,
        edges=(([3],), ([-4, -9, -2],), ([1, 8, 8, 2],), ([6, 5, 4],)),
    ),
    Kind(
        "sort_items",
        f"{ITEMS} -> list[int]",
        "",
        """
        Return $np. An empty list gives an empty list.

        Make a new list: $np. If $a is empty, the result is empty too.

        [heights] The heights of some children, possibly none, are in the list $a. Return $np.

        Sorting helps here. The function's result is $np; for an empty list it is an empty list.

        Given the list of integers $a (it may be empty), return $np.
        """,
        (
            variant(
                names="sort_numbers|ascending",
                np="the numbers of $a sorted from smallest to largest",
                ex="sorted($a)",
                slips=("return sorted($a, reverse=True)", "return sorted(set($a))"),
                fn=lambda x: pick(x, min),
            ),
            variant(
                names="sort_descending|largest_first",
                np="the numbers of $a sorted from largest to smallest",
                ex="sorted($a, reverse=True)",
                slips=("return sorted($a)", "return $a[::-1]"),
                fn=lambda x: pick(x, max),
            ),
            variant(
                names="two_smallest|lowest_two",
                np="a sorted list of the two smallest numbers of $a (of all numbers if there are fewer than two)",
                ex="sorted($a)[:2]",
                slips=("return $a[:2]", "return sorted($a)[2:]"),
                fn=lambda x: pick(x, min)[:2],
            ),
            variant(
                names="top_three|best_three",
                np="the three largest numbers of $a, the largest first (all of them if there are fewer than three)",
                ex="sorted($a, reverse=True)[:3]",
                slips=("return sorted($a)[:3]", "return sorted($a)[-3:]"),
                fn=lambda x: pick(x, max)[:3],
            ),
            variant(
                names="drop_smallest|without_lowest",
                np="a sorted list of the numbers of $a, smallest first, from which one smallest number "
                "has been left out",
                ex="sorted($a)[1:]",
                slips=("return $a[1:]", "return sorted($a)[:-1]"),
                fn=lambda x: pick(x, min)[1:],
            ),
        ),
        numbers,
        edges=(([],), ([4],), ([3, 1, 2],), ([5, -5, 5, 0],)),
    ),
    Kind(
        "search_list",
        f"{ITEMS}, wanted|x|target: int",
        "",
        """
        Return $np.

        Given a list of integers and a number, find $np. The list may be empty.

        Search the list $a for the value $b. The function returns $np.

        [tickets, winner] The numbers of the sold tickets are in the list $a, and $b has been drawn. Return $np.

        Compare the elements of $a with $b, one after the other. The result is $np.
        """,
        (
            variant(
                names="contains|is_in_list",
                args=f"{ITEMS}, wanted|x|target: int -> bool",
                np="True if $b is one of the elements of $a, else False",
                ex="$b in $a",
                fn=lambda x, w: x.count(w) > 0,
                slips=("return $b not in $a", "return $a[:1] == [$b]"),
            ),
            variant(
                names="is_missing|not_there",
                args=f"{ITEMS}, wanted|x|target: int -> bool",
                np="True if no element of $a is equal to $b, else False",
                ex="$b not in $a",
                fn=lambda x, w: x.count(w) == 0,
                slips=("return $b in $a", "return $a[:1] != [$b]"),
            ),
            variant(
                names="how_often|count_value",
                args=f"{ITEMS}, wanted|x|target: int -> int",
                np="how many times $b appears in $a",
                ex="$a.count($b)",
                fn=lambda x, w: len([n for n in x if n == w]),
                slips=("return 1 if $b in $a else 0", "return len($a)"),
            ),
            variant(
                names="find_index|position_of",
                args=f"{ITEMS}, wanted|x|target: int -> int",
                np="the index of the first element of $a that equals $b, counted from 0, or -1 if there is none",
                code="for i in range(len($a)):\n    if $a[i] == $b:\n        return i\nreturn -1",
                fn=lambda x, w: x.index(w) if w in x else -1,
                slips=(
                    "return $a.index($b) + 1 if $b in $a else -1",
                    "return $a.index($b)",
                    "return len($a) - 1 - $a[::-1].index($b) if $b in $a else -1",
                ),
            ),
            variant(
                names="how_many_others|count_different",
                args=f"{ITEMS}, wanted|x|target: int -> int",
                np="how many elements of $a are different from $b",
                ex="len($a) - $a.count($b)",
                fn=lambda x, w: len([n for n in x if n != w]),
                slips=("return $a.count($b)", "return len($a) - 1"),
            ),
            variant(
                names="how_many_larger|count_above",
                args=f"{ITEMS}, wanted|x|target: int -> int",
                np="how many elements of $a are greater than $b",
                ex="sum(1 for n in $a if n > $b)",
                fn=lambda x, w: len([n for n in x if n - w > 0]),
                slips=("return sum(1 for n in $a if n >= $b)", "return sum(1 for n in $a if n < $b)"),
            ),
        ),
        lambda r, v: (small(r, v)[0], r.randint(0, 6)),
        edges=(([], 3), ([3], 3), ([1, 2, 1, 4], 1), ([5, 4, 1], 1), ([2, 2], 3)),
    ),
    Kind(
        "part_of_list",
        f"{ITEMS} -> list[int]",
        "",
        """
        Return $np. $few

        Build a new list from $a: $np. $few

        [cards] A row of cards with numbers lies on the table; the list $a has the numbers. Return $np. $few

        Slices are useful for this. The function gets a list of integers, $a, and returns $np. $few

        Given $a, take $np. Return them as a list. $few
        """,
        (
            variant(
                names="reverse_list|backwards",
                np="the elements of $a in reverse order",
                few="An empty list stays empty.",
                ex="$a[::-1]",
                fn=lambda x: list(reversed(x)),
                slips=("return sorted($a, reverse=True)", "return $a"),
            ),
            variant(
                names="first_three|front",
                np="the first three elements of $a",
                few="If there are fewer than three, return all of them.",
                ex="$a[:3]",
                fn=lambda x: [n for i, n in enumerate(x) if i < 3],
                slips=("return $a[3:]", "return $a[:2]"),
            ),
            variant(
                names="last_two|back",
                np="the last two elements of $a, in their order",
                few="If there are fewer than two, return all of them.",
                ex="$a[-2:]",
                fn=lambda x: [n for i, n in enumerate(x) if i >= len(x) - 2],
                slips=("return $a[:2]", "return $a[-2:][::-1]"),
            ),
            variant(
                names="drop_first|all_but_first",
                np="all elements of $a except the first",
                few="For a list with one element or none the result is empty.",
                ex="$a[1:]",
                fn=lambda x: [n for i, n in enumerate(x) if i],
                slips=("return $a[:-1]", "return $a[1]"),
            ),
            variant(
                names="drop_ends|inner_part",
                np="all elements of $a except the first and the last",
                few="For a list with at most two elements the result is empty.",
                ex="$a[1:-1]",
                fn=lambda x: [n for i, n in enumerate(x) if 0 < i < len(x) - 1],
                slips=("return $a[1:]", "return $a[:-1]"),
            ),
            variant(
                names="every_second|odd_places",
                np="every second element of $a, beginning with the first",
                few="An empty list gives an empty list.",
                ex="$a[::2]",
                fn=lambda x: [n for i, n in enumerate(x) if i % 2 == 0],
                slips=("return $a[1::2]", "return [n for n in $a if n % 2 == 0]"),
            ),
            variant(
                names="first_two|front_pair",
                few="If there are fewer than two, return all of them.",
                np="the first two elements of $a",
                ex="$a[:2]",
                fn=lambda x: [n for i, n in enumerate(x) if i < 2],
                slips=("return $a[2:]", "return $a[:1]"),
            ),
            variant(
                names="drop_last|all_but_last",
                few="An empty list gives an empty list.",
                np="all elements of $a except the last",
                ex="$a[:-1]",
                fn=lambda x: [n for i, n in enumerate(x) if i + 1 < len(x)],
                slips=("return $a[1:]", "return $a[-1:]"),
            ),
            variant(
                names="last_three|back_three",
                few="If there are fewer than three, return all of them.",
                np="the last three elements of $a, in their order",
                ex="$a[-3:]",
                fn=lambda x: [n for i, n in enumerate(x) if i >= len(x) - 3],
                slips=("return $a[:3]", "return $a[-3:][::-1]"),
            ),
        ),
        numbers,
        edges=(([],), ([4],), ([1, 2],), ([7, 3, 9, 5],)),
    ),
    Kind(
        "change_each",
        "",
        "",
        """
        Return a list with $np.

        Make a new list from $a. It has $np, in the same order. An empty list gives an empty list.

        Go through $a with a loop and collect $np. Return the list that you collected.

        [before] The list $a is about to be changed. Return the new list, which has $np.

        The result is a list as long as $a: it holds $np, each at its old place.
        """,
        (
            variant(
                names="double_all|twice_each",
                args=f"{ITEMS} -> list[int]",
                np="twice each number of $a",
                e="2 * x",
                fn=lambda x: [n + n for n in x],
                slips=("return $a * 2", "return [x ** 2 for x in $a]"),
            ),
            variant(
                names="square_all|squares",
                args=f"{ITEMS} -> list[int]",
                np="the square of each number of $a",
                e="x * x",
                fn=lambda x: [n**2 for n in x],
                slips=("return [x * 2 for x in $a]",),
            ),
            variant(
                names="raise_all|add_to_each",
                args=f"{ITEMS} -> list[int]",
                np="each number of $a increased by $k",
                k=[3, 5, 10],
                e="x + $k",
                slips=("return $a + [$k]", "return [x * $k for x in $a]"),
            ),
            variant(
                names="word_lengths|lengths",
                args="words|texts|names: list[str] -> list[int]",
                np="the length of each string of $a",
                e="len(x)",
                fn=lambda x: [sum(1 for _ in s) for s in x],
                draw=names,
                edges=((["a", "", "bcd"],), (["hello"],), ([],)),
                own=True,
                slips=("return len($a)", "return [len($a)]"),
            ),
            variant(
                names="shout_all|capital_words",
                args="words|texts|names: list[str] -> list[str]",
                np="each string of $a in capital letters",
                e="x.upper()",
                fn=lambda x: ["".join(c.upper() for c in s) for s in x],
                draw=names,
                edges=((["a", "", "bCd"],), (["Hello"],), ([],)),
                own=True,
                slips=("return [x.capitalize() for x in $a]", "return [x.lower() for x in $a]"),
            ),
            variant(
                names="flip_signs|negate_all",
                args=f"{ITEMS} -> list[int]",
                np="each number of $a with its sign changed",
                e="-x",
                fn=lambda x: [0 - n for n in x],
                slips=("return $a[::-1]", "return [-abs(x) for x in $a]"),
            ),
            variant(
                names="negatives_to_zero|no_negatives",
                args=f"{ITEMS} -> list[int]",
                np="each number of $a, with 0 in the place of every negative one",
                e="max(x, 0)",
                fn=lambda x: [n if n >= 0 else 0 for n in x],
                slips=("return [x for x in $a if x >= 0]", "return [abs(x) for x in $a]"),
            ),
            variant(
                names="ten_times_each|times_ten",
                args=f"{ITEMS} -> list[int]",
                np="ten times each number of $a",
                e="10 * x",
                fn=lambda x: [sum([n] * 10) for n in x],
                slips=("return $a * 10", "return [x + 10 for x in $a]"),
            ),
            variant(
                names="cube_all|cubes",
                args=f"{ITEMS} -> list[int]",
                np="the cube of each number of $a",
                e="x ** 3",
                fn=lambda x: [n * n * n for n in x],
                slips=("return [3 * x for x in $a]", "return [x ** 2 for x in $a]"),
            ),
            variant(
                names="lower_all|one_less_each",
                args=f"{ITEMS} -> list[int]",
                np="each number of $a made smaller by one",
                e="x - 1",
                fn=lambda x: [n + ~0 for n in x],
                slips=("return [x + 1 for x in $a]", "return $a[:-1]"),
            ),
            variant(
                names="absolute_values|without_signs",
                args=f"{ITEMS} -> list[int]",
                np="the absolute value of each number of $a",
                e="abs(x)",
                fn=lambda x: [max(n, 0 - n) for n in x],
                slips=("return [-x for x in $a]", "return [x for x in $a if x >= 0]"),
            ),
            variant(
                names="double_words|words_twice",
                args="words|texts|names: list[str] -> list[str]",
                np="each string of $a written twice in a row, without a space",
                e="x + x",
                fn=lambda x: ["".join([s, s]) for s in x],
                draw=names,
                edges=(([],), (["sun"],), (["ice", "oak"],)),
                own=True,
                slips=("return $a * 2", 'return [x + " " + x for x in $a]'),
            ),
            variant(
                names="first_letters|initials",
                args="words|texts|names: list[str] -> list[str]",
                np="the first character of each string of $a (none of them is empty)",
                e="x[0]",
                fn=lambda x: [next(iter(s)) for s in x],
                draw=names,
                edges=(([],), (["sun"],), (["ice", "oak"],)),
                own=True,
                slips=("return $a[:1]", "return [x[-1] for x in $a]"),
            ),
        ),
        numbers,
        code="result = []\nfor x in $a:\n    result.append($e)\nreturn result",
        truth=lambda v, x: [sum((n, v.k)) for n in x],
        edges=(([],), ([4],), ([0, -2, 5],)),
        slips=("return $a",),
    ),
    Kind(
        "keep_some",
        "",
        "",
        """
        Return a list of $np, in their original order.

        From the list $a keep only $np. The order does not change. If nothing is left, return an empty list.

        Filter $a: the result is a list of $np, in the order in which they stand there.

        [entries] The list $a holds the entries of a form. Return a new list of $np, without changing their order.

        Walk through $a and append to a new list $np. Return the new list, which may be empty.
        """,
        (
            variant(
                names="keep_even|even_numbers",
                args=f"{ITEMS} -> list[int]",
                np="the even numbers of $a",
                test="x % 2 == 0",
                fn=lambda x: [n for n in x if not n & 1],
                slips=("return [x for x in $a if x % 2 == 1]", "return $a[::2]"),
            ),
            variant(
                names="keep_positive|positives",
                args=f"{ITEMS} -> list[int]",
                np="the numbers of $a that are greater than zero",
                test="x > 0",
                fn=lambda x: [n for n in x if n >= 1],
                slips=("return [x for x in $a if x >= 0]", "return [abs(x) for x in $a]"),
            ),
            variant(
                names="above_limit|keep_large",
                k=[3, 5, 8],
                args=f"{ITEMS} -> list[int]",
                np="the numbers of $a that are greater than $k",
                test="x > $k",
                edges=(([3, 4, 5, 6, 8, 9],),),
                slips=("return [x for x in $a if x >= $k]", "return [x for x in $a if x < $k]"),
            ),
            variant(
                names="long_words|keep_long",
                args="words|texts|names: list[str] -> list[str]",
                np="the strings of $a that have more than four characters",
                test="len(x) > 4",
                fn=lambda x: [s for s in x if s[4:]],
                draw=names,
                own=True,
                edges=((["tree", "apple", "a"],), ([],), (["stone"],)),
                slips=("return [x for x in $a if len(x) >= 4]", "return [x for x in $a if len(x) < 4]"),
            ),
            variant(
                names="odd_numbers|keep_odd",
                args=f"{ITEMS} -> list[int]",
                np="the odd numbers of $a",
                test="x % 2 != 0",
                fn=lambda x: [n for n in x if n & 1],
                slips=("return [x for x in $a if x % 2 == 0]", "return $a[1::2]"),
            ),
            variant(
                names="words_with_a|containing_a",
                args="words|texts|names: list[str] -> list[str]",
                np="the strings of $a that contain the small letter a",
                test='"a" in x',
                fn=lambda x: [s for s in x if s.find("a") >= 0],
                draw=names,
                own=True,
                edges=((["cat", "dog", "Ant"],), ([],), (["banana", "plum"],)),
                slips=('return [x for x in $a if x.startswith("a")]', 'return [x for x in $a if "a" not in x]'),
            ),
            variant(
                names="without_zeros|drop_zeros",
                args=f"{ITEMS} -> list[int]",
                np="the numbers of $a that are not 0",
                test="x != 0",
                fn=lambda x: [n for n in x if n],
                draw=lambda r, v: (ints(r, -1, 2, 0, 7),),
                edges=(([0, 0],),),
                slips=("return [x for x in $a if x > 0]", "return [x for x in $a if x == 0]"),
            ),
            variant(
                names="keep_negative|negatives",
                args=f"{ITEMS} -> list[int]",
                np="the numbers of $a that are less than zero",
                test="x < 0",
                fn=lambda x: [n for n in x if n <= -1],
                draw=lambda r, v: (ints(r, -9, 9, 0, 7),),
                slips=("return [x for x in $a if x > 0]", "return [x for x in $a if x <= 0]"),
            ),
            variant(
                names="multiples_of_three|keep_threes",
                args=f"{ITEMS} -> list[int]",
                np="the numbers of $a that are divisible by three",
                test="x % 3 == 0",
                fn=lambda x: [n for n in x if n in range(-999, 999, 3)],
                draw=lambda r, v: (ints(r, 0, 12, 0, 7),),
                slips=("return $a[::3]", "return [x for x in $a if x % 3 != 0]"),
            ),
            variant(
                names="below_ten|keep_small",
                args=f"{ITEMS} -> list[int]",
                np="the numbers of $a that are less than ten",
                test="x < 10",
                fn=lambda x: [n for n in x if n in range(-999, 10)],
                edges=(([10, 9, 11],),),
                slips=("return [x for x in $a if x <= 10]", "return [x for x in $a if x > 10]"),
            ),
            variant(
                names="not_empty|keep_written",
                args="words|texts|names: list[str] -> list[str]",
                np="the strings of $a that are not empty",
                test='x != ""',
                fn=lambda x: [s for s in x if len(s) > 0],
                draw=lambda r, v: ([r.choice(("", "a", " ", "cup")) for _ in range(r.randint(1, 6))],),
                edges=((["", "a", ""],), ([],), ([" ", "b"],)),
                own=True,
                slips=('return [x for x in $a if x == ""]', "return [x for x in $a if x.strip()]"),
            ),
        ),
        numbers,
        code="result = []\nfor x in $a:\n    if $test:\n        result.append(x)\nreturn result",
        truth=lambda v, x: [n for n in x if n not in range(-999, v.k + 1)],
        edges=(([],), ([4],), ([0, -2, 5, 3],)),
        slips=("return $a",),
    ),
    Kind(
        "count_some",
        "",
        "",
        """
        Return how many $np there are in the list $a.

        Count the $np in $a. If there are none, the answer is 0.

        Start counting at 0 and look at each element of $a. Add one for each of the $np. Return the count.

        [list_of_all] Somebody wants to know how many $np are in the list $a. Return that number. The list can be empty.

        The function gets a list, $a, and returns the number of $np in it.
        """,
        (
            variant(
                names="count_even|how_many_even",
                args=f"{ITEMS} -> int",
                np="even numbers",
                test="x % 2 == 0",
                fn=lambda x: len([n for n in x if not n & 1]),
                slips=("return sum(x for x in $a if x % 2 == 0)", "return sum(1 for x in $a if x % 2 == 1)"),
            ),
            variant(
                names="count_negative|how_many_negative",
                args=f"{ITEMS} -> int",
                np="negative numbers",
                test="x < 0",
                fn=lambda x: len([n for n in x if n <= -1]),
                draw=lambda r, v: (ints(r, -9, 9, 0, 7),),
                slips=("return sum(1 for x in $a if x <= 0)", "return sum(1 for x in $a if x > 0)"),
            ),
            variant(
                names="count_tens|multiples_of_ten",
                args=f"{ITEMS} -> int",
                np="multiples of ten (0 is one of them)",
                test="x % 10 == 0",
                fn=lambda x: len([n for n in x if str(n)[-1] == "0"]),
                draw=lambda r, v: ([r.choice((10, 20, 5, 0, 31, -30)) for _ in range(r.randint(1, 7))],),
                slips=("return sum(1 for x in $a if x == 10)", "return sum(1 for x in $a if x >= 10)"),
            ),
            variant(
                names="count_short_words|how_many_short",
                args="words|texts|names: list[str] -> int",
                np="strings with at most four characters",
                test="len(x) <= 4",
                fn=lambda x: len([s for s in x if not s[4:]]),
                draw=names,
                own=True,
                edges=((["tree", "apple", "a"],), ([],), (["", "ox"],)),
                slips=("return sum(1 for x in $a if len(x) < 4)", "return sum(1 for x in $a if len(x) > 4)"),
            ),
            variant(
                names="count_passes|how_many_passed",
                k=[5, 10, 12],
                args=f"{ITEMS} -> int",
                np="numbers that are at least $k",
                test="x >= $k",
                edges=(([5, 4, 10, 12, 9, 11],),),
                slips=("return sum(1 for x in $a if x > $k)", "return sum(1 for x in $a if x <= $k)"),
            ),
            variant(
                names="count_empty|how_many_empty",
                args="words|texts|names: list[str] -> int",
                np="empty strings",
                test='x == ""',
                fn=lambda x: sum(not s for s in x),
                draw=lambda r, v: ([r.choice(("", "", "a", " ", "cup")) for _ in range(r.randint(1, 6))],),
                own=True,
                edges=((["", "a", ""],), ([],), ([" ", "b"],)),
                slips=('return sum(1 for x in $a if x != "")', "return sum(1 for x in $a if not x.strip())"),
            ),
            variant(
                names="count_odd|how_many_odd",
                args=f"{ITEMS} -> int",
                np="odd numbers",
                test="x % 2 != 0",
                fn=lambda x: len([n for n in x if n & 1]),
                slips=("return sum(1 for x in $a if x % 2 == 0)", "return sum(x for x in $a if x % 2 == 1)"),
            ),
            variant(
                names="count_positive|how_many_positive",
                args=f"{ITEMS} -> int",
                np="positive numbers",
                test="x > 0",
                fn=lambda x: len([n for n in x if n >= 1]),
                draw=lambda r, v: (ints(r, -9, 9, 0, 7),),
                slips=("return sum(1 for x in $a if x >= 0)", "return sum(x for x in $a if x > 0)"),
            ),
            variant(
                names="count_zeros|how_many_zeros",
                args=f"{ITEMS} -> int",
                np="zeros",
                test="x == 0",
                fn=lambda x: x.count(0),
                draw=lambda r, v: (ints(r, -1, 1, 0, 7),),
                slips=("return sum(1 for x in $a if x != 0)", "return $a[0] if $a else 0"),
            ),
            variant(
                names="count_above_ten|how_many_above_ten",
                args=f"{ITEMS} -> int",
                np="numbers greater than ten",
                test="x > 10",
                fn=lambda x: len([n for n in x if n >= 11]),
                edges=(([10, 11, 12],), ([10],)),
                slips=("return sum(1 for x in $a if x >= 10)", "return sum(x for x in $a if x > 10)"),
            ),
        ),
        numbers,
        code="count = 0\nfor x in $a:\n    if $test:\n        count += 1\nreturn count",
        truth=lambda v, x: len([n for n in x if n not in range(-999, v.k)]),
        edges=(([],), ([4],), ([0, -2, 5, 3],)),
        slips=("return len($a)",),
    ),
    Kind(
        "sum_some",
        f"{ITEMS} -> int",
        "",
        """
        Return the sum of $np in the list $a. If there are none, return 0.

        Add up $np of $a and leave the others out. Nothing to add means 0.

        Begin with a total of 0. For each number in $a decide whether it counts: only $np do. Return the total.

        [bookings] An account has the bookings in the list $a. Return the total of $np, or 0 if there are no such
        bookings.

        From the integers in $a take $np and return their sum (0 for no numbers).
        """,
        (
            variant(
                names="sum_even|add_even",
                np="the even numbers",
                test="x % 2 == 0",
                fn=lambda x: sum(n for n in x if not n & 1),
                slips=("return sum(1 for x in $a if x % 2 == 0)", "return sum($a[::2])"),
            ),
            variant(
                names="sum_positive|add_positive",
                np="the positive numbers",
                test="x > 0",
                fn=lambda x: sum(n * (n > 0) for n in x),
                slips=("return sum(abs(x) for x in $a)", "return sum(1 for x in $a if x > 0)"),
            ),
            variant(
                names="sum_large|add_large",
                k=[4, 6, 9],
                np="the numbers greater than $k",
                test="x > $k",
                edges=(([4, 5, 6, 7, 9, 10],),),
                slips=("return sum(x for x in $a if x >= $k)", "return sum(x for x in $a if x < $k)"),
            ),
            variant(
                names="sum_odd|add_odd",
                np="the odd numbers",
                test="x % 2 != 0",
                fn=lambda x: sum(n for n in x if n & 1),
                slips=("return sum(x for x in $a if x % 2 == 0)", "return sum($a[1::2])"),
            ),
            variant(
                names="sum_negative|add_losses",
                np="the negative numbers",
                test="x < 0",
                fn=lambda x: sum(min(n, 0) for n in x),
                draw=lambda r, v: (ints(r, -12, 9),),
                slips=("return sum(x for x in $a if x > 0)", "return sum(1 for x in $a if x < 0)"),
            ),
            variant(
                names="sum_threes|add_multiples_of_three",
                np="the multiples of three",
                test="x % 3 == 0",
                fn=lambda x: sum(n for n in x if n in range(-999, 999, 3)),
                draw=lambda r, v: (ints(r, 0, 15),),
                slips=("return sum(1 for x in $a if x % 3 == 0)", "return sum($a[::3])"),
            ),
            variant(
                names="sum_small|add_small",
                np="the numbers less than ten",
                test="x < 10",
                fn=lambda x: sum(n for n in x if n in range(-999, 10)),
                edges=(([10, 9, 11],),),
                slips=("return sum(x for x in $a if x <= 10)", "return sum(1 for x in $a if x < 10)"),
            ),
        ),
        numbers,
        code="total = 0\nfor x in $a:\n    if $test:\n        total += x\nreturn total",
        truth=lambda v, x: sum(n for n in x if n not in range(-999, v.k + 1)),
        edges=(([],), ([4],), ([0, -2, 5, 3],), ([2, 8, 7, 1],)),
        slips=("return sum($a)",),
    ),
    Kind(
        "average_of",
        f"{ITEMS} -> float",
        "",
        """
        Return $np. $none

        The list $a contains integers. Compute $np; the result may have decimals. $none

        [marks] A pupil's marks are stored in $a. Return $np, without rounding. $none

        Divide a sum by a count to get $np. Do not round. $none

        What is $np? Return it exactly, not rounded. $none
        """,
        (
            variant(
                names="average|mean_value",
                np="the average of the numbers in $a",
                none="For an empty list return 0.",
                code="if not $a:\n    return 0\nreturn sum($a) / len($a)",
                fn=lambda x: sum(n / len(x) for n in x) if x else 0,
                slips=("return sum($a) / len($a)", "return sum($a) // len($a) if $a else 0"),
            ),
            variant(
                names="average_positive|mean_of_positives",
                np="the average of those numbers in $a that are greater than 0",
                none="If there are none, return 0.",
                code="chosen = [x for x in $a if x > 0]\nif not chosen:\n    return 0\n"
                "return sum(chosen) / len(chosen)",
                fn=lambda x: sum(n for n in x if n > 0) / sum(n > 0 for n in x) if any(n > 0 for n in x) else 0,
                slips=(
                    "return sum(x for x in $a if x > 0) / len($a) if $a else 0",
                    "return sum($a) / len($a) if $a else 0",
                ),
            ),
            variant(
                names="average_without_lowest|fair_average",
                np="the average of the numbers in $a after one smallest number has been left out",
                none="If $a has fewer than two numbers, return 0.",
                code="if len($a) < 2:\n    return 0\nreturn (sum($a) - min($a)) / (len($a) - 1)",
                fn=lambda x: sum(sorted(x)[1:]) / len(x[1:]) if x[1:] else 0,
                slips=("return sum($a) / len($a) if $a else 0", "return sum($a[1:]) / len($a[1:]) if $a[1:] else 0"),
            ),
            variant(
                names="middle_of_range|mid_range",
                np="the number halfway between the smallest and the largest number in $a",
                none="For an empty list return 0.",
                code="if not $a:\n    return 0\nreturn (min($a) + max($a)) / 2",
                fn=lambda x: sum(sorted(x)[:: max(1, len(x) - 1)]) / min(len(x), 2) if x else 0,
                slips=("return sum($a) / len($a) if $a else 0", "return (max($a) - min($a)) / 2 if $a else 0"),
            ),
        ),
        lambda r, v: (ints(r, -6, 20, 2, 6),),
        edges=(([],), ([4],), ([1, 2],), ([2, 4, 9],), ([-3, 0, 5],)),
    ),
    Kind(
        "all_or_any",
        f"{ITEMS} -> bool",
        "",
        """
        Return True if $cond, and False otherwise. For an empty list return $none.

        Check the list $a: is it true that $cond? Return a boolean. If the list is empty, the answer is $none.

        Write a loop that looks at the numbers in $a and finds out whether $cond. The result for an empty list is $none.

        [levels] A sensor has measured the levels in $a. Return whether $cond. Without any levels return $none.

        Decide whether $cond, returning True or False. An empty $a counts as $none.
        """,
        (
            variant(
                names="all_positive|only_positive",
                cond="all numbers in $a are greater than zero",
                none="True",
                ex="all(x > 0 for x in $a)",
                fn=lambda x: min(x, default=1) > 0,
                slips=("return any(x > 0 for x in $a)", "return all(x >= 0 for x in $a)"),
            ),
            variant(
                names="any_even|has_even",
                cond="at least one number in $a is even",
                none="False",
                ex="any(x % 2 == 0 for x in $a)",
                fn=lambda x: 0 in [n & 1 for n in x],
                draw=lambda r, v: ([r.choice((1, 3, 5, 7, 9, 4)) for _ in range(r.randint(1, 4))],),
                slips=("return all(x % 2 == 0 for x in $a)", "return $a[:1] != [] and $a[0] % 2 == 0"),
            ),
            variant(
                names="any_negative|has_negative",
                cond="at least one number in $a is less than zero",
                none="False",
                ex="any(x < 0 for x in $a)",
                fn=lambda x: min(x, default=0) < 0,
                slips=("return all(x < 0 for x in $a)", "return any(x <= 0 for x in $a)"),
            ),
            variant(
                names="all_even|only_even",
                cond="all numbers in $a are even",
                none="True",
                ex="all(x % 2 == 0 for x in $a)",
                fn=lambda x: 1 not in [n & 1 for n in x],
                draw=lambda r, v: ([r.choice((2, 4, 6, 8, 10, 5)) for _ in range(r.randint(1, 4))],),
                slips=("return any(x % 2 == 0 for x in $a)", "return sum($a) % 2 == 0"),
            ),
            variant(
                names="all_the_same|one_value",
                cond="all numbers in $a are equal to each other",
                none="True",
                ex="all(x == $a[0] for x in $a)",
                fn=lambda x: len(set(x)) <= 1,
                draw=lambda r, v: ([r.choice((4, 4, 4, 4, 7))] * r.randint(1, 3) + [4] * r.randint(0, 2),),
                edges=(([4, 4, 5],), ([5, 4, 5],)),
                slips=("return $a[:1] == $a[-1:]", "return len(set($a)) == 1"),
            ),
            variant(
                names="any_positive|has_positive",
                none="False",
                cond="at least one number in $a is greater than zero",
                ex="any(x > 0 for x in $a)",
                fn=lambda x: max(x, default=0) > 0,
                draw=lambda r, v: (ints(r, -9, 1, 1, 3),),
                edges=(([-2, -3],), ([0],)),
                slips=("return all(x > 0 for x in $a)", "return any(x >= 0 for x in $a)"),
            ),
            variant(
                names="all_negative|only_negative",
                none="True",
                cond="all numbers in $a are less than zero",
                ex="all(x < 0 for x in $a)",
                fn=lambda x: max(x, default=-1) < 0,
                draw=lambda r, v: (ints(r, -9, 0, 1, 4),),
                edges=(([-2, 0],), ([-2, -3],)),
                slips=("return any(x < 0 for x in $a)", "return all(x <= 0 for x in $a)"),
            ),
            variant(
                names="any_zero|has_zero",
                none="False",
                cond="at least one number in $a is zero",
                ex="any(x == 0 for x in $a)",
                fn=lambda x: 0 in x,
                draw=lambda r, v: (ints(r, -1, 2, 1, 4),),
                slips=("return all(x == 0 for x in $a)", "return any(x != 0 for x in $a)"),
            ),
            variant(
                names="all_odd|only_odd",
                none="True",
                cond="all numbers in $a are odd",
                ex="all(x % 2 == 1 for x in $a)",
                fn=lambda x: 0 not in [n & 1 for n in x],
                draw=lambda r, v: ([r.choice((1, 3, 5, 7, 9, 4)) for _ in range(r.randint(1, 4))],),
                edges=(([1, 3],),),
                slips=("return any(x % 2 == 1 for x in $a)", "return sum($a) % 2 == 1"),
            ),
        ),
        lambda r, v: (ints(r, -3, 9, 1, 4) if r.random() < 0.5 else ints(r, 1, 9, 1, 5),),
        edges=(([],), ([3],), ([2, -1, 4],), ([6, 2, 0],), ([-1, -5],)),
    ),
    Kind(
        "repeats",
        f"{ITEMS}",
        "",
        """
        Return $np.

        Numbers can appear more than once in the list $a. Find $np.

        [visitors] The list $a has the card number of each visitor, in the order in which they came. Return $np.

        Keep track of what you have seen while you go through $a. The function returns $np.

        Given the list of integers $a, which may be empty, give back $np.
        """,
        (
            variant(
                names="remove_repeats|each_once",
                args=f"{ITEMS} -> list[int]",
                np="a list with each different number of $a once, in the order of their first appearance",
                code="result = []\nfor x in $a:\n    if x not in result:\n        result.append(x)\nreturn result",
                fn=lambda x: list(dict.fromkeys(x)),
                slips=("return sorted(set($a))", "return [x for x in $a if $a.count(x) == 1]"),
            ),
            variant(
                names="count_different|different_values",
                args=f"{ITEMS} -> int",
                np="how many different numbers $a contains",
                code="return len(set($a))",
                fn=lambda x: len(dict.fromkeys(x)),
                slips=("return len($a)", "return len([x for x in $a if $a.count(x) == 1])"),
            ),
            variant(
                names="has_repeats|something_twice",
                args=f"{ITEMS} -> bool",
                np="True if at least one number appears more than once in $a, else False",
                code="return len(set($a)) < len($a)",
                fn=lambda x: any(c > 1 for c in Counter(x).values()),
                draw=lambda r, v: (ints(r, 0, 9, 1, 5),),
                edges=(([1, 2, 3],), ([4, 5, 4],)),
                slips=("return any(x == y for x, y in zip($a, $a[1:]))", "return len(set($a)) == len($a)"),
            ),
            variant(
                names="appear_once|unrepeated",
                args=f"{ITEMS} -> list[int]",
                np="a list of the numbers that appear exactly once in $a, in their order",
                code="return [x for x in $a if $a.count(x) == 1]",
                fn=lambda x: [n for n, c in Counter[int](x).items() if c == 1],
                slips=("return list(dict.fromkeys($a))", "return sorted(set($a))"),
            ),
            variant(
                names="first_repeat|first_seen_before",
                args=f"{ITEMS} -> int",
                np="the first number in $a that has appeared before in the list, or -1 if no number "
                "appears twice ($a has no negative numbers)",
                code="seen = []\nfor x in $a:\n    if x in seen:\n        return x\n    seen.append(x)\nreturn -1",
                fn=lambda x: next((n for i, n in enumerate(x) if n in x[:i]), -1),
                edges=(([1, 2, 2, 1],), ([5, 6],)),
                slips=("for x in $a:\n    if $a.count(x) > 1:\n        return x\nreturn -1",),
            ),
        ),
        small,
        edges=(([],), ([3],), ([2, 1, 2, 4, 1],), ([5, 5, 5],), ([4, 3, 4],)),
    ),
    Kind(
        "two_lists",
        "first|left|a: list[int], second|right|b: list[int]",
        "",
        """
        Return $np. $extra

        Two lists of integers, $a and $b, are given. Work out $np. $extra

        [monday, tuesday] One list has the results of Monday, $a, the other those of Tuesday, $b. Return $np. $extra

        Use both lists, $a and $b. The function gives back $np. $extra

        What do you get if you want $np? Return that. $extra
        """,
        (
            variant(
                names="join_lists|concatenate",
                args="first|left|a: list[int], second|right|b: list[int] -> list[int]",
                np="one list with all elements of $a followed by all elements of $b",
                extra="Both lists can be empty.",
                code="return $a + $b",
                fn=lambda x, y: [*x, *y],
                edges=(([], []), ([], [4]), ([7], [])),
                slips=("return $b + $a", "return [$a, $b]"),
            ),
            variant(
                names="add_pairs|sum_by_place",
                args="first|left|a: list[int], second|right|b: list[int] -> list[int]",
                np="a list of the sums of the elements that stand at the same place in $a and $b",
                extra="Both lists have the same length.",
                code="result = []\nfor i in range(len($a)):\n    result.append($a[i] + $b[i])\nreturn result",
                fn=lambda x, y: [sum(p) for p in zip(x, y, strict=True)],
                edges=(([], []), ([7], [-2])),
                slips=("return $a + $b", "return [$a[i] * $b[i] for i in range(len($a))]"),
            ),
            variant(
                names="alternate|interleave",
                args="first|left|a: list[int], second|right|b: list[int] -> list[int]",
                np="a list that takes elements from $a and $b in turn, beginning with the first element of $a",
                extra="Both lists have the same length.",
                code="result = []\nfor i in range(len($a)):\n    result.append($a[i])\n"
                "    result.append($b[i])\nreturn result",
                fn=lambda x, y: [n for p in zip(x, y, strict=True) for n in p],
                edges=(([], []), ([7], [-2])),
                slips=("return $a + $b", "return [n for p in zip($b, $a) for n in p]"),
            ),
            variant(
                names="sum_of_products|add_products",
                args="first|left|a: list[int], second|right|b: list[int] -> int",
                np="the sum of the products of the elements at the same places in $a and $b",
                extra="Both lists have the same length; for empty lists the result is 0.",
                code="total = 0\nfor i in range(len($a)):\n    total += $a[i] * $b[i]\nreturn total",
                fn=lambda x, y: sum(p * q for p, q in zip(x, y, strict=True)),
                edges=(([], []), ([7], [-2])),
                slips=("return sum($a) * sum($b)", "return sum($a) + sum($b)"),
            ),
            variant(
                names="equal_places|count_matches",
                args="first|left|a: list[int], second|right|b: list[int] -> int",
                np="at how many places $a and $b have the same number",
                extra="Both lists have the same length, which can be 0.",
                code="count = 0\nfor i in range(len($a)):\n    if $a[i] == $b[i]:\n        count += 1\nreturn count",
                fn=lambda x, y: sum(p == q for p, q in zip(x, y, strict=True)),
                edges=(([], []), ([7, 1, 2], [1, 1, 7])),
                slips=("return len(set($a) & set($b))", "return len($a)"),
            ),
            variant(
                names="larger_sum|best_total",
                args="first|left|a: list[int], second|right|b: list[int] -> int",
                np="the sum of the elements of that list whose sum is larger",
                extra="If both sums are equal, return that sum. An empty list has the sum 0.",
                code="return max(sum($a), sum($b))",
                fn=lambda x, y: sorted([sum(x), sum(y)])[1],
                edges=(([], []), ([-3], []), ([1, 2], [3])),
                slips=("return sum(max($a, $b))", "return sum($a) + sum($b)"),
            ),
        ),
        lambda r, v: (lambda k: (ints(r, 0, 6, k, k), ints(r, 0, 6, k, k)))(r.randint(1, 5)),
        edges=(([1, 2, 3], [4, 5, 6]), ([2, 2], [2, 5])),
    ),
    Kind(
        "ranked_number",
        f"{ITEMS} -> int",
        "",
        """
        Return $np. $rule

        The list $a contains integers. Find $np. $rule

        [times] The times of a race, in seconds, are in the list $a. Return $np. $rule

        Sort the numbers or search in a loop: the function returns $np. $rule

        Look for $np and return that number. $rule
        """,
        (
            variant(
                names="second_largest|runner_up",
                np="the second largest of the different numbers in $a",
                rule="Numbers that appear more than once count once. There are at least two different numbers.",
                code="return sorted(set($a))[-2]",
                fn=lambda x: max(n for n in x if n != max(x)),
                slips=("return sorted($a)[-2]", "return max($a)", "return sorted(set($a))[1]"),
            ),
            variant(
                names="second_smallest|almost_lowest",
                np="the second smallest of the different numbers in $a",
                rule="Equal numbers count once. There are at least two different numbers.",
                code="return sorted(set($a))[1]",
                fn=lambda x: min(n for n in x if n != min(x)),
                slips=("return sorted($a)[1]", "return min($a)"),
            ),
            variant(
                names="middle_number|median_value",
                np="the number in the middle after sorting $a",
                rule="The list has at least three numbers; if their number is even, take the smaller one "
                "of the two in the middle.",
                code="return sorted($a)[(len($a) - 1) // 2]",
                fn=lambda x: next(n for n in sorted(x) if sum(m <= n for m in x) * 2 >= len(x)),
                slips=("return $a[len($a) // 2]", "return sorted($a)[len($a) // 2]"),
            ),
            variant(
                names="smallest_gap|closest_pair",
                np="the smallest difference between two elements of $a",
                rule="The elements stand at different places but may be equal, which is a difference of "
                "0. There are at least two.",
                code="ordered = sorted($a)\nreturn min(ordered[i + 1] - ordered[i] for i in range(len(ordered) - 1))",
                fn=lambda x: min(abs(x[i] - x[j]) for i in range(len(x)) for j in range(i)),
                slips=("return min(abs($a[i + 1] - $a[i]) for i in range(len($a) - 1))",),
            ),
        ),
        lambda r, v: (lambda x: (x if len(set(x)) > 2 else [1, 9, 4, 9],))(ints(r, -6, 22, 3, 7)),
        edges=(([1, 2, 3],), ([9, 9, 4, 1],), ([3, 1, 1, 2],), ([-5, -1, -3, -1],)),
    ),
    Kind(
        "running",
        f"{ITEMS} -> list[int]",
        "",
        """
        Return $np. For an empty list the result is an empty list.

        Build a new list from $a: $np. If $a is empty, return an empty list.

        [readings] A sensor adds one number per hour to the list $a. Return $np. No hours give an empty list.

        While going through $a, remember what came before. The result is $np; it is empty if $a is.

        Given a list of integers, produce $np. (Empty in, empty out.)
        """,
        (
            variant(
                names="running_total|sums_so_far",
                np="a list of the running totals of $a: at each place stands the sum of all elements up to there",
                code="result = []\ntotal = 0\nfor x in $a:\n    total += x\n    result.append(total)\nreturn result",
                fn=lambda x: list(accumulate(x)),
                slips=("return $a", "return [sum($a)] * len($a)", "return [sum($a[:i]) for i in range(len($a))]"),
            ),
            variant(
                names="differences|changes",
                np="a list of the differences between each element of $a and the one before it, which "
                "is one shorter than $a",
                code="result = []\nfor i in range(1, len($a)):\n    result.append($a[i] - $a[i - 1])\nreturn result",
                fn=lambda x: [y - w for w, y in pairwise(x)],
                slips=(
                    "return [$a[i - 1] - $a[i] for i in range(1, len($a))]",
                    "return [abs($a[i] - $a[i - 1]) for i in range(1, len($a))]",
                ),
            ),
            variant(
                names="records|best_so_far",
                np="a list that has at each place the largest element of $a up to there",
                code="result = []\nfor x in $a:\n    if not result or x > result[-1]:\n"
                "        result.append(x)\n    else:\n        result.append(result[-1])\n"
                "return result",
                fn=lambda x: list(accumulate(x, max)),
                slips=("return sorted($a)", "return [max($a)] * len($a)"),
            ),
            variant(
                names="neighbour_sums|sums_of_neighbours",
                np="a list of the sums of each two neighbouring elements of $a, which is one shorter than $a",
                code="result = []\nfor i in range(len($a) - 1):\n    result.append($a[i] + $a[i + 1])\nreturn result",
                fn=lambda x: [sum(p) for p in pairwise(x)],
                slips=("return [sum($a)]", "return [$a[i] + $a[i + 1] for i in range(0, len($a) - 1, 2)]"),
            ),
        ),
        numbers,
        edges=(([],), ([4],), ([1, 2, 3],), ([5, -2, 7, 7],)),
    ),
    Kind(
        "is_ordered",
        f"{ITEMS} -> bool",
        "",
        """
        Return True if $cond, else False. A list with fewer than two elements gives True.

        Check whether $cond. For lists with one element or none the answer is True.

        [floors] A lift stops at the floors in the list $a, in this order. Return True if $cond. With at most one stop
        return True.

        Compare neighbours in $a. The function tells whether $cond; if there are no neighbours, it returns True.

        Is it true that $cond? Return a boolean, which is True for an empty list and for a single element.
        """,
        (
            variant(
                names="is_sorted|in_order",
                cond="no element of $a is smaller than the one before it",
                op="<=",
                fn=lambda x: x == sorted(x),
                slips=("return all($a[i] < $a[i + 1] for i in range(len($a) - 1))",),
            ),
            variant(
                names="is_rising|always_up",
                cond="every element of $a is greater than the one before it",
                op="<",
                fn=lambda x: x == sorted(set(x)),
                slips=("return $a == sorted($a)",),
            ),
            variant(
                names="is_falling|always_down",
                cond="every element of $a is less than the one before it",
                op=">",
                fn=lambda x: x[::-1] == sorted(set(x)),
                edges=(([7, 4, 1],), ([5, 3, 2, 0],)),
                slips=("return $a == sorted($a, reverse=True)", "return $a == sorted($a)"),
            ),
            variant(
                names="no_equal_neighbours|always_changes",
                cond="no element of $a is equal to the one directly before it",
                op="!=",
                fn=lambda x: 0 not in [p - q for p, q in pairwise(x)],
                edges=(([2, 5, 2],),),
                slips=("return len(set($a)) == len($a)",),
            ),
        ),
        lambda r, v: (lambda x: (r.choice((x, sorted(x), sorted(set(x)), sorted(set(x), reverse=True), [*x, x[-1]])),))(
            ints(r, 0, 12, 2, 5)
        ),
        code="for i in range(len($a) - 1):\n    if not $a[i] $op $a[i + 1]:\n        return False\nreturn True",
        edges=(([],), ([3],), ([1, 2, 2, 5],), ([1, 3, 4],), ([4, 4],), ([3, 1, 2],)),
        slips=("return not $a or $a[0] $op $a[-1]",),
    ),
    Kind(
        "move_items",
        f"{ITEMS} -> list[int]",
        "",
        """
        Return $np. A list with fewer than two elements stays as it is.

        Rearrange the list $a: the result is $np. With one element or none nothing changes.

        [players] The players of a game sit in a row; their numbers are in $a. Return $np. If there are fewer than
        two, return the row unchanged.

        Give back a list with the elements of $a in a new order, namely $np. Lists of length 0 or 1 are returned
        unchanged.

        Write a function that moves elements around. Its result is $np; it leaves lists with at most one element alone.
        """,
        (
            variant(
                names="first_to_end|rotate_left",
                np="$a with its first element moved to the end",
                code="return $a[1:] + $a[:1]",
                fn=lambda x: [x[(i + 1) % len(x)] for i in range(len(x))],
                slips=("return $a[-1:] + $a[:-1]", "return $a[::-1]"),
            ),
            variant(
                names="last_to_front|rotate_right",
                np="$a with its last element moved to the front",
                code="return $a[-1:] + $a[:-1]",
                fn=lambda x: [x[i - 1] for i in range(len(x))],
                slips=("return $a[1:] + $a[:1]", "return $a[::-1]"),
            ),
            variant(
                names="swap_ends|exchange_ends",
                np="$a with its first and last element exchanged",
                code="if len($a) < 2:\n    return $a\nreturn [$a[-1]] + $a[1:-1] + [$a[0]]",
                fn=lambda x: [x[len(x) - 1 - i] if i in (0, len(x) - 1) else n for i, n in enumerate(x)],
                slips=("return $a[::-1]", "return [$a[-1]] + $a[1:-1] + [$a[0]]"),
            ),
            variant(
                names="evens_first|even_then_odd",
                np="first the even numbers of $a and then its odd numbers, both in their old order",
                code="even = [x for x in $a if x % 2 == 0]\nodd = [x for x in $a if x % 2 != 0]\nreturn even + odd",
                fn=lambda x: sorted(x, key=lambda n: n & 1),
                slips=("return sorted($a)", "return [x for x in $a if x % 2 != 0] + [x for x in $a if x % 2 == 0]"),
            ),
            variant(
                names="zeros_to_end|push_zeros",
                np="the numbers of $a with all zeros moved to the end, the others in their old order",
                code="others = [x for x in $a if x != 0]\nreturn others + [0] * $a.count(0)",
                fn=lambda x: sorted(x, key=lambda n: n == 0),
                draw=lambda r, v: (ints(r, -1, 2, 2, 7),),
                edges=(([0, 3, 0, 1],),),
                slips=("return [x for x in $a if x != 0]", "return sorted($a, reverse=True)"),
            ),
        ),
        numbers,
        edges=(([],), ([4],), ([1, 2],), ([7, 3, 9, 5, 8],)),
    ),
    Kind(
        "lists_in_lists",
        "",
        "",
        """
        Return $np. $extra

        Work with lists inside a list: from $a the function makes $np. $extra

        [table] A table is stored as the list $a. Return $np. $extra

        Use two loops, or a loop and a slice. The result is $np. $extra

        Given $a, build or compute $np, and return it. $extra
        """,
        (
            variant(
                names="flatten|all_in_one",
                args="rows|lists|grid: list[list[int]] -> list[int]",
                np="one flat list with the elements of all lists in $a, in order",
                extra="Lists in it can be empty.",
                code="result = []\nfor row in $a:\n    for x in row:\n        result.append(x)\nreturn result",
                fn=lambda x: list(chain.from_iterable(x)),
                slips=("return $a", "return $a[0] if $a else []"),
            ),
            variant(
                names="row_sums|sums_of_rows",
                args="rows|lists|grid: list[list[int]] -> list[int]",
                np="the list of the sums of the lists in $a",
                extra="The sum of an empty list is 0.",
                code="return [sum(row) for row in $a]",
                fn=lambda x: [sum(n for n in row) for row in x],
                slips=("return sum(sum(row) for row in $a)", "return [len(row) for row in $a]"),
            ),
            variant(
                names="grand_total|sum_table",
                args="rows|lists|grid: list[list[int]] -> int",
                np="the sum of all numbers in all lists of $a",
                extra="If there are no numbers, that is 0.",
                code="total = 0\nfor row in $a:\n    total += sum(row)\nreturn total",
                fn=lambda x: sum(n for row in x for n in row),
                slips=("return max((sum(row) for row in $a), default=0)", "return sum(len(row) for row in $a)"),
            ),
            variant(
                names="longest_list|longest_row",
                args="rows|lists|grid: list[list[int]] -> int",
                np="the length of the longest list in $a",
                extra="If $a is empty, return 0.",
                code="longest = 0\nfor row in $a:\n    if len(row) > longest:\n"
                "        longest = len(row)\nreturn longest",
                fn=lambda x: max(map(len, x), default=0),
                slips=("return len($a)", "return max(len(row) for row in $a)"),
            ),
            variant(
                names="in_pairs|make_pairs",
                args=f"{ITEMS} -> list[list[int]]",
                np="a list of lists with two neighbouring elements of $a each: the first and second, "
                "the third and fourth, and so on",
                extra="The number of elements is even and can be 0.",
                code="result = []\nfor i in range(0, len($a), 2):\n    result.append([$a[i], $a[i + 1]])\n"
                "return result",
                fn=lambda x: [list(p) for p in zip(x[::2], x[1::2], strict=True)],
                own=True,
                draw=lambda r, v: (ints(r, 0, 9, (k := 2 * r.randint(0, 4)), k),),
                edges=(([],), ([1, 2],), ([5, 6, 7, 8],)),
                slips=("return [[$a[i], $a[i + 1]] for i in range(len($a) - 1)]", "return [$a]"),
            ),
            variant(
                names="first_column|heads",
                args="rows|lists|grid: list[list[int]] -> list[int]",
                np="a list of the first element of each list in $a, where empty lists are skipped",
                extra="If $a is empty, so is the result.",
                code="return [row[0] for row in $a if row]",
                fn=lambda x: [n for row in x for n in row[:1]],
                slips=("return [row[0] for row in $a]", "return $a[0] if $a else []"),
            ),
        ),
        lambda r, v: ([ints(r, 0, 9, 0, 4) for _ in range(r.randint(1, 4))],),
        edges=(([],), ([[1, 2], [3]],), ([[], [4, 5, 6]],), ([[7]],)),
    ),
    Kind(
        "compare_lists",
        "first|left|a: list[int], second|right|b: list[int] -> list[int]",
        "",
        """
        Return $np. $extra

        The lists $a and $b contain integers. Make a new list: $np. $extra

        [mine, yours] I collect the cards in $a, you collect those in $b. Return $np. $extra

        Go through one list and look into the other. The function returns $np. $extra

        Using in or not in, build $np. $extra
        """,
        (
            variant(
                names="in_both|shared_items",
                np="a list of the elements of $a that also appear in $b, in the order of $a",
                extra="No number appears twice in the same list.",
                code="return [x for x in $a if x in $b]",
                fn=lambda x, y: [n for n in x if y.count(n)],
                slips=("return [x for x in $a if x not in $b]", "return [x for x in $b if x in $a]"),
            ),
            variant(
                names="only_in_first|not_in_second",
                np="a list of the elements of $a that do not appear in $b, in the order of $a",
                extra="No number appears twice in the same list.",
                code="return [x for x in $a if x not in $b]",
                fn=lambda x, y: [n for n in x if not y.count(n)],
                slips=("return [x for x in $a if x in $b]", "return [x for x in $b if x not in $a]"),
            ),
            variant(
                names="all_together|either_list",
                np="a sorted list of all numbers that appear in $a or in $b, each of them once",
                extra="Both lists can be empty.",
                code="return sorted(set($a + $b))",
                fn=lambda x, y: sorted({*x} | {*y}),
                slips=("return sorted($a + $b)", "return [x for x in $a if x in $b]"),
            ),
            variant(
                names="in_one_only|not_shared",
                np="a sorted list of the numbers that appear in exactly one of the lists $a and $b",
                extra="No number appears twice in the same list.",
                code="result = [x for x in $a if x not in $b]\nresult += [x for x in $b if x not in $a]\n"
                "return sorted(result)",
                fn=lambda x, y: sorted({*x} ^ {*y}),
                slips=("return sorted(x for x in $a if x not in $b)", "return sorted(set($a + $b))"),
            ),
        ),
        lambda r, v: (r.sample(range(10), r.randint(1, 5)), r.sample(range(10), r.randint(1, 5))),
        edges=(([], []), ([3, 1, 2], [2, 3]), ([5], [6]), ([4, 8], []), ([1, 9], [9, 1])),
    ),
    Kind(
        "longest_stretch",
        f"{ITEMS} -> int",
        "",
        """
        Return $np. For an empty list return 0.

        Find $np. If $a is empty, that is 0.

        [days] A weather station writes one number per day into the list $a. Return $np, or 0 if the list is empty.

        Count while you go through $a, and start again whenever the stretch is broken. The function returns $np. An
        empty list gives 0.

        How long can it last? Return $np (0 for an empty list).
        """,
        (
            variant(
                names="longest_same|longest_repeat",
                np="the largest number of equal elements that stand next to each other in $a",
                cond="i > 0 and $a[i] == $a[i - 1]",
                begin="1",
                fn=lambda x: stretch(x, lambda p, q: p == q),
                slips=("return max(($a.count(x) for x in $a), default=0)", "return len($a)"),
            ),
            variant(
                names="longest_rise|longest_climb",
                np="the length of the longest part of $a, without gaps, in which each element is "
                "greater than the one before it",
                cond="i > 0 and $a[i] > $a[i - 1]",
                begin="1",
                fn=lambda x: stretch(x, lambda p, q: p < q),
                slips=("return len(set($a))", "return sum(1 for i in range(1, len($a)) if $a[i] > $a[i - 1])"),
            ),
            variant(
                names="longest_positive|warm_days",
                np="the largest number of positive numbers that stand next to each other in $a",
                cond="$a[i] > 0",
                begin="0",
                fn=lambda x: max((len(p) for p in "".join("+" if n > 0 else " " for n in x).split()), default=0),
                slips=("return sum(1 for x in $a if x > 0)",),
            ),
            variant(
                names="longest_zero_gap|quiet_days",
                np="the largest number of zeros that stand next to each other in $a",
                cond="$a[i] == 0",
                begin="0",
                fn=lambda x: max((len(p) for p in "".join("0" if n == 0 else " " for n in x).split()), default=0),
                edges=(([0, 0, 1, 0],),),
                slips=("return $a.count(0)",),
            ),
        ),
        lambda r, v: (ints(r, -1, 2, 3, 9),),
        code="longest = 0\ncount = 0\nfor i in range(len($a)):\n    if $cond:\n"
        "        count += 1\n    else:\n        count = $begin\n"
        "    longest = max(longest, count)\nreturn longest",
        edges=(([],), ([3],), ([1, 1, 2, 2, 2],), ([-1, 0, 2, 1, 1],), ([2, 1, 0, 0],)),
    ),
    Kind(
        "pairs_with_sum",
        f"{ITEMS}, target|total|wanted: int",
        "",
        """
        Return $np. The two elements stand at different places; their values may be equal.

        In the list $a look at pairs of elements at two different places. Return $np.

        [prices, money] A shop has one item for each of the prices in $a. You have exactly $b coins and want two
        different items (they may cost the same). Return $np.

        Two nested loops solve this. Of all pairs of elements of $a at different places, find $np.

        Pick two elements of $a, never the same place twice. The function returns $np.
        """,
        (
            variant(
                names="has_pair|pair_exists",
                args=f"{ITEMS}, target|total|wanted: int -> bool",
                np="True if two elements of $a add up to $b, else False",
                code="for i in range(len($a)):\n    for j in range(i + 1, len($a)):\n"
                "        if $a[i] + $a[j] == $b:\n            return True\nreturn False",
                fn=lambda x, t: any(t - n in x[:i] for i, n in enumerate(x)),
                slips=("return any($b - x in $a for x in $a)", "return $b in $a"),
            ),
            variant(
                names="count_pairs|number_of_pairs",
                args=f"{ITEMS}, target|total|wanted: int -> int",
                np="the number of pairs of elements of $a that add up to $b, each pair counted once",
                code="count = 0\nfor i in range(len($a)):\n    for j in range(i + 1, len($a)):\n"
                "        if $a[i] + $a[j] == $b:\n            count += 1\nreturn count",
                fn=lambda x, t: sum(x[:i].count(t - n) for i, n in enumerate(x)),
                slips=("return sum(1 for x in $a if $b - x in $a)", "return 1 if any($b - x in $a for x in $a) else 0"),
            ),
            variant(
                names="closest_sum|best_pair_sum",
                args=f"{ITEMS}, target|total|wanted: int -> int",
                np="the largest sum of two elements of $a that is not above $b, or -1 if every sum is "
                "above $b (no number is negative)",
                code="best = -1\nfor i in range(len($a)):\n    for j in range(i + 1, len($a)):\n"
                "        pair = $a[i] + $a[j]\n        if pair <= $b and pair > best:\n"
                "            best = pair\nreturn best",
                fn=lambda x, t: max([n + m for i, n in enumerate(x) for m in x[:i] if n + m <= t], default=-1),
                slips=(
                    "return max((x + y for x in $a for y in $a if x + y <= $b), default=-1)",
                    "return sum(sorted($a)[-2:])",
                ),
            ),
            variant(
                names="count_pairs_above|large_pairs",
                args=f"{ITEMS}, target|total|wanted: int -> int",
                np="the number of pairs of elements of $a whose sum is greater than $b, each pair counted once",
                code="count = 0\nfor i in range(len($a)):\n    for j in range(i + 1, len($a)):\n"
                "        if $a[i] + $a[j] > $b:\n            count += 1\nreturn count",
                fn=lambda x, t: sum(n + m > t for i, n in enumerate(x) for m in x[:i]),
                slips=(
                    "return sum(1 for x in $a for y in $a if x + y > $b)",
                    "return sum(1 for i in range(len($a)) for j in range(i) if $a[i] + $a[j] >= $b)",
                ),
            ),
        ),
        lambda r, v: (ints(r, 0, 7, 2, 6), r.randint(2, 12)),
        edges=(([], 4), ([2], 4), ([1, 3, 2], 4), ([2, 2, 2], 4), ([5, 6], 4)),
    ),
    Kind(
        "edit_list",
        f"{ITEMS}, x|item|value: int -> list[int]",
        "",
        """
        Return $np.

        The list $a and the integer $b are given. The result is $np.

        [basket, number] A basket is kept as a list of item numbers, $a. After the change it is $np. Return the
        changed list.

        Give back $np. The list $a can be empty.

        What does the list look like afterwards? Return $np.
        """,
        (
            variant(
                names="append_item|add_at_end",
                np="$a with $b added at its end",
                ex="$a + [$b]",
                fn=lambda x, n: [*x, n],
                slips=("return [$b] + $a", "return $a"),
            ),
            variant(
                names="put_in_front|add_at_start",
                np="$a with $b added in front",
                ex="[$b] + $a",
                fn=lambda x, n: [n, *x],
                slips=("return $a + [$b]", "return $a"),
            ),
            variant(
                names="remove_all|without_value",
                np="$a without any element that is equal to $b, the others in their order",
                ex="[y for y in $a if y != $b]",
                fn=lambda x, n: list(filter(lambda y: y - n, x)),
                slips=("return [y for y in $a if y == $b]", "$a.remove($b)\nreturn $a"),
            ),
            variant(
                names="add_both_ends|frame",
                np="$a with $b added both in front and at the end",
                ex="[$b] + $a + [$b]",
                fn=lambda x, n: [n, *x, n],
                slips=("return $a + [$b]", "return [$b] + $a"),
            ),
            variant(
                names="add_if_missing|add_once",
                np="$a with $b added at the end if it is not in the list yet; otherwise the list stays the same",
                ex="$a if $b in $a else $a + [$b]",
                fn=lambda x, n: [*x, *[n] * (x.count(n) == 0)],
                slips=("return $a + [$b]", "return sorted(set($a + [$b]))"),
            ),
            variant(
                names="append_twice|add_two_copies",
                np="$a with $b added at its end two times",
                ex="$a + [$b, $b]",
                fn=lambda x, n: [*x, n, n],
                slips=("return $a + [$b]", "return [$b] + $a + [$b]"),
            ),
            variant(
                names="add_to_each|raise_by",
                np="a list in which each element of $a is larger by $b",
                ex="[y + $b for y in $a]",
                fn=lambda x, n: [sum((y, n)) for y in x],
                slips=("return $a + [$b]", "return [y * $b for y in $a]"),
            ),
            variant(
                names="multiply_each|times_each",
                np="a list in which each element of $a is multiplied by $b",
                ex="[y * $b for y in $a]",
                fn=lambda x, n: [sum([y] * n) for y in x],
                slips=("return $a * $b", "return [y + $b for y in $a]"),
            ),
        ),
        lambda r, v: (small(r, v)[0], r.randint(0, 6)),
        edges=(([], 3), ([3], 3), ([1, 2, 1], 1), ([4, 5], 6)),
    ),
    Kind(
        "places",
        f"{ITEMS}",
        "",
        """
        Return $np. Indices are counted from 0.

        The places of a list are numbered 0, 1, 2 and so on. For the list $a find $np.

        [seats] The seats of a bus are numbered from 0, and $a has a number for each seat. Return $np.

        Use range(len($a)) or enumerate. The function returns $np, counting places from 0.

        Where in the list? Return $np. The first element has the index 0.
        """,
        (
            variant(
                names="even_places|where_even",
                args=f"{ITEMS} -> list[int]",
                np="a list of the indices at which $a has an even number",
                code="return [i for i in range(len($a)) if $a[i] % 2 == 0]",
                fn=lambda x: [i for i, n in enumerate(x) if not n & 1],
                slips=("return [x for x in $a if x % 2 == 0]", "return list(range(0, len($a), 2))"),
            ),
            variant(
                names="free_seats|where_zero",
                args=f"{ITEMS} -> list[int]",
                np="a list of the indices at which $a has a 0",
                code="return [i for i in range(len($a)) if $a[i] == 0]",
                fn=lambda x: [i for i, n in enumerate(x) if not n],
                slips=(
                    "return [i + 1 for i in range(len($a)) if $a[i] == 0]",
                    "return [$a.index(0)] if 0 in $a else []",
                ),
            ),
            variant(
                names="first_negative|where_below_zero",
                args=f"{ITEMS} -> int",
                np="the index of the first negative number in $a, or -1 if there is none",
                code="for i in range(len($a)):\n    if $a[i] < 0:\n        return i\nreturn -1",
                fn=lambda x: next((i for i, n in enumerate(x) if n < 0), -1),
                slips=(
                    "return $a.index(min($a)) if $a else -1",
                    "for x in $a:\n    if x < 0:\n        return x\nreturn -1",
                ),
            ),
            variant(
                names="sum_at_even_places|every_other_sum",
                args=f"{ITEMS} -> int",
                np="the sum of the elements of $a at the indices 0, 2, 4 and so on (0 for an empty list)",
                code="return sum($a[::2])",
                fn=lambda x: sum(n for i, n in enumerate(x) if i % 2 == 0),
                slips=("return sum(x for x in $a if x % 2 == 0)", "return sum($a[1::2])"),
            ),
            variant(
                names="matching_places|at_own_place",
                args=f"{ITEMS} -> int",
                np="how many elements of $a are equal to their own index",
                code="count = 0\nfor i in range(len($a)):\n    if $a[i] == i:\n        count += 1\nreturn count",
                fn=lambda x: sum(n == i for i, n in enumerate(x)),
                slips=("return sum(1 for i in range(len($a)) if $a[i] == i + 1)", "return len($a)"),
            ),
        ),
        lambda r, v: (ints(r, -2, 4, 2, 7),),
        edges=(([],), ([0],), ([3, 1, 2, 0],), ([-1, 4, -5],), ([2, 0, 0, 3],)),
    ),
    Kind(
        "table_lookup",
        "prices|table|stock: dict[str, int], key|name|item: str",
        "",
        """
        Return $np.

        The dictionary $a has strings as keys and integers as values. For the string $b find $np.

        [stock, item] A shop keeps its stock in the dictionary $a: for each item the number that is left. Return $np.

        Look up $b in the dictionary $a. The result is $np.

        A key may be missing in a dictionary, so be careful. Given $a and $b, return $np.
        """,
        (
            variant(
                names="look_up|value_for",
                args="prices|table|stock: dict[str, int], key|name|item: str -> int",
                np="the value of $b in $a, or 0 if $b is not a key of $a",
                code="if $b in $a:\n    return $a[$b]\nreturn 0",
                fn=lambda d, k: sum(v for n, v in d.items() if n == k),
                slips=("return $a[$b]", "return $a.get($b, -1)"),
            ),
            variant(
                names="is_known|has_key",
                args="prices|table|stock: dict[str, int], key|name|item: str -> bool",
                np="True if $b is a key of $a, else False",
                code="return $b in $a",
                fn=lambda d, k: k in list(d),
                slips=("return $b not in $a", "return bool($a.get($b))"),
            ),
            variant(
                names="is_available|in_stock",
                args="prices|table|stock: dict[str, int], key|name|item: str -> bool",
                np="True if $b is a key of $a with a value above 0, else False",
                code="return $b in $a and $a[$b] > 0",
                fn=lambda d, k: d.get(k, 0) >= 1,
                slips=("return $b in $a", "return $a[$b] > 0"),
            ),
            variant(
                names="after_selling|one_less",
                args="prices|table|stock: dict[str, int], key|name|item: str -> int",
                np="one less than the value of $b in $a, or -1 if $b is not a key of $a",
                code="if $b not in $a:\n    return -1\nreturn $a[$b] - 1",
                fn=lambda d, k: d.get(k, 0) - 1,
                edges=(({"tea": 4}, "tea"),),
                slips=("return $a[$b] - 1", "return $a.get($b, -1)"),
            ),
        ),
        lambda r, v: (lambda d: (d, r.choice([*d, *d, r.choice(WORDS)])))(
            {w: r.choice((0, r.randint(1, 30), r.randint(1, 30))) for w in r.sample(WORDS, r.randint(1, 4))}
        ),
        edges=(
            ({}, "tea"),
            ({"tea": 3, "milk": 0}, "milk"),
            ({"tea": 3, "milk": 0}, "tea"),
            ({"rice": 7}, "salt"),
            ({"egg": 12}, "egg"),
        ),
    ),
    Kind(
        "count_into_table",
        "",
        "",
        """
        Return a dictionary that says how often each $what appears in $a.

        Count the ${what}s in $a. The result is a dictionary whose keys are the ${what}s and whose values are the
        counts. If there is nothing to count, it is empty.

        Start with an empty dictionary and go through $a. For each $what add one to its count. Return the dictionary.

        [votes] The votes of a class are in $a; every $what is one vote. Return a dictionary with the number of votes
        for each $what that has at least one.

        Make a table of counts for $a: from each $what that appears there to the number of its appearances.
        """,
        (
            variant(
                names="count_letters|letter_counts",
                args="word|text|s: str -> dict[str, int]",
                what="character",
                each="x in $a",
                fn=lambda s: {c: s.count(c) for c in s},
                draw=lambda r, v: (r.choice(WORDS),),
                edges=(("",), ("aab",), ("banana",)),
            ),
            variant(
                names="count_names|name_counts",
                args="names|people|entries: list[str] -> dict[str, int]",
                what="name",
                each="x in $a",
                fn=lambda x: dict(Counter(x)),
                draw=lambda r, v: ([r.choice(("Ada", "Ben", "Kim", "Leo")) for _ in range(r.randint(1, 6))],),
                edges=(([],), (["Ada"],), (["Kim", "Ben", "Kim"],)),
            ),
            variant(
                names="count_words|word_counts",
                args="text|sentence|line: str -> dict[str, int]",
                what="word",
                each="x in $a.split()",
                fn=lambda s: {w: s.split().count(w) for w in s.split()},
                draw=lambda r, v: (
                    " ".join(r.choice(("tea", "milk", "bread", "salt")) for _ in range(r.randint(1, 6))),
                ),
                edges=(("",), ("tea",), ("go and go",)),
                slips=("return {x: $a.count(x) for x in $a}",),
            ),
            variant(
                names="count_first_letters|initial_counts",
                args="words|names|texts: list[str] -> dict[str, int]",
                what="first letter",
                each="x in [word[0] for word in $a]",
                fn=lambda x: dict(Counter(w[:1] for w in x)),
                draw=names,
                edges=(([],), (["apple"],), (["ant", "bee", "ape"],)),
                slips=("return {x: $a.count(x) for x in $a}",),
            ),
        ),
        names,
        code="counts = {}\nfor $each:\n    if x in counts:\n        counts[x] += 1\n    else:\n"
        "        counts[x] = 1\nreturn counts",
        slips=("counts = {}\nfor $each:\n    counts[x] = 1\nreturn counts", "return len($a)"),
    ),
    Kind(
        "table_values",
        "table|scores|ages: dict[str, int]",
        "",
        """
        Return $np.

        The dictionary $a maps names to integers. It may be empty. Find $np.

        [points] In a game each player has points, stored in the dictionary $a. Return $np.

        Use the keys or values of the dictionary $a. The function gives back $np.

        Given a dictionary with strings as keys and whole numbers as values, compute $np.
        """,
        (
            variant(
                names="total_of_values|add_values",
                args="table|scores|ages: dict[str, int] -> int",
                np="the sum of all values in $a (0 if it is empty)",
                code="return sum($a.values())",
                fn=lambda d: sum(d[k] for k in d),
                slips=("return len($a)", "return max($a.values(), default=0)"),
            ),
            variant(
                names="number_of_names|how_many_keys",
                args="table|scores|ages: dict[str, int] -> int",
                np="how many keys $a has",
                code="return len($a)",
                fn=lambda d: sum(1 for _ in d.items()),
                slips=("return sum($a.values())",),
            ),
            variant(
                names="sorted_names|names_in_order",
                args="table|scores|ages: dict[str, int] -> list[str]",
                np="a list of the keys of $a in alphabetical order",
                code="return sorted($a)",
                fn=lambda d: pick(list(d), min),
                edges=(({"Zoe": 2, "Al": 1},),),
                slips=("return list($a)", "return sorted($a.values())"),
            ),
            variant(
                names="highest_value|best_score",
                args="table|scores|ages: dict[str, int] -> int",
                np="the largest value in $a, or 0 if it is empty (no value is negative)",
                code="if not $a:\n    return 0\nreturn max($a.values())",
                fn=lambda d: max([0, *d.values()]),
                slips=("return max($a.values())", "return sum($a.values())"),
            ),
            variant(
                names="count_zero_values|without_points",
                args="table|scores|ages: dict[str, int] -> int",
                np="how many values in $a are equal to 0",
                code="count = 0\nfor value in $a.values():\n    if value == 0:\n        count += 1\nreturn count",
                fn=lambda d: list(d.values()).count(0),
                draw=lambda r, v: (scores(r, 1, 6, 0, 2),),
                slips=("return len($a)", "return sum(1 for value in $a.values() if value > 0)"),
            ),
            variant(
                names="lowest_value|smallest_score",
                args="table|scores|ages: dict[str, int] -> int",
                np="the smallest value in $a, or 0 if it is empty",
                ex="min($a.values(), default=0)",
                fn=lambda d: sorted(d.values())[0] if d else 0,
                slips=("return sum($a.values())", "return max($a.values(), default=0)"),
            ),
            variant(
                names="all_values|values_of",
                args="table|scores|ages: dict[str, int] -> list[int]",
                np="a list of the values of $a in their order",
                ex="list($a.values())",
                fn=lambda d: [d[k] for k in d],
                edges=(({"Zoe": 9, "Al": 1},),),
                slips=("return list($a)", "return sorted($a.values())"),
            ),
            variant(
                names="all_names|keys_of",
                args="table|scores|ages: dict[str, int] -> list[str]",
                np="a list of the keys of $a in their order",
                ex="list($a)",
                fn=lambda d: [k for k, _ in d.items()],
                edges=(({"Zoe": 9, "Al": 1},),),
                slips=("return list($a.values())", "return sorted($a)"),
            ),
        ),
        lambda r, v: (scores(r),),
        edges=(({},), ({"Ada": 5},), ({"Ben": 0, "Ada": 9, "Kim": 4},)),
    ),
    Kind(
        "names_by_value",
        "scores|points|ages: dict[str, int]",
        "",
        """
        Return $np. $rule

        The dictionary $a has a whole number for each name. Find $np. $rule

        [points] After a quiz, the dictionary $a holds the points of each player. Return $np. $rule

        Loop over the items of the dictionary $a. The function returns $np. $rule

        Look at names and numbers in $a together, and give back $np. $rule
        """,
        (
            variant(
                names="winner|best_name",
                args="scores|points|ages: dict[str, int] -> str",
                np="the name with the largest number",
                rule="All numbers are different, and there is at least one name.",
                code="return max($a, key=$a.get)",
                fn=lambda d: sorted((v, k) for k, v in d.items())[-1][1],
                own=True,
                slips=("return max($a)", "return min($a, key=$a.get)"),
            ),
            variant(
                names="lowest_name|last_place",
                args="scores|points|ages: dict[str, int] -> str",
                np="the name with the smallest number",
                rule="All numbers are different, and there is at least one name.",
                code="return min($a, key=$a.get)",
                fn=lambda d: sorted((v, k) for k, v in d.items())[0][1],
                own=True,
                slips=("return min($a)", "return max($a, key=$a.get)"),
            ),
            variant(
                names="names_above|passed",
                k=[8, 10, 12],
                args="scores|points|ages: dict[str, int] -> list[str]",
                np="an alphabetical list of the names whose number is at least $k",
                rule="If there are none, return an empty list.",
                code="result = []\nfor name in $a:\n    if $a[name] >= $k:\n        result.append(name)\n"
                "return sorted(result)",
                edges=(({"Zoe": 12, "Al": 10, "Bo": 8},), ({},)),
                slips=(
                    "return sorted(name for name in $a if $a[name] > $k)",
                    "return [name for name in $a if $a[name] >= $k]",
                ),
            ),
            variant(
                names="ranking|by_points",
                args="scores|points|ages: dict[str, int] -> list[str]",
                np="a list of all names, sorted by their numbers from the largest to the smallest",
                rule="All numbers are different. An empty dictionary gives an empty list.",
                code="return sorted($a, key=$a.get, reverse=True)",
                fn=lambda d: [k for v, k in sorted(((v, k) for k, v in d.items()), reverse=True)],
                edges=(({},),),
                slips=("return sorted($a, key=$a.get)", "return sorted($a)"),
            ),
        ),
        lambda r, v: (dict(zip(r.sample(NAMES, (k := r.randint(1, 5))), r.sample(range(4, 18), k), strict=True)),),
        truth=lambda v, d: sorted(k for k, value in d.items() if not value < v.k),
        edges=(({"Ada": 5},), ({"Ben": 3, "Ada": 9, "Kim": 14},), ({"Leo": 12, "Ida": 8},)),
    ),
    Kind(
        "build_table",
        "",
        "",
        """
        Return $np. $rule

        Build a new dictionary: $np. $rule

        From what you are given, make $np, and return it. $rule

        Start with an empty dictionary and fill it in a loop. The result is $np. $rule

        The function's result is a dictionary, namely $np. $rule
        """,
        (
            variant(
                names="lengths_of|length_table",
                args="words|names|texts: list[str] -> dict[str, int]",
                np="a dictionary from each string in $a to its length",
                rule="An empty list gives an empty dictionary.",
                code="result = {}\nfor word in $a:\n    result[word] = len(word)\nreturn result",
                fn=lambda x: {w: sum(1 for _ in w) for w in x},
                draw=names,
                edges=(([],), (["a", "bcd"],)),
                slips=("return [len(word) for word in $a]", "return {len(word): word for word in $a}"),
            ),
            variant(
                names="pair_up|make_table",
                args="names|keys: list[str], numbers|values: list[int] -> dict[str, int]",
                np="a dictionary in which each name in $a gets the number at the same place in $b",
                rule="Both lists have the same length, and no name comes twice.",
                code="result = {}\nfor i in range(len($a)):\n    result[$a[i]] = $b[i]\nreturn result",
                fn=lambda x, y: dict(zip(x, y, strict=True)),
                draw=lambda r, v: (r.sample(NAMES, (k := r.randint(1, 4))), ints(r, 0, 20, k, k)),
                edges=(([], []), (["Kim", "Al"], [3, 4])),
                slips=("return {name: $b[0] for name in $a}", "return {}"),
            ),
            variant(
                names="swap_table|by_value",
                args="table|rooms|codes: dict[str, str] -> dict[str, str]",
                np="a dictionary with keys and values of $a exchanged",
                rule="No value appears twice. An empty dictionary gives an empty one.",
                code="result = {}\nfor key in $a:\n    result[$a[key]] = key\nreturn result",
                fn=lambda d: {v: k for k, v in d.items()},
                draw=lambda r, v: (
                    dict(zip(r.sample(NAMES, (k := r.randint(1, 4))), r.sample(WORDS, k), strict=True)),
                ),
                edges=(({},), ({"a": "x", "b": "y"},)),
                slips=("return $a", "return {key: key for key in $a}"),
            ),
            variant(
                names="add_tables|merge_counts",
                args="first|left: dict[str, int], second|right: dict[str, int] -> dict[str, int]",
                np="a dictionary with all keys of $a and $b, where a key that is in both gets the sum "
                "of its two values",
                rule="Any other key keeps its value.",
                code="result = dict($a)\nfor key in $b:\n    result[key] = result.get(key, 0) + $b[key]\nreturn result",
                fn=lambda d, e: {k: d.get(k, 0) + e.get(k, 0) for k in {**d, **e}},
                draw=lambda r, v: (scores(r, 1, 4), scores(r, 1, 4)),
                edges=(({}, {}), ({"Ada": 1}, {}), ({"Ada": 1, "Ben": 2}, {"Ben": 5, "Kim": 3})),
                slips=("return {**$a, **$b}", "return $a"),
            ),
            variant(
                names="by_length|group_words",
                args="words|names|texts: list[str] -> dict[str, list[str]]",
                np="a dictionary from each first letter to the list of the strings in $a that begin "
                "with it, in their order",
                rule="No string is empty. An empty list gives an empty dictionary.",
                code="result = {}\nfor word in $a:\n    if word[0] not in result:\n"
                "        result[word[0]] = []\n    result[word[0]].append(word)\nreturn result",
                fn=lambda x: {c: [w for w in x if w.startswith(c)] for c in dict.fromkeys(w[0] for w in x)},
                draw=names,
                edges=(([],), (["ant", "bee", "ape"],)),
                slips=("return {word[0]: [word] for word in $a}", "return {word[0]: word for word in $a}"),
            ),
        ),
        names,
    ),
    Kind(
        "bill_from_table",
        "prices|menu: dict[str, int], items|order|basket: list[str] -> int",
        "",
        """
        $a maps the names of goods to their prices, and $b lists what somebody buys; a thing can be on the list
        several times. Return $np. $rule

        [menu, order] On the menu $a of a cafe each dish has a price. A guest orders the dishes in $b. Return $np. $rule

        Given a dictionary of prices, $a, and a list of names, $b, find $np. $rule

        Go through the shopping list $b, looking up prices in the dictionary $a. The function returns $np. $rule

        A cash desk knows the prices in $a. A customer puts the things in $b on the counter. Work out $np. $rule
        """,
        (
            variant(
                names="total_price|bill",
                np="the total price of everything in $b",
                rule="All names in $b have a price. Nothing in $b means 0.",
                code="total = 0\nfor name in $b:\n    total += $a[name]\nreturn total",
                fn=lambda p, o: sum(p[name] * c for name, c in Counter[str](o).items()),
                slips=("return sum($a.values())", "return sum($a[name] for name in set($b))"),
            ),
            variant(
                names="price_of_known|sum_known",
                np="the total price of those things in $b that have a price",
                rule="Names without a price are ignored. Nothing to pay means 0.",
                code="total = 0\nfor name in $b:\n    if name in $a:\n        total += $a[name]\nreturn total",
                fn=lambda p, o: sum(p.get(k, 0) for k in o),
                unknown=True,
                edges=(({"tea": 2}, ["tea", "gold"]), ({}, ["tea"])),
                slips=("return sum($a[name] for name in $b)", "return sum($a.values())"),
            ),
            variant(
                names="count_unknown|without_price",
                np="how many entries of $b have no price in $a",
                rule="An entry that comes twice counts twice.",
                code="count = 0\nfor name in $b:\n    if name not in $a:\n        count += 1\nreturn count",
                fn=lambda p, o: len([k for k in o if not p.get(k)]),
                unknown=True,
                edges=(({"tea": 2}, ["gold", "tea", "gold"]), ({}, ["tea"])),
                slips=("return len($b)", "return len(set($b) - set($a))"),
            ),
            variant(
                names="dearest|highest_price",
                np="the price of the most expensive thing in $b",
                rule="All names in $b have a price. If $b is empty, return 0.",
                code="highest = 0\nfor name in $b:\n    highest = max(highest, $a[name])\nreturn highest",
                fn=lambda p, o: max([0, *map(p.get, o)]),
                slips=("return max($a.values(), default=0)", "return sum($a[name] for name in $b)"),
            ),
        ),
        lambda r, v: (
            lambda p: (
                p,
                [
                    r.choice([*p, *(["gold", "silk"] if getattr(v, "unknown", False) else [])])
                    for _ in range(r.randint(1, 5))
                ],
            )
        )({w: r.randint(1, 12) for w in r.sample(("tea", "milk", "rice", "salt", "plum", "bread"), 4)}),
        edges=(({"tea": 2, "milk": 3}, []), ({"tea": 2, "milk": 3, "rice": 9}, ["tea", "milk", "tea"])),
    ),
)


def pick(items: list[Any], best: Callable[[list[Any]], Any]) -> list[Any]:
    """Selection sort, which no solution uses."""
    left, found = list(items), list[Any]()
    while left:
        found.append(left.pop(left.index(best(left))))
    return found


def stretch(items: list[int], goes_on: Callable[[int, int], bool]) -> int:
    """The longest slice in which `goes_on` holds for all neighbours, by trying all slices."""
    size = len(items)
    parts = [items[i:j] for i in range(size) for j in range(i + 1, size + 1)]
    return max((len(p) for p in parts if all(goes_on(x, y) for x, y in pairwise(p))), default=0)
