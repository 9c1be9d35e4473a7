"""New inputs for a problem's tests: mutations and recombinations of the given inputs.

The values of an input (the arguments of a call, or the fields of a text that `input_formats` parses) form a record.

1. *Constraints* are what all given records have in common: an integer that is the length of a list, lists of equal
   length, a sorted list, distinct elements, a permutation, integers in order, a string with matching brackets, and so
   on. A new record must satisfy every constraint. Wrongly inferred ones only make the new inputs less varied. What two
   records have in common by chance (an order, say) is none, unless the statement speaks of it.
2. *Domains* are the values given at one place (an argument, or the elements of a list): the range of integers, the
   characters of strings, the lengths. Bounds in the statement narrow them. They are wider than the given values only
   where the statement's words allow it (`stated_limits`), or where the references do the same with other values and
   the statement does not forbid these (`treatment`): below zero, to an empty list, to lists of other lengths. A range
   of arguments hardly reaches up, since a right but slow program must keep its time limit.
3. Every second record is a mutation of a given one, which changes one value by its type: to an extreme, to a neighbour,
   to the value of another place (ties), to one with repeated, missing or further elements; or takes over a value of
   another record. The others are *small*: of few elements, few different values, and integers near 0.
"""

import copy
import math
import random
import re
import string
from collections.abc import Callable, Iterator, Sequence, Set
from functools import cache
from itertools import pairwise, permutations
from typing import Any

from coderl_tasks.curation.stated_limits import Said, stated_bounds
from coderl_tasks.curation.treatment import Treatment

Record = list[Any]
Place = tuple[int | str, ...]
"""Where a value lies in a record: the field's index, then "*" for the elements of a list, or an index in short lists
that all have one length; keys of a dict."""
Property = Callable[[Any], bool]
"""Something that values at one place may have in common."""

MOST_VALUES = 300  # of a record: of larger ones a part is mutated, since each mutation is checked as a whole
MOST_ELEMENTS = 2000  # of one string that is mutated: longer ones are only taken over whole
_TRIES = 30  # mutations tried for each input that is wanted
_FEW = 4  # different values, of fewer of which some properties tell nothing
_SMALL = 10  # an integer that is the only argument may be as large; given ones up to this may be doubled
_NAMED = 0.3  # share of integers that are next to one that the statement or a right program names
_NEAR = 1000  # an integer in a list may be as large as one that the statement or a right program names, up to this
_CHANCE = 0.01  # a property that unrelated values have more often is none, unless the statement speaks of it
_LONG = 8  # elements that a list may have, however short the given ones are
_EMPTY = 0.05  # share of lists and strings that become empty, if the statement speaks of empty ones
_ROW = 4  # lists of so many elements, if all at a place have that length, are rows: their positions differ in meaning
_ENOUGH = 20  # that integers may be, however small the given ones are, where a larger one costs no time
_UNKNOWN = Treatment()
_BRACKETS = {")": "(", "]": "[", "}": "{", ">": "<"}


def new_inputs(
    records: Sequence[Record], statement: str, seed: int, count: int, treatment: Treatment = _UNKNOWN
) -> list[Record]:
    """At most `count` new records, all different, drawn by `seed`. There are none if no given record can be mutated.
    `treatment` is what right programs do with their input: values that they name are tried."""
    if not records:
        return []
    inputs = _Inputs(records, statement, random.Random(seed), treatment)
    if not inputs.seeds:
        return []
    found: dict[str, Record] = {}
    given = {repr(record) for record in records}
    for attempt in range(count * _TRIES):
        if len(found) == count:
            break
        record = inputs.small() if attempt % 2 else inputs.mutated()
        if (key := repr(record)) not in given and key not in found and inputs.allows(record):
            found[key] = record
    return list(found.values())


def _beginning(value: Any) -> Any:
    """A list, and each list in it, cut off after a few elements."""
    return [_beginning(inner) for inner in value[:_LONG]] if isinstance(value, list) else copy.deepcopy(value)


