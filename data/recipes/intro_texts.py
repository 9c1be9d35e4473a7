"""Kinds of first programs with text: characters, words, and small formats."""

import random
import re
from collections import Counter
from itertools import groupby

from data.recipes.intro_kind import NAMES, WORDS, Kind, sentence, variant


def word(rng: random.Random, _: object) -> tuple[str]:
    return (rng.choice(WORDS),)


def phrase(rng: random.Random, _: object) -> tuple[str]:
    return (sentence(rng),)


def mixed(rng: random.Random, _: object) -> tuple[str]:
    """A text with upper case and digits in it."""
    text = sentence(rng, 1, 3)
    text = "".join(c.upper() if rng.random() < 0.2 else c for c in text)
    return (text + rng.choice(("", "", "!", " 42", "7", "?", " B2")),)


def two_words(rng: random.Random, _: object) -> tuple[str, str]:
    return rng.choice(WORDS), rng.choice(WORDS)


TEXT = "text|s|message"

KINDS = (
    Kind(
        "text_length",
        f"{TEXT}: str",
        "",
        """
        Return $np.

        Given a string $a, which may be empty, find $np.

        The function receives some text in $a. Its result is $np.

        [password] Before a password is saved, a program looks at its length. Return $np.

        Use len to work out $np, and return it.
        """,
        (
            variant(
                names="length|text_length",
                args=f"{TEXT}: str -> int",
                np="the number of characters in $a",
                ex="len($a)",
                fn=lambda s: sum(1 for _ in s),
                slips=('return len($a.replace(" ", ""))', "return len($a) - 1"),
            ),
            variant(
                names="is_blank|nothing_written",
                args=f"{TEXT}: str -> bool",
                np="True if $a has no characters other than spaces, and False otherwise (an empty string gives True)",
                ex='$a.strip() == ""',
                fn=lambda s: set(s) <= {" "},
                edges=((" ",), (" x ",)),
                draw=lambda r, v: (r.choice((" " * r.randint(2, 9), sentence(r))),),
                slips=("return len($a) > 0", "return len($a) == 0"),
            ),
            variant(
                names="is_long|too_long",
                k=[5, 8, 10],
                args=f"{TEXT}: str -> bool",
                np="True if $a has more than $k characters, and False otherwise",
                ex="len($a) > $k",
                slips=("return len($a) >= $k", "return len($a) < $k"),
                draw=lambda r, v: ("".join(r.choice("abc ") for _ in range(v.k + r.choice((-2, -1, 0, 0, 1, 1, 2)))),),
            ),
            variant(
                names="double_length|twice_as_long",
                args=f"{TEXT}: str -> int",
                np="twice the number of characters in $a",
                ex="2 * len($a)",
                fn=lambda s: len(s + s),
                slips=("return len($a)", "return len($a) + 2"),
            ),
            variant(
                names="has_even_length|even_length",
                args=f"{TEXT}: str -> bool",
                np="True if the number of characters in $a is even (zero is even), and False if it is odd",
                ex="len($a) % 2 == 0",
                fn=lambda s: len(s) in range(0, 999, 2),
                slips=("return len($a) % 2 == 1",),
            ),
            variant(
                names="length_plus_one|one_longer",
                args=f"{TEXT}: str -> int",
                np="the number of characters in $a plus one",
                ex="len($a) + 1",
                fn=lambda s: len([*s, s]),
                slips=("return len($a)", "return len($a + $a)"),
            ),
            variant(
                names="length_without_spaces|count_non_spaces",
                args=f"{TEXT}: str -> int",
                np="the number of characters in $a that are not spaces",
                ex='len($a.replace(" ", ""))',
                fn=lambda s: sum(c != " " for c in s),
                slips=("return len($a)", 'return $a.count(" ")'),
            ),
            variant(
                names="is_short|short_enough",
                args=f"{TEXT}: str -> bool",
                np="True if $a has fewer than six characters, and False otherwise",
                ex="len($a) < 6",
                fn=lambda s: s[5:] == "",
                draw=lambda r, v: ("".join(r.choice("abc ") for _ in range(r.randint(3, 9))),),
                slips=("return len($a) <= 6", "return len($a) > 6"),
            ),
            variant(
                names="squared_length|length_squared",
                args=f"{TEXT}: str -> int",
                np="the square of the number of characters in $a",
                ex="len($a) ** 2",
                fn=lambda s: sum(len(s) for _ in s),
                slips=("return len($a) * 2", "return len($a)"),
            ),
        ),
        phrase,
        truth=lambda v, s: s[v.k :] != "",
        edges=(("",), ("a",), ("hi there",)),
    ),
    Kind(
        "character_at",
        f"{TEXT}|word: str -> str",
        "",
        """
        Return $np. The string has at least $least.

        The string $a is at least $long long. Give back $np.

        [word] Look at the word $a, which has $least or more. Return $np as a string.

        Use an index or a slice to get $np. You do not have to worry about texts with fewer than $least.

        What is $np? Return it. ($a always has $least or more.)
        """,
        (
            variant(
                names="first_letter|first_character",
                np="the first character of $a",
                least="1 character",
                long="1 character",
                ex="$a[0]",
                fn=lambda s: next(iter(s)),
                slips=("return $a[1:]", "return $a[-1]"),
            ),
            variant(
                names="last_letter|last_character",
                np="the last character of $a",
                least="1 character",
                long="1 character",
                ex="$a[-1]",
                fn=lambda s: next(reversed(s)),
                slips=("return $a[0]", "return $a[:-1]"),
            ),
            variant(
                names="second_letter|second_character",
                np="the second character of $a",
                least="2 characters",
                long="2 characters",
                ex="$a[1]",
                fn=lambda s: list(s)[1],
                slips=("return $a[2]", "return $a[:2]"),
            ),
            variant(
                names="first_three|opening",
                np="the first three characters of $a",
                least="3 characters",
                long="3 characters",
                ex="$a[:3]",
                fn=lambda s: "".join([s[0], s[1], s[2]]),
                slips=("return $a[3]", "return $a[:2]"),
            ),
            variant(
                names="without_first|drop_first",
                np="everything in $a except its first character",
                least="1 character",
                long="1 character",
                ex="$a[1:]",
                fn=lambda s: "".join(c for i, c in enumerate(s) if i),
                edges=(("x",),),
                slips=("return $a[0]", "return $a[:-1]"),
            ),
            variant(
                names="first_and_last|both_ends",
                np="a string of two characters: the first one of $a followed by the last one",
                least="2 characters",
                long="2 characters",
                ex="$a[0] + $a[-1]",
                fn=lambda s: "".join([s[:1], s[len(s) - 1 :]]),
                slips=("return $a[-1] + $a[0]", "return $a[:2]"),
            ),
            variant(
                names="third_letter|third_character",
                least="3 characters",
                long="3 characters",
                np="the third character of $a",
                ex="$a[2]",
                fn=lambda s: s[:3][-1],
                slips=("return $a[3]", "return $a[:3]"),
            ),
            variant(
                names="last_two|final_two",
                least="2 characters",
                long="2 characters",
                np="the last two characters of $a",
                ex="$a[-2:]",
                fn=lambda s: s[len(s) - 2 :],
                slips=("return $a[-2]", "return $a[:2]"),
            ),
            variant(
                names="without_last|drop_last",
                least="1 character",
                long="1 character",
                np="everything in $a except its last character",
                ex="$a[:-1]",
                fn=lambda s: "".join(list(s)[: len(s) - 1]),
                slips=("return $a[1:]", "return $a[-1]"),
            ),
            variant(
                names="first_two|opening_pair",
                least="2 characters",
                long="2 characters",
                np="the first two characters of $a",
                ex="$a[:2]",
                fn=lambda s: "".join(c for i, c in enumerate(s) if i < 2),
                slips=("return $a[2:]", "return $a[1]"),
            ),
            variant(
                names="first_twice|double_first",
                least="1 character",
                long="1 character",
                np="the first character of $a, written twice in a row",
                ex="$a[0] * 2",
                fn=lambda s: next(iter(s)) + next(iter(s)),
                slips=("return $a * 2", "return $a[:2]"),
            ),
        ),
        word,
        edges=(("abcd",), ("Good morning",), ("no!",)),
    ),
    Kind(
        "join_two_texts",
        "a|first|left: str, b|second|right: str -> str",
        "",
        """
        Return $np.

        Build one string from two: $np.

        The strings $a and $b are given. The result is $np, and nothing else.

        [front, back] A sign has two parts, $a and $b. What is printed on it is $np. Return that text.

        Glue the texts $a and $b together. You should get $np.
        """,
        (
            variant(
                names="join_texts|put_together",
                np="$a directly followed by $b",
                ex="$a + $b",
                fn=lambda a, b: "".join([a, b]),
                slips=('return $a + " " + $b', "return $b + $a"),
            ),
            variant(
                names="with_space|join_with_space",
                np="$a, one space, and $b",
                ex='$a + " " + $b',
                fn=lambda a, b: " ".join([a, b]),
                slips=("return $a + $b", 'return $b + " " + $a'),
            ),
            variant(
                names="swapped|second_then_first",
                np="$b directly followed by $a",
                ex="$b + $a",
                fn=lambda a, b: "".join([b, a]),
                slips=("return $a + $b",),
            ),
            variant(
                names="with_hyphen|hyphenate",
                np="$a, a hyphen (-), and $b, without spaces",
                ex='$a + "-" + $b',
                fn=lambda a, b: "-".join([a, b]),
                slips=("return $a + $b", 'return $a + " - " + $b'),
            ),
            variant(
                names="with_comma|comma_join",
                np="$a, then a comma and a space, then $b",
                ex='$a + ", " + $b',
                fn=lambda a, b: ", ".join([a, b]),
                slips=('return $a + "," + $b', 'return $b + ", " + $a'),
            ),
            variant(
                names="sandwich|wrap",
                np="$a, then $b, then $a again, without spaces",
                ex="$a + $b + $a",
                fn=lambda a, b: a.join(["", b, ""]),
                slips=("return $a + $b", "return $b + $a + $b"),
            ),
            variant(
                names="with_colon|label",
                np="$a, then a colon and a space, then $b",
                ex='$a + ": " + $b',
                fn=lambda a, b: ": ".join([a, b]),
                slips=('return $a + ":" + $b', "return $a + $b"),
            ),
            variant(
                names="with_underscore|snake",
                np="$a, an underscore (_), and $b, without spaces",
                ex='$a + "_" + $b',
                fn=lambda a, b: "_".join([a, b]),
                slips=('return $a + " _ " + $b', "return $a + $b"),
            ),
            variant(
                names="with_plus|plus_between",
                np="$a, a plus sign (+), and $b, without spaces",
                ex='$a + "+" + $b',
                fn=lambda a, b: "+".join([a, b]),
                slips=("return $a + $b", 'return $a + " + " + $b'),
            ),
            variant(
                names="with_dot|file_name",
                np="$a, a dot (.), and $b, without spaces",
                ex='$a + "." + $b',
                fn=lambda a, b: ".".join([a, b]),
                slips=("return $a + $b", 'return $b + "." + $a'),
            ),
            variant(
                names="with_and|and_between",
                np='$a, then the word "and", then $b, with one space on each side of "and"',
                ex='$a + " and " + $b',
                fn=lambda a, b: " and ".join([a, b]),
                slips=('return $a + "and" + $b', 'return $a + " " + $b'),
            ),
            variant(
                names="both_twice|pair_twice",
                np="$a followed by $b, and then the same once more, all without spaces",
                ex="($a + $b) * 2",
                fn=lambda a, b: "".join([a, b, a, b]),
                slips=("return $a + $b", "return $a * 2 + $b * 2"),
            ),
        ),
        two_words,
        edges=(("ab", "cd"), ("sun", "flower")),
    ),
    Kind(
        "greeting",
        "name|person|who: str -> str",
        "",
        """
        Return the text "$before", followed by $a, followed by "$after".

        Given a name, $a, return the string that begins with "$before", goes on with the name, and ends with "$after".

        $story It must look exactly like this for the name Tim: "${before}Tim$after". Return the text for the name $a.

        Put $a between "$before" and "$after" and return the whole string.

        The function gets the name of a person. For "Zoe" its result is "${before}Zoe$after", and likewise for any
        other name in $a.
        """,
        tuple(
            variant(
                names=names,
                before=before,
                after=after,
                story=story,
                slips=(f'return "{before}" + $a', f'return "{before}name{after}"'),
            )
            for names, before, after, story in (
                ("greet|say_hello", "Hello, ", "!", "A program greets its user."),
                ("goodbye|say_bye", "Goodbye, ", ".", "A program says goodbye to its user."),
                ("welcome|door_sign", "Welcome home, ", "!", "A screen at the door shows a line of text."),
                ("birthday|birthday_wish", "Happy birthday, dear ", "!", "A card needs a line of text."),
                ("thank|thanks", "Thank you, ", ", for your help!", "A shop prints a note for a helper."),
                ("morning|good_morning", "Good morning, ", "!", "An alarm clock speaks to its owner."),
                ("night|good_night", "Good night, ", ".", "A lamp says good night."),
                ("introduce|my_name", "My name is ", ".", "A robot introduces itself."),
                ("announce_winner|winner_line", "The winner is ", "!", "A game shows who has won."),
                ("dear|letter_opening", "Dear ", ",", "A letter begins with one line."),
                ("your_turn|next_player", "It is your turn, ", "!", "A board game calls the next player."),
            )
        ),
        lambda r, v: (r.choice(NAMES),),
        code='return "$before" + $a + "$after"',
        truth=lambda v, name: f"{v.before}{name}{v.after}",
        edges=(("Ada",), ("Mr Smith",)),
    ),
    Kind(
        "repeat_text",
        "text|word|s: str, n|times|count: int -> str",
        "",
        """
        Return $np. If $b is 0, return an empty string.

        Write $a several times: the result is $np. With $b equal to 0 the result is the empty string.

        The string $a and the whole number $b (zero or more) are given. Build $np; zero copies give "".

        [sound, echoes] An echo repeats the sound $a. What you hear is $np. Return it. For 0 echoes that is "".

        Make $np. The number is never negative, and for 0 you return "".
        """,
        (
            variant(
                names="repeat|repeat_text",
                np="$a repeated $b times in a row, with nothing in between",
                ex="$a * $b",
                fn=lambda s, n: "".join(s for _ in range(n)),
                slips=('return " ".join([$a] * $b)', "return $a + str($b)"),
            ),
            variant(
                names="repeat_with_spaces|say_again",
                np="$b copies of $a with one space between neighbours",
                ex='" ".join([$a] * $b)',
                fn=lambda s, n: ((s + " ") * n)[:-1],
                slips=("return $a * $b", 'return ($a + " ") * $b'),
            ),
            variant(
                names="repeat_with_dashes|dashed",
                np="$b copies of $a with a dash (-) between neighbours",
                ex='"-".join([$a] * $b)',
                fn=lambda s, n: ((s + "-") * n)[:-1],
                slips=("return $a * $b", 'return ($a + "-") * $b'),
            ),
            variant(
                names="repeat_shouting|shout_often",
                np="$b copies of $a followed by an exclamation mark each, without spaces",
                ex='($a + "!") * $b',
                fn=lambda s, n: "".join(s + "!" for _ in range(n)),
                slips=('return $a * $b + "!"', "return $a * $b"),
            ),
            variant(
                names="repeat_with_commas|listed_often",
                np="$b copies of $a with a comma and a space between neighbours",
                ex='", ".join([$a] * $b)',
                fn=lambda s, n: s + f", {s}" * (n - 1) if n else "",
                slips=('return ",".join([$a] * $b)', "return $a * $b"),
            ),
            variant(
                names="repeat_in_capitals|shout_repeated",
                np="$a in capital letters, repeated $b times in a row",
                ex="$a.upper() * $b",
                fn=lambda s, n: "".join(s.upper() for _ in range(n)),
                slips=("return $a * $b", "return $a.upper()"),
            ),
        ),
        lambda r, v: (r.choice(WORDS), r.randint(0, 5)),
        edges=(("ha", 3), ("ab", 1), ("x", 0), ("go ", 2)),
    ),
    Kind(
        "change_case",
        f"{TEXT}|word: str -> str",
        "",
        """
        Return $a $how.

        Given a string $a, return a copy of it $how. Characters that are not letters stay as they are.

        The text $a may be empty and may contain digits and spaces, which do not change. Return it $how.

        [title] A sign maker gets the text $a and writes it $how. Return what is on the sign.

        Strings have methods for this: return the string $a $how. An empty string stays empty.
        """,
        (
            variant(
                names="to_upper|shout|capitals",
                how="with all letters in upper case",
                ex="$a.upper()",
                fn=lambda s: "".join(chr(ord(c) - 32) if "a" <= c <= "z" else c for c in s),
                slips=("return $a.lower()", "return $a.capitalize()", "return $a.title()"),
            ),
            variant(
                names="to_lower|whisper|small_letters",
                how="with all letters in lower case",
                ex="$a.lower()",
                fn=lambda s: "".join(chr(ord(c) + 32) if "A" <= c <= "Z" else c for c in s),
                slips=("return $a.upper()",),
            ),
            variant(
                names="first_upper|big_first_letter",
                how="with its first character in upper case and everything else unchanged",
                ex="$a[:1].upper() + $a[1:]",
                fn=lambda s: "".join(c.upper() if i == 0 else c for i, c in enumerate(s)),
                edges=(("aBC",),),
                slips=("return $a.capitalize()", "return $a.upper()"),
            ),
            variant(
                names="swap_cases|exchange_case",
                how="with small letters made capital and capital letters made small",
                ex="$a.swapcase()",
                fn=lambda s: "".join(c.lower() if c.isupper() else c.upper() for c in s),
                slips=("return $a.upper()", "return $a.lower()"),
            ),
            variant(
                names="capitalise|capitalised",
                how="with its first character in upper case and all other letters in lower case",
                ex="$a.capitalize()",
                fn=lambda s: s[:1].upper() + s[1:].lower(),
                slips=("return $a.upper()", "return $a[:1].upper() + $a[1:]"),
            ),
            variant(
                names="first_lower|small_first_letter",
                how="with its first character in lower case and everything else unchanged",
                ex="$a[:1].lower() + $a[1:]",
                fn=lambda s: "".join(c if i else c.lower() for i, c in enumerate(s)),
                slips=("return $a.lower()", "return $a"),
            ),
            variant(
                names="cry_out|exclaim",
                how="in capital letters and with an exclamation mark added at the end",
                ex='$a.upper() + "!"',
                fn=lambda s: "".join([*(c.upper() for c in s), "!"]),
                slips=("return $a.upper()", 'return $a + "!"'),
            ),
        ),
        mixed,
        edges=(("",), ("Hello World",), ("abc",), ("R2d2!",)),
    ),
    Kind(
        "turn_around",
        f"{TEXT}|word: str",
        "",
        """
        Return $np.

        Given the string $a, work out $np. An empty string is allowed.

        Read the text $a from right to left. The function returns $np.

        [word] Mirrors turn words around. For the word $a, return $np.

        Write a function for strings that gives back $np. It must also work for the empty string.
        """,
        (
            variant(
                names="reverse_text|backwards",
                args=f"{TEXT}|word: str -> str",
                np="$a with its characters in reverse order",
                ex="$a[::-1]",
                fn=lambda s: "".join(reversed(s)),
                slips=("return $a", "return $a[-1]"),
            ),
            variant(
                names="reads_same_backwards|is_mirror_word",
                args=f"{TEXT}|word: str -> bool",
                np="True if $a is the same when it is read backwards, and False if it is not",
                ex="$a == $a[::-1]",
                fn=lambda s: all(s[i] == s[len(s) - 1 - i] for i in range(len(s))),
                draw=lambda r, v: (r.choice((*WORDS, "level", "radar", "moom", "abba", "noon", "wow")),),
                edges=(("level",), ("abca",), ("noon",)),
                slips=("return $a[:1] == $a[-1:]", "return $a != $a[::-1]"),
            ),
            variant(
                names="with_mirror|add_mirror",
                args=f"{TEXT}|word: str -> str",
                np="$a directly followed by $a backwards",
                ex="$a + $a[::-1]",
                fn=lambda s: "".join([*s, *reversed(s)]),
                slips=("return $a * 2", "return $a[::-1] + $a"),
            ),
            variant(
                names="reverse_and_shout|loud_backwards",
                args=f"{TEXT}|word: str -> str",
                np="$a backwards and in capital letters",
                ex="$a[::-1].upper()",
                fn=lambda s: "".join(c.upper() for c in reversed(s)),
                slips=("return $a[::-1]", "return $a.upper()"),
            ),
            variant(
                names="backwards_twice|double_reverse",
                args=f"{TEXT}|word: str -> str",
                np="$a backwards, written twice in a row",
                ex="$a[::-1] * 2",
                fn=lambda s: "".join([*reversed(s), *reversed(s)]),
                slips=("return $a * 2", "return $a[::-1]"),
            ),
            variant(
                names="mirror_first|backwards_and_forwards",
                args=f"{TEXT}|word: str -> str",
                np="$a backwards, directly followed by $a itself",
                ex="$a[::-1] + $a",
                fn=lambda s: "".join([*reversed(s), *s]),
                slips=("return $a + $a[::-1]", "return $a[::-1]"),
            ),
            variant(
                names="characters_reversed|reversed_characters",
                args=f"{TEXT}|word: str -> list[str]",
                np="a list of the characters of $a from the last to the first",
                ex="list($a[::-1])",
                fn=lambda s: [*reversed(s)],
                slips=("return list($a)", "return sorted($a)"),
            ),
        ),
        phrase,
        edges=(("",), ("a",), ("abc",), ("ab ba",)),
    ),
    Kind(
        "text_contains",
        "text|s: str, part|piece|t: str -> bool",
        "",
        """
        Return True if $cond, else False.

        Check whether $cond. Upper and lower case are different.

        The strings $a and $b are given, $b being at least one character long. Answer True or False: is it the case
        that $cond?

        [title, search] A program looks through book titles. The function returns True when $cond, and False when not.

        Find out if $cond, and return a boolean. Capital and small letters are not the same here.
        """,
        (
            variant(
                names="contains|has_part",
                cond="$b appears somewhere in $a",
                ex="$b in $a",
                fn=lambda s, p: s.find(p) >= 0,
                slips=("return $a in $b", "return $a.startswith($b)", "return $a == $b"),
            ),
            variant(
                names="begins_with|has_start",
                cond="$a begins with $b",
                ex="$a.startswith($b)",
                fn=lambda s, p: s[: len(p)] == p,
                slips=("return $b in $a", "return $a[0] == $b[0]"),
            ),
            variant(
                names="finishes_with|has_ending",
                cond="$a ends with $b",
                ex="$a.endswith($b)",
                fn=lambda s, p: s[-len(p) :] == p,
                slips=("return $b in $a", "return $a.startswith($b)"),
            ),
            variant(
                names="lacks|is_without",
                cond="$b does not appear in $a",
                ex="$b not in $a",
                fn=lambda s, p: s.find(p) < 0,
                slips=("return $b in $a", "return not $a.startswith($b)"),
            ),
            variant(
                names="same_first_letter|start_alike",
                cond="$a and $b begin with the same character ($a is not empty either)",
                ex="$a[0] == $b[0]",
                fn=lambda s, p: s.startswith(p[:1]),
                draw=lambda r, v: (r.choice(WORDS), r.choice(WORDS)),
                slips=("return $a == $b", "return $b in $a"),
            ),
        ),
        lambda r, v: (lambda s: (s, r.choice((s[:3], s[-3:], s[2:5] or "x", r.choice(WORDS)[:2], "zz"))))(
            sentence(r, 1, 3)
        ),
        edges=(
            ("green apple", "green"),
            ("green apple", "apple"),
            ("green apple", "n a"),
            ("cat", "cats"),
            ("table", "T"),
            ("moon", "moon"),
        ),
    ),
    Kind(
        "count_characters",
        f"{TEXT}: str -> int",
        "",
        """
        Return how many $what the string $a contains.

        Count the $what in $a. If there are none, or if the string is empty, the answer is 0.

        Go through the text $a character by character and count the $what. Return the count.

        [line] A line of text is stored in $a. How many $what does it have? Return the number, which can be 0.

        Write a loop that visits each character of $a. It adds one whenever it meets one of the $what. The final number
        is the result.
        """,
        (
            variant(
                names="count_vowels|number_of_vowels",
                what="vowels (a, e, i, o and u, small or capital)",
                test='char in "aeiouAEIOU"',
                fn=lambda s: len(re.findall("[aeiou]", s.lower())),
                edges=(("AEIOU",), ("rhythm",)),
                slips=("return len($a)", 'return sum(1 for char in $a if char in "aeiou")'),
            ),
            variant(
                names="count_spaces|number_of_spaces",
                what="spaces",
                test='char == " "',
                fn=lambda s: s.count(" "),
                edges=(("a b  c",), ("one two three",)),
                slips=("return len($a.split())", "return len($a)"),
            ),
            variant(
                names="count_digits|number_of_digits",
                what="digits (0 to 9)",
                test="char.isdigit()",
                fn=lambda s: len(re.findall("[0-9]", s)),
                edges=(("1a22",), ("007",), ("2 x 10",)),
                slips=("return len($a)", "return 1 if any(char.isdigit() for char in $a) else 0"),
            ),
            variant(
                names="count_capitals|number_of_capitals",
                what="capital letters",
                test="char.isupper()",
                fn=lambda s: len(re.findall("[A-Z]", s)),
                edges=(("ABC",), ("Ada Lovelace",)),
                slips=("return sum(1 for char in $a if char.islower())", "return len($a)"),
            ),
            variant(
                names="count_letter|how_many_letters",
                letter=["e", "a", "o"],
                what="letters '$letter' (small ones only)",
                test='char == "$letter"',
                slips=("return len($a)", 'return 1 if "$letter" in $a else 0'),
            ),
        ),
        mixed,
        code="count = 0\nfor char in $a:\n    if $test:\n        count += 1\nreturn count",
        truth=lambda v, s: len(s) - len(s.replace(v.letter, "")),
        edges=(("",), ("xyz",), ("banana",), ("A tree, one Oak!",)),
    ),
    Kind(
        "leave_out",
        f"{TEXT}: str -> str",
        "",
        """
        Return $a without $what.

        Remove $what from the string $a and return what is left. The order of the other characters does not change.

        Copy the text $a into a new string, but skip $what. Return the new string, which may be empty.

        [typed] Somebody typed $a into a form. Clean it: $what have to go, everything else stays. Return the clean text.

        The result contains the characters of $a in their order, apart from $what, which are dropped.
        """,
        (
            variant(
                names="remove_vowels|without_vowels",
                what="its vowels (a, e, i, o, u, small or capital)",
                test='char not in "aeiouAEIOU"',
                fn=lambda s: re.sub("[aeiouAEIOU]", "", s),
                edges=(("AEIOU",), ("Idea",)),
                slips=('return "".join(char for char in $a if char not in "aeiou")',),
            ),
            variant(
                names="remove_spaces|without_spaces",
                what="its spaces",
                test='char != " "',
                fn=lambda s: s.replace(" ", ""),
                edges=(("a b  c ",), (" ",)),
                slips=("return $a.strip()",),
            ),
            variant(
                names="remove_digits|without_digits",
                what="its digits (0 to 9)",
                test="not char.isdigit()",
                fn=lambda s: re.sub("[0-9]", "", s),
                edges=(("1a22b",), ("2024",)),
                slips=('return "".join(char for char in $a if char.isdigit())',),
            ),
            variant(
                names="remove_capitals|without_capitals",
                what="its capital letters",
                test="not char.isupper()",
                fn=lambda s: re.sub("[A-Z]", "", s),
                edges=(("ABC",), ("Ada Bo",)),
                slips=("return $a.lower()",),
            ),
            variant(
                names="remove_letter|drop_letter",
                letter=["a", "e", "o"],
                what="its letters '$letter' (only small ones)",
                test='char != "$letter"',
                edges=(("EOAeoa",),),
                slips=('return $a.replace("$letter", "", 1)', 'return $a.replace("$letter", " ")'),
            ),
        ),
        mixed,
        code='result = ""\nfor char in $a:\n    if $test:\n        result += char\nreturn result',
        truth=lambda v, s: "".join(s.split(v.letter)),
        edges=(("",), ("xyz",), ("banana split",)),
        slips=("return $a",),
    ),
    Kind(
        "swap_characters",
        f"{TEXT}: str -> str",
        "",
        """
        Return $a with every $old replaced by $new.

        In the string $a, put $new in the place of each $old. Return the new string.

        Wherever the text $a has $an, the result has $new. Everything else is copied.

        [note] Whoever wrote the note $a used $an where $new belongs. Correct all of them and return the text.

        Replace all occurrences, not only the first: each $old in $a becomes $new.
        """,
        (
            variant(
                names="spaces_to_underscores|underscores",
                old="space",
                an="a space",
                new="an underscore (_)",
                o='" "',
                n='"_"',
                slips=('return $a.replace(" ", "")',),
            ),
            variant(
                names="commas_to_semicolons|semicolons",
                old="comma",
                an="a comma",
                new="a semicolon (;)",
                o='","',
                n='";"',
                draw=lambda r, v: (",".join(sentence(r).split()),),
                edges=(("a,b,,c",), ("1,2",)),
                slips=('return $a.replace(",", "; ")',),
            ),
            variant(
                names="hyphens_to_spaces|split_hyphens",
                old="hyphen (-)",
                an="a hyphen (-)",
                new="a space",
                o='"-"',
                n='" "',
                draw=lambda r, v: ("-".join(sentence(r).split()),),
                edges=(("a--b",), ("well-known",)),
                slips=('return $a.replace("-", "")',),
            ),
            variant(
                names="hide_letters|mask_letter",
                old="letter 'e'",
                an="the letter 'e'",
                new="a star (*)",
                o='"e"',
                n='"*"',
                edges=(("eel",), ("Eve",)),
                slips=('return $a.replace("e", "")', 'return $a.replace("e", "*").replace("E", "*")'),
            ),
            variant(
                names="spaces_to_dots|dotted",
                old="space",
                an="a space",
                new="a full stop (.)",
                o='" "',
                n='"."',
                slips=('return $a.replace(" ", "")',),
            ),
        ),
        phrase,
        code="return $a.replace($o, $n)",
        truth=lambda v, s: eval(v.n).join(s.split(eval(v.o))),
        edges=(("",), ("one two three",), ("tree",), ("a  b",)),
        slips=("return $a.replace($o, $n, 1)", "return $a.replace($n, $o)"),
    ),
    Kind(
        "words_in_text",
        "text|sentence|line: str",
        "",
        """
        Return $np. Words are separated by single spaces, and there is at least one word.

        The string $a consists of one or more words with one space between neighbours. Find $np.

        Split $a at its spaces. The function returns $np. There is always at least one word.

        [sentence] A sentence without punctuation is given, its words separated by one space each. Return $np.

        Take the words of $a, a line of one or more words with single spaces between them, and give back $np.
        """,
        (
            variant(
                names="count_words|number_of_words",
                args="text|sentence|line: str -> int",
                np="the number of words in $a",
                ex="len($a.split())",
                fn=lambda s: s.count(" ") + 1,
                slips=('return $a.count(" ")', "return len($a)"),
            ),
            variant(
                names="first_word|opening_word",
                args="text|sentence|line: str -> str",
                np="the first word of $a",
                ex="$a.split()[0]",
                fn=lambda s: s.partition(" ")[0],
                slips=("return $a[0]", "return $a.split()[-1]"),
            ),
            variant(
                names="last_word|final_word",
                args="text|sentence|line: str -> str",
                np="the last word of $a",
                ex="$a.split()[-1]",
                fn=lambda s: s.rpartition(" ")[2],
                slips=("return $a[-1]", "return $a.split()[0]"),
            ),
            variant(
                names="list_words|words_of",
                args="text|sentence|line: str -> list[str]",
                np="the list of the words in $a, in their order",
                ex="$a.split()",
                fn=lambda s: re.findall(r"\S+", s),
                slips=("return list($a)", "return sorted($a.split())"),
            ),
            variant(
                names="word_lengths|lengths",
                args="text|sentence|line: str -> list[int]",
                np="the list of the lengths of the words in $a, in order",
                ex="[len(word) for word in $a.split()]",
                fn=lambda s: [len(w) for w in re.findall(r"\S+", s)],
                slips=("return [len($a)]", "return len($a.split())"),
            ),
            variant(
                names="longest_length|longest_word_length",
                args="text|sentence|line: str -> int",
                np="the length of the longest word in $a",
                ex="max(len(word) for word in $a.split())",
                fn=lambda s: sorted(map(len, s.split(" ")))[-1],
                slips=("return len($a)", "return len($a.split()[0])"),
            ),
            variant(
                names="first_word_length|length_of_first_word",
                args="text|sentence|line: str -> int",
                np="the length of the first word of $a",
                ex="len($a.split()[0])",
                fn=lambda s: len(s.partition(" ")[0]),
                slips=("return len($a)", "return len($a.split())"),
            ),
            variant(
                names="last_word_in_capitals|shout_last_word",
                args="text|sentence|line: str -> str",
                np="the last word of $a in capital letters",
                ex="$a.split()[-1].upper()",
                fn=lambda s: s.rpartition(" ")[2].upper(),
                slips=("return $a.upper()", "return $a.split()[-1]"),
            ),
            variant(
                names="capital_words|loud_words",
                args="text|sentence|line: str -> list[str]",
                np="the list of the words in $a, each in capital letters",
                ex="[word.upper() for word in $a.split()]",
                fn=lambda s: s.upper().split(" "),
                slips=("return $a.split()", "return $a.upper()"),
            ),
            variant(
                names="has_several_words|more_than_one_word",
                args="text|sentence|line: str -> bool",
                np="True if $a has more than one word, else False",
                ex="len($a.split()) > 1",
                fn=lambda s: " " in s,
                slips=("return len($a) > 1", "return len($a.split()) == 1"),
            ),
        ),
        phrase,
        edges=(("hello",), ("the quick fox",), ("a bb a",), ("I am",)),
    ),
    Kind(
        "initials",
        "name|full_name|text: str -> str",
        "",
        """
        Return $np. The parts of $a are separated by one space each.

        The string $a has one or more words with single spaces between them. Build $np.

        [full_name] Given a full name such as "grace brewster hopper", with one space between its parts, return $np.

        Go through the words of $a (one or more, single spaces in between) and make $np.

        A program shortens long names. From $a, whose words are separated by single spaces, it makes $np. Return the
        short form.
        """,
        (
            variant(
                names="initials|capital_initials",
                np="the first letters of all words in upper case, without anything in between",
                ex='"".join(word[0].upper() for word in $a.split())',
                fn=lambda s: re.sub(r"(\S)\S*\s*", r"\1", s).upper(),
                slips=('return "".join(word[0] for word in $a.split())', "return $a[0].upper()"),
            ),
            variant(
                names="dotted_initials|initials_with_dots",
                np="the first letter of each word in upper case, each followed by a full stop, without spaces",
                ex='"".join(word[0].upper() + "." for word in $a.split())',
                fn=lambda s: re.sub(r"(\S)\S*\s*", r"\1.", s).upper(),
                slips=(
                    'return ".".join(word[0].upper() for word in $a.split())',
                    'return ". ".join(word[0].upper() for word in $a.split()) + "."',
                ),
            ),
            variant(
                names="last_letters|endings",
                np="a string of the last letters of all words, in order and unchanged",
                ex='"".join(word[-1] for word in $a.split())',
                fn=lambda s: "".join(c for c, n in zip(s, s[1:] + " ", strict=True) if n == " "),
                slips=("return $a[-1]", 'return "".join(word[0] for word in $a.split())'),
            ),
            variant(
                names="capitalise_words|name_style",
                np="the same text with the first letter of each word in upper case and all other letters in lower case",
                ex='" ".join(word.capitalize() for word in $a.split())',
                fn=lambda s: " ".join(w[0].upper() + w[1:].lower() for w in s.split(" ")),
                edges=(("jON sNOW",),),
                slips=("return $a.capitalize()", "return $a.upper()"),
            ),
        ),
        phrase,
        edges=(("ada lovelace",), ("bo",), ("light emitting diode",), ("Rosa parks",)),
    ),
    Kind(
        "choose_word",
        "text|sentence|line: str -> str",
        "",
        """
        Return $np. $tie

        The words of $a are separated by single spaces, and there is at least one. Find $np. $tie

        [sentence] In the sentence $a (one or more words, single spaces, no punctuation) look for $np and return it.
        $tie

        Split $a into words and compare them. The result is $np. $tie There is always at least one word.

        Which word is $np? Return that word. $tie The text $a has at least one word and only single spaces.
        """,
        (
            variant(
                names="longest_word|find_longest",
                np="the longest word in $a",
                tie="If several words are equally long, take the first of them.",
                ex="max($a.split(), key=len)",
                fn=lambda s: sorted(s.split(" "), key=lambda w: -len(w))[0],
                slips=(
                    "return max($a.split())",
                    "return sorted($a.split(), key=len)[-1]",
                    "return min($a.split(), key=len)",
                ),
            ),
            variant(
                names="shortest_word|find_shortest",
                np="the shortest word in $a",
                tie="If several words are equally short, take the first of them.",
                ex="min($a.split(), key=len)",
                fn=lambda s: sorted(s.split(" "), key=len)[0],
                slips=("return min($a.split())", "return max($a.split(), key=len)"),
            ),
            variant(
                names="first_in_alphabet|earliest_word",
                np="the word of $a that comes first in the alphabet",
                tie="All letters are small.",
                ex="min($a.split())",
                fn=lambda s: sorted(s.split(" "))[0],
                slips=("return min($a)", "return max($a.split())", "return $a.split()[0]"),
            ),
            variant(
                names="last_longest|final_longest",
                np="the longest word in $a",
                tie="If several words are equally long, take the last of them.",
                ex="max(reversed($a.split()), key=len)",
                fn=lambda s: sorted(s.split(" "), key=len)[-1],
                slips=("return max($a.split(), key=len)", "return $a.split()[-1]"),
            ),
        ),
        lambda r, v: (sentence(r, 2, 6),),
        edges=(("one two three four",), ("red",), ("blue pink gold",), ("aa b cc d",)),
    ),
    Kind(
        "rearrange_words",
        "text|sentence|line: str -> str",
        "",
        """
        Return $np. The words of $a are separated by single spaces; so are those of the result.

        Split $a into its words, change them, and join them with single spaces: the result is $np. There is at least
        one word.

        [sentence] Words are fun. Take the sentence $a, whose words have one space between them, and return $np.

        The string $a contains at least one word and only single spaces between words. Produce $np, spaced in the same
        way.

        The function plays with the words of the text $a. It gives back $np, with one space between two words as in $a.
        """,
        (
            variant(
                names="reverse_word_order|words_backwards",
                np="the words of $a in reverse order, each word unchanged",
                ex='" ".join($a.split()[::-1])',
                fn=lambda s: " ".join(reversed(s.split(" "))),
                slips=("return $a[::-1]", "return $a"),
            ),
            variant(
                names="reverse_each_word|flip_words",
                np="the text with each word spelled backwards, the words staying in their places",
                ex='" ".join(word[::-1] for word in $a.split())',
                fn=lambda s: " ".join(reversed(s[::-1].split(" "))),
                slips=("return $a[::-1]", "return $a"),
            ),
            variant(
                names="sort_words|words_in_order",
                np="the words of $a in alphabetical order (all letters are small)",
                ex='" ".join(sorted($a.split()))',
                fn=lambda s: " ".join(min_first(s.split(" "))),
                slips=('return "".join(sorted($a))', 'return " ".join(sorted($a.split(), key=len))'),
            ),
            variant(
                names="swap_ends|exchange_first_and_last",
                np="the text with its first and last word exchanged (a single word stays as it is)",
                code='parts = $a.split()\nparts[0], parts[-1] = parts[-1], parts[0]\nreturn " ".join(parts)',
                fn=lambda s: s if " " not in s else " ".join([s.split(" ")[-1], *s.split(" ")[1:-1], s.split(" ")[0]]),
                slips=('return " ".join($a.split()[::-1])', "return $a"),
            ),
        ),
        lambda r, v: (sentence(r, 1, 5),),
        edges=(("we like green tea",), ("abc",), ("one two",), ("z y x w",)),
    ),
    Kind(
        "shift_letters",
        "text|word|s: str -> str",
        "",
        """
        Return $a with every small letter replaced by $np. All other characters stay as they are.

        A simple secret code: each letter from a to z in $a becomes $np. Spaces, digits and capital letters are not
        changed. Return the coded text.

        Write a cipher. In the text $a, exchange each lower-case letter for $np, and copy everything else.

        [secret] Two friends write notes in code. Instead of each small letter they write $np; whatever is no small
        letter stays. Return the coded form of $a.

        Build a new string from $a. A small letter turns into $np. Any other character is taken over unchanged.
        """,
        (
            variant(
                names="shift_one|next_letters",
                np="the next letter of the alphabet ('z' becomes 'a')",
                k="1",
                fn=lambda s: s.translate(str.maketrans("abcdefghijklmnopqrstuvwxyz", "bcdefghijklmnopqrstuvwxyza")),
            ),
            variant(
                names="shift_back|previous_letters",
                np="the letter before it in the alphabet ('a' becomes 'z')",
                k="-1",
                fn=lambda s: s.translate(str.maketrans("abcdefghijklmnopqrstuvwxyz", "zabcdefghijklmnopqrstuvwxy")),
            ),
            variant(
                names="shift_three|three_letters_on",
                np="the letter three places later in the alphabet (after 'z' it goes on with 'a')",
                k="3",
                fn=lambda s: s.translate(str.maketrans("abcdefghijklmnopqrstuvwxyz", "defghijklmnopqrstuvwxyzabc")),
            ),
            variant(
                names="shift_thirteen|half_alphabet",
                np="the letter thirteen places later in the alphabet (after 'z' it goes on with 'a')",
                k="13",
                fn=lambda s: s.translate(str.maketrans("abcdefghijklmnopqrstuvwxyz", "nopqrstuvwxyzabcdefghijklm")),
            ),
        ),
        phrase,
        code='result = ""\nfor char in $a:\n    if "a" <= char <= "z":\n'
        '        place = (ord(char) - ord("a") + $k) % 26\n'
        '        result += chr(ord("a") + place)\n    else:\n        result += char\n'
        "return result",
        edges=(("abc xyz",), ("",), ("Az 9",), ("zoo",)),
        slips=('return "".join(chr(ord(char) + $k) for char in $a)', "return $a"),
    ),
    Kind(
        "runs_of_letters",
        "text|s|word: str",
        "",
        """
        Return $np. For an empty string the result is $none.

        Equal characters that stand next to each other form a run: "aabccc" has the runs "aa", "b" and "ccc". Find
        $np. An empty text gives $none.

        Compare each character of $a with the one before it. The function returns $np, and $none if $a is empty.

        [signal] A device records a signal as text, such as "aabccc". Return $np. If nothing was recorded, return $none.

        Go through $a from left to right, noticing when the same character comes again at once. Give back $np ($none
        for the empty string).
        """,
        (
            variant(
                names="encode_runs|shorten",
                args="text|s|word: str -> str",
                none='""',
                np="a string in which each run of equal characters in $a is written as the character "
                'followed by its length, as in "a2b1c3" for "aabccc"',
                code='result = ""\ncount = 0\nfor i in range(len($a)):\n    count += 1\n'
                "    if i == len($a) - 1 or $a[i] != $a[i + 1]:\n"
                "        result += $a[i] + str(count)\n        count = 0\nreturn result",
                fn=lambda s: "".join(f"{c}{len(list(g))}" for c, g in groupby(s)),
                slips=("return $a", 'return "".join(char + str($a.count(char)) for char in dict.fromkeys($a))'),
            ),
            variant(
                names="single_letters|squeeze",
                args="text|s|word: str -> str",
                none='""',
                np='$a with each run of equal characters reduced to one character, so that "aabccc" becomes "abc"',
                code='result = ""\nfor char in $a:\n    if result == "" or result[-1] != char:\n'
                "        result += char\nreturn result",
                fn=lambda s: "".join(c for c, _ in groupby(s)),
                slips=('return "".join(dict.fromkeys($a))', "return $a"),
            ),
            variant(
                names="count_runs|number_of_runs",
                args="text|s|word: str -> int",
                none="0",
                np='the number of runs of equal neighbouring characters in $a, which is 3 for "aabccc"',
                code="count = 0\nfor i in range(len($a)):\n    if i == 0 or $a[i] != $a[i - 1]:\n"
                "        count += 1\nreturn count",
                fn=lambda s: len(list(groupby(s))),
                slips=("return len(set($a))", "return len($a)"),
            ),
            variant(
                names="longest_run|longest_repetition",
                args="text|s|word: str -> int",
                none="0",
                np='the length of the longest run of equal neighbouring characters in $a, which is 3 for "aabccc"',
                code="longest = 0\ncount = 0\nfor i in range(len($a)):\n"
                "    if i > 0 and $a[i] == $a[i - 1]:\n        count += 1\n    else:\n"
                "        count = 1\n    longest = max(longest, count)\nreturn longest",
                fn=lambda s: max((len(list(g)) for _, g in groupby(s)), default=0),
                slips=("return max(($a.count(char) for char in $a), default=0)", "return len($a)"),
            ),
        ),
        lambda r, v: ("".join(r.choice("abc") * r.randint(1, 3) for _ in range(r.randint(0, 5))),),
        edges=(("",), ("a",), ("aabccc",), ("abab",), ("aaaa",), ("aba",)),
    ),
    Kind(
        "two_words_compared",
        "a|first|word: str, b|second|other: str -> bool",
        "",
        """
        Return True if $cond, otherwise False.

        Given two words $a and $b in small letters, decide whether $cond.

        [mine, yours] In a word game I say $a and you say $b. The round is won if $cond. Return True for a win, else
        False.

        Compare the non-empty strings $a and $b. The result says whether $cond.

        Find out if $cond. Both are non-empty and made of small letters. Return a boolean.
        """,
        (
            variant(
                names="same_letters|made_of_same_letters",
                cond="$a and $b consist of exactly the same letters, each equally often, in any order",
                ex="sorted($a) == sorted($b)",
                fn=lambda a, b: Counter(a) == Counter(b),
                slips=("return set($a) == set($b)", "return len($a) == len($b)"),
            ),
            variant(
                names="rhyme|same_ending",
                cond="the last two letters of $a and $b are the same (each word has at least two)",
                ex="$a[-2:] == $b[-2:]",
                fn=lambda a, b: a.endswith(b[-2:]),
                edges=(("bell", "well"), ("moon", "noon"), ("cat", "car")),
                slips=("return $a[-1] == $b[-1]", "return $a[:2] == $b[:2]"),
            ),
            variant(
                names="chain_words|fits_chain",
                cond="$b begins with the letter that $a ends with",
                ex="$b[0] == $a[-1]",
                fn=lambda a, b: b.startswith(a[-1:]),
                edges=(("tea", "apple"), ("moon", "nose"), ("dog", "cat")),
                slips=("return $a[0] == $b[-1]", "return $a[-1] == $b[-1]"),
            ),
            variant(
                names="equally_long|same_length",
                cond="$a and $b are equally long",
                ex="len($a) == len($b)",
                fn=lambda a, b: len(a) - len(b) == 0,
                slips=("return $a == $b", "return len($a) >= len($b)"),
            ),
            variant(
                names="share_a_letter|any_common_letter",
                cond="at least one letter appears both in $a and in $b",
                ex="any(letter in $b for letter in $a)",
                fn=lambda a, b: not set(a).isdisjoint(b),
                edges=(("sun", "cat"), ("fox", "pen"), ("ab", "ba")),
                slips=("return all(letter in $b for letter in $a)", "return $a[0] in $b"),
            ),
            variant(
                names="alphabetical|comes_first",
                cond="$a comes before $b in the alphabet",
                ex="$a < $b",
                fn=lambda a, b: sorted([b, a])[0] == a != b,
                edges=(("ant", "bee"), ("car", "care"), ("moon", "moon")),
                slips=("return $a > $b", "return $a <= $b", "return len($a) < len($b)"),
            ),
        ),
        lambda r, v: r.choice(
            (
                two_words(r, v),
                (lambda w: (w, "".join(r.sample(w, len(w)))))(r.choice(WORDS)),
                r.choice((("ape", "pea"), ("tea", "ate"), ("lamp", "damp"), ("tool", "oven"))),
            )
        ),
        edges=(("listen", "silent"), ("abb", "aab"), ("stop", "pots"), ("day", "pay"), ("hat", "tree")),
    ),
    Kind(
        "accept_text",
        "text|word|entry: str -> bool",
        "",
        """
        Return True if $a $cond, and False otherwise.

        A text is accepted if it $cond. Decide whether $a is accepted and return True or False.

        [entry] A form has a field, and the user has typed $a. The entry is valid only if it $cond. Return whether it
        is valid.

        Write a check for strings. It answers True for a string that $cond, and False for any other, the empty string
        included.

        Is it true that the string $a $cond? The answer is a boolean. (For an empty string it is False.)
        """,
        (
            variant(
                names="is_good_password|is_valid_password",
                cond="has at least 6 characters and contains at least one digit",
                ex="len($a) >= 6 and any(char.isdigit() for char in $a)",
                fn=lambda s: bool(re.search("[0-9]", s)) and not len(s) < 6,
                edges=(("abc123",), ("abcdef",), ("ab1",), ("a1b2c",), ("longer4u",)),
                draw=lambda r, v: (r.choice(WORDS) + r.choice(("", "1", "77")),),
                slips=(
                    "return len($a) >= 6",
                    "return any(char.isdigit() for char in $a)",
                    "return len($a) > 6 and any(char.isdigit() for char in $a)",
                ),
            ),
            variant(
                names="only_digits|is_number_text",
                cond="is not empty and consists only of the digits 0 to 9",
                ex="$a.isdigit()",
                fn=lambda s: re.fullmatch("[0-9]+", s) is not None,
                edges=(("123",), ("12a",), ("0",), ("-5",), ("3.5",)),
                draw=lambda r, v: (
                    r.choice(
                        (
                            str(r.randint(0, 9999)),
                            r.choice(WORDS),
                            f"{r.randint(1, 99)}x",
                            f"{r.randint(1, 9)} {r.randint(1, 9)}",
                        )
                    ),
                ),
                slips=("return any(char.isdigit() for char in $a)",),
            ),
            variant(
                names="is_user_name|valid_user_name",
                cond="begins with a small letter (a to z) and has between 3 and 8 characters, both included",
                ex='3 <= len($a) <= 8 and "a" <= $a[0] <= "z"',
                fn=lambda s: re.fullmatch("[a-z].{2,7}", s) is not None,
                edges=(("ada",), ("al",), ("Adam",), ("robin123",), ("robin1234",), ("4ever",)),
                draw=lambda r, v: (r.choice((r.choice(WORDS), r.choice(NAMES), r.choice(WORDS)[:2])),),
                slips=("return 3 <= len($a) <= 8", "return 3 < len($a) < 8 and $a[0].islower()"),
            ),
            variant(
                names="is_shouting|all_capitals",
                cond="contains at least one letter and no small letters",
                ex="$a.isupper()",
                fn=lambda s: bool(re.search("[A-Z]", s)) and not re.search("[a-z]", s),
                edges=(("HELP",), ("Help",), ("HI 5!",), ("123",)),
                draw=lambda r, v: (
                    r.choice((r.choice(WORDS).upper(), r.choice(WORDS), r.choice(NAMES), sentence(r, 2, 2).upper())),
                ),
                slips=("return $a[:1].isupper()", "return $a == $a.upper()"),
            ),
        ),
        word,
        edges=(("",),),
    ),
    Kind(
        "part_of_text",
        "text|s|entry: str -> str",
        "",
        """
        Return the part of $a $where "$sep". $once

        The string $a contains the character "$sep". $once Give back what stands $where it.

        $story In $a there is a "$sep". $once Return only the part $where it.

        Cut the text $a at "$sep" and return what is $where that character. $once

        Find "$sep" in $a and return everything $where it, without the "$sep" itself. $once
        """,
        (
            variant(
                names="user_of|mail_user",
                where="before",
                sep="@",
                once="It appears exactly once.",
                story="Mail addresses have two parts.",
                ex='$a.split("@")[0]',
                fn=lambda s: s[: s.index("@")],
                draw=lambda r, v: (f"{r.choice(WORDS)}@{r.choice(WORDS)}.org",),
                edges=(("ada@home.net",), ("b@c",), ("a.b@c.de",)),
                slips=('return $a.split("@")[1]', 'return $a[:$a.index("@") + 1]'),
            ),
            variant(
                names="mail_domain|server_of",
                where="after",
                sep="@",
                once="There is only one of it.",
                story="An address for mail names a server.",
                ex='$a.split("@")[1]',
                fn=lambda s: s[s.index("@") + 1 :],
                draw=lambda r, v: (f"{r.choice(WORDS)}@{r.choice(WORDS)}.org",),
                edges=(("ada@home.net",), ("b@c",), ("a.b@c.de",)),
                slips=('return $a.split("@")[0]', 'return $a[$a.index("@"):]'),
            ),
            variant(
                names="file_ending|file_type",
                where="after",
                sep=".",
                once="If there are several, the last one counts.",
                story="A file name ends with the type of the file.",
                ex='$a.split(".")[-1]',
                fn=lambda s: s[s.rindex(".") + 1 :],
                draw=lambda r, v: (f"{r.choice(WORDS)}.{r.choice(('txt', 'py', 'jpg', 'tar.gz'))}",),
                edges=(("photo.jpg",), ("a.b.c",), ("notes.old.txt",)),
                slips=('return $a.split(".")[1]', 'return $a.split(".")[0]'),
            ),
            variant(
                names="key_of|setting_name",
                where="before",
                sep="=",
                once="If it appears more than once, the first one counts.",
                story="A line of a settings file has a name and a value.",
                ex='$a.split("=")[0]',
                fn=lambda s: s[: s.find("=")],
                draw=lambda r, v: (f"{r.choice(WORDS)}={r.choice(WORDS)}",),
                edges=(("size=12",), ("x=y=z",), ("name=",)),
                slips=('return $a.split("=")[1]', 'return $a.rsplit("=", 1)[0]'),
            ),
        ),
        word,
    ),
    Kind(
        "pad_text",
        "text|word|label: str, width|n|size: int -> str",
        "",
        """
        Return $np. If $a already has $b or more characters, return it unchanged.

        Make the string $a at least $b characters long: the result is $np. Texts that are long enough are not changed.

        [label, width] A table has a column that is $b characters wide. To fill it with $a you need $np. Return that.
        A label that is as long as the column or longer is returned as it is.

        Add characters until the length $b is reached and return $np. Do nothing if $a is long enough.

        The function fills up a text. Its result is $np; when $a has $b characters or more, it is $a itself.
        """,
        (
            variant(
                names="pad_right|fill_with_dots",
                np="$a with dots (.) added at its end until it has $b characters",
                code='while len($a) < $b:\n    $a = $a + "."\nreturn $a',
                fn=lambda s, n: s.ljust(n, "."),
                slips=('return $a + "." * $b', 'return $a.rjust($b, ".")'),
            ),
            variant(
                names="pad_left|push_right",
                np="$a with spaces added in front until it has $b characters",
                code='while len($a) < $b:\n    $a = " " + $a\nreturn $a',
                fn=lambda s, n: s.rjust(n),
                slips=("return $a.ljust($b)", 'return " " * $b + $a'),
            ),
            variant(
                names="stars_in_front|fill_with_stars",
                np="$a with stars (*) added in front until it has $b characters",
                code='while len($a) < $b:\n    $a = "*" + $a\nreturn $a',
                fn=lambda s, n: s.rjust(n, "*"),
                slips=('return $a.ljust($b, "*")', 'return "*" * $b + $a'),
            ),
            variant(
                names="underline_to|fill_with_lines",
                np="$a with underscores (_) added at its end until it has $b characters",
                code='while len($a) < $b:\n    $a = $a + "_"\nreturn $a',
                fn=lambda s, n: s.ljust(n, "_"),
                slips=('return $a + "_" * $b', "return $a.ljust($b)"),
            ),
        ),
        lambda r, v: (r.choice(WORDS), r.randint(0, 12)),
        edges=(("", 3), ("abc", 3), ("tea", 6), ("longer", 2), ("", 0)),
    ),
    Kind(
        "find_character",
        "text|s|word: str, char|letter|c: str",
        "",
        """
        Return $np. $none

        The second argument, $b, is a single character. Look for it in the string $a and find $np. $none

        Positions in a text are counted from 0. Return $np. $none ($b is one character.)

        [line, key] A search box looks for the single character $b in the line $a. It answers with $np. $none

        Go through $a step by step, comparing each character with $b. The result is $np. $none
        """,
        (
            variant(
                names="first_position|index_of",
                args="text|s|word: str, char|letter|c: str -> int",
                np="the index of the first $b in $a, counting from 0",
                none="If it does not appear, return -1.",
                ex="$a.find($b)",
                fn=lambda s, c: next((i for i, x in enumerate(s) if x == c), -1),
                slips=("return $a.rfind($b)", "return $a.find($b) + 1", "return $a.index($b)"),
            ),
            variant(
                names="last_position|last_index_of",
                args="text|s|word: str, char|letter|c: str -> int",
                np="the index of the last $b in $a, counting from 0",
                none="If it does not appear, return -1.",
                ex="$a.rfind($b)",
                fn=lambda s, c: max((i for i, x in enumerate(s) if x == c), default=-1),
                slips=("return $a.find($b)", "return $a.rfind($b) + 1"),
            ),
            variant(
                names="all_positions|indices_of",
                args="text|s|word: str, char|letter|c: str -> list[int]",
                np="the list of all indices at which $b stands in $a, counting from 0",
                none="If it does not appear, return an empty list.",
                ex="[i for i in range(len($a)) if $a[i] == $b]",
                fn=lambda s, c: [m.start() for m in re.finditer(re.escape(c), s)],
                slips=("return [$a.find($b)]", "return [i + 1 for i in range(len($a)) if $a[i] == $b]"),
            ),
            variant(
                names="count_of|how_often",
                args="text|s|word: str, char|letter|c: str -> int",
                np="how many times $b appears in $a",
                none="If it does not appear, return 0.",
                ex="$a.count($b)",
                fn=lambda s, c: sum(x == c for x in s),
                slips=("return 1 if $b in $a else 0", "return len($a)"),
            ),
            variant(
                names="text_before|up_to",
                args="text|s|word: str, char|letter|c: str -> str",
                np="the part of $a before the first $b",
                none="If it does not appear, return the whole text.",
                ex="$a.split($b)[0]",
                fn=lambda s, c: s.partition(c)[0],
                slips=("return $a[:$a.find($b)]", "return $a.rsplit($b, 1)[0]"),
            ),
        ),
        lambda r, v: (lambda s: (s, r.choice([*s, "q"])))(sentence(r, 1, 3)),
        edges=(("banana", "a"), ("banana", "x"), ("", "a"), ("noon", "n"), ("a", "a")),
    ),
    Kind(
        "every_other",
        f"{TEXT}|word: str -> str",
        "",
        """
        Return $np. An empty string gives an empty string.

        Build a new string from $a that consists of $np. If $a is empty, so is the result.

        [secret] A secret message is hidden in $a. To read it, take $np. Return the hidden message, which is empty for
        an empty text.

        Which characters remain? Keep $np and drop the rest. Return the remaining text (nothing remains of an empty
        one).

        Use a slice with a step, or a loop over the indices, to get $np. For "" the answer is "".
        """,
        (
            variant(
                names="every_second|every_other",
                np="every second character of $a, beginning with the first",
                ex="$a[::2]",
                fn=lambda s: "".join(c for i, c in enumerate(s) if i % 2 == 0),
                slips=("return $a[1::2]", "return $a[:2]"),
            ),
            variant(
                names="other_half|second_of_each_pair",
                np="every second character of $a, beginning with the second one",
                ex="$a[1::2]",
                fn=lambda s: "".join(c for i, c in enumerate(s) if i % 2),
                slips=("return $a[::2]", "return $a[1:]"),
            ),
            variant(
                names="every_third|one_in_three",
                np="every third character of $a, beginning with the first",
                ex="$a[::3]",
                fn=lambda s: "".join(c for i, c in enumerate(s) if i % 3 == 0),
                slips=("return $a[::2]", "return $a[2::3]", "return $a[:3]"),
            ),
            variant(
                names="first_half|front_half",
                np="the first half of $a; of an odd number of characters the middle one is left out",
                ex="$a[: len($a) // 2]",
                fn=lambda s: "".join(c for i, c in enumerate(s) if 2 * i + 2 <= len(s)),
                slips=("return $a[len($a) // 2:]", "return $a[: (len($a) + 1) // 2]"),
            ),
        ),
        phrase,
        edges=(("",), ("a",), ("ab",), ("abcdefg",)),
    ),
    Kind(
        "draw_with_text",
        "n|size|width: int",
        "",
        """
        Return $np. For $a equal to 0 the result is $none.

        Draw with characters: make $np. The number $a is zero or more, and 0 gives $none.

        Given a non-negative integer $a, build $np ($none if it is 0).

        [length] A simple picture is made of text. Return $np. With a length of 0, return $none.

        Use * or a loop to create $np. Nothing is drawn for 0: then return $none.
        """,
        (
            variant(
                names="star_line|stars",
                args="n|size|width: int -> str",
                none='""',
                np="a string of $a stars (*)",
                ex='"*" * $a',
                fn=lambda n: "".join("*" for _ in range(n)),
                slips=('return "* " * $a', 'return "*"'),
            ),
            variant(
                names="dashes|dash_line",
                args="n|size|width: int -> str",
                none='""',
                np="a string of $a dashes (-) with one space between neighbours",
                ex='" ".join(["-"] * $a)',
                fn=lambda n: ("- " * n).strip(),
                slips=('return "-" * $a', 'return "- " * $a'),
            ),
            variant(
                names="star_square|square_rows",
                args="n|size|width: int -> list[str]",
                none="an empty list",
                np="a list of $a strings, each of which consists of $a stars (*)",
                ex='["*" * $a] * $a',
                fn=lambda n: ["".join(["*"] * n) for _ in range(n)],
                slips=('return ["*"] * $a', 'return ["*" * i for i in range(1, $a + 1)]'),
            ),
            variant(
                names="star_triangle|staircase",
                args="n|size|width: int -> list[str]",
                none="an empty list",
                np="a list of $a strings: the first is one hash sign (#), the second two, and so on up to $a",
                ex='["#" * i for i in range(1, $a + 1)]',
                fn=lambda n: ["#" + "#" * i for i in range(n)],
                slips=('return ["#" * i for i in range($a)]', 'return ["#" * $a] * $a'),
            ),
        ),
        lambda r, v: (r.randint(0, 12),),
        edges=((0,), (1,), (2,), (4,), (7,)),
    ),
    Kind(
        "kind_of_letter",
        "char|letter|c: str",
        "",
        """
        Return $np. The argument $a is a single character.

        The string $a has exactly one character. The result should be $np.

        [key] Someone has pressed one key of a keyboard, $a. Return $np.

        Look at the one character in $a. The function's result is $np.

        Given one character, $a, decide what to answer: return $np.
        """,
        (
            variant(
                names="is_vowel|vowel",
                args="char|letter|c: str -> bool",
                np="True if it is one of a, e, i, o, u (small or capital), else False",
                ex='$a in "aeiouAEIOU"',
                fn=lambda c: c.lower() in ("a", "e", "i", "o", "u"),
                slips=('return $a in "aeiou"', 'return $a not in "aeiouAEIOU"'),
            ),
            variant(
                names="is_digit|digit_key",
                args="char|letter|c: str -> bool",
                np="True if it is a digit from 0 to 9, else False",
                ex="$a.isdigit()",
                fn=lambda c: "0" <= c <= "9",
                edges=(("0",), ("9",), ("5",)),
                draw=lambda r, v: (r.choice("0123456789abcX?"),),
                slips=("return $a.isalpha()", 'return $a in "123456789"'),
            ),
            variant(
                names="letter_type|key_type",
                args="char|letter|c: str -> str",
                np='"letter" if it is a letter from a to z or A to Z, "digit" if it is a digit, and '
                '"other" for anything else',
                code='if $a.isalpha():\n    return "letter"\nif $a.isdigit():\n    return "digit"\nreturn "other"',
                fn=lambda c: "letter" if c.lower() != c.upper() else "digit" if c in "0123456789" else "other",
                slips=(
                    'return "letter" if $a.islower() else "digit" if $a.isdigit() else "other"',
                    'return "letter" if $a.isalpha() else "digit"',
                ),
            ),
            variant(
                names="is_capital|capital_key",
                args="char|letter|c: str -> bool",
                np="True if it is a capital letter from A to Z, else False",
                ex="$a.isupper()",
                fn=lambda c: "A" <= c <= "Z",
                edges=(("Q",), ("Z",)),
                draw=lambda r, v: (r.choice("ABCDabcd12!"),),
                slips=("return $a.islower()", "return $a == $a.upper()"),
            ),
        ),
        lambda r, v: (r.choice("aeiouAEIOUbcdxyzRTK123 ?!"),),
        edges=(("a",), ("E",), ("b",), ("7",), (" ",)),
    ),
    Kind(
        "digits_in_text",
        f"{TEXT}: str",
        "",
        """
        Return $np.

        The string $a can contain any characters, digits among them. Find $np.

        Pick the digits out of the text $a. From them the function makes $np.

        [label] A label such as "box 12, row 7" contains digits. For the label $a, return $np.

        Ignore everything in $a except the digits 0 to 9. Return $np.
        """,
        (
            variant(
                names="add_digits|sum_of_digits",
                args=f"{TEXT}: str -> int",
                np="the sum of all digits in it, or 0 if there are none",
                code="total = 0\nfor char in $a:\n    if char.isdigit():\n        total += int(char)\nreturn total",
                fn=lambda s: sum(map(int, re.findall("[0-9]", s))),
                slips=("return sum(1 for char in $a if char.isdigit())", "return 0"),
            ),
            variant(
                names="only_the_digits|keep_digits",
                args=f"{TEXT}: str -> str",
                np="a string of its digits in their order, which is empty if there are none",
                code='result = ""\nfor char in $a:\n    if char.isdigit():\n        result += char\nreturn result',
                fn=lambda s: re.sub("[^0-9]", "", s),
                slips=('return "".join(char for char in $a if not char.isdigit())', "return $a"),
            ),
            variant(
                names="largest_digit_in|highest_digit",
                args=f"{TEXT}: str -> int",
                np="its largest digit as an integer, or -1 if it has no digits",
                code="largest = -1\nfor char in $a:\n    if char.isdigit() and int(char) > largest:\n"
                "        largest = int(char)\nreturn largest",
                fn=lambda s: max(map(int, re.findall("[0-9]", s)), default=-1),
                slips=("return max((int(char) for char in $a if char.isdigit()), default=0)",),
            ),
            variant(
                names="has_digit|any_digit",
                args=f"{TEXT}: str -> bool",
                np="True if it has at least one digit, else False",
                code="for char in $a:\n    if char.isdigit():\n        return True\nreturn False",
                fn=lambda s: bool(re.search("[0-9]", s)),
                slips=("return $a.isdigit()", "return $a[:1].isdigit()"),
            ),
        ),
        lambda r, v: (sentence(r, 1, 2) + r.choice(("", "", " 12", " 7", "305", "!")) + r.choice(("", "", "x4", "?")),),
        edges=(("",), ("abc",), ("a1b2",), ("room 305",), ("90",)),
    ),
)


def min_first(items: list[str]) -> list[str]:
    """Selection sort, which the solution does not use."""
    left, found = list(items), []
    while left:
        found.append(left.pop(left.index(min(left))))
    return found
