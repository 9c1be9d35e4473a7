"""Kinds of first programs with whole numbers: arithmetic, comparisons, digits, and loops that count."""

import math
import random
from collections.abc import Callable
from typing import Any

from data.recipes.intro_kind import Kind, ints, variant


def one_number(rng: random.Random, _: object) -> tuple[int]:
    return (rng.randint(-40, 60),)


def natural(rng: random.Random, _: object) -> tuple[int]:
    return (rng.randint(0, 40),)


def two_numbers(rng: random.Random, _: object) -> tuple[int, int]:
    return rng.randint(-30, 40), rng.randint(-30, 40)


KINDS = (
    Kind(
        "combine_two",
        "a|x|first|m: int, b|y|second|n: int -> int",
        "",
        """
        Return $np.

        $do and return the result.

        You get two whole numbers, $a and $b. Give back $np.

        A pocket calculator needs a new key. From the numbers $a and $b it works out $np. Write what the key does.

        This function receives the integers $a and $b. Its result is $np, which may also be negative.

        [left, right] Two boxes on the screen hold the integers $a and $b. When the user presses the button, the program
        shows $np. Return the number to show.
        """,
        (
            variant(
                names="add|add_numbers|sum_of_two",
                np="the sum of $a and $b",
                do="Add $a and $b",
                ex="$a + $b",
                fn=lambda a, b: sum((a, b)),
                slips=("return $a - $b", "return $a * $b"),
            ),
            variant(
                names="multiply|product|times",
                np="the product of $a and $b",
                do="Multiply $a by $b",
                ex="$a * $b",
                fn=lambda a, b: math.prod((a, b)),
                slips=("return $a + $b",),
            ),
            variant(
                names="subtract|difference|minus",
                np="$a minus $b",
                do="Subtract $b from $a",
                ex="$a - $b",
                fn=lambda a, b: sum((a, -b)),
                slips=("return $b - $a", "return abs($a - $b)"),
            ),
            variant(
                names="sum_doubled|double_sum|twice_the_sum",
                np="twice the sum of $a and $b",
                do="Add $a and $b, double the sum",
                ex="2 * ($a + $b)",
                fn=lambda a, b: a + b + a + b,
                slips=("return 2 * $a + $b", "return $a + $b"),
            ),
            variant(
                names="add_and_one|sum_plus_one",
                np="the sum of $a and $b, plus one",
                do="Add $a and $b, add 1 to that",
                ex="$a + $b + 1",
                fn=lambda a, b: sum((a, b, 1)),
                slips=("return $a + $b",),
            ),
            variant(
                names="sum_of_squares|add_squares",
                do="Square $a and $b, add the two squares",
                np="the sum of the squares of $a and $b",
                ex="$a ** 2 + $b ** 2",
                fn=lambda a, b: sum(n * n for n in (a, b)),
                slips=("return ($a + $b) ** 2",),
            ),
            variant(
                names="product_plus_one|multiply_and_one",
                do="Multiply $a by $b, add 1 to that",
                np="the product of $a and $b, plus one",
                ex="$a * $b + 1",
                fn=lambda a, b: math.prod((a, b)) - -1,
                slips=("return $a * $b", "return $a * ($b + 1)"),
            ),
            variant(
                names="double_product|twice_the_product",
                do="Multiply $a by $b, double the product",
                np="twice the product of $a and $b",
                ex="2 * $a * $b",
                fn=lambda a, b: math.prod((a, b, 2)),
                slips=("return $a * $b", "return 2 * $a + 2 * $b"),
            ),
            variant(
                names="square_of_sum|sum_squared",
                do="Add $a and $b, square the sum",
                np="the square of the sum of $a and $b",
                ex="($a + $b) ** 2",
                fn=lambda a, b: pow(sum((a, b)), 2),
                slips=("return $a ** 2 + $b ** 2", "return $a + $b ** 2"),
            ),
            variant(
                names="first_plus_double|add_twice",
                do="Double $b, add $a to it",
                np="$a plus twice $b",
                ex="$a + 2 * $b",
                fn=lambda a, b: sum((a, b, b)),
                slips=("return 2 * $a + $b", "return 2 * ($a + $b)"),
            ),
            variant(
                names="double_first_minus_second|twice_minus",
                do="Double $a, subtract $b from that",
                np="twice $a minus $b",
                ex="2 * $a - $b",
                fn=lambda a, b: sum((a, a, -b)),
                slips=("return 2 * ($a - $b)", "return $a - 2 * $b"),
            ),
        ),
        two_numbers,
        edges=((0, 0), (5, -5)),
    ),
    Kind(
        "one_step",
        "n|number|x|value: int -> int",
        "",
        """
        Return $np.

        Given a whole number $a, compute $np.

        $do and return the number that you get.

        The function takes one integer, $a. It must return $np. Negative numbers and zero are allowed.

        [start] A number game begins with the integer $a. In the first round you $low. Return the new number.

        A machine has one slot: you put in the integer $a and out comes $np. Write the machine as a function.
        """,
        (
            variant(
                names="double|twice|doubled",
                np="twice the number $a",
                do="Double $a",
                low="double it",
                ex="$a * 2",
                fn=lambda n: n + n,
                slips=("return $a + 2", "return $a ** 2"),
            ),
            variant(
                names="triple|three_times|tripled",
                np="three times $a",
                do="Multiply $a by three",
                low="multiply it by three",
                ex="3 * $a",
                fn=lambda n: n + n + n,
                slips=("return $a + 3", "return $a ** 3"),
            ),
            variant(
                names="square|squared|square_number",
                np="the square of $a",
                do="Multiply $a by itself",
                low="multiply it by itself",
                ex="$a * $a",
                fn=lambda n: pow(n, 2),
                slips=("return $a * 2",),
            ),
            variant(
                names="add_ten|plus_ten|ten_more",
                np="the number that is ten more than $a",
                do="Add 10 to $a",
                low="add ten to it",
                ex="$a + 10",
                fn=lambda n: n - -10,
                slips=("return $a * 10",),
            ),
            variant(
                names="previous|one_less|minus_one",
                np="the integer just before $a",
                do="Take 1 away from $a",
                low="take one away from it",
                ex="$a - 1",
                fn=lambda n: n + ~0,
                slips=("return $a + 1",),
            ),
            variant(
                names="negate|opposite|flip_sign",
                np="the number $a with the opposite sign",
                do="Change the sign of $a",
                low="change its sign",
                ex="-$a",
                fn=lambda n: 0 - n,
                slips=("return -abs($a)", "return abs($a)"),
            ),
            variant(
                names="successor|next_number|one_more",
                np="the integer that comes right after $a",
                do="Add one to $a",
                low="add one to it",
                ex="$a + 1",
                fn=lambda n: -~n,
                slips=("return $a",),
            ),
            variant(
                names="absolute|absolute_value|without_sign",
                do="Make $a positive if it is negative",
                low="drop its minus sign, if it has one",
                np="the absolute value of $a",
                ex="abs($a)",
                fn=lambda n: max(n, 0 - n),
                slips=("return -$a", "return $a"),
            ),
            variant(
                names="cube|cubed|third_power",
                do="Raise $a to the third power",
                low="raise it to the third power",
                np="the cube of $a",
                ex="$a ** 3",
                fn=lambda n: n * n * n,
                slips=("return 3 * $a", "return $a ** 2"),
            ),
            variant(
                names="ten_times|times_ten",
                do="Multiply $a by ten",
                low="multiply it by ten",
                np="ten times $a",
                ex="$a * 10",
                fn=lambda n: sum([n] * 10),
                slips=("return $a + 10", "return $a ** 10"),
            ),
            variant(
                names="add_hundred|plus_hundred",
                do="Add 100 to $a",
                low="add a hundred to it",
                np="the number that is a hundred more than $a",
                ex="$a + 100",
                fn=lambda n: n - -100,
                slips=("return $a * 100", "return $a + 10"),
            ),
            variant(
                names="subtract_five|minus_five|five_less",
                do="Subtract 5 from $a",
                low="subtract five from it",
                np="the number that is five less than $a",
                ex="$a - 5",
                fn=lambda n: sum((n, -5)),
                slips=("return $a + 5", "return 5 - $a"),
            ),
            variant(
                names="quadruple|four_times",
                do="Multiply $a by four",
                low="multiply it by four",
                np="four times $a",
                ex="4 * $a",
                fn=lambda n: n + n + n + n,
                slips=("return $a + 4", "return $a ** 4"),
            ),
            variant(
                names="double_plus_one|twice_and_one",
                do="Double $a, add 1",
                low="double it and add one",
                np="twice $a, plus one",
                ex="2 * $a + 1",
                fn=lambda n: sum((n, n, 1)),
                slips=("return 2 * ($a + 1)", "return 2 * $a"),
            ),
            variant(
                names="square_plus_one|square_and_one",
                do="Multiply $a by itself, add 1",
                low="multiply it by itself and add one",
                np="the square of $a, plus one",
                ex="$a ** 2 + 1",
                fn=lambda n: sum((n * n, 1)),
                slips=("return ($a + 1) ** 2", "return 2 * $a + 1"),
            ),
            variant(
                names="half|halve|half_of",
                args="n|number|x|value: int -> float",
                do="Divide $a by 2",
                low="divide it by two, without rounding",
                np="half of $a, which may have decimals",
                ex="$a / 2",
                fn=lambda n: n * 0.5,
                slips=("return $a // 2", "return $a * 2"),
            ),
        ),
        one_number,
        edges=((0,), (1,), (-3,)),
    ),
    Kind(
        "number_test",
        "n|number|x: int -> bool",
        "",
        """
        Return True if $a is $what, and False otherwise.

        Is the integer $a $what? Return True or False.

        Decide whether the whole number $a is $what. The answer is a boolean.

        A form accepts only a number that is $what. The function gets the number $a as an integer. It returns True if
        the form accepts it, else False.

        Write a test for integers: the result is True exactly when $a is $what.
        """,
        (
            variant(
                names="is_even|even",
                what="even",
                ex="$a % 2 == 0",
                fn=lambda n: n & 1 == 0,
                slips=("return $a % 2 == 1", "return $a > 0 and $a % 2 == 0"),
            ),
            variant(
                names="is_odd|odd",
                what="odd",
                ex="$a % 2 != 0",
                fn=lambda n: n & 1 == 1,
                slips=("return $a % 2 == 0", "return $a > 0 and $a % 2 == 1"),
            ),
            variant(
                names="is_positive|above_zero",
                what="greater than zero",
                ex="$a > 0",
                fn=lambda n: n not in range(-999, 1),
                slips=("return $a >= 0", "return $a < 0"),
            ),
            variant(
                names="is_negative|below_zero",
                what="less than zero",
                ex="$a < 0",
                fn=lambda n: n in range(-999, 0),
                slips=("return $a <= 0", "return $a > 0"),
            ),
            variant(
                names="has_two_digits|is_two_digit",
                what="a positive number with exactly two digits",
                ex="10 <= $a <= 99",
                fn=lambda n: n > 0 and len(str(n)) == 2,
                edges=((10,), (99,), (57,), (100,), (-15,)),
                slips=("return 10 < $a < 100", "return 10 <= $a <= 100", "return len(str($a)) == 2"),
            ),
            variant(
                names="is_not_negative|zero_or_more",
                what="zero or greater",
                ex="$a >= 0",
                fn=lambda n: n in range(999),
                slips=("return $a > 0", "return $a <= 0"),
            ),
            variant(
                names="is_digit|one_digit",
                what="one of the numbers from 0 to 9",
                ex="0 <= $a <= 9",
                fn=lambda n: n in range(10),
                draw=lambda r, v: (r.randint(-5, 15),),
                edges=((9,), (10,), (5,), (7,)),
                slips=("return 0 < $a < 9", "return $a <= 9"),
            ),
            variant(
                names="is_above_ten|more_than_ten",
                what="greater than ten",
                ex="$a > 10",
                fn=lambda n: n in range(11, 999),
                edges=((10,), (11,), (30,)),
                slips=("return $a >= 10", "return $a < 10"),
            ),
            variant(
                names="is_below_five|less_than_five",
                what="less than five",
                ex="$a < 5",
                fn=lambda n: n in range(-999, 5),
                edges=((5,), (6,), (20,), (4,)),
                slips=("return $a <= 5", "return $a > 5"),
            ),
            variant(
                names="is_even_and_positive|positive_even",
                what="both even and greater than zero",
                ex="$a > 0 and $a % 2 == 0",
                fn=lambda n: n in range(2, 999, 2),
                edges=((8,), (20,), (7,)),
                slips=("return $a % 2 == 0", "return $a > 0"),
            ),
            variant(
                names="is_odd_and_positive|positive_odd",
                what="both odd and greater than zero",
                ex="$a > 0 and $a % 2 == 1",
                fn=lambda n: n in range(1, 999, 2),
                edges=((9,), (15,), (8,)),
                slips=("return $a % 2 == 1", "return $a > 0"),
            ),
            variant(
                names="is_at_least_hundred|hundred_or_more",
                what="at least one hundred",
                ex="$a >= 100",
                fn=lambda n: n in range(100, 9999),
                draw=lambda r, v: (r.randint(60, 160),),
                edges=((100,), (99,), (250,)),
                slips=("return $a > 100", "return $a <= 100"),
            ),
        ),
        one_number,
        edges=((0,), (1,), (-1,), (2,), (-2,)),
    ),
    Kind(
        "divisible_by",
        "n|number|x: int -> bool",
        "divisible_by_$w|is_multiple_of_$w|check_$w",
        """
        Return True if $a can be divided by $k without a remainder, otherwise False.

        Is $a a multiple of $k? Zero counts as one. Return True or False.

        Say whether dividing the integer $a by $k leaves no remainder.

        [pupils] The teacher wants to form groups of exactly $k pupils with nobody left over. There are $a pupils.
        Return whether that works out. (With no pupils it does.)

        [eggs] Boxes hold $k eggs each. The function is told how many eggs there are, $a, and returns True if they fill
        some number of boxes exactly, and False if eggs are left over. No eggs fill no boxes, which is fine.
        """,
        tuple(
            variant(
                w=word,
                k=k,
                edges=((0,), (k,), (k + 1,), (2 * k,), (k - 1,)),
                draw=lambda r, v: (v.k * r.randint(2, 9) + r.choice((0, 0, 1, v.k - 1)),),
                slips=(f"return $a // {k} == 0", f"return $a == {k}"),
            )
            for word, k in (
                ("three", 3),
                ("four", 4),
                ("five", 5),
                ("six", 6),
                ("ten", 10),
                ("two", 2),
                ("seven", 7),
                ("nine", 9),
                ("twelve", 12),
            )
        ),
        natural,
        code="return $a % $k == 0",
        truth=lambda v, n: n in range(0, 1000, v.k),
        slips=("return $a % $k != 0",),
    ),
    Kind(
        "pick_of_two",
        "a|x|first: int, b|y|second: int -> int",
        "",
        """
        Return $np. If both are equal, return that number$tail.

        Of the two integers $a and $b, give back $np. Two equal numbers are no problem: then the answer is either one
        of them$tail.

        [anna, ben] Anna has scored $a points and Ben $b. Return $np. They may also have the same score; then that score
        counts$tail.

        The function gets $a and $b and has to find $np. Use an if statement or a built-in function. When the numbers
        are the same, that number is the answer$tail.

        Compare the integers $a and $b. The result is $np (for two equal numbers: that number$tail).
        """,
        (
            variant(
                names="larger|bigger_number|max_of_two",
                np="the larger one of $a and $b",
                tail="",
                ex="max($a, $b)",
                fn=lambda a, b: sorted((a, b))[1],
            ),
            variant(
                names="smaller|lesser|min_of_two",
                np="the smaller one of $a and $b",
                tail="",
                ex="min($a, $b)",
                fn=lambda a, b: sorted((a, b))[0],
            ),
            variant(
                names="larger_doubled|twice_the_larger",
                np="twice the larger one of $a and $b",
                tail=", doubled",
                ex="2 * max($a, $b)",
                fn=lambda a, b: sorted((2 * a, 2 * b))[1],
                slips=("return max($a, $b)",),
            ),
            variant(
                names="smaller_plus_one|one_above_smaller",
                np="one more than the smaller one of $a and $b",
                tail=", plus one",
                ex="min($a, $b) + 1",
                fn=lambda a, b: sorted((a + 1, b + 1))[0],
                slips=("return min($a, $b)",),
            ),
        ),
        two_numbers,
        edges=((4, 4), (0, -3), (-2, -9), (2, 7)),
        slips=("return $a", "return $b", "return $a + $b"),
    ),
    Kind(
        "compare_two",
        "a|x|left: int, b|y|right: int -> bool",
        "",
        """
        Return True if $cond, else return False.

        Check whether $cond. The result is a boolean value.

        The integers $a and $b are given. Tell whether it is true that $cond.

        Write a comparison: the function returns True when $cond and False in every other case.

        [mine, yours] I wrote down the number $a, you wrote down $b. I win the round if $cond. Return whether I win.
        """,
        (
            variant(
                names="is_greater|exceeds",
                cond="$a is greater than $b",
                ex="$a > $b",
                fn=lambda a, b: (a - b) >= 1,
                slips=("return $a >= $b", "return $a < $b"),
            ),
            variant(
                names="are_equal|same_number",
                cond="$a and $b are equal",
                ex="$a == $b",
                fn=lambda a, b: a - b == 0,
                slips=("return $a != $b", "return abs($a) == abs($b)"),
            ),
            variant(
                names="at_most|not_greater",
                cond="$a is at most $b",
                ex="$a <= $b",
                fn=lambda a, b: not b - a < 0,
                slips=("return $a < $b", "return $a >= $b"),
            ),
            variant(
                names="is_twice|is_double",
                cond="$a is exactly twice $b",
                ex="$a == 2 * $b",
                fn=lambda a, b: a - b == b,
                edges=((6, 3), (3, 6), (-8, -4)),
                slips=("return $b == 2 * $a", "return $a >= 2 * $b"),
            ),
            variant(
                names="same_sign|both_positive",
                cond="both $a and $b are greater than zero",
                ex="$a > 0 and $b > 0",
                fn=lambda a, b: min(a, b) >= 1,
                edges=((3, 8), (0, 5)),
                slips=("return $a > 0 or $b > 0", "return $a * $b > 0"),
            ),
            variant(
                names="is_less|is_below",
                cond="$a is less than $b",
                ex="$a < $b",
                fn=lambda a, b: (b - a) >= 1,
                slips=("return $a <= $b", "return $a > $b"),
            ),
            variant(
                names="at_least|not_less",
                cond="$a is greater than or equal to $b",
                ex="$a >= $b",
                fn=lambda a, b: not a - b < 0,
                slips=("return $a > $b", "return $a <= $b"),
            ),
            variant(
                names="are_different|not_equal",
                cond="$a and $b are different numbers",
                ex="$a != $b",
                fn=lambda a, b: len({a, b}) == 2,
                slips=("return $a == $b", "return $a > $b"),
            ),
            variant(
                names="are_opposite|add_to_zero",
                cond="$a and $b add up to zero",
                ex="$a + $b == 0",
                fn=lambda a, b: a == 0 - b,
                draw=lambda r, v: (x := r.randint(-9, 12), r.choice((-x, -x, x, 1 - x))),
                edges=((6, -6), (-8, 8)),
                slips=("return $a == $b", "return $a == 0 and $b == 0"),
            ),
            variant(
                names="both_even|two_even_numbers",
                cond="both $a and $b are even",
                ex="$a % 2 == 0 and $b % 2 == 0",
                fn=lambda a, b: not (a & 1 or b & 1),
                edges=((3, 5), (2, 7)),
                slips=("return $a % 2 == 0 or $b % 2 == 0", "return ($a + $b) % 2 == 0"),
            ),
        ),
        lambda r, v: (x := r.randint(-9, 12), r.choice((x, x + 1, x - 1, 2 * x, r.randint(-9, 12)))),
        edges=((4, 4), (0, 0), (-3, 3), (-4, -4), (5, 2)),
    ),
    Kind(
        "of_three",
        "a|x: int, b|y: int, c|z: int -> int",
        "",
        """
        Return $np.

        Three integers are given, and some of them may be equal. Find $np.

        The function takes the numbers $a, $b and $c in any order and must return $np.

        [red, green, blue] Three dice games ended with $a, $b and $c points. Work out $np.

        Look at the integers $a, $b and $c. What is $np? Return it.
        """,
        (
            variant(
                names="largest_of_three|max3",
                np="the largest of $a, $b and $c",
                ex="max($a, $b, $c)",
                fn=lambda *n: sorted(n)[2],
                slips=("return max($a, $b)", "return min($a, $b, $c)"),
            ),
            variant(
                names="smallest_of_three|min3",
                np="the smallest of $a, $b and $c",
                ex="min($a, $b, $c)",
                fn=lambda *n: sorted(n)[0],
                slips=("return min($b, $c)", "return max($a, $b, $c)"),
            ),
            variant(
                names="middle_of_three|middle_value",
                np="the number that stands in the middle when $a, $b and $c are sorted",
                ex="sorted([$a, $b, $c])[1]",
                fn=lambda *n: sum(n) - max(n) - min(n),
                slips=("return $b", "return ($a + $b + $c) // 3"),
            ),
            variant(
                names="sum_of_three|add_three",
                np="the sum of $a, $b and $c",
                ex="$a + $b + $c",
                fn=lambda *n: sum(n),
                slips=("return $a + $b",),
            ),
            variant(
                names="spread|span_of_three",
                np="the difference between the largest and the smallest of $a, $b and $c",
                ex="max($a, $b, $c) - min($a, $b, $c)",
                fn=lambda *n: sorted(n)[2] - sorted(n)[0],
                slips=("return $a - $c", "return max($a, $b, $c)"),
            ),
            variant(
                names="product_of_three|multiply_three",
                np="the product of $a, $b and $c",
                ex="$a * $b * $c",
                fn=lambda *n: math.prod(n),
                slips=("return $a * $b", "return $a + $b + $c"),
            ),
            variant(
                names="multiply_and_add|product_plus_third",
                np="the product of $a and $b, plus $c",
                ex="$a * $b + $c",
                fn=lambda a, b, c: sum((math.prod((a, b)), c)),
                slips=("return $a * ($b + $c)", "return $a + $b * $c"),
            ),
            variant(
                names="add_and_subtract|sum_minus_third",
                np="the sum of $a and $b, minus $c",
                ex="$a + $b - $c",
                fn=lambda a, b, c: sum((a, b, -c)),
                slips=("return $a + $b + $c", "return $a - $b - $c"),
            ),
            variant(
                names="twice_the_sum|double_sum_of_three",
                np="twice the sum of $a, $b and $c",
                ex="2 * ($a + $b + $c)",
                fn=lambda *n: sum(n + n),
                slips=("return 2 * $a + $b + $c", "return $a + $b + $c"),
            ),
            variant(
                names="sum_of_three_squares|add_three_squares",
                np="the sum of the squares of $a, $b and $c",
                ex="$a ** 2 + $b ** 2 + $c ** 2",
                fn=lambda *n: sum(x * x for x in n),
                slips=("return ($a + $b + $c) ** 2", "return $a + $b + $c"),
            ),
        ),
        lambda r, v: (r.randint(-20, 30), r.randint(-20, 30), r.randint(-20, 30)),
        edges=((7, 7, 7), (1, 2, 3), (9, 5, 1), (-4, -6, -5), (3, 8, 3)),
    ),
    Kind(
        "keep_in_range",
        "value|x|n|setting: int -> int",
        "limit_$w|clamp_$w|fix_$w",
        """
        Return $a, but not less than $low and not more than $high: a smaller value becomes $low, a larger one $high.

        $story from $low to $high. The user typed $a. If it is too small, return $low; if it is too large, return $high;
        otherwise return it unchanged.

        Force the integer $a into the range from $low to $high. Values inside the range, both ends included, stay as
        they are. Values outside are moved to the nearer end.

        $story between $low and $high, ends included. Correct the wish $a: below the range it becomes $low, above
        it becomes $high, and inside it is left alone. Return the corrected number.

        Three cases: if $a is below $low the result is $low, if $a is above $high the result is $high, and in all other
        cases the result is $a itself.
        """,
        tuple(
            variant(
                w=w,
                story=story,
                low=low,
                high=high,
                edges=((low,), (high,), (low - 1,), (high + 1,), ((low + high) // 2,), (high + 40,)),
                draw=lambda r, v: (r.randint(v.low - 15, v.high + 15),),
            )
            for w, story, low, high in (
                ("volume", "The volume of a radio goes", 0, 10),
                ("percent", "A percentage on the slider goes", 0, 100),
                ("heating", "The heating can be set to whole degrees", 5, 30),
                ("lift", "A lift stops at the floors", -2, 12),
                ("speed", "The fan has speeds", 1, 6),
            )
        ),
        one_number,
        code="""
        if $a < $low:
            return $low
        if $a > $high:
            return $high
        return $a
        """,
        truth=lambda v, n: sorted((v.low, n, v.high))[1],
        slips=("return min($a, $high)", "return max($a, $low)", "return max($high, min($low, $a))"),
    ),
    Kind(
        "distance",
        "a|x|here: int, b|y|there: int -> int",
        "",
        """
        Return $np.

        The integers $a and $b may be in any order and may be negative. Compute $np.

        [first_house, second_house] Two houses stand at the positions $a and $b of a long street. Return $np.

        Work out $np. The result is never negative.

        [today, yesterday] The thermometer shows $a degrees today and showed $b yesterday. Return $np.
        """,
        (
            variant(
                names="distance|gap|how_far",
                np="the distance between $a and $b, that is, how far apart they are",
                ex="abs($a - $b)",
                fn=lambda a, b: max(a, b) - min(a, b),
                slips=("return $a - $b", "return abs($a) - abs($b)"),
            ),
            variant(
                names="sum_of_sizes|add_absolute",
                np="the sum of the absolute values of $a and $b",
                ex="abs($a) + abs($b)",
                fn=lambda a, b: max(a, -a) + max(b, -b),
                slips=("return abs($a + $b)", "return $a + $b"),
            ),
            variant(
                names="squared_distance|gap_squared",
                np="the square of the difference between $a and $b",
                ex="($a - $b) ** 2",
                fn=lambda a, b: a * a - 2 * a * b + b * b,
                slips=("return $a ** 2 - $b ** 2", "return abs($a - $b)"),
            ),
            variant(
                names="farther_from_zero|larger_size",
                np="the larger one of the absolute values of $a and $b",
                ex="max(abs($a), abs($b))",
                fn=lambda a, b: max(a, b, -a, -b),
                slips=("return abs(max($a, $b))", "return max($a, $b)"),
            ),
        ),
        two_numbers,
        edges=((3, 3), (2, 9), (9, 2), (-4, 6), (-7, -1), (0, 0)),
    ),
    Kind(
        "name_the_sign",
        "n|number|x|change: int",
        "",
        """
        Return $p if $a is positive, $m if $a is negative, and $z if $a is zero.

        The result depends on the sign of the integer $a: $p for numbers above zero, $m for numbers below zero, and $z
        for zero itself.

        [change] A shop watches its prices. The price of an item has moved by $a cents since last week. Return $p if it
        went up, $m if it went down and $z if it stayed the same.

        Use if, elif and else. With $a greater than 0 the function returns $p, with $a less than 0 it returns $m, and in
        the remaining case $z.

        What kind of number is $a? Answer with $p (more than zero), $m (less than zero) or $z (exactly zero).
        """,
        tuple(
            variant(
                names=names,
                p=p,
                m=m,
                z=z,
                args=f"n|number|x|change: int -> {kind}",
                fn=lambda n, p=p, m=m, z=z: [eval(z), eval(p), eval(m)][(n > 0) - (n < 0)],
            )
            for names, p, m, z, kind in (
                ("sign_word|describe_sign", '"positive"', '"negative"', '"zero"', "str"),
                ("sign|sign_of", "1", "-1", "0", "int"),
                ("trend|direction", '"up"', '"down"', '"same"', "str"),
                ("sign_symbol|plus_or_minus", '"+"', '"-"', '"0"', "str"),
            )
        ),
        one_number,
        code="""
        if $a > 0:
            return $p
        elif $a < 0:
            return $m
        else:
            return $z
        """,
        edges=((0,), (1,), (-1,), (25,)),
        slips=(
            "return $p if $a >= 0 else $m",
            "return $p if $a > 0 else $m",
            "return $m if $a > 0 else $p if $a < 0 else $z",
        ),
    ),
    Kind(
        "even_odd_choice",
        "n|number: int -> str",
        "",
        """
        Return $e if $a is even and $o if $a is odd.

        The function gets a whole number $a. For even numbers its result is the string $e, for odd numbers it is $o.

        Is $a even or odd? Answer with $e or $o.

        $story Return $e for an even number and $o for an odd one.

        Use the remainder of $a divided by 2. If it is 0 return the text $e, otherwise return the text $o.
        """,
        tuple(
            variant(
                names=names,
                story=story,
                e=e,
                o=o,
                slips=(f"return {o} if $a % 2 == 0 else {e}", f"return {e}"),
                fn=lambda n, e=e, o=o: (eval(e), eval(o))[n & 1],
            )
            for names, story, e, o in (
                ("even_or_odd|parity", "The number $a is drawn in a game.", '"even"', '"odd"'),
                ("street_side|side", "House number $a is on one of the two sides of the street.", '"right"', '"left"'),
                ("team_of|team_colour", "Player number $a is put into a team.", '"blue"', '"red"'),
                ("shift|work_shift", "In week $a of the year the shift changes.", '"early"', '"late"'),
                ("tile_colour|tile", "Tile $a of a path is coloured.", '"black"', '"white"'),
            )
        ),
        natural,
        code="""
        if $a % 2 == 0:
            return $e
        return $o
        """,
        edges=((0,), (1,), (2,), (7,)),
    ),
    Kind(
        "digit_of",
        "n|number: int -> int",
        "",
        """
        Return $np.

        The integer $a is not negative. Find $np.

        Written in decimal, the number $a has at least one digit. Return, as an integer, $np.

        Use // or % with 10 or 100 to work out $np. You may rely on $a being zero or more.

        [ticket] Ticket $a wins a prize that depends on $np. Return that number.
        """,
        (
            variant(
                names="last_digit|ones_digit",
                np="the last digit of $a",
                ex="$a % 10",
                fn=lambda n: int(str(n)[-1]),
                slips=("return $a // 10",),
            ),
            variant(
                names="tens_digit|second_last_digit",
                np="the tens digit of $a, which is 0 for numbers below 10",
                ex="$a // 10 % 10",
                fn=lambda n: int(str(n).zfill(2)[-2]),
                slips=("return $a // 10", "return $a % 10"),
            ),
            variant(
                names="drop_last_digit|without_last_digit",
                np="what remains of $a without its last digit, which is 0 for numbers below 10",
                ex="$a // 10",
                fn=lambda n: int("0" + str(n)[:-1]),
                slips=("return $a % 10", "return $a - 10"),
            ),
            variant(
                names="last_two_digits|final_two",
                np="the number formed by the last two digits of $a (of a one-digit number: the number itself)",
                ex="$a % 100",
                fn=lambda n: int(str(n)[-2:]),
                slips=("return $a % 10",),
            ),
        ),
        lambda r, v: (r.choice((r.randint(10, 99), r.randint(100, 9999), r.randint(100, 999))),),
        edges=((0,), (7,), (10,), (345,), (1208,)),
    ),
    Kind(
        "divide_whole",
        "total|a|amount: int, size|b|parts: int -> int",
        "",
        """
        Return $np. The number $b is at least 1 and $a is not negative.

        Divide the whole number $a (zero or more) by $b (one or more). The result is $np.

        [sweets, children] $a sweets are shared equally among $b children, at least one. Return $np, treating the two
        numbers simply as integers.

        The integers $a and $b are given, $a not negative, $b positive. Compute $np.

        Sharing and grouping: with $a as the amount (0 or more) and $b as the divisor (1 or more), return $np.
        """,
        (
            variant(
                names="whole_quotient|full_groups",
                np="how many whole times $b fits into $a",
                ex="$a // $b",
                fn=lambda a, b: (a - a % b) // b,
                slips=("return $a % $b", "return round($a / $b)"),
            ),
            variant(
                names="remainder|left_over",
                np="the remainder when $a is divided by $b",
                ex="$a % $b",
                fn=lambda a, b: a - b * (a // b),
                slips=("return $a // $b",),
            ),
            variant(
                names="quotient_and_remainder|share",
                np="a list of two integers: the whole quotient of $a divided by $b, then the remainder",
                ex="[$a // $b, $a % $b]",
                args="total|a|amount: int, size|b|parts: int -> list[int]",
                fn=lambda a, b: list(divmod(a, b)),
                slips=("return [$a % $b, $a // $b]", "return [$a / $b, $a % $b]"),
            ),
            variant(
                names="groups_needed|rounded_up",
                np="$a divided by $b, rounded up to the next whole number",
                ex="($a + $b - 1) // $b",
                fn=lambda a, b: -(-a // b),
                slips=("return $a // $b", "return $a // $b + 1"),
            ),
        ),
        lambda r, v: (r.randint(0, 60), r.randint(1, 9)),
        edges=((12, 4), (13, 4), (0, 5), (3, 7), (9, 1)),
    ),
    Kind(
        "sum_up_to",
        "n|limit|last: int -> int",
        "",
        """
        Return $np. For $a equal to 0 the result is 0.

        Use a loop to find $np. The number $a is zero or more; zero gives 0.

        Given a non-negative integer $a, work out $np, where nothing to add means 0.

        Start with a total of 0. Count from 1 up to $a and build $np. Return the total (0 if $a is 0).

        [levels] A tower has $a levels, maybe none. The number of stones it needs is $np. Return it; no levels need 0.
        """,
        (
            variant(
                names="sum_to|add_up_to",
                np="the sum of all whole numbers from 1 to $a",
                body="total += i",
                fn=lambda n: n * (n + 1) // 2,
            ),
            variant(
                names="sum_even_to|add_even_numbers",
                np="the sum of all even numbers from 1 to $a",
                body="if i % 2 == 0:\n        total += i",
                fn=lambda n: sum(range(0, n + 1, 2)),
                slips=("return sum(range(1, $a + 1))",),
            ),
            variant(
                names="sum_odd_to|add_odd_numbers",
                np="the sum of all odd numbers from 1 to $a",
                body="if i % 2 == 1:\n        total += i",
                fn=lambda n: ((n + 1) // 2) ** 2,
                slips=("return sum(range(1, $a + 1))",),
            ),
            variant(
                names="sum_of_squares|add_squares",
                np="the sum of the squares of the numbers from 1 to $a",
                body="total += i * i",
                fn=lambda n: n * (n + 1) * (2 * n + 1) // 6,
                slips=("return sum(range($a + 1)) ** 2",),
            ),
            variant(
                names="sum_doubled_to|add_doubles",
                np="the sum of twice each number from 1 to $a",
                body="total += 2 * i",
                fn=lambda n: n * n + n,
                slips=("return sum(range(1, $a + 1))",),
            ),
        ),
        natural,
        code="total = 0\nfor i in range(1, $a + 1):\n    $body\nreturn total",
        edges=((0,), (1,), (2,), (5,), (10,)),
        slips=("total = 0\nfor i in range(1, $a):\n    $body\nreturn total", "return $a"),
    ),
    Kind(
        "product_loop",
        "n|number|last: int -> int",
        "",
        """
        Return $np. An empty product is 1, so 0 gives 1.

        Multiply in a loop: the result is $np. If there is nothing to multiply, return 1.

        Given an integer $a that is zero or more, compute $np. For 0 the answer is 1.

        Begin with 1 and multiply step by step to get $np. When $a is 0 the 1 is the answer.

        [people] For $a people a riddle has this answer: $np. Return it. With nobody there the answer is 1.
        """,
        (
            variant(
                names="factorial|product_to",
                np="the product of all whole numbers from 1 to $a",
                step="1",
                begin="1",
                fn=lambda n: math.factorial(n),
            ),
            variant(
                names="product_of_odds|odd_product",
                np="the product of all odd numbers from 1 to $a",
                step="2",
                begin="1",
                fn=lambda n: math.prod(i for i in range(n + 1) if i % 2),
            ),
            variant(
                names="product_of_evens|even_product",
                np="the product of all even numbers from 2 to $a",
                step="2",
                begin="2",
                fn=lambda n: math.prod(i for i in range(1, n + 1) if not i % 2),
            ),
            variant(
                names="product_of_threes|product_of_multiples",
                np="the product of all multiples of three from 3 to $a",
                step="3",
                begin="3",
                fn=lambda n: math.prod(i for i in range(1, n + 1) if not i % 3),
            ),
        ),
        lambda r, v: (r.randint(0, 14),),
        code="result = 1\nfor i in range($begin, $a + 1, $step):\n    result *= i\nreturn result",
        edges=((0,), (1,), (2,), (3,), (6,)),
        slips=(
            "return sum(range($begin, $a + 1, $step))",
            "result = 1\nfor i in range($begin, $a, $step):\n    result *= i\nreturn result",
        ),
    ),
    Kind(
        "power_of",
        "n|exponent|times: int -> int",
        "",
        """
        Return $np. The exponent $a is zero or more.

        Compute $np for a non-negative integer $a.

        Start with 1 and $times, $a times in a row. Return where you end. If $a is 0 that is 1.

        [days] A pond has 1 water lily. Every day the number of lilies is $grow. Return how many there are after $a
        days.

        The result is $np, an integer. Remember that anything to the power 0 is 1.
        """,
        tuple(
            variant(
                names=f"{word}_to_the|power_of_{word}",
                np=f"{base} to the power of $a",
                times=f"multiply it by {base}",
                grow=grow,
                ex=f"{base} ** $a",
                fn=lambda n, base=base: math.prod([base] * n),
                slips=(f"return {base} * $a", f"return $a ** {base}"),
            )
            for word, base, grow in (
                ("two", 2, "doubled"),
                ("three", 3, "multiplied by three"),
                ("ten", 10, "multiplied by ten"),
                ("five", 5, "multiplied by five"),
                ("four", 4, "multiplied by four"),
                ("six", 6, "multiplied by six"),
                ("seven", 7, "multiplied by seven"),
            )
        ),
        lambda r, v: (r.randint(0, 12),),
        edges=((0,), (1,), (2,), (5,)),
    ),
    Kind(
        "digits_loop",
        "n|number|code: int -> int",
        "",
        """
        Return $np. The number is not negative.

        The integer $a is zero or more. Look at its decimal digits and find $np.

        Turn $a into text, or divide by ten again and again. The result is $np. ($a is never below zero.)

        [plate] A number plate shows the number $a (0 or more). Return $np.

        Write a loop over the digits of the non-negative integer $a that works out $np.
        """,
        (
            variant(
                names="digit_sum|sum_digits",
                np="the sum of the digits of $a",
                ex="sum(int(digit) for digit in str($a))",
                fn=lambda n: n % 10 + n // 10 % 10 + n // 100 % 10 + n // 1000 % 10 + n // 10000,
                slips=("return len(str($a))", "return $a % 9"),
            ),
            variant(
                names="count_digits|number_of_digits",
                np="how many digits $a has",
                ex="len(str($a))",
                fn=lambda n: 1 + (n > 9) + (n > 99) + (n > 999) + (n > 9999),
                slips=("return $a // 10", "return sum(int(digit) for digit in str($a))"),
            ),
            variant(
                names="largest_digit|max_digit",
                np="the largest digit of $a",
                ex="max(int(digit) for digit in str($a))",
                fn=lambda n: max(n // 10**i % 10 for i in range(5)),
                slips=("return int(str($a)[0])", "return $a % 10"),
            ),
            variant(
                names="count_even_digits|even_digits",
                np="how many of the digits of $a are even (0 is even)",
                ex="sum(1 for digit in str($a) if int(digit) % 2 == 0)",
                fn=lambda n: sum(str(n).count(d) for d in "02468"),
                slips=(
                    "return sum(1 for digit in str($a) if int(digit) % 2 == 1)",
                    'return sum(1 for digit in str($a) if digit in "2468")',
                ),
            ),
            variant(
                names="count_zeros|zero_digits",
                np="how many zeros the digits of $a contain",
                ex='str($a).count("0")',
                fn=lambda n: sum(d == "0" for d in str(n)),
                edges=((100,), (5050,), (123,)),
                slips=("return len(str($a)) - len(str($a).rstrip('0'))", "return 0"),
            ),
        ),
        lambda r, v: (r.choice((r.randint(10, 99), r.randint(100, 9999), r.randint(10000, 99999))),),
        edges=((0,), (9,), (50,), (1234,)),
    ),
    Kind(
        "counting_words",
        "n|number: int -> str",
        "",
        """
        Return "$one" if $a is divisible by $j, "$two" if it is divisible by $k, "$both" if it is divisible by both, and
        otherwise the number itself as a string. When both divide it, only "$both" counts.

        A counting game: multiples of $j are called "$one", multiples of $k are called "$two", and multiples of both are
        called "$both". Any other number is said as it is. Return what the player says for $a, as text.

        The positive integer $a becomes a word. If $j and $k both divide it, the word is "$both"; if only $j does, it is
        "$one"; if only $k does, it is "$two"; if neither does, the word is $a written in digits.

        Children stand in a circle and count. Instead of a number that can be divided by $j they shout "$one", instead
        of
        one that can be divided by $k "$two", and "$both" where both is true. Return the shout for $a; a number without
        a shout is returned as a string of its digits.

        Check the divisors $j and $k of $a in the right order. Results: "$both" for both, "$one" for $j alone, "$two"
        for $k alone, and str($a) for none.
        """,
        tuple(
            variant(
                names=names,
                j=j,
                k=k,
                one=one,
                two=two,
                both=both,
                draw=lambda r, v: (r.choice((r.randint(1, 60), v.j * r.randint(1, 20), v.k * r.randint(1, 12))),),
                edges=((1,), (j,), (k,), (j * k,), (2 * j * k,), (j * k + 1,)),
            )
            for names, j, k, one, two, both in (
                ("shout|say_number", 3, 4, "Clap", "Stomp", "ClapStomp"),
                ("animal_count|call", 2, 5, "moo", "meow", "moomeow"),
                ("count_out|word_for", 3, 7, "tick", "tock", "ticktock"),
                ("drum_beat|beat", 4, 5, "boom", "tap", "boomtap"),
            )
        ),
        natural,
        code="""
        if $a % $j == 0 and $a % $k == 0:
            return "$both"
        if $a % $j == 0:
            return "$one"
        if $a % $k == 0:
            return "$two"
        return str($a)
        """,
        truth=lambda v, n: v.one * (n % v.j == 0) + v.two * (n % v.k == 0) or f"{n}",
        slips=(
            'if $a % $j == 0:\n    return "$one"\nif $a % $k == 0:\n    return "$two"\nreturn str($a)',
            'return "$both" if $a % $j == 0 or $a % $k == 0 else str($a)',
        ),
    ),
    Kind(
        "divisors",
        "n|number: int",
        "",
        """
        Return $np. The number $a is at least 2.

        Let $a be an integer greater than 1. Find $np.

        Try all possible divisors of $a (2 or more) in a loop. The function returns $np.

        [tiles] $a square tiles, at least two, can be laid as rectangles in several ways. That depends on the divisors
        of $a. Return $np.

        Which numbers divide $a without a remainder? From them work out $np. You can trust that $a is 2 or larger.
        """,
        (
            variant(
                names="is_prime|only_trivial_divisors",
                args="n|number: int -> bool",
                np="True if $a has no divisors besides 1 and itself, else False",
                code="for i in range(2, $a):\n    if $a % i == 0:\n        return False\nreturn True",
                fn=lambda n: len([d for d in range(1, n + 1) if n % d == 0]) == 2,
                slips=("return $a % 2 == 1", "return $a % 2 != 0 or $a == 2"),
            ),
            variant(
                names="smallest_divisor|first_divisor",
                args="n|number: int -> int",
                np="the smallest divisor of $a that is greater than 1",
                code="divisor = 2\nwhile $a % divisor != 0:\n    divisor += 1\nreturn divisor",
                fn=lambda n: min(d for d in range(2, n + 1) if n % d == 0),
                slips=("return 2", "return 1"),
            ),
            variant(
                names="count_divisors|number_of_divisors",
                args="n|number: int -> int",
                np="how many divisors $a has, counting 1 and $a",
                code="count = 0\nfor i in range(1, $a + 1):\n    if $a % i == 0:\n        count += 1\nreturn count",
                fn=lambda n: len([d for d in range(1, n + 1) if n % d == 0]),
                slips=(
                    "return sum(1 for i in range(2, $a) if $a % i == 0)",
                    "return sum(1 for i in range(1, $a) if $a % i == 0)",
                ),
            ),
            variant(
                names="divisors_of|list_divisors",
                args="n|number: int -> list[int]",
                np="the list of all divisors of $a in ascending order, from 1 to $a",
                code="return [i for i in range(1, $a + 1) if $a % i == 0]",
                fn=lambda n: sorted({d for q in range(1, n + 1) if n % q == 0 for d in (q, n // q)}),
                slips=("return [i for i in range(1, $a) if $a % i == 0]",),
            ),
            variant(
                names="largest_proper_divisor|biggest_divisor",
                args="n|number: int -> int",
                np="the largest divisor of $a that is smaller than $a",
                code="for i in range($a - 1, 0, -1):\n    if $a % i == 0:\n        return i",
                fn=lambda n: max(d for d in range(1, n) if n % d == 0),
                slips=("return $a // 2", "return $a"),
            ),
        ),
        lambda r, v: (
            r.choice(
                (
                    r.randint(2, 60),
                    r.choice((5, 7, 11, 13, 17, 19, 23, 29, 31, 37)),
                    r.choice((9, 15, 21, 25, 27, 33, 35, 49)),
                )
            ),
        ),
        edges=((2,), (3,), (4,), (9,), (12,), (13,)),
    ),
    Kind(
        "common_factor",
        "a|x|m: int, b|y|n: int",
        "",
        """
        Return $np. Both numbers are positive.

        Given two positive integers $a and $b, find $np.

        You may use the math module or a loop. The result for $a and $b, both at least 1, is $np.

        [long_side, short_side] Two planks are $a and $b centimetres long, whole numbers above zero. Return $np.

        What is $np? Both integers are 1 or more. Return the answer.
        """,
        (
            variant(
                names="greatest_common_divisor|largest_shared_divisor",
                args="a|x|m: int, b|y|n: int -> int",
                np="the largest number that divides both $a and $b",
                code="import math\n\nreturn math.gcd($a, $b)",
                fn=lambda a, b: max(d for d in range(1, min(a, b) + 1) if a % d == b % d == 0),
                slips=("return min($a, $b)", "return 1"),
            ),
            variant(
                names="least_common_multiple|smallest_shared_multiple",
                args="a|x|m: int, b|y|n: int -> int",
                np="the smallest positive number that both $a and $b divide",
                code="result = $a\nwhile result % $b != 0:\n    result += $a\nreturn result",
                fn=lambda a, b: math.lcm(a, b),
                slips=("return $a * $b", "return max($a, $b)"),
            ),
            variant(
                names="share_no_divisor|are_coprime",
                args="a|x|m: int, b|y|n: int -> bool",
                np="True if no number greater than 1 divides both $a and $b, else False",
                code="for i in range(2, min($a, $b) + 1):\n    if $a % i == 0 and $b % i == 0:\n"
                "        return False\nreturn True",
                fn=lambda a, b: math.gcd(a, b) == 1,
                slips=("return $a % $b != 0", "return $a % 2 != 0 or $b % 2 != 0"),
            ),
            variant(
                names="count_shared_divisors|shared_divisors",
                args="a|x|m: int, b|y|n: int -> int",
                np="the number of integers from 1 on that divide both $a and $b",
                code="count = 0\nfor i in range(1, min($a, $b) + 1):\n"
                "    if $a % i == 0 and $b % i == 0:\n        count += 1\nreturn count",
                fn=lambda a, b: len([d for d in range(1, math.gcd(a, b) + 1) if math.gcd(a, b) % d == 0]),
                slips=("return 1", "return len([i for i in range(2, min($a, $b) + 1) if $a % i == $b % i == 0])"),
            ),
        ),
        lambda r, v: (k := r.choice((1, 2, 3, 5)), k * r.randint(1, 8), k * r.randint(1, 8))[1:],
        edges=((12, 8), (8, 12), (5, 7), (6, 6), (1, 9), (9, 15)),
    ),
    Kind(
        "number_sequence",
        "n|steps|position: int -> int",
        "",
        """
        A sequence starts with $s and $t. $rule Return the number at position $a, where $s is at position 0.

        The first two numbers are $s and $t. $rule Positions are counted from 0. Which number is at position $a?

        [weeks] The number of rabbits on a farm is $s in week 0 and $t in week 1. $rule Return the number of rabbits in
        week $a.

        Write a loop with two variables. They begin as $s (position 0) and $t (position 1). $rule Return the term at
        position $a.

        Position 0 of a row of numbers is $s, position 1 is $t. $rule The function returns the term at the position $a,
        which is zero or more.
        """,
        (
            variant(
                names="term|sequence_term",
                s="0",
                t="2",
                rule="Every later number is the sum of the two numbers before it.",
                step="previous + current",
                op=lambda p, q: p + q,
            ),
            variant(
                names="nth_number|number_at",
                s="1",
                t="3",
                rule="From then on, each number is the sum of the two before it.",
                step="previous + current",
                op=lambda p, q: p + q,
            ),
            variant(
                names="row_value|value_at",
                s="1",
                t="2",
                rule="After that, each number is the one before it plus twice the one before that.",
                step="current + 2 * previous",
                op=lambda p, q: q + 2 * p,
            ),
            variant(
                names="term_at|sequence",
                s="1",
                t="1",
                rule="Each following number is the sum of the two numbers before it, plus 1.",
                step="previous + current + 1",
                op=lambda p, q: p + q + 1,
            ),
        ),
        lambda r, v: (r.randint(0, 16),),
        code="previous, current = $s, $t\nfor i in range($a):\n    previous, current = current, $step\nreturn previous",
        truth=lambda v, n: _terms(v, n + 2)[n],
        edges=((0,), (1,), (2,), (3,), (7,)),
        slips=(
            "previous, current = $s, $t\nfor i in range($a):\n    previous, current = current, $step\nreturn current",
            "return $s if $a == 0 else $t",
        ),
    ),
    Kind(
        "halve_or_grow",
        "n|start|number: int",
        "",
        """
        Start with the positive integer $a. If the number is even, halve it; if it is odd, $grow. Repeat until it is
        1. Return $np.

        [number] A number machine works like this: an even number is divided by 2, for an odd number it will $grow. It
        stops as soon as the number is 1. Put in $a (1 or more) and return $np.

        Use a while loop that runs as long as the number is not 1. In each round halve an even number, and $grow when
        the number is odd. The first number is $a, at least 1. The function returns $np.

        Beginning with $a, keep changing the number until you reach 1: even numbers are cut in half, and with odd
        numbers you $grow. When $a is 1 nothing is done. Give back $np.

        The rule for the next number is: half of it if it is even; if it is odd, $grow. Apply the rule to $a (a positive
        integer) again and again until 1 appears. What is $np?
        """,
        (
            variant(
                names="count_steps|steps_to_one",
                args="n|start|number: int -> int",
                grow="multiply it by 3 and add 1",
                np="the number of steps that this takes",
                code="steps = 0\nvalue = $a\nwhile value != 1:\n    if value % 2 == 0:\n"
                "        value = value // 2\n    else:\n        value = 3 * value + 1\n"
                "    steps += 1\nreturn steps",
                fn=lambda n: len(_path(n, lambda x: 3 * x + 1)) - 1,
                slips=("return $a // 2",),
            ),
            variant(
                names="path_to_one|all_values",
                args="n|start|number: int -> list[int]",
                grow="multiply it by 3 and add 1",
                np="the list of all numbers on the way, from $a to 1",
                code="values = [$a]\nwhile values[-1] != 1:\n    last = values[-1]\n"
                "    if last % 2 == 0:\n        values.append(last // 2)\n    else:\n"
                "        values.append(3 * last + 1)\nreturn values",
                fn=lambda n: _path(n, lambda x: 3 * x + 1),
                slips=("return list(range($a, 0, -1))",),
            ),
            variant(
                names="steps_down|count_rounds",
                args="n|start|number: int -> int",
                grow="take 1 away",
                np="the number of steps that this takes",
                code="steps = 0\nvalue = $a\nwhile value != 1:\n    if value % 2 == 0:\n"
                "        value = value // 2\n    else:\n        value = value - 1\n    steps += 1\n"
                "return steps",
                fn=lambda n: len(_path(n, lambda x: x - 1)) - 1,
                slips=("return $a // 2", "return $a - 1"),
            ),
            variant(
                names="highest_value|peak",
                args="n|start|number: int -> int",
                grow="multiply it by 3 and add 1",
                np="the largest number that appears, $a and 1 included",
                code="value = $a\nlargest = $a\nwhile value != 1:\n    if value % 2 == 0:\n"
                "        value = value // 2\n    else:\n        value = 3 * value + 1\n"
                "    largest = max(largest, value)\nreturn largest",
                fn=lambda n: max(_path(n, lambda x: 3 * x + 1)),
                slips=("return $a", "return 3 * $a + 1"),
            ),
        ),
        lambda r, v: (r.randint(1, 24),),
        edges=((1,), (2,), (3,), (8,), (7,)),
    ),
    Kind(
        "between",
        "n|x|value: int, low|start: int, high|end: int -> bool",
        "",
        """
        Return True if $cond. Otherwise return False.

        The integers $b and $c are the ends of a range, $b being at most $c. Check whether $cond.

        [age, youngest, oldest] A course is for people of certain ages, and $b is never above $c. Someone is $a years
        old. Return whether $cond.

        Compare $a with both ends, $b and $c ($b is never the larger one). The result is True exactly if $cond.

        Decide if the following holds: $cond. You can assume that $b is not greater than $c. Return a boolean.
        """,
        (
            variant(
                names="is_between|in_range",
                cond="$a lies between $b and $c, both ends included",
                ex="$b <= $a <= $c",
                fn=lambda n, a, b: n in range(a, b + 1),
                slips=("return $b < $a < $c", "return $b <= $a < $c", "return $a >= $b"),
            ),
            variant(
                names="strictly_between|inside",
                cond="$a is greater than $b and less than $c",
                ex="$b < $a < $c",
                fn=lambda n, a, b: n in range(a + 1, b),
                edges=((8, 1, 9),),
                slips=("return $b <= $a <= $c", "return $b < $a <= $c"),
            ),
            variant(
                names="is_outside|out_of_range",
                cond="$a is less than $b or greater than $c",
                ex="$a < $b or $a > $c",
                fn=lambda n, a, b: n not in range(a, b + 1),
                slips=("return $a <= $b or $a >= $c", "return $a < $b and $a > $c"),
            ),
            variant(
                names="is_an_end|at_the_edge",
                cond="$a is equal to $b or equal to $c",
                ex="$a == $b or $a == $c",
                fn=lambda n, a, b: n in (a, b),
                slips=("return $b <= $a <= $c", "return $a == $b"),
            ),
        ),
        lambda r, v: (lambda low, high: (r.choice((low, high, low - 1, high + 1, (low + high) // 2)), low, high))(
            r.randint(-5, 5), r.randint(6, 20)
        ),
        edges=((5, 1, 9), (1, 1, 9), (9, 1, 9), (0, 1, 9), (12, 1, 9), (4, 4, 4)),
    ),
    Kind(
        "to_multiple",
        "n|amount|value: int -> int",
        "",
        """
        Return $np. A number that is already $multiple stays the same.

        The integer $a is zero or more. Find $np. If $a is $multiple itself, the answer is $a.

        Round the non-negative whole number $a $way to $multiple. Numbers that need no rounding do not change.

        [cents] A shop without small coins changes each price of $a units $way to $multiple. Return the new price.
        A price that is $multiple stays.

        Compute $np, using // or %. For an $a that is $multiple, return it unchanged ($a is never negative).
        """,
        (
            variant(
                names="round_down_to_ten|tens_below",
                way="down",
                multiple="a multiple of 10",
                np="the largest multiple of 10 that is not above $a",
                ex="$a // 10 * 10",
                fn=lambda n: n - n % 10,
                slips=("return $a // 10", "return round($a, -1)"),
            ),
            variant(
                names="round_up_to_ten|tens_above",
                way="up",
                multiple="a multiple of 10",
                np="the smallest multiple of 10 that is not below $a",
                ex="($a + 9) // 10 * 10",
                fn=lambda n: n + -n % 10,
                slips=("return $a // 10 * 10 + 10", "return $a // 10 * 10"),
            ),
            variant(
                names="round_down_to_five|fives_below",
                way="down",
                multiple="a multiple of 5",
                np="the largest multiple of 5 that is not above $a",
                ex="$a // 5 * 5",
                fn=lambda n: n - n % 5,
                slips=("return $a // 5", "return $a % 5"),
            ),
            variant(
                names="next_even|up_to_even",
                way="up",
                multiple="an even number",
                np="the smallest even number that is not below $a",
                ex="$a + $a % 2",
                fn=lambda n: -(-n // 2) * 2,
                slips=("return $a + 1", "return $a + 2"),
            ),
            variant(
                names="hundred_below|round_down_to_hundred",
                way="down",
                multiple="a multiple of 100",
                np="the largest multiple of 100 that is not above $a",
                ex="$a // 100 * 100",
                fn=lambda n: n - n % 100,
                draw=lambda r, v: (r.randint(0, 2000),),
                edges=((300,), (99,), (250,)),
                slips=("return $a // 100", "return round($a, -2)"),
            ),
        ),
        lambda r, v: (r.randint(0, 140),),
        edges=((0,), (20,), (7,), (13,), (38,)),
    ),
    Kind(
        "list_of_numbers",
        "n|count|last: int -> list[int]",
        "",
        """
        Return a list with $np.

        Build and return the list of $np.

        Given an integer $a that is zero or more, make a list. It holds $np. If $a is 0, the list is $empty.

        Use range or a loop to create $np, as a list of integers.

        [start] A teacher writes $np on the board, in this order. Return them as a list.
        """,
        (
            variant(
                names="count_up|one_to",
                np="the whole numbers from 1 to $a in ascending order",
                empty="empty",
                ex="list(range(1, $a + 1))",
                fn=lambda n: [i + 1 for i in range(n)],
                slips=("return list(range($a))", "return list(range(1, $a))"),
            ),
            variant(
                names="count_down|down_from",
                np="the whole numbers from $a down to 1",
                empty="empty",
                ex="list(range($a, 0, -1))",
                fn=lambda n: [n - i for i in range(n)],
                slips=("return list(range($a, 1, -1))", "return list(range($a))"),
            ),
            variant(
                names="first_squares|list_squares",
                np="the squares of the numbers from 1 to $a, in this order",
                empty="empty",
                ex="[i * i for i in range(1, $a + 1)]",
                fn=lambda n: [sum(range(1, 2 * i, 2)) for i in range(1, n + 1)],
                slips=("return [i * i for i in range($a)]", "return [i * 2 for i in range(1, $a + 1)]"),
            ),
            variant(
                names="first_even_numbers|even_list",
                np="the first $a even numbers, beginning with 2",
                empty="empty",
                ex="[2 * i for i in range(1, $a + 1)]",
                fn=lambda n: list(range(2, 2 * n + 1, 2)),
                slips=("return [2 * i for i in range($a)]", "return list(range(2, $a + 1, 2))"),
            ),
            variant(
                names="zeros|list_of_zeros",
                np="as many zeros as $a says",
                empty="empty",
                ex="[0] * $a",
                fn=lambda n: [0 for _ in range(n)],
                slips=("return list(range($a))", "return [0]"),
            ),
        ),
        lambda r, v: (r.randint(0, 11),),
        edges=((0,), (1,), (3,), (5,), (8,)),
    ),
    Kind(
        "times_table",
        "n|number: int -> list[int]",
        "",
        """
        Return the $which of $a as a list: $rule.

        Make the list of the $which of the integer $a. That means: $rule.

        [row] A pupil practises the times table of $a. Return the list of the $which, that is: $rule.

        Collect products in a list. The function returns the $which of $a, in order; to be exact, $rule.

        The number $a can be any integer. Write a loop that gathers the $which of $a: $rule.
        """,
        (
            variant(
                names="first_five_multiples|five_multiples",
                which="first five multiples",
                rule="$a times 1, then $a times 2, and so on up to $a times 5",
                nums="1, 6",
                each="$a * i",
                fn=lambda n: [n, n + n, n + n + n, 4 * n, 5 * n],
            ),
            variant(
                names="ten_multiples|table_of",
                which="first ten multiples",
                rule="$a times 1, $a times 2 and so on, the last one being $a times 10",
                nums="1, 11",
                each="$a * i",
                fn=lambda n: [sum([n] * i) for i in range(1, 11)],
            ),
            variant(
                names="odd_multiples|three_odd_multiples",
                which="three smallest odd multiples",
                rule="$a times 1, $a times 3 and $a times 5",
                nums="1, 6, 2",
                each="$a * i",
                fn=lambda n: [n, n + 2 * n, n + 4 * n],
            ),
            variant(
                names="four_after|next_four",
                which="next four neighbours",
                rule="the four integers that follow directly after $a, in ascending order",
                nums="1, 5",
                each="$a + i",
                fn=lambda n: [n + 1, n + 2, n + 3, n + 4],
            ),
        ),
        lambda r, v: (r.randint(-6, 20),),
        code="result = []\nfor i in range($nums):\n    result.append($each)\nreturn result",
        edges=((0,), (1,), (3,), (-2,)),
        slips=("return [$a * i for i in range(5)]", "return [$a]"),
    ),
    Kind(
        "digits_as_text",
        "n|number: int",
        "",
        """
        Return $np. The integer $a is not negative.

        Given the whole number $a (zero or more), produce $np.

        Converting $a with str helps here. The result is $np; $a is never below zero.

        [code] A secret code is a non-negative integer, $a. Return $np.

        Take the decimal digits of $a, a number that is 0 or more, and give back $np.
        """,
        (
            variant(
                names="reverse_digits|backwards",
                args="n|number: int -> int",
                np="the number you get by writing its digits in reverse order (leading zeros vanish, so "
                "120 becomes 21)",
                ex="int(str($a)[::-1])",
                fn=lambda n: int("".join(reversed(str(n)))),
                slips=("return str($a)[::-1]", "return $a"),
            ),
            variant(
                names="is_mirror_number|reads_the_same",
                args="n|number: int -> bool",
                np="True if its digits read the same from both sides, and False if not",
                ex="str($a) == str($a)[::-1]",
                fn=lambda n: all(x == y for x, y in zip(str(n), reversed(str(n)), strict=True)),
                edges=((33,), (121,), (1231,), (4554,)),
                slips=("return str($a)[0] == str($a)[-1]", "return False"),
            ),
            variant(
                names="digit_list|digits",
                args="n|number: int -> list[int]",
                np="the list of its digits from left to right, as integers",
                ex="[int(digit) for digit in str($a)]",
                fn=lambda n: [ord(c) - 48 for c in str(n)],
                slips=("return list(str($a))", "return [$a]", "return [int(digit) for digit in str($a)][::-1]"),
            ),
            variant(
                names="sorted_digits|digits_in_order",
                args="n|number: int -> str",
                np="a string of its digits sorted from the smallest to the largest",
                ex='"".join(sorted(str($a)))',
                fn=lambda n: "".join(d * str(n).count(d) for d in "0123456789"),
                slips=("return str($a)", 'return "".join(sorted(str($a), reverse=True))'),
            ),
        ),
        lambda r, v: (
            r.choice((r.randint(10, 99), r.randint(100, 9999), 11 * r.randint(1, 9), 101 * r.randint(1, 9))),
        ),
        edges=((0,), (5,), (120,), (907,)),
    ),
    Kind(
        "three_sides",
        "a|x: int, b|y: int, c|z: int -> bool",
        "",
        """
        Return True if $cond, and False if not.

        The integers $a, $b and $c are given. Check whether $cond.

        [one, two, three] Three friends have $a, $b and $c marbles. Return whether $cond.

        Think about which comparisons you need, then return True exactly when $cond.

        Is it true that $cond? Answer with a boolean.
        """,
        (
            variant(
                names="all_equal|all_the_same",
                cond="$a, $b and $c are all the same",
                ex="$a == $b == $c",
                fn=lambda *n: len(set(n)) == 1,
                edges=((4, 4, 4),),
                slips=("return $a == $b", "return $a == $b or $b == $c"),
            ),
            variant(
                names="all_different|no_two_equal",
                cond="no two of $a, $b and $c are equal",
                ex="$a != $b and $b != $c and $a != $c",
                fn=lambda *n: len(set(n)) == 3,
                slips=("return $a != $b and $b != $c", "return not ($a == $b == $c)"),
            ),
            variant(
                names="some_pair_equal|any_two_equal",
                cond="at least two of $a, $b and $c are equal",
                ex="$a == $b or $b == $c or $a == $c",
                fn=lambda *n: len(set(n)) < 3,
                slips=("return $a == $b or $b == $c", "return $a == $b == $c"),
            ),
            variant(
                names="in_rising_order|ascending",
                cond="$a is less than $b and $b is less than $c",
                ex="$a < $b < $c",
                fn=lambda *n: sorted(set(n)) == list(n),
                edges=((1, 2, 3), (3, 2, 1)),
                slips=("return $a <= $b <= $c", "return $a < $c"),
            ),
            variant(
                names="last_is_sum|adds_up",
                cond="the sum of $a and $b is equal to $c",
                ex="$a + $b == $c",
                fn=lambda a, b, c: c - b - a == 0,
                edges=((2, 3, 5), (3, 2, 1), (0, 0, 0)),
                slips=("return $a + $b >= $c", "return $a == $b + $c"),
            ),
        ),
        lambda r, v: r.choice(
            (
                (lambda x, y: (x, y, x + y))(r.randint(0, 5), r.randint(0, 5)),
                tuple(r.randint(1, 4) for _ in range(3)),
                tuple(sorted(ints(r, 0, 9, 3, 3))),
            )
        ),
        edges=((2, 2, 2), (1, 1, 3), (3, 1, 1), (1, 3, 1), (1, 2, 3)),
    ),
)


def _terms(v: Any, count: int) -> list[int]:
    found = [int(v.s), int(v.t)]
    while len(found) < count:
        found.append(v.op(found[-2], found[-1]))
    return found


def _path(start: int, grow: Callable[[int], int]) -> list[int]:
    if start == 1:
        return [1]
    return [start, *_path(start // 2 if start % 2 == 0 else grow(start), grow)]
