"""Kinds of first programs from everyday life: money, time, measures, games, and rules with cases."""

import calendar
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from data.recipes.intro_kind import Kind, variant

WEEK = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def up_to(most: int) -> Callable[[random.Random, object], tuple[int]]:
    return lambda rng, _: (rng.randint(0, most),)


def near(rng: random.Random, v: Any) -> tuple[int]:
    """A number at or beside one of the limits of a variant, or any."""
    limit = rng.choice(v.limits)
    return (max(v.lowest, rng.choice((limit - 1, limit, limit + 1, limit + rng.randint(-9, 9)))),)


KINDS = (
    Kind(
        "rectangle",
        "width|a|length: int, height|b|depth: int -> int",
        "",
        """
        Return $np.

        A rectangle has two sides, $a and $b, both whole numbers of at least 1. Compute $np.

        [length, width] A garden is $a metres long and $b metres wide. Return $np.

        Given the sides $a and $b of a rectangle, what is $np? Return it.

        The function receives two positive integers, $a and $b, the lengths of the sides of a rectangle. It returns $np.
        """,
        (
            variant(
                names="area|rectangle_area",
                np="the area of the rectangle with the sides $a and $b",
                ex="$a * $b",
                fn=lambda a, b: sum(a for _ in range(b)),
                slips=("return $a + $b", "return 2 * ($a + $b)"),
            ),
            variant(
                names="perimeter|rectangle_perimeter",
                np="the perimeter of the rectangle with the sides $a and $b",
                ex="2 * ($a + $b)",
                fn=lambda a, b: a + b + a + b,
                slips=("return $a * $b", "return $a + $b"),
            ),
            variant(
                names="two_side_lengths|half_perimeter",
                np="the sum of the two sides $a and $b of the rectangle",
                ex="$a + $b",
                fn=lambda a, b: sum((a, b)),
                slips=("return $a * $b", "return 2 * ($a + $b)"),
            ),
            variant(
                names="is_square|square_shape",
                args="width|a|length: int, height|b|depth: int -> bool",
                np="True if the rectangle with the sides $a and $b is a square, else False",
                ex="$a == $b",
                fn=lambda a, b: not a - b,
                draw=lambda r, v: (lambda x: (x, r.choice((x, x + 1))))(r.randint(1, 20)),
                slips=("return $a != $b", "return $a * $b % 2 == 0"),
            ),
            variant(
                names="longer_side|long_side",
                np="the length of the longer side of the rectangle with the sides $a and $b",
                ex="max($a, $b)",
                fn=lambda a, b: sorted((a, b))[1],
                slips=("return $a", "return min($a, $b)"),
            ),
            variant(
                names="side_difference|how_much_longer",
                np="how much longer the longer side of the rectangle with the sides $a and $b is than the shorter one",
                ex="abs($a - $b)",
                fn=lambda a, b: max(a, b) - min(a, b),
                slips=("return $a - $b", "return $a + $b"),
            ),
            variant(
                names="two_areas|double_area",
                np="twice the area of the rectangle with the sides $a and $b",
                ex="2 * $a * $b",
                fn=lambda a, b: sum([a] * b + [b] * a),
                slips=("return $a * $b", "return 2 * ($a + $b)"),
            ),
            variant(
                names="half_area|triangle_area",
                args="width|a|length: int, height|b|depth: int -> float",
                np="half the area of the rectangle with the sides $a and $b, which may have decimals",
                ex="$a * $b / 2",
                fn=lambda a, b: sum([a] * b) * 0.5,
                slips=("return $a * $b", "return ($a + $b) / 2"),
            ),
        ),
        lambda r, v: (r.randint(1, 30), r.randint(1, 30)),
        edges=((1, 1), (3, 4), (7, 7), (10, 1)),
    ),
    Kind(
        "cube_and_square",
        "side|edge|length: int -> int",
        "",
        """
        Return $np.

        Compute $np. The length $a is a positive whole number.

        [edge] Somebody builds with wooden pieces whose edges are $a centimetres long. Return $np, as a number without
        its unit.

        The argument $a, an integer of at least 1, says how long something is. The function gives back $np.

        Write a small geometry helper: from the length $a it works out $np.
        """,
        (
            variant(
                names="square_area|area_of_square",
                np="the area of a square with the side $a",
                ex="$a * $a",
                fn=lambda n: n**2,
                slips=("return 4 * $a", "return 2 * $a"),
            ),
            variant(
                names="square_perimeter|around_square",
                np="the perimeter of a square with the side $a",
                ex="4 * $a",
                fn=lambda n: n + n + n + n,
                slips=("return $a * $a", "return 2 * $a"),
            ),
            variant(
                names="cube_volume|volume",
                np="the volume of a cube with the edge $a",
                ex="$a ** 3",
                fn=lambda n: n * n * n,
                slips=("return 3 * $a", "return 6 * $a * $a", "return $a ** 2"),
            ),
            variant(
                names="cube_surface|surface",
                np="the total area of the six faces of a cube with the edge $a",
                ex="6 * $a * $a",
                fn=lambda n: sum([n**2] * 6),
                slips=("return $a ** 3", "return 4 * $a * $a"),
            ),
            variant(
                names="triangle_perimeter|around_triangle",
                np="the perimeter of a triangle whose three sides all have the length $a",
                ex="3 * $a",
                fn=lambda n: n + n + n,
                slips=("return $a ** 3", "return 4 * $a"),
            ),
            variant(
                names="hexagon_perimeter|around_hexagon",
                np="the perimeter of a hexagon whose six sides all have the length $a",
                ex="6 * $a",
                fn=lambda n: sum([n] * 6),
                slips=("return $a ** 6", "return 4 * $a"),
            ),
            variant(
                names="pentagon_perimeter|around_pentagon",
                np="the perimeter of a pentagon whose five sides all have the length $a",
                ex="5 * $a",
                fn=lambda n: sum([n] * 5),
                slips=("return $a ** 5", "return 6 * $a"),
            ),
            variant(
                names="cube_face|face_area",
                np="the area of one face of a cube with the edge $a",
                ex="$a * $a",
                fn=lambda n: sum(n for _ in range(n)),
                slips=("return $a ** 3", "return 6 * $a * $a"),
            ),
            variant(
                names="cube_edges|wire_for_cube",
                np="the total length of the twelve edges of a cube with the edge $a",
                ex="12 * $a",
                fn=lambda n: sum([n] * 12),
                slips=("return 8 * $a", "return $a ** 3"),
            ),
        ),
        lambda r, v: (r.randint(1, 30),),
        edges=((1,), (2,), (5,), (10,)),
    ),
    Kind(
        "triangle",
        "a|x: int, b|y: int, c|z: int",
        "",
        """
        Return $np. All three numbers are positive integers.

        Three lengths $a, $b and $c are given, each at least 1. Return $np.

        [red, green, blue] Three sticks are $a, $b and $c centimetres long, in any order. Return $np.

        The arguments are the positive integers $a, $b and $c, three side lengths. The function must return $np.

        Think of a triangle with the sides $a, $b and $c (1 or more, in any order). Return $np.
        """,
        (
            variant(
                names="is_triangle|can_be_triangle",
                args="a|x: int, b|y: int, c|z: int -> bool",
                np="True if each of $a, $b and $c is less than the sum of the two others, so that they "
                "can form a triangle, else False",
                code="return $a < $b + $c and $b < $a + $c and $c < $a + $b",
                fn=lambda *n: 2 * max(n) < sum(n),
                slips=("return $a + $b > $c", "return $a <= $b + $c and $b <= $a + $c and $c <= $a + $b"),
            ),
            variant(
                names="triangle_type|kind_of_triangle",
                args="a|x: int, b|y: int, c|z: int -> str",
                np='"all" if $a, $b and $c are all equal, "two" if exactly two of them are equal, and '
                '"none" if all are different',
                code='if $a == $b == $c:\n    return "all"\nif $a == $b or $b == $c or $a == $c:\n'
                '    return "two"\nreturn "none"',
                fn=lambda *n: {1: "all", 2: "two", 3: "none"}[len(set(n))],
                slips=(
                    'return "all" if $a == $b == $c else "two" if $a == $b else "none"',
                    'return "two" if $a == $b or $b == $c or $a == $c else "none"',
                ),
            ),
            variant(
                names="has_right_angle|is_right_triangle",
                args="a|x: int, b|y: int, c|z: int -> bool",
                np="True if the square of the longest of $a, $b and $c equals the sum of the squares of "
                "the two others, else False",
                code="small, middle, large = sorted([$a, $b, $c])\nreturn small ** 2 + middle ** 2 == large ** 2",
                fn=lambda *n: 2 * max(n) ** 2 == sum(m * m for m in n),
                edges=((6, 8, 10), (13, 12, 5), (10, 8, 6)),
                slips=("return $a ** 2 + $b ** 2 == $c ** 2", "return $a + $b == $c"),
            ),
            variant(
                names="longest_side|hypotenuse_candidate",
                args="a|x: int, b|y: int, c|z: int -> int",
                np="the length of the longest of the sides $a, $b and $c minus the length of the shortest",
                code="return max($a, $b, $c) - min($a, $b, $c)",
                fn=lambda *n: sorted(n)[2] - sorted(n)[0],
                slips=("return max($a, $b, $c)", "return $c - $a"),
            ),
        ),
        lambda r, v: tuple(
            r.sample(
                r.choice(((3, 4, 5), (2, 2, 9), (7, 7, 3), (r.randint(1, 9), r.randint(1, 9), r.randint(1, 9)))), 3
            )
        ),
        edges=((3, 4, 5), (5, 4, 3), (1, 2, 3), (4, 4, 4), (9, 2, 3), (2, 7, 2)),
    ),
    Kind(
        "temperature",
        "degrees|t|temperature: float -> float",
        "",
        """
        Return the temperature $a, given in $source, in $target. $formula

        Convert $a from $source to $target. $formula Do not round.

        [reading] A thermometer shows $a, measured in $source. A visitor knows only $target. $formula Return the
        converted temperature without rounding.

        The formula is: $formula_low. Use it to turn $a ($source) into $target. The result is not rounded.

        How many $target are $a $source? $formula
        """,
        (
            variant(
                names="to_fahrenheit|celsius_to_fahrenheit",
                source="degrees Celsius",
                target="degrees Fahrenheit",
                formula="Multiply by 9, divide by 5, then add 32.",
                formula_low="multiply by 9, divide by 5, then add 32",
                ex="$a * 9 / 5 + 32",
                fn=lambda t: (t + 40) * 1.8 - 40,
                slips=("return ($a + 32) * 9 / 5", "return ($a - 32) * 5 / 9", "return $a * 5 / 9 + 32"),
            ),
            variant(
                names="to_celsius|fahrenheit_to_celsius",
                source="degrees Fahrenheit",
                target="degrees Celsius",
                formula="Subtract 32, then multiply by 5 and divide by 9.",
                formula_low="subtract 32, then multiply by 5 and divide by 9",
                ex="($a - 32) * 5 / 9",
                fn=lambda t: (t + 40) / 1.8 - 40,
                slips=("return $a - 32 * 5 / 9", "return $a * 9 / 5 + 32"),
            ),
            variant(
                names="to_kelvin|celsius_to_kelvin",
                source="degrees Celsius",
                target="kelvins",
                formula="Add 273.15.",
                formula_low="add 273.15",
                ex="$a + 273.15",
                fn=lambda t: t - -273.15,
                slips=("return $a - 273.15", "return $a + 273"),
            ),
            variant(
                names="from_kelvin|kelvin_to_celsius",
                source="kelvins",
                target="degrees Celsius",
                formula="Subtract 273.15.",
                formula_low="subtract 273.15",
                ex="$a - 273.15",
                fn=lambda t: t + -273.15,
                slips=("return $a + 273.15", "return $a - 273"),
            ),
        ),
        lambda r, v: (r.choice((r.randint(-40, 320), r.randint(-80, 640) / 2)),),
        edges=((0,), (100,), (-40,), (32,), (36.5,)),
    ),
    Kind(
        "change_unit",
        "n|amount|count: int -> int",
        "$w|count_$w",
        """
        How many $small are there in $a $big? Return the number. One $one has $k $small.

        Return the number of $small in $a $big. (There are $k $small in one $one.)

        Convert $a from $big to $small. Each $one has $k $small, and $a is a whole number, zero or more.

        [amount] A recipe book needs a converter. It is given $a, a number of $big, and returns how many $small that is.
        One $one has $k of them.

        There are $k $small in one $one. Write a function that takes a whole number of $big, $a, and gives the number of
        $small.
        """,
        tuple(
            variant(w=w, small=small, big=big, one=one, k=k, slips=(f"return $a // {k}", f"return $a + {k}"))
            for w, small, big, one, k in (
                ("seconds_in_minutes", "seconds", "minutes", "minute", 60),
                ("hours_in_days", "hours", "days", "day", 24),
                ("days_in_weeks", "days", "weeks", "week", 7),
                ("months_in_years", "months", "years", "year", 12),
                ("eggs_in_dozens", "eggs", "dozens", "dozen", 12),
                ("metres_in_kilometres", "metres", "kilometres", "kilometre", 1000),
                ("cents_in_euros", "cents", "euros", "euro", 100),
                ("minutes_in_hours", "minutes", "hours", "hour", 60),
                ("grams_in_kilograms", "grams", "kilograms", "kilogram", 1000),
                ("millimetres_in_centimetres", "millimetres", "centimetres", "centimetre", 10),
                ("inches_in_feet", "inches", "feet", "foot", 12),
                ("seconds_in_hours", "seconds", "hours", "hour", 3600),
                ("legs_of_spiders", "legs", "spiders", "spider", 8),
            )
        ),
        up_to(50),
        code="return $a * $k",
        truth=lambda v, n: sum(v.k for _ in range(n)),
        edges=((0,), (1,), (2,), (10,)),
    ),
    Kind(
        "split_unit",
        "n|total|amount: int -> list[int]",
        "$w|split_$w",
        """
        Return $a $small as a list of two integers: the number of whole $big and the number of $small that are left
        over. One $one has $k $small.

        Split $a $small into $big and $small. The result is a list with the $big first; the second number is less than
        $k. ($k $small make one $one.)

        [measured] A machine has counted $a $small, zero or more. People prefer to read $big and $small, where $k $small
        are one $one. Return a list with both numbers, the $big first.

        How many full $big are in $a $small, and how many $small remain? There are $k $small in one $one. Return both
        numbers in a list, in this order.

        Use // and % with $k. From $a, a number of $small, make the list [$big, $small] with the full $big and the rest.
        One $one is $k $small.
        """,
        tuple(
            variant(
                w=w,
                small=small,
                big=big,
                one=one,
                k=k,
                draw=lambda r, v: (r.randint(0, 12 * v.k),),
                edges=((0,), (k - 1,), (k,), (k + 1,), (3 * k,)),
            )
            for w, small, big, one, k in (
                ("minutes_to_hours", "minutes", "hours", "hour", 60),
                ("days_to_weeks", "days", "weeks", "week", 7),
                ("cents_to_euros", "cents", "euros", "euro", 100),
                ("months_to_years", "months", "years", "year", 12),
                ("hours_to_days", "hours", "days", "day", 24),
            )
        ),
        up_to(500),
        code="return [$a // $k, $a % $k]",
        truth=lambda v, n: list(divmod(n, v.k)),
        slips=("return [$a % $k, $a // $k]", "return [$a / $k, $a % $k]", "return [$a // $k, $a]"),
    ),
    Kind(
        "format_numbers",
        "a|first: int, b|second: int -> str",
        "",
        """
        Return $np as a string. $rule

        Make a text from two numbers: $np. $rule

        [left, right] A display has room for $np. $rule Return what the display shows for $a and $b.

        Neither $a nor $b is negative. Format them as $np. $rule

        The function turns $a and $b into $np, a string. $rule
        """,
        (
            variant(
                names="clock|show_time",
                np="the time of day with $a hours and $b minutes",
                rule='Hours and minutes have two digits each and a colon between them, as in "07:05".',
                ex='f"{$a:02d}:{$b:02d}"',
                fn=lambda a, b: ":".join((str(a).zfill(2), str(b).zfill(2))),
                draw=lambda r, v: (r.randint(0, 23), r.randint(0, 59)),
                edges=((7, 5), (0, 0), (12, 30), (23, 9)),
                slips=('return f"{$a}:{$b}"', 'return f"{$a}:{$b:02d}"'),
            ),
            variant(
                names="show_price|price_text",
                np="the price of $a euros and $b cents",
                rule='The cents always have two digits; a full stop stands between euros and cents, as in "3.05".',
                ex='f"{$a}.{$b:02d}"',
                fn=lambda a, b: str(a) + "." + str(100 + b)[1:],
                draw=lambda r, v: (r.randint(0, 99), r.randint(0, 99)),
                edges=((3, 5), (0, 50), (12, 0), (7, 99)),
                slips=('return f"{$a}.{$b}"', 'return f"{$a:02d}.{$b:02d}"'),
            ),
            variant(
                names="score_line|show_score",
                np="the result of a match with $a goals to $b",
                rule='The numbers stand on both sides of a colon, without spaces, as in "2:1".',
                ex='f"{$a}:{$b}"',
                fn=lambda a, b: ":".join(map(str, (a, b))),
                draw=lambda r, v: (r.randint(0, 12), r.randint(0, 12)),
                edges=((2, 1), (0, 0), (1, 10)),
                slips=('return f"{$b}:{$a}"', 'return f"{$a} : {$b}"'),
            ),
            variant(
                names="size_text|show_size",
                np="the size of a picture that is $a wide and $b high",
                rule='The numbers are separated by a space, the letter x and a space, as in "640 x 480".',
                ex='f"{$a} x {$b}"',
                fn=lambda a, b: " x ".join(map(str, (a, b))),
                draw=lambda r, v: (r.randint(0, 999), r.randint(0, 999)),
                edges=((640, 480), (0, 5), (10, 10)),
                slips=('return f"{$a}x{$b}"', 'return f"{$b} x {$a}"'),
            ),
            variant(
                names="fraction_text|show_fraction",
                np="the fraction with $a above and $b below the line",
                rule='Write it with a slash and no spaces, as in "3/4", and do not reduce it.',
                ex='f"{$a}/{$b}"',
                fn=lambda a, b: "/".join(map(str, (a, b))),
                draw=lambda r, v: (r.randint(0, 20), r.randint(1, 20)),
                edges=((3, 4), (2, 4), (0, 7), (5, 1)),
                slips=('return f"{$b}/{$a}"', "return str($a / $b)"),
            ),
        ),
        lambda r, v: (0, 0),
    ),
    Kind(
        "shopping",
        "price|cost: int, count|number: int -> int",
        "",
        """
        Return $np.

        One piece costs $a, and somebody buys $b pieces. Compute $np. Prices are whole numbers.

        [price, pieces] In a shop a toy costs $a coins. A customer takes $b of them, maybe none. Return $np.

        The price of one item is $a and the number of items is $b. What is $np? Return it.

        Write a function for a cash desk. From the price $a and the number $b it computes $np.
        """,
        (
            variant(
                names="total_price|to_pay",
                np="the total price of $b pieces that cost $a each",
                ex="$a * $b",
                fn=lambda p, n: sum([p] * n),
                slips=("return $a + $b",),
            ),
            variant(
                names="price_with_bag|total_with_bag",
                np="the price of $b pieces that cost $a each, plus 1 for a bag",
                ex="$a * $b + 1",
                fn=lambda p, n: 1 + sum([p] * n),
                slips=("return $a * $b", "return $a * ($b + 1)"),
            ),
            variant(
                names="price_with_delivery|delivered",
                k=[3, 4, 5],
                np="the price of $b pieces that cost $a each, plus $k for the delivery",
                ex="$a * $b + $k",
                slips=("return $a * $b", "return ($a + $k) * $b"),
            ),
            variant(
                names="one_free|with_gift",
                np="the price of $b pieces that cost $a each, if one of them is free (for no pieces it is 0)",
                ex="$a * max($b - 1, 0)",
                fn=lambda p, n: sum([p] * n) - p if n else 0,
                edges=((5, 1),),
                slips=("return $a * $b", "return $a * ($b - 1)"),
            ),
            variant(
                names="double_price|express_total",
                np="twice the price of $b pieces that cost $a each",
                ex="2 * $a * $b",
                fn=lambda p, n: sum([p, p] * n),
                slips=("return $a * $b", "return 2 * $a + $b"),
            ),
        ),
        lambda r, v: (r.randint(1, 30), r.randint(0, 12)),
        truth=lambda v, p, n: v.k + sum([p] * n),
        edges=((5, 0), (3, 4), (10, 1), (2, 2)),
    ),
    Kind(
        "percentages",
        "price|amount: int, percent|rate: int -> float",
        "",
        """
        Return $np. Do not round.

        The price $a and the percentage $b are given as whole numbers. Compute $np, without rounding.

        [cost, share] A thing costs $a euros. Return $np; decimals are allowed.

        Percent means "of a hundred". Work out $np and return it unrounded.

        The function is given $a and $b. It has to return $np. The result may have decimals.
        """,
        (
            variant(
                names="percent_of|part",
                np="$b percent of $a",
                ex="$a * $b / 100",
                fn=lambda p, r: p / 100 * r,
                slips=("return $a * $b", "return $a / $b"),
            ),
            variant(
                names="reduced_price|after_discount",
                np="the price $a lowered by $b percent",
                ex="$a - $a * $b / 100",
                fn=lambda p, r: p / 100 * (100 - r),
                slips=("return $a - $b", "return $a * $b / 100", "return $a + $a * $b / 100"),
            ),
            variant(
                names="with_tax|price_with_tax",
                np="the price $a raised by $b percent tax",
                ex="$a + $a * $b / 100",
                fn=lambda p, r: p / 100 * (100 + r),
                slips=("return $a + $b", "return $a * $b / 100", "return $a - $a * $b / 100"),
            ),
            variant(
                names="amount_saved_twice|double_discount",
                np="the price $a lowered by $b percent, and the result lowered by $b percent again",
                ex="$a * (100 - $b) / 100 * (100 - $b) / 100",
                fn=lambda p, r: p * (1 - r / 100) ** 2,
                slips=("return $a - $a * 2 * $b / 100", "return $a - $a * $b / 100"),
            ),
        ),
        lambda r, v: (r.randint(1, 400), r.choice((5, 10, 15, 20, 25, 30, 50, 75))),
        edges=((100, 20), (50, 0), (80, 100), (0, 10), (30, 15)),
    ),
    Kind(
        "pay_and_change",
        "price|cost: int, paid|money: int",
        "",
        """
        Return $np.

        The price is $a and the customer gives $b, both whole numbers of zero or more. Return $np.

        [cost, wallet] A ticket machine wants $a coins, and you have $b coins. Return $np.

        Compare $b with $a. The function returns $np.

        Something costs $a, and you hand over $b. What the function has to return is $np.
        """,
        (
            variant(
                names="change|give_back",
                args="price|cost: int, paid|money: int -> int",
                np="the change, $b minus $a, or -1 if $b is less than $a",
                code="if $b < $a:\n    return -1\nreturn $b - $a",
                fn=lambda p, m: m - p if m - p >= 0 else -1,
                slips=("return $b - $a", "return $a - $b", "return max($b - $a, 0)"),
            ),
            variant(
                names="missing|still_to_pay",
                args="price|cost: int, paid|money: int -> int",
                np="how much money is missing to pay $a with $b, which is 0 if $b is enough",
                code="if $b >= $a:\n    return 0\nreturn $a - $b",
                fn=lambda p, m: max(p - m, 0),
                slips=("return $a - $b", "return abs($a - $b)"),
            ),
            variant(
                names="can_pay|is_enough",
                args="price|cost: int, paid|money: int -> bool",
                np="True if $b is enough to pay $a (exactly enough counts), else False",
                code="return $b >= $a",
                fn=lambda p, m: m - p not in range(-999, 0),
                slips=("return $b > $a", "return $b <= $a"),
            ),
            variant(
                names="pay_message|answer_customer",
                args="price|cost: int, paid|money: int -> str",
                np='"exact" if $b equals $a, "too little" if $b is less than $a, and "change" if $b is more',
                code='if $b == $a:\n    return "exact"\nif $b < $a:\n    return "too little"\nreturn "change"',
                fn=lambda p, m: {0: "exact", 1: "change", -1: "too little"}[(m > p) - (m < p)],
                slips=('return "exact" if $b >= $a else "too little"', 'return "too little" if $b < $a else "change"'),
            ),
        ),
        lambda r, v: (lambda p: (p, p + r.choice((0, 1, -1, r.randint(-p, 20)))))(r.randint(1, 40)),
        edges=((10, 10), (10, 12), (10, 7), (0, 0), (5, 4)),
    ),
    Kind(
        "price_by_age",
        "age|years: int -> int",
        "$w|${w}_for",
        """
        Return the price of $ticket for a person who is $a years old. Below the age of $j it is $p, from $j up to and
        including $k it is $q, and for older people it is $r.

        $place has three prices: $p for visitors under $j, $r for those over $k, and $q for everybody between, the
        ages $j and $k included. A visitor of age $a wants $ticket. Return the price.

        [visitor_age] What does $ticket cost? People younger than $j pay $p, people older than $k pay $r, all others
        pay $q. Return the price for the age $a.

        Use if, elif and else to find the price of $ticket by the age $a: less than $j: $p; more than $k: $r;
        otherwise: $q.

        The function gets an age, $a, and returns what $ticket costs. The prices are $p (under $j), $q (from $j to $k,
        both included) and $r (over $k).
        """,
        tuple(
            variant(
                w=w,
                ticket=ticket,
                place=place,
                j=j,
                k=k,
                p=p,
                q=q,
                r=r,
                limits=(j, k),
                lowest=0,
                edges=((j - 1,), (j,), (k,), (k + 1,), (30,)),
            )
            for w, ticket, place, j, k, p, q, r in (
                ("cinema_price", "a cinema ticket", "The cinema", 12, 64, 5, 9, 7),
                ("pool_price", "a day at the pool", "The swimming pool", 6, 59, 0, 4, 3),
                ("museum_price", "a museum ticket", "The museum", 18, 65, 2, 8, 4),
                ("bus_fare", "a bus ticket", "The bus company", 14, 69, 1, 3, 2),
            )
        ),
        near,
        code="if $a < $j:\n    return $p\nelif $a <= $k:\n    return $q\nelse:\n    return $r",
        truth=lambda v, n: (v.p, v.q, v.r)[(n >= v.j) + (n > v.k)],
        slips=(
            "return $p if $a <= $j else $q if $a <= $k else $r",
            "return $p if $a < $j else $q if $a < $k else $r",
            "return $p if $a < $j else $q",
        ),
    ),
    Kind(
        "name_by_limits",
        "n|value|points: int -> str",
        "$w|${w}_name",
        """
        Return "$x" if $a is less than $j, "$y" if it is at least $j but less than $k, and "$z" if it is $k or more.

        $story $a. Return "$x" for anything below $j, "$z" for $k and above, and "$y" for all values between.

        Put the number $a into one of three classes: "$x" (below $j), "$y" (from $j on, but below $k) or "$z" ($k or
        higher). Return the name of the class.

        There are two limits, $j and $k. A number under the first one is called "$x", a number that reaches the second
        one is called "$z", and what lies between (the first limit included) is called "$y". Return the name for $a.

        Write an if statement with three branches: $k or more gives "$z"; otherwise $j or more gives "$y"; everything
        else gives "$x". The value to look at is $a.
        """,
        tuple(
            variant(
                w=w,
                story=story,
                j=j,
                k=k,
                x=x,
                y=y,
                z=z,
                limits=(j, k),
                lowest=-20,
                edges=((j - 1,), (j,), (k - 1,), (k,), (j - 12,)),
            )
            for w, story, j, k, x, y, z in (
                ("weather", "The temperature outside, in degrees, is", 10, 25, "cold", "mild", "hot"),
                ("grade", "In a test a pupil has reached this number of points:", 50, 80, "fail", "pass", "excellent"),
                ("wind", "The speed of the wind, in kilometres per hour, is", 20, 60, "calm", "windy", "storm"),
                ("parcel", "A parcel has this weight in kilograms:", 2, 10, "small", "medium", "large"),
                ("battery", "The charge of a phone, in percent, is", 15, 90, "low", "fine", "full"),
                ("water", "Water has been measured; its temperature in degrees is", 1, 100, "ice", "liquid", "steam"),
            )
        ),
        near,
        code='if $a < $j:\n    return "$x"\nelif $a < $k:\n    return "$y"\nelse:\n    return "$z"',
        truth=lambda v, n: (v.x, v.y, v.z)[(n >= v.j) + (n >= v.k)],
        slips=(
            'return "$x" if $a <= $j else "$y" if $a < $k else "$z"',
            'return "$x" if $a < $j else "$y" if $a <= $k else "$z"',
            'return "$x" if $a < $j else "$y"',
        ),
    ),
    Kind(
        "allowed",
        "n|value|number: int -> bool",
        "",
        """
        Return True if $a is $cond, else False.

        $story Return True for $a if it is $cond, and False if not.

        Check a rule: the answer is True when the number $a is $cond. In all other cases it is False.

        Is $a $cond? Return a boolean.

        The function compares $a with a limit. If $a is $cond, it returns True; otherwise it returns False.
        """,
        tuple(
            variant(
                names=names,
                story=story,
                cond=cond,
                op=op,
                k=k,
                limits=(k,),
                lowest=0,
                edges=((k,), (k - 1,), (k + 1,), (k + 30,), (0,)),
                slips=(
                    {
                        ">=": f"return $a > {k}",
                        ">": f"return $a >= {k}",
                        "<=": f"return $a < {k}",
                        "<": f"return $a <= {k}",
                    }[op],
                    f"return $a == {k}",
                ),
            )
            for names, story, cond, op, k in (
                ("may_vote|can_vote", "In this town people may vote when they are old enough.", "18 or more", ">=", 18),
                (
                    "may_ride|can_ride",
                    "A roller coaster is only for tall visitors; heights are given in centimetres.",
                    "at least 130",
                    ">=",
                    130,
                ),
                ("is_child|child_ticket", "Children's tickets are for young people.", "less than 14", "<", 14),
                ("fits_lift|lift_is_safe", "A lift can carry a certain number of people.", "8 or less", "<=", 8),
                ("is_speeding|too_fast", "In the village a speed limit holds.", "greater than 50", ">", 50),
                ("is_fever|has_fever", "A nurse notes temperatures in tenths of a degree.", "380 or higher", ">=", 380),
            )
        ),
        near,
        code="return $a $op $k",
        truth=lambda v, n: {">=": n - v.k >= 0, ">": n - v.k >= 1, "<": n - v.k <= -1, "<=": n - v.k <= 0}[v.op],
        slips=("return not $a $op $k",),
    ),
    Kind(
        "delivery_cost",
        "total|amount: int -> int",
        "$w|final_$w",
        """
        Return what a customer of $shop pays who orders goods for $a: for less than $k, $fee is added for the
        delivery; from $k on the delivery is free.

        $shop sends goods to your home. The delivery costs $fee, but nothing if the goods cost $k or more. Given the
        price of the goods, $a, return the sum to pay. An order for 0 is no order and costs 0.

        [goods] The goods in a basket cost $a. If that is at least $k, this is also the final price at $shop. If it is
        less, add $fee. Return the final price.

        Compute the final price of an order at $shop. Goods for $a are in it. Orders below $k cost $fee extra, others
        cost nothing extra.

        At $shop every order under $k has a surcharge of $fee. Return the price of an order of goods for $a with the
        surcharge, if there is one.
        """,
        tuple(
            variant(
                w=w, shop=shop, k=k, fee=fee, limits=(k,), lowest=1, edges=((k - 1,), (k,), (k + 1,), (1,), (2 * k,))
            )
            for w, shop, k, fee in (
                ("book_order", "a bookshop", 20, 3),
                ("pizza_order", "a pizza service", 25, 4),
                ("flower_order", "a flower shop", 40, 6),
                ("toy_order", "a toy shop", 60, 5),
                ("shoe_order", "a shoe shop", 80, 7),
            )
        ),
        near,
        code="if $a < $k:\n    return $a + $fee\nreturn $a",
        truth=lambda v, n: n + v.fee * (n in range(v.k)),
        slips=(
            "return $a + $fee",
            "return $a",
            "return $a + $fee if $a <= $k else $a",
            "return $a + $fee if $a >= $k else $a",
        ),
    ),
    Kind(
        "saving_money",
        "start|first: int, steps|n: int -> int",
        "",
        """
        Return $np. The number $b can be 0; then nothing changes.

        At the beginning there is the amount $a. $rule Return the amount after $b $times (0 or more).

        [begin, times] Use a loop that runs $b times. The amount is $a at first. $rule Return the final amount.

        $rule Beginning with $a, how large is the amount after $b $times? Return that number. After 0 $times it is
        still $a.

        Simulate $b $times, one after the other, beginning with the amount $a. $rule Return the amount at the end.
        """,
        (
            variant(
                names="saved_money|piggy_bank",
                np="how much is in a piggy bank that holds $a at first and gets $k more in each of $b weeks",
                k=[3, 5, 8],
                rule="Every week $k is added.",
                times="weeks",
                step="$a + $k",
                op=lambda v, x: x + v.k,
                slips=("return $a + $k", "return $a * $k * $b"),
            ),
            variant(
                names="bacteria|doubling",
                np="how many bacteria there are after $b hours if there are $a now and their number doubles every hour",
                rule="Every hour it doubles.",
                times="hours",
                step="$a * 2",
                op=lambda v, x: x + x,
                slips=("return $a * 2 * $b", "return $a * 2"),
            ),
            variant(
                names="melting_snow|snow_left",
                np="the height of the snow after $b days if it is $a now and each day it becomes 4 "
                "less, but never less than 0",
                rule="Every day it becomes 4 less, but never less than 0.",
                times="days",
                step="max($a - 4, 0)",
                op=lambda v, x: x - 4 if x > 4 else 0,
                edges=((10, 3),),
                slips=("return $a - 4 * $b", "return max($a - 4, 0)"),
            ),
            variant(
                names="halving|bites",
                np="how much of a cake of $a grams is left after $b guests, if each guest takes half of "
                "what is there, and the rest is rounded down to whole grams",
                rule="Each time half of it is taken away, and the rest is rounded down to a whole number.",
                times="times",
                step="$a // 2",
                op=lambda v, x: int(x / 2),
                edges=((15, 2), (1, 1)),
                slips=("return $a // 2", "return $a // (2 * $b) if $b else $a"),
            ),
        ),
        lambda r, v: (r.randint(1, 80), r.randint(0, 8)),
        code="for i in range($b):\n    $a = $step\nreturn $a",
        truth=lambda v, x, n: grown(v, x, n),
        edges=((20, 0), (20, 1), (7, 3), (50, 4), (0, 2)),
        slips=("return $a",),
    ),
    Kind(
        "until_reached",
        "goal|target: int -> int",
        "",
        """
        $rule Return $np. If $a is already reached at the start, the answer is 0.

        [target] How long does it take? $rule Return $np, which is 0 if the start is not less than $a.

        Use a while loop. $rule Count the rounds until the amount is $a or more, and return the count: $np.

        $rule The goal is to have at least $a. Return $np (0 if there is nothing to do).

        Find out $np. $rule The goal $a may be reached from the start; then return 0.
        """,
        (
            variant(
                names="days_to_goal|days_needed",
                rule="A box is empty at the start. Every day 3 coins are put into it.",
                np="the number of days until it holds at least $a coins",
                begin="0",
                step="amount + 3",
                op=lambda v, x: x + 3,
            ),
            variant(
                names="doublings_needed|count_doublings",
                rule="A number starts at 1. In every round it is doubled.",
                np="the number of rounds until it is at least $a",
                begin="1",
                step="amount * 2",
                op=lambda v, x: x + x,
            ),
            variant(
                names="weeks_to_save|weeks_needed",
                rule="A saver owns 10 coins. Every week 7 more are added.",
                np="the number of weeks until there are at least $a coins",
                begin="10",
                step="amount + 7",
                op=lambda v, x: x + 7,
            ),
            variant(
                names="generations|steps_to_triple",
                rule="A family of fish has 2 members. Every year their number is multiplied by 3.",
                np="the number of years until there are at least $a fish",
                begin="2",
                step="amount * 3",
                op=lambda v, x: x * 3,
            ),
        ),
        lambda r, v: (r.choice((r.randint(1, 30), r.randint(31, 200), r.randint(201, 900))),),
        code="amount = $begin\ncount = 0\nwhile amount < $a:\n    amount = $step\n    count += 1\nreturn count",
        truth=lambda v, goal: next(i for i in range(999) if grown(v, int(v.begin), i) >= goal),
        edges=((0,), (1,), (2,), (4,), (17,), (18,), (64,)),
        slips=(
            "amount = $begin\ncount = 0\nwhile amount <= $a:\n    amount = $step\n    count += 1\nreturn count",
            "return $a",
        ),
    ),
    Kind(
        "travel",
        "a|first: int, b|second: int -> float",
        "",
        """
        Return $np. Do not round.

        $story Compute $np. Do not round the result.

        The numbers $a and $b are positive integers. The function returns $np, unrounded.

        [one, two] Use a single line of arithmetic with $a and $b to find $np. Leave the result unrounded.

        $story Return $np; the result may have decimals.
        """,
        (
            variant(
                names="distance_travelled|way",
                np="the distance that a car covers at $a kilometres per hour in $b hours",
                story="A car drives at a constant speed, $a kilometres per hour, for $b hours.",
                ex="$a * $b",
                args="a|first: int, b|second: int -> int",
                fn=lambda a, b: sum([a] * b),
                slips=("return $a / $b", "return $a + $b"),
            ),
            variant(
                names="travel_time|hours_needed",
                np="the number of hours that a train needs for $a kilometres at $b kilometres per hour",
                story="A train has $a kilometres ahead of it and goes at $b kilometres per hour.",
                ex="$a / $b",
                fn=lambda a, b: float(a) * b**-1,
                slips=("return $a * $b", "return $b / $a", "return $a // $b"),
            ),
            variant(
                names="average_speed|speed",
                np="the average speed in kilometres per hour of a cyclist who rides $a kilometres in $b hours",
                story="A cyclist rides $a kilometres and needs $b hours for them.",
                ex="$a / $b",
                fn=lambda a, b: float(a) * b**-1,
                slips=("return $a * $b", "return $b / $a", "return $a // $b"),
            ),
            variant(
                names="average_of_two|halfway",
                np="the average of $a and $b",
                story="Two hikers have walked $a and $b kilometres.",
                ex="($a + $b) / 2",
                fn=lambda a, b: a / 2 + b / 2,
                slips=("return $a + $b / 2", "return ($a + $b) // 2"),
            ),
            variant(
                names="cost_per_person|share_of_cost",
                np="what each person pays if $a euros are shared equally by $b people",
                story="A taxi costs $a euros, and $b people share it equally.",
                ex="$a / $b",
                fn=lambda a, b: float(a) * b**-1,
                slips=("return $a * $b", "return $b / $a", "return $a // $b"),
            ),
        ),
        lambda r, v: (r.randint(1, 200), r.randint(1, 12)),
        edges=((100, 2), (7, 2), (60, 1), (5, 10)),
    ),
    Kind(
        "days_and_months",
        "n|number: int",
        "",
        """
        Return $np.

        $story Return $np.

        [number] A calendar program works with numbers. From $a it finds $np. Return that.

        Use a list, a dictionary or some if statements. The function returns $np.

        Given the integer $a, find $np.
        """,
        (
            variant(
                names="day_name|weekday",
                args="n|number: int -> str",
                np='the English name of day number $a of the week, where 1 is "Monday" and 7 is "Sunday"',
                story="The days of the week have the numbers 1 to 7.",
                code='days = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", '
                '"Sunday"]\nreturn days[$a - 1]',
                fn=lambda n: calendar.day_name[n - 1],
                edges=((1,), (7,), (3,)),
                draw=lambda r, v: (r.randint(1, 7),),
                slips=(
                    'days = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", '
                    '"Sunday"]\nreturn days[$a % 7]',
                ),
            ),
            variant(
                names="is_weekend|free_day",
                args="n|number: int -> bool",
                np="True if day number $a of the week is a Saturday or a Sunday, else False (1 is Monday, 7 is Sunday)",
                story="The days of the week have the numbers 1 to 7, beginning with Monday.",
                code="return $a == 6 or $a == 7",
                fn=lambda n: DAYS[n - 1].startswith("S"),
                edges=((1,), (5,), (6,), (7,), (2,), (4,)),
                draw=lambda r, v: (r.randint(1, 7),),
                slips=("return $a == 7", "return $a >= 5", "return $a == 0 or $a == 6"),
            ),
            variant(
                names="days_in_month|month_length",
                args="n|number: int -> int",
                np="the number of days of month number $a (1 to 12) in a year that is no leap year",
                story="January is month 1, December is month 12.",
                code="if $a == 2:\n    return 28\nif $a in (4, 6, 9, 11):\n    return 30\nreturn 31",
                fn=lambda n: MONTH_DAYS[n - 1],
                edges=((1,), (2,), (4,), (8,), (11,), (12,)),
                draw=lambda r, v: (r.randint(1, 12),),
                slips=("return 28 if $a == 2 else 31 if $a % 2 == 1 else 30", "return 30"),
            ),
            variant(
                names="has_extra_day|long_year",
                args="n|number: int -> bool",
                np="True if the year $a has 366 days, else False; these are the years divisible by 4, "
                "but of those divisible by 100 only the ones divisible by 400",
                story="Some years have one day more than others.",
                code="return $a % 4 == 0 and ($a % 100 != 0 or $a % 400 == 0)",
                fn=lambda n: calendar.isleap(n),
                edges=((2000,), (1900,), (2024,), (2023,), (2100,), (1600,)),
                draw=lambda r, v: (r.choice((r.randint(1800, 2100), 4 * r.randint(450, 530))),),
                slips=("return $a % 4 == 0", "return $a % 4 == 0 and $a % 100 != 0"),
            ),
            variant(
                names="season|season_of",
                args="n|number: int -> str",
                np='the season of month number $a: "spring" for the months 3 to 5, "summer" for 6 to 8, '
                '"autumn" for 9 to 11, and "winter" for 12, 1 and 2',
                story="A year of twelve months has four seasons.",
                code='if 3 <= $a <= 5:\n    return "spring"\nif 6 <= $a <= 8:\n    return "summer"\n'
                'if 9 <= $a <= 11:\n    return "autumn"\nreturn "winter"',
                fn=lambda n: ("winter", "spring", "summer", "autumn")[n % 12 // 3],
                edges=((1,), (3,), (5,), (6,), (9,), (12,)),
                draw=lambda r, v: (r.randint(1, 12),),
                slips=('return "spring" if $a <= 3 else "summer" if $a <= 6 else "autumn" if $a <= 9 else "winter"',),
            ),
            variant(
                names="weekday_after|day_later",
                args="n|number: int -> str",
                np='the English name of the day $a days after a Monday (0 gives "Monday", 1 gives "Tuesday")',
                story="Today is Monday.",
                code='days = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", '
                '"Sunday"]\nreturn days[$a % 7]',
                fn=lambda n: calendar.day_name[n - n // 7 * 7],
                edges=((0,), (6,), (7,), (15,)),
                draw=lambda r, v: (r.randint(0, 60),),
                slips=(
                    'days = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", '
                    '"Sunday"]\nreturn days[$a]',
                ),
            ),
        ),
        lambda r, v: (1,),
    ),
    Kind(
        "clock_arithmetic",
        "hours|h: int, minutes|m: int -> int",
        "",
        """
        Return $np.

        There are two numbers, $a and $b: $range. Compute $np.

        [big, small] A clock helper takes two numbers: $range. They are $a and $b. It returns $np.

        Think in small units. From $a and $b ($range) find $np.

        The first argument is $a, the second $b; $range. What is $np? Return it as an integer.
        """,
        (
            variant(
                names="minutes_since_midnight|minute_of_day",
                range="hours from 0 to 23 and minutes from 0 to 59",
                np="the number of minutes from midnight to $a hours and $b minutes",
                ex="$a * 60 + $b",
                fn=lambda h, m: int(timedelta(hours=h, minutes=m).total_seconds()) // 60,
                slips=("return $a + $b", "return $a * 100 + $b"),
            ),
            variant(
                names="minutes_to_midnight|rest_of_day",
                range="hours from 0 to 23 and minutes from 0 to 59",
                np="the number of minutes from $a hours and $b minutes until the next midnight",
                ex="24 * 60 - ($a * 60 + $b)",
                fn=lambda h, m: (23 - h) * 60 + 60 - m,
                slips=("return $a * 60 + $b", "return (24 - $a) * 60 + $b"),
            ),
            variant(
                names="later_hour|hour_after",
                range="an hour of the day from 0 to 23 and a number of hours, zero or more",
                np="the hour of the day (0 to 23) that it is $b hours after $a o'clock",
                ex="($a + $b) % 24",
                fn=lambda h, m: (h + m) - (h + m) // 24 * 24,
                edges=((23, 1), (20, 30)),
                slips=("return $a + $b", "return ($a + $b) % 12"),
            ),
            variant(
                names="total_seconds|in_seconds",
                range="a number of minutes and a number of seconds below 60, both zero or more",
                np="the number of seconds that $a minutes and $b seconds are together",
                ex="$a * 60 + $b",
                fn=lambda h, m: timedelta(minutes=h, seconds=m).seconds,
                slips=("return $a + $b", "return ($a + $b) * 60"),
            ),
        ),
        lambda r, v: (r.randint(0, 23), r.randint(0, 59)),
        edges=((0, 0), (1, 30), (12, 0), (23, 59)),
    ),
    Kind(
        "simple_game",
        "",
        "",
        """
        Return $np.

        $story Return $np.

        Write the referee of a small game. The function returns $np.

        [mine, yours] Two players make their moves, $a and $b. Return $np.

        Look at $a and $b and decide: return $np.
        """,
        (
            variant(
                names="dice_result|roll_result",
                args="first|a: int, second|b: int -> str",
                story="Two dice show $a and $b (1 to 6).",
                np='"double" if $a and $b are equal, "seven" if they add up to 7, and "nothing" in all other cases',
                code='if $a == $b:\n    return "double"\nif $a + $b == 7:\n    return "seven"\nreturn "nothing"',
                fn=lambda a, b: "double" if not a - b else ("nothing", "seven")[sum((a, b)) == 7],
                draw=lambda r, v: (lambda x: (x, r.choice((x, 7 - x, r.randint(1, 6)))))(r.randint(1, 6)),
                edges=((3, 3), (3, 4), (1, 2), (6, 1)),
                slips=(
                    'return "seven" if $a + $b == 7 else "nothing"',
                    'return "double" if $a == $b else "seven" if $a + $b >= 7 else "nothing"',
                ),
            ),
            variant(
                names="winner|match_result",
                args="first|a: int, second|b: int -> str",
                story="A match between team A and team B has ended $a to $b.",
                np='"A" if $a is greater than $b, "B" if $b is greater, and "draw" if they are equal',
                code='if $a > $b:\n    return "A"\nif $b > $a:\n    return "B"\nreturn "draw"',
                fn=lambda a, b: ("draw", "A", "B")[(a > b) - (a < b)],
                draw=lambda r, v: (lambda x: (x, r.choice((x, x + 1, r.randint(0, 5)))))(r.randint(0, 5)),
                edges=((2, 1), (0, 3), (1, 1), (0, 0)),
                slips=('return "A" if $a >= $b else "B"', 'return "B" if $a > $b else "A" if $b > $a else "draw"'),
            ),
            variant(
                names="match_points|league_points",
                args="first|a: int, second|b: int -> int",
                story="A team has scored $a goals and let in $b.",
                np="3 if $a is greater than $b, 1 if both are equal, and 0 if $a is less than $b",
                code="if $a > $b:\n    return 3\nif $a == $b:\n    return 1\nreturn 0",
                fn=lambda a, b: (1, 3, 0)[(a > b) - (a < b)],
                draw=lambda r, v: (lambda x: (x, r.choice((x, x + 1, r.randint(0, 5)))))(r.randint(0, 5)),
                edges=((2, 1), (0, 3), (1, 1), (0, 0)),
                slips=("return 3 if $a >= $b else 0", "return 3 if $a > $b else 0"),
            ),
            variant(
                names="paper_stone|hand_game",
                args="first|a: str, second|b: str -> str",
                story='Both players show "rock", "paper" or "scissors".',
                np='"first" if $a beats $b, "second" if $b beats $a, and "draw" if both are the same; '
                '"rock" beats "scissors", "scissors" beats "paper" and "paper" beats "rock"',
                code='if $a == $b:\n    return "draw"\n'
                'beats = {"rock": "scissors", "scissors": "paper", "paper": "rock"}\n'
                'if beats[$a] == $b:\n    return "first"\nreturn "second"',
                fn=lambda a, b: ("draw", "first", "second")[
                    (("rock", "paper", "scissors").index(a) - ("rock", "paper", "scissors").index(b)) % 3
                ],
                draw=lambda r, v: (r.choice(("rock", "paper", "scissors")), r.choice(("rock", "paper", "scissors"))),
                edges=(
                    ("rock", "scissors"),
                    ("paper", "scissors"),
                    ("paper", "rock"),
                    ("rock", "rock"),
                    ("scissors", "rock"),
                    ("scissors", "paper"),
                ),
                slips=(
                    'return "draw" if $a == $b else "first" if $a > $b else "second"',
                    'return "draw" if $a == $b else "first"',
                ),
            ),
            variant(
                names="guess_hint|hint",
                args="first|a: int, second|b: int -> str",
                story="The secret number is $a, and somebody has guessed $b.",
                np='"higher" if $a is greater than $b, "lower" if $a is less than $b, and "right" if they are equal',
                code='if $a > $b:\n    return "higher"\nelif $a < $b:\n    return "lower"\nelse:\n    return "right"',
                fn=lambda a, b: ("right", "higher", "lower")[(a > b) - (a < b)],
                draw=lambda r, v: (lambda x: (x, r.choice((x, x + 1, r.randint(0, 50)))))(r.randint(0, 50)),
                edges=((20, 10), (5, 9), (7, 7), (0, 1)),
                slips=(
                    'return "higher" if $a < $b else "lower" if $a > $b else "right"',
                    'return "right" if $a == $b else "higher"',
                ),
            ),
        ),
        lambda r, v: (1, 1),
    ),
    Kind(
        "follow_the_cycle",
        "",
        "",
        """
        Return $np.

        $story Return $np.

        The argument $a is always one of these words: $all. The function returns $np.

        A program shows a word. Now it is $a (one of $all). Return $np.

        [now] Write a chain of if statements, or use a dictionary. For the word $a it gives $np.
        """,
        tuple(
            variant(
                names=names,
                args="word|current|state: str -> str",
                story=story,
                np=np,
                first=items[0],
                all=", ".join(f'"{i}"' for i in items),
                steps=str(dict(zip(items, (*items[move:], *items[:move]), strict=True))).replace("'", '"'),
                cycle=items,
                move=move,
                edges=tuple((i,) for i in items),
                draw=lambda r, v: (r.choice(v.cycle),),
            )
            for names, story, np, items, move in (
                (
                    "next_day|tomorrow",
                    "A week has seven days, and it goes on and on.",
                    'the day after $a, where "mon" follows "sun"',
                    WEEK,
                    1,
                ),
                (
                    "day_before|yesterday",
                    "A diary is read backwards, day by day.",
                    'the day before $a, where "sun" comes before "mon"',
                    WEEK,
                    -1,
                ),
                (
                    "next_note|note_above",
                    "The notes of a scale repeat after the seventh.",
                    'the note that follows $a in the order c, d, e, f, g, a, b, where "c" follows "b"',
                    ("c", "d", "e", "f", "g", "a", "b"),
                    1,
                ),
                (
                    "next_colour|colour_after",
                    "A lamp changes its colour in a fixed order, again and again: red, orange, yellow, "
                    "green, blue, violet.",
                    "the colour that comes after $a in the order red, orange, yellow, green, blue, "
                    'violet, where "red" follows "violet"',
                    ("red", "orange", "yellow", "green", "blue", "violet"),
                    1,
                ),
                (
                    "turn_right|quarter_turn",
                    "A ship turns to the right by a quarter of a circle. Clockwise, the directions are "
                    "n, ne, e, se, s, sw, w and nw.",
                    "the direction a quarter turn clockwise from $a, that is, two places later in the "
                    "circle n, ne, e, se, s, sw, w, nw",
                    ("n", "ne", "e", "se", "s", "sw", "w", "nw"),
                    2,
                ),
            )
        ),
        lambda r, v: ("",),
        code="following = $steps\nreturn following[$a]",
        truth=lambda v, w: v.cycle[(v.cycle.index(w) + v.move) % len(v.cycle)],
        slips=("return $a", 'return "$first"'),
    ),
    Kind(
        "boxes_needed",
        "n|count|people: int -> int",
        "",
        """
        Return how many $boxes are needed for $a $things if each of them holds $k.

        $story One of the $boxes holds $k. There are $a $things (zero or more). Return the smallest number of $boxes
        that is enough.

        Divide and round up: $a $things have to go into $boxes with room for $k. Return the number of $boxes.

        [amount] Each of the $boxes has room for $k $things. The last one need not be full. How many are necessary for
        $a $things? Return the number; for 0 it is 0.

        The $a $things are put into $boxes, $k into each as long as there are enough. Return how many $boxes are used.
        """,
        tuple(
            variant(names=w, things=things, boxes=boxes, k=k, story=story, edges=((0,), (1,), (k,), (k + 1,), (3 * k,)))
            for w, things, boxes, k, story in (
                ("cartons_needed|count_cartons", "eggs", "cartons", 6, "A farmer packs eggs."),
                ("buses_needed|count_buses", "pupils", "buses", 40, "A school goes on a trip."),
                ("pages_needed|count_pages", "photos", "pages", 4, "Photos are glued into an album."),
                ("tents_needed|count_tents", "campers", "tents", 3, "A group goes camping."),
                ("tables_needed|count_tables", "guests", "tables", 8, "A restaurant expects guests."),
            )
        ),
        up_to(130),
        code="full = $a // $k\nif $a % $k > 0:\n    return full + 1\nreturn full",
        truth=lambda v, n: len(range(0, n, v.k)),
        slips=("return $a // $k", "return $a // $k + 1", "return $a / $k"),
    ),
    Kind(
        "grid_walk",
        "",
        "",
        """
        Return $np.

        $story Return $np.

        Work out $np. The numbers $a and $b are integers and may be negative.

        [east, north] On a map with squared paper somebody stands at the point ($a, $b). Return $np.

        A point is given by two whole numbers, $a and $b. The function returns $np.
        """,
        (
            variant(
                names="blocks_to_walk|street_distance",
                args="x: int, y: int -> int",
                story="From the point (0, 0) you can walk only along the lines of a grid, to the point ($a, $b).",
                np="the length of the shortest way from (0, 0) to ($a, $b) along the lines of the grid",
                code="return abs($a) + abs($b)",
                fn=lambda x, y: max(x, -x) + max(y, -y),
                slips=("return $a + $b", "return max(abs($a), abs($b))"),
            ),
            variant(
                names="quadrant|which_corner",
                args="x: int, y: int -> int",
                story="Two axes divide the plane into four quadrants.",
                np="the number of the quadrant: 1 if $a and $b are both positive, 2 if only $b is "
                "positive and $a is negative, 3 if both are negative, 4 if $a is positive and $b "
                "negative, and 0 if one of them is 0",
                code="if $a == 0 or $b == 0:\n    return 0\nif $a > 0:\n    return 1 if $b > 0 else 4\n"
                "return 2 if $b > 0 else 3",
                fn=lambda x, y: (
                    0
                    if not x * y
                    else {(True, True): 1, (False, True): 2, (False, False): 3, (True, False): 4}[x > 0, y > 0]
                ),
                slips=(
                    "return 1 if $a > 0 and $b > 0 else 3",
                    "return 1 if $a > 0 and $b > 0 else 2 if $b > 0 else 3 if $a < 0 else 4",
                ),
            ),
            variant(
                names="mirror_point|reflect",
                args="x: int, y: int -> list[int]",
                story="The vertical axis is a mirror.",
                np="a list of the two coordinates of the point ($a, $b) after it has been mirrored at "
                "the vertical axis, which changes the sign of the first one only",
                code="return [-$a, $b]",
                fn=lambda x, y: [0 - x, y],
                slips=("return [$a, -$b]", "return [$b, $a]", "return [-$a, -$b]"),
            ),
            variant(
                names="on_axis|touches_axis",
                args="x: int, y: int -> bool",
                story="The point ($a, $b) lies somewhere in the plane.",
                np="True if at least one of $a and $b is 0, so that the point is on an axis, else False",
                code="return $a == 0 or $b == 0",
                fn=lambda x, y: x * y == 0,
                edges=((0, 4), (-3, 0)),
                slips=("return $a == 0 and $b == 0", "return $a == 0"),
            ),
        ),
        lambda r, v: (r.randint(-9, 9), r.choice((0, r.randint(-9, 9)))),
        edges=((0, 0), (3, 4), (-3, 4), (-2, -5), (6, -1)),
    ),
    Kind(
        "count_coins",
        "",
        "",
        """
        Return $np.

        Coins matter in this task. Compute $np.

        $story Return $np.

        [given] A cash machine works with whole numbers. The function returns $np.

        Think about which coins are used. Then return $np.
        """,
        (
            variant(
                names="fewest_coins|count_coins",
                args="amount|n|cents: int -> int",
                story="A shop pays out $a cents with coins of 10, 5 and 1 cents.",
                np="the smallest number of coins of 10, 5 and 1 that add up to $a (zero or more)",
                code="count = $a // 10\nrest = $a % 10\ncount += rest // 5\ncount += rest % 5\nreturn count",
                fn=lambda n: min(
                    i + j + n - 10 * i - 5 * j for i in range(n // 10 + 1) for j in range((n - 10 * i) // 5 + 1)
                ),
                slips=("return $a // 10", "return $a"),
            ),
            variant(
                names="two_kinds_of_coins|coins_two_and_one",
                args="amount|n|cents: int -> int",
                story="Somebody pays $a euros with coins of 2 euros and at most one coin of 1 euro.",
                np="the smallest number of coins of 2 and 1 that add up to $a (zero or more)",
                code="return $a // 2 + $a % 2",
                fn=lambda n: min(i + n - 2 * i for i in range(n // 2 + 1)),
                slips=("return $a // 2", "return $a"),
            ),
            variant(
                names="fewest_notes|count_notes",
                args="amount|n|money: int -> int",
                story="A bank pays $a euros in notes of 50, 20 and 10 euros; the amount is a multiple of 10.",
                np="how many notes are used if $a, a multiple of 10, is paid in notes of 50, 20 and 10, "
                "always taking the largest note that still fits",
                code="count = 0\nfor note in [50, 20, 10]:\n    count += $a // note\n    $a = $a % note\nreturn count",
                fn=lambda n: n // 50 + (0, 1, 1, 2, 2)[n % 50 // 10],
                own=True,
                draw=lambda r, v: (10 * r.randint(0, 40),),
                edges=((0,), (10,), (40,), (90,), (200,)),
                slips=("return $a // 50", "return $a // 10"),
            ),
            variant(
                names="coins_as_list|pay_out",
                args="amount|n|cents: int -> list[int]",
                story="A machine pays out $a cents and uses large coins first.",
                np="a list of the coins, each 10, 5 or 1, that are paid out for $a cents, always taking "
                "the largest coin that still fits",
                code="coins = []\nfor coin in [10, 5, 1]:\n    while $a >= coin:\n"
                "        coins.append(coin)\n        $a -= coin\nreturn coins",
                fn=lambda n: [10] * (n // 10) + [5] * (n % 10 // 5) + [1] * (n % 5),
                slips=("return [$a // 10, $a % 10 // 5, $a % 5]", "return [1] * $a"),
            ),
        ),
        up_to(48),
        edges=((0,), (4,), (5,), (10,), (28,)),
    ),
)


def grown(v: Any, amount: int, rounds: int) -> int:
    for _ in range(rounds):
        amount = v.op(v, amount)
    return amount