class _Inputs:
    """What the given records have in common, and how others like them are made."""

    def __init__(self, records: Sequence[Record], statement: str, rng: random.Random, treatment: Treatment) -> None:
        """Infers from the given `records` (one value per field) and the `statement` what new records must satisfy:
        `lengths`, `common` and `relations` hold the constraints that all given records satisfy. `treatment` is what
        right programs do with their input. `seeds` are the records to mutate."""
        self.records = records
        self.treatment = treatment
        # Domains of values, by place and type. Cached: asked for each value of each record that is tried.
        self.alike: Callable[[Place, type], list[Any]] = cache(self._alike)
        self.range: Callable[[Place, type], tuple[Any, Any]] = cache(self._range)
        self.sizes: Callable[[Place, type], tuple[int, int]] = cache(self._sizes)
        self.characters: Callable[[Place], set[str]] = cache(self._characters)
        # Integers that the statement or a right program names, and their neighbours: programs may tell these apart.
        named = [int(each) for each in re.findall(r"(?<![\w.])-?\d{1,9}(?![\w.])", statement)]
        self.stated = tuple(named)
        named += [each for each in treatment.constants if isinstance(each, int)]
        self.named = sorted({value for each in named for value in (each - 1, each, each + 1, -each)})
        self.rng = rng
        self.rows = _rows(records)  # places of short lists of one length, whose positions differ in meaning
        self.has_fields_only = not any(isinstance(value, list | tuple | dict) for value in records[0])
        # All given values by place: of a field, of the elements of a field's list, and so on.
        self.given: dict[Place, list[Any]] = {}
        for record in records:
            for place, value in _walk(record, self.rows):
                self.given.setdefault(place, []).append(value)
        self.said = Said(statement)
        self.may_be_empty = self.said.may_be_empty or (treatment.takes_empty and not self.said.limits_size)
        self.bounds = stated_bounds(statement)
        self.quoted = re.findall(r"['\"`]([^'\"`\s]{1,20})['\"`]", statement)
        pairs = list(permutations(range(len(records[0])), 2))
        # (field, other, difference): the field's integer, or its list's length, is the length of the other field.
        self.lengths = [
            (field, other, more)
            for field, other in pairs
            for more in (0, 1, -1)
            if all(_is_length(record, field, other, more) for record in records)
        ]
        # A number that says how many elements follow may be any number of them that is allowed.
        self.counts = {(field,) for field, *_ in self.lengths if isinstance(records[0][field], int)}
        self.counted = {(other,) for field, other, _ in self.lengths if (field,) in self.counts}
        # (place, name, test): a property of the values at one place, such as being sorted.
        self.common = [
            (place, name, test)
            for place, given in self.given.items()
            for name, test in _properties(given, self.said.names_parity).items()
            if all(map(test, given)) and not self._is_by_chance(place, name, given)
        ]
        # (test, field, other field): such as "at most".
        self.relations = [
            (test, one, other)
            for test in self._tests_of_pairs()
            for one, other in pairs
            if all(test(record[one], record[other]) for record in records)
        ]
        self.seeds = [record for record in records if sum(1 for _ in _walk(record)) < MOST_VALUES]
        if not self.seeds:  # beginnings of large records, where they keep what these have in common
            parts = (self._repaired([_beginning(value) for value in record]) for record in records)
            self.seeds = [part for part in parts if self.allows(part)]

    def _tests_of_pairs(self) -> Sequence[Callable[[Any, Any], bool]]:
        """What two fields may have in common. Two integers are in order by chance in every second record."""
        is_by_chance = 0.5 ** len({repr(record) for record in self.records}) > _CHANCE
        # Whether one value is in another may be what is asked.
        left_out = ["at most", "less"] if is_by_chance and not self.said.relates else []
        left_out += ["inside", "rearranged"] if is_by_chance and self.said.asks else []
        return [test for name, test in _OF_PAIRS.items() if name not in left_out]

    def _is_by_chance(self, place: Place, name: str, given: Sequence[Any]) -> bool:
        """Whether all `given` values at a place may have the property `name` (sorted, even, ...) by chance, so that it
        is no constraint: the statement does not speak of it, and unrelated values have it with more than _CHANCE."""
        if name in ("rectangle", "square"):
            return not self.said.is_grid and not any(len(each) > 1 for each in given)
        if name == "first is less":
            is_few = 0.5 ** len({repr(each) for each in given}) > _CHANCE
            return is_few and (place in self.counted or not self.said.relates)
        if name in ("even", "odd"):
            return not self.said.names_even
        is_ordered = name in ("sorted", "falling")
        if not is_ordered and name not in ("distinct", "differing neighbours"):
            return False
        # Lists of one element are always sorted and distinct, and equal lists count once.
        telling = [each for each in {repr(value): value for value in given}.values() if len(each) > 1]
        asks = self.said.orders if is_ordered else self.said.differs
        if asks and telling:
            return False
        if is_ordered:  # one of n! orders
            return math.prod(1 / math.factorial(min(len(each), 20)) for each in telling) > _CHANCE
        n_values = self._n_values(place, given)
        # About the chance that as many draws from `n_values` values are all different (birthday problem).
        return math.prod(max(1 - len(each) / n_values / 2, 0.0) ** len(each) for each in telling) > _CHANCE

    def _n_values(self, place: Place, given: Sequence[Any]) -> float:
        """How many different elements lists, or characters strings, at a place may have."""
        if isinstance(given[0], str):
            return max(len(self.characters(place)), 1)
        inner = [each for each in self.given.get((*place, "*"), []) if _is_number(each)]
        return max(max(inner) - min(inner) + 1, 1) if inner else max(len(self.given.get((*place, "*"), [])), 1)

    # Domains

    def allows(self, record: Record) -> bool:
        values = list(_walk(record, self.rows))
        return (
            all(self._is_in_domain(place, value) for place, value in values)
            and all(_is_length(record, *each) for each in self.lengths)
            and all(test(record[one], record[other]) for test, one, other in self.relations)
            and all(test(value) for place, _, test in self.common for at, value in values if at == place)
        )

    def _is_in_domain(self, place: Place, value: Any) -> bool:
        alike = self.alike(place, type(value))
        if not alike:
            return False
        if isinstance(value, bool) or value is None:
            return True
        if isinstance(value, int | float):
            if place in self.counts:
                return True
            low, high = self.range(place, type(value))
            return low <= value <= high and (len(alike) < 6 or len(set(alike)) > 2 or value in alike)
        least, most = self.sizes(place, type(value))
        if isinstance(value, str):
            return least <= len(value) <= most and (set(value) <= self.characters(place) or value in alike)
        return least <= len(value) <= most or value in alike

    def _alike(self, place: Place, kind: type) -> list[Any]:
        """The given values of a type at a place."""
        return [each for each in self.given.get(place, ()) if type(each) is kind]

    def _range(self, place: Place, kind: type) -> tuple[Any, Any]:
        """The lowest and the highest number of a type that new records may have at a place (a field of the record, or
        the elements of a list in one). Starts from the given values' range, and widens it where the statement, or what
        right programs do with numbers (`treatment`), allows that; bounds that the statement names narrow it last."""
        given = self.alike(place, kind)
        low, high = min(given), max(given)
        is_field, is_only = len(place) == 1, len(place) == len(self.records[0]) == 1
        # Only 0 and 1, or always 0: a switch, where the statement does not speak of numbers. It has no other values.
        is_number = is_field and self.treatment.is_plain and self.said.speaks_of_numbers
        is_switch = (len(set(given)) > 1 and {0, 1} >= set(given)) or (is_field and not is_only and set(given) == {0})
        if is_switch and not is_number:
            return low, high
        if isinstance(low, int) and isinstance(high, int):
            low = self._lowest(is_field, low, high, {len(str(each)) for each in given})
            if low < 0:  # as far above 0 as below
                low, high = min(low, -high), max(high, -low)
            if not is_field:  # elements of lists may be any that the programs tell apart, which costs no time
                near = [each for each in self.named if abs(each) <= _NEAR]
                high = max([high, *near])
                low = min([low, *near]) if low < 0 else low
            elif is_only:  # and a single argument any that they ask for
                near = [each + step for each in self.treatment.compared for step in (-1, 0, 1) if abs(each) <= _NEAR]
                near = [each for each in near if each > 0 or self.said.names_zero]
                low, high = min([low, *near]), max([high, *near])
            if self.treatment.is_plain or (low < 0 and not is_field):
                high, low = self._farther(low, high)
        elif low < 0 or (self.treatment.is_plain and not self.said.limits_signs):  # decimals
            low = min(low, -high)
        if 0 < high <= _SMALL and (is_only or (is_field and self.said.is_open)):  # small ones cost little when doubled
            high = max(2 * high, _SMALL) if is_only else 2 * high
            low = -high if low < 0 else low
        if is_only and self.said.is_open:  # to the third multiple of what is named: a program may tell them apart
            high = max([high, *(3 * each for each in self.stated if 1 < each <= _SMALL * 2)])
        # Which value a stated bound is of is not known: those that hold for all given values are taken to be of these.
        containing = [(least, most) for least, most in self.bounds if least <= min(given) and max(given) <= most]
        return (max([low, *(least for least, _ in containing)]), min([high, *(most for _, most in containing)]))

    def _farther(self, low: int, high: int) -> tuple[int, int]:
        """The greatest and the lowest number of a range of arbitrary integers: those of both signs, and those that
        right programs only calculate with, may have one digit more."""
        if high >= _NEAR or (self.said.is_scale and not self.treatment.is_plain):
            return high, low
        high = max(_ENOUGH, 2 * 10 ** len(str(high))) if low < 0 else max(_ENOUGH, 2 * high)
        return high, min(low, -high) if low < 0 else low

    def _lowest(self, is_field: bool, low: int, high: int, digits: set[int]) -> int:
        """How far down a range of integers reaches: to 1 or 0 where nothing speaks against it, and below 0 where the
        statement speaks of integers without limiting them."""
        if low < 0 or (self.treatment.is_plain and not self.said.limits_signs):
            return min(low, -max(high, 1))
        if self.treatment.takes_zero and not self.said.limits_zero:
            return 0
        if not is_field or self.has_fields_only:  # beside a list, the statement speaks of the list's elements
            if self.said.names_negative or (self.said.is_signed and (not is_field or self.said.is_plainly_signed)):
                return -max(high, 1)
            if self.said.may_be_zero:
                return 0
        if low <= 1 or self.said.has_least or (len(digits) == 1 and digits != {1} and self.said.names_digits):
            return low
        return 1

    def _sizes(self, place: Place, kind: type) -> tuple[int, int]:
        """The least and the greatest length."""
        given = self.alike(place, kind)
        lengths = [len(each) for each in given]
        least, most = min(lengths), max(lengths)
        if isinstance(given[0], str) and least == most == 1 and len(set(given)) > 1:
            return 1, 1
        stated = [each for each in self.said.least_lengths if each <= least]
        may_be_empty = self.may_be_empty and (len(place) == 1 or self.said.names_empty_elements)
        if least == most > 1 and len(set(map(repr, given))) > 1 and self._is_fixed(place, given, most):
            return (0 if self.said.may_be_empty and not stated else least), most
        least = min(least, 1 if least < 4 else 2)
        if stated:
            least = max(stated)
        elif may_be_empty:
            least = 0
        longest = [high for low, high in self.bounds if low <= min(lengths) and max(lengths) <= high]
        near = [each + 2 for each in self.stated if most <= each <= 2 * _LONG]  # a program may tell lengths apart
        return least, max(most, min([max([most + 2, _LONG if most > 1 else _ROW, *near]), *longest]))

    def _is_fixed(self, place: Place, given: Sequence[Any], size: int) -> bool:
        """Whether values that all have one length must have it, rather than have it by chance."""
        if place in self.counted:
            return False
        is_free = all(map(_is_words, given)) if isinstance(given[0], str) else self.said.is_list
        return not is_free or len(set(map(repr, given))) >= _FEW or self.said.counts(size)

    def _characters(self, place: Place) -> set[str]:
        """What strings are made of: the characters given, and of a kind with many all."""
        given = self.alike(place, str)
        found = set("".join(given))
        if any(" " in each for each in given):  # words, of which the statement may name others
            found |= set("".join(self.quoted))
        found |= self.treatment.characters
        if self.treatment.takes_any_text and not self.said.limits_characters and all(map(_is_words, given)):
            found |= set(string.ascii_letters + string.digits)
        if len(found) == 1:  # which tells nothing of what else there may be
            found |= set("abcde") if found & set(string.ascii_lowercase) else set()
        for kind in (string.ascii_lowercase, string.ascii_uppercase, string.digits):
            if len(found & set(kind)) > 5:
                found |= set(kind)
        if self.said.tells_cases or {True, False} == {each.isupper() for each in found if each.isalpha()}:
            found |= {other for each in found for other in (each.lower(), each.upper()) if len(other) == 1}
        return found

    # Small records

    def small(self) -> Record:
        """A record of small values, of which few programs that are wrong are right for all."""
        return self._repaired([self._small((field,), value) for field, value in enumerate(self.rng.choice(self.seeds))])

    def _small(self, place: Place, value: Any) -> Any:
        rng, kind = self.rng, type(value)
        if isinstance(value, bool):
            return rng.random() < 0.5
        if isinstance(value, int):
            low, high = self.range(place, kind)
            return min(max(rng.choice((-2, -1, 0, 0, 1, 1, 2, 3, low, high)), low), high)
        if isinstance(value, str) and len(value) <= MOST_ELEMENTS:
            least, most = self.sizes(place, kind)
            letters = sorted(self.characters(place))
            chosen = rng.sample(letters, min(len(letters), 2))
            return "".join(rng.choice(chosen) for _ in range(self._small_size(least, most)) if chosen)
        if isinstance(value, list) and place not in self.rows and self.given.get((*place, "*")):
            least, most = self.sizes(place, kind)
            inner = rng.choice(self.given[(*place, "*")])
            few = [self._small((*place, "*"), inner) for _ in range(3)]
            return [copy.deepcopy(rng.choice(few)) for _ in range(self._small_size(least, most))]
        return copy.deepcopy(rng.choice(self.alike(place, kind) or [value]))

    def _small_size(self, least: int, most: int) -> int:
        size = self.rng.randrange(5) if self.rng.random() < 0.7 else self.rng.randint(least, min(most, 2 * _LONG))
        return min(max(size, least), most)

    # Mutations

    def mutated(self) -> Record:
        record = copy.deepcopy(self.rng.choice(self.seeds))
        for _ in range(self.rng.choice((1, 1, 1, 2, 2, 3))):
            field = self.rng.randrange(len(record))
            if self.rng.random() < 0.15:
                record[field] = copy.deepcopy(self.rng.choice(self.seeds)[field])
            else:
                record[field] = self._changed((field,), record[field], record)
        return self._repaired(record)

    def _changed(self, place: Place, value: Any, record: Record) -> Any:
        given = self.given.get(place, [])
        if not self.alike(place, type(value)):
            return value
        if isinstance(value, bool):
            return not value
        if isinstance(value, int):
            return self._integer(place, value, record)
        if isinstance(value, float):
            low, high = self.range(place, float)
            drawn = round(self.rng.uniform(low, high), self.rng.choice((0, 1, 2)))
            return self.rng.choice([*given, float(low), float(high), drawn, -value])
        if isinstance(value, str):
            return self._string(place, value)
        if isinstance(value, dict):
            return self._dict(place, value, record)
        if isinstance(value, list | tuple):
            return type(value)(self._list(place, list(value), record))
        return self.rng.choice(given)  # sets, None, bytes: only values that were given

    def _integer(self, place: Place, value: int, record: Record) -> int:
        low, high = self.range(place, int)
        others = [each for each in record if isinstance(each, int) and not isinstance(each, bool)]
        lengths = [len(each) for each in record if isinstance(each, list | str | tuple)]
        choices = [low, high, value + 1, value - 1, self.rng.randint(low, high), self.rng.randint(low, high)]
        choices += [-value, value * 2, value // 2, 0, 1, *others, *lengths, low + 1, high - 1]
        named = [each for each in self.named if low <= each <= high]
        if named and self.rng.random() < _NAMED:
            return self.rng.choice(named)
        return self.rng.choice([each for each in choices if low <= each <= high] or [value])

    def _string(self, place: Place, value: str) -> str:
        """A mutation of a string, drawn at random: its words or characters exchanged, a given string's end, one letter
        repeated, a palindrome, another case. It may still break constraints: the caller checks them."""
        rng, given = self.rng, self.alike(place, str)
        if len(value) > MOST_ELEMENTS:
            return rng.choice(given)
        if self.may_be_empty and rng.random() < _EMPTY:
            return ""
        characters = sorted(self.characters(place))
        separator = next((each for each in (" ", ",", "-", "_", ":") if any(each in other for other in given)), None)
        vocabulary = [word for each in given for word in each.split(separator) if word] + self.quoted
        # Always whole words if the statement quotes every word that there is: others would be no input.
        if separator is not None and (rng.random() < 0.5 or {*vocabulary, ""} == {*self.quoted, ""}):
            words = value.split(separator) if value else []
            return separator.join(self._elements(words, lambda: rng.choice(vocabulary)))
        choice = rng.randrange(10)
        if choice == 0:
            return value[: rng.randrange(len(value) + 1)] + rng.choice(given)[rng.randrange(len(value) + 1) :]
        if choice == 1 and value:
            return rng.choice(value) * len(value)
        if choice == 2:
            return value + value[::-1]
        if choice == 3:  # a palindrome of the same length
            half = len(value) // 2
            return value[: half + len(value) % 2] + value[:half][::-1]
        if choice == 4 and value.swapcase() != value:
            at = rng.randrange(len(value))
            return value[:at] + value[at:].swapcase() if rng.random() < 0.5 else value.swapcase()
        if not characters:
            return value
        return "".join(self._elements(list(value), lambda: rng.choice(characters)))  # the other choices: characters

    def _dict(self, place: Place, value: dict[Any, Any], record: Record) -> dict[Any, Any]:
        rng, changed = self.rng, dict(value)
        others = [each for each in self.given.get(place, []) if isinstance(each, dict)]
        if changed and rng.random() < 0.3:
            del changed[rng.choice(list(changed))]
        elif others and rng.random() < 0.4:
            changed |= dict(list(rng.choice(others).items())[:2])
        elif changed:
            key = rng.choice(list(changed))
            changed[key] = self._changed((*place, str(key)), changed[key], record)
        return changed

    def _list(self, place: Place, values: list[Any], record: Record) -> list[Any]:
        """A mutation of the list `values`, drawn at random: one element changed, elements dropped, repeated or added,
        sorted, or a new list of another length. New elements are given ones of this place, half of them changed."""
        rng, inner = self.rng, (*place, "*")
        if self.may_be_empty and rng.random() < _EMPTY:
            return []
        if place in self.rows or (values and rng.random() < 0.3):  # a row's length is fixed, so one element changes
            if not values:
                return values
            number = rng.randrange(len(values))
            values[number] = self._changed((*place, number if place in self.rows else "*"), values[number], record)
            return values
        pool = self.given.get(inner, [])
        if not pool:
            return values

        def element() -> Any:
            value = copy.deepcopy(rng.choice(values if values and rng.random() < 0.2 else pool))
            return self._changed(inner, value, record) if rng.random() < 0.5 else value

        if isinstance(pool[0], int | str) and rng.random() < 0.1:
            return sorted(values, key=lambda each: (str(type(each)), each), reverse=rng.random() < 0.5)
        if rng.random() < 0.1:
            size = rng.randint(*self.sizes(place, type(self.given[place][0]))) if place in self.given else len(values)
            return [element() for _ in range(size)]
        return self._elements(values, element)

    def _elements(self, values: list[Any], element: Callable[[], Any]) -> list[Any]:
        """`values` with one random change: an element added, dropped, replaced, repeated or made equal to another one;
        or all shuffled, cut off, made equal or reversed. `element` makes a new element. May change `values` itself."""
        rng, choice = self.rng, self.rng.randrange(9)
        place = rng.randrange(len(values)) if values else 0
        if not values or choice == 0:
            values.insert(place, element())
        elif choice == 1:
            del values[place]
        elif choice == 2:
            values[place] = element()
        elif choice == 3:
            values.insert(place, copy.deepcopy(rng.choice(values)))
        elif choice == 4:
            values[place] = copy.deepcopy(rng.choice(values))
        elif choice == 5:
            rng.shuffle(values)
        elif choice == 6:
            values = values[: rng.randint(0, len(values))]
        elif choice == 7:
            values = [copy.deepcopy(values[place]) for _ in values]
        else:
            values.reverse()
        return values

    def _repaired(self, record: Record) -> Record:
        """`record` with the lengths that the constraints ask for."""
        for field, other, more in self.lengths:
            value = record[field]
            if isinstance(value, int):
                record[field] = len(record[other]) - more
            elif isinstance(value, list) and len(value) != (size := len(record[other]) + more):
                spare = self.given.get((field, "*"), [])
                while spare and len(value) < size:
                    value.append(copy.deepcopy(self.rng.choice(spare)))
                del value[max(size, 0) :]
        for place, name, test in self.common:
            for at, value in list(_walk(record, self.rows)) if name in ("sorted", "falling", "distinct") else ():
                if at == place and isinstance(value, list) and not test(value):
                    if name == "distinct":
                        value[:] = {repr(each): each for each in value}.values()
                    elif _is_comparable(value):
                        value.sort(reverse=name == "falling")
        return record


def _rows(records: Sequence[Record]) -> set[Place]:
    """The places whose lists all have one small length, and more than one of which lies in a list or is a tuple."""
    sizes: dict[Place, set[int]] = {}
    for record in records:
        for place, value in _walk(record):
            # What lies in a dict has a place that no row has.
            if (
                isinstance(value, list | tuple)
                and (len(place) > 1 or isinstance(value, tuple))
                and {*place[1:]} <= {"*"}
            ):
                sizes.setdefault(place, set()).add(len(value))
    # The elements of a row have places of their own, so what lies deeper is no row: its place has another name.
    return {place for place, found in sizes.items() if len(found) == 1 and max(found) <= _ROW}


def _walk(record: Record, rows: Set[Place] = frozenset()) -> Iterator[tuple[Place, Any]]:
    """Every value in a record with its place, the outer before the inner."""
    waiting: list[tuple[Place, Any]] = [((number,), value) for number, value in enumerate(record)]
    while waiting:
        place, value = waiting.pop()
        yield place, value
        if isinstance(value, dict):
            waiting += [((*place, str(key)), inner) for key, inner in value.items()]
        elif isinstance(value, list | tuple):
            waiting += [((*place, number if place in rows else "*"), inner) for number, inner in enumerate(value)]


def _is_length(record: Record, field: int, other: int, more: int) -> bool:
    """Whether an integer is a list's length, or a list as long as another one, `more` elements apart."""
    value, sized = record[field], record[other]
    if not isinstance(sized, list | tuple | str):
        return False
    if isinstance(value, int) and not isinstance(value, bool):
        return value + more == len(sized)
    return isinstance(value, list) and isinstance(sized, list) and field > other and len(value) == len(sized) + more


def _properties(given: Sequence[Any], speaks_of_parity: bool) -> dict[str, Property]:
    """The properties, name to test, that are worth testing on the `given` values of one place: those that hold for all
    of them become constraints of new values. Which there are depends on the values' type; those that a few values have
    by chance (all numbers are even, say) are left out."""
    kinds = {type(value) for value in given}
    is_chance = len({repr(value) for value in given}) < _FEW
    if kinds == {int}:
        return {} if is_chance else _OF_INTEGERS
    if not kinds <= {list, tuple} and kinds != {str}:
        return {}
    found = _OF_STRINGS if kinds == {str} else _OF_LISTS
    found = found if is_chance and not speaks_of_parity else found | _OF_LENGTHS  # even or odd lengths
    if kinds != {str}:
        return found
    # A text of one character tells nothing of the order of characters.
    if sum(len(set(value)) > 1 for value in given) > 1:
        found = found | _OF_CHARACTERS
    forms, words = {_form(value) for value in given}, [word for value in set(given) for word in value.split()]
    if len(forms) == 1 and not (form := forms.pop()).isalnum():  # such as 99:99, a time
        found = found | {"form": lambda value: _form(value) == form}
    if len(vocabulary := set(words)) <= len(words) / 2:  # words repeat: they are likely all that there are
        found = found | {"vocabulary": lambda value: set(value.split()) <= vocabulary}
    return found


def _is_words(text: str) -> bool:
    return bool(re.fullmatch(r"[A-Za-z ]+", text))


def _form(text: str) -> str:
    """What a text looks like: digits as 9, letters as a or A."""
    return re.sub(r"[a-z]", "a", re.sub(r"[A-Z]", "A", re.sub(r"\d", "9", text)))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_sized(value: Any) -> bool:
    return isinstance(value, list | tuple | str)


def _is_comparable(values: Any) -> bool:
    return all(isinstance(value, int | float) for value in values) or all(isinstance(value, str) for value in values)


def _is_at_most(value: Any, most: Any) -> bool:
    return _is_number(value) and _is_number(most) and bool(value <= most)


def _is_position(value: Any, sized: Any) -> bool:
    return _is_number(value) and _is_sized(sized) and 0 <= value <= len(sized)


def _is_inside(value: Any, container: Any) -> bool:
    if isinstance(container, str):
        return isinstance(value, str) and value in container
    return isinstance(container, list | tuple) and value in container


def _bounds(most: Any, values: Any) -> bool:
    """Whether integers, in a list or in lists in a list, are between 0 and an integer."""
    if not isinstance(most, int) or not isinstance(values, list | tuple):
        return False
    inner = [each for value in values for each in (value if isinstance(value, list | tuple) else [value])]
    return all(isinstance(each, int) and 0 <= each <= most for each in inner)


def _is_rearranged(one: Any, other: Any) -> bool:
    if not isinstance(one, list | str) or not isinstance(other, list | str):
        return False
    return sorted(map(repr, one)) == sorted(map(repr, other))


def _has_brackets(text: str) -> bool:
    """Whether the brackets of a text match."""
    opened = []
    for character in text:
        if character in _BRACKETS.values():
            opened.append(character)
        elif character in _BRACKETS and (not opened or opened.pop() != _BRACKETS[character]):
            return False
    return not opened


_OF_PAIRS: dict[str, Callable[[Any, Any], bool]] = {
    "at most": _is_at_most,
    "less": lambda value, limit: _is_at_most(value, limit) and value != limit,
    "index": lambda value, sized: _is_position(value, sized) and value < len(sized),
    "position": _is_position,
    "inside": _is_inside,
    "bounds": _bounds,
    "rearranged": _is_rearranged,
}
_OF_INTEGERS: dict[str, Property] = {
    "even": lambda value: value % 2 == 0,
    "odd": lambda value: value % 2 == 1,
    "power of two": lambda value: value > 0 and not value & (value - 1),
}
_OF_LENGTHS: dict[str, Property] = {
    "even length": lambda values: len(values) % 2 == 0,
    "odd length": lambda values: len(values) % 2 == 1,
}
_OF_LISTS: dict[str, Property] = {
    "sorted": lambda values: _is_comparable(values) and all(one <= other for one, other in pairwise(values)),
    "falling": lambda values: _is_comparable(values) and all(one >= other for one, other in pairwise(values)),
    "distinct": lambda values: len({repr(value) for value in values}) == len(values),
    "permutation": lambda values: (
        all(isinstance(value, int) for value in values)
        and sorted(values) in (list(range(len(values))), list(range(1, len(values) + 1)))
    ),
    "rectangle": lambda values: all(map(_is_sized, values)) and len(set(map(len, values))) < 2,
    "square": lambda values: all(_is_sized(value) and len(value) == len(values) for value in values),
    "indices": lambda values: all(isinstance(value, int) and 0 <= value <= len(values) for value in values),
    "one kind": lambda values: len(set(map(type, values))) < 2,
    "differing neighbours": lambda values: all(one != other for one, other in pairwise(values)),
    "first is less": lambda values: len(values) == 2 and _is_comparable(values) and bool(values[0] < values[1]),
}
_OF_STRINGS: dict[str, Property] = {
    "brackets": _has_brackets,
    "digits": str.isdigit,
    "stripped": lambda text: text == text.strip(),
    "single spaces": lambda text: "  " not in text,
}
_OF_CHARACTERS: dict[str, Property] = {
    "palindrome": lambda text: text == text[::-1],
    "distinct": _OF_LISTS["distinct"],
    "sorted": _OF_LISTS["sorted"],
}
