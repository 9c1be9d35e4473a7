"""New inputs for a problem's tests: mutations and recombinations of the given inputs.

The values of an input (the arguments of a call, or the fields of a text that `input_formats` parses) form a record.

1. *Constraints* are what all given records have in common: an integer that is the length of a list, a sorted list,
   distinct elements, matching brackets, and so on. New records satisfy all of them: wrongly inferred ones only make new
   inputs less varied. What few records have in common by chance is none, unless the statement speaks of it.
2. *Domains* are the values given at one place: the range of integers, the characters of strings, the lengths. Bounds in
   the statement narrow them. They are wider than the given values only where the statement's words allow it
   (`stated_limits`), or where the references do the same with other values and the statement does not forbid these
   (`treatment`). A range of arguments hardly reaches up, since a right but slow program must keep its time limit.
3. Every second record is a mutation of a given one; the others are *small*: of few elements, few different values, and
   integers near 0.
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
Test = Callable[[Any], bool]
"""Whether a value has a property that values at one place may have in common."""


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
_STRING_MUTATIONS = ("end of another", "one character", "mirrored", "palindrome", "case", *["characters"] * 5)
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
    """What the given records have in common, and how others like them are made: `lengths`, `properties` and `relations`
    are the constraints that all of them satisfy, `seeds` the records to mutate."""

    def __init__(self, records: Sequence[Record], statement: str, rng: random.Random, treatment: Treatment) -> None:
        self.records, self.treatment, self.rng = records, treatment, rng
        self._read_statement(statement)
        # Domains of values, by place and type. Cached: asked for each value of each record that is tried.
        self.range: Callable[[Place, type], tuple[Any, Any]] = cache(self._range)
        self.sizes: Callable[[Place, type], tuple[int, int]] = cache(self._sizes)
        self.characters: Callable[[Place], set[str]] = cache(self._characters)
        # A row is a short list whose length never varies: its positions differ in meaning, and are places of their own.
        self.row_places = _rows(records)
        self.has_fields_only = not any(isinstance(value, list | tuple | dict) for value in records[0])
        self.given: dict[Place, list[Any]] = {}  # all given values
        self.given_of_type: dict[tuple[Place, type], list[Any]] = {}
        for record in records:
            for place, value in _walk(record, self.row_places):
                self.given.setdefault(place, []).append(value)
                self.given_of_type.setdefault((place, type(value)), []).append(value)
        field_pairs = list(permutations(range(len(records[0])), 2))
        # (field, other field, difference): an integer plus the difference is the length of the other field; or a list
        # is so many elements longer than the other one.
        candidates = [(*pair, difference) for pair in field_pairs for difference in (0, 1, -1)]
        self.lengths = [each for each in candidates if all(_is_length(record, *each) for record in records)]
        # Integers that are the length of another field may be any length that is allowed there.
        integer_lengths = [each for each in self.lengths if isinstance(records[0][each[0]], int)]
        self.length_places = {(field,) for field, _, _ in integer_lengths}
        self.counted_places = {(other,) for _, other, _ in integer_lengths}  # the fields of these lengths
        self.properties = [
            (place, name, test)
            for place, given in self.given.items()
            for name, test in _properties(given, self.said.names_parity).items()
            if all(map(test, given)) and not self._is_by_chance(place, name, given)
        ]
        # (test, field, other field): what holds between two fields, such as that the first is at most the second.
        self.relations = [
            (test, one, other)
            for test in self._tests_of_pairs()
            for one, other in field_pairs
            if all(test(record[one], record[other]) for record in records)
        ]
        self.seeds = [record for record in records if sum(1 for _ in _walk(record)) < MOST_VALUES]
        if not self.seeds:  # all are too large to be mutated: their beginnings, where these satisfy the constraints
            beginnings = (self._repaired([_beginning(value) for value in record]) for record in records)
            self.seeds = [record for record in beginnings if self.allows(record)]

    def _read_statement(self, statement: str) -> None:
        self.said = Said(statement)
        self.may_be_empty = self.said.may_be_empty or (self.treatment.takes_empty and not self.said.limits_size)
        self.bounds = stated_bounds(statement)
        self.quoted = re.findall(r"['\"`]([^'\"`\s]{1,20})['\"`]", statement)
        self.stated = tuple(int(each) for each in re.findall(r"(?<![\w.])-?\d{1,9}(?![\w.])", statement))
        named = [*self.stated, *(each for each in self.treatment.constants if isinstance(each, int))]
        # With their neighbours: programs may tell these apart.
        self.named = sorted({value for each in named for value in (each - 1, each, each + 1, -each)})

    def _tests_of_pairs(self) -> Sequence[Callable[[Any, Any], bool]]:
        """What two fields may have in common."""
        # Two integers are in order by chance in every second record.
        is_by_chance = 0.5 ** len({repr(record) for record in self.records}) > _CHANCE
        # Whether one value is in another may be what is asked.
        left_out = ["at most", "less"] if is_by_chance and not self.said.relates_inputs else []
        left_out += ["inside", "rearranged"] if is_by_chance and self.said.asks_yes_or_no else []
        return [test for name, test in _OF_PAIRS.items() if name not in left_out]

    def _is_by_chance(self, place: Place, name: str, given: Sequence[Any]) -> bool:
        """Whether all `given` values at a place may have the property `name` by chance, so that it is no constraint:
        the statement does not speak of it, and unrelated values have it with a probability above _CHANCE."""
        if name in ("rectangle", "square"):  # a list of one list tells nothing
            return not self.said.is_grid and not any(len(each) > 1 for each in given)
        if name == "first is less":  # true of half of all pairs of numbers, and of all intervals
            # A list whose length is another input is no pair.
            may_be_intervals = self.said.relates_inputs and place not in self.counted_places
            return 0.5 ** len({repr(each) for each in given}) > _CHANCE and not may_be_intervals
        if name in ("even", "odd"):  # too few integers are given to tell
            return not self.said.names_even
        if name not in ("sorted", "falling", "distinct", "differing neighbours"):
            return False  # unrelated values hardly have one of the others
        # Lists of one element have these four always, and equal lists count once.
        informative = [each for each in {repr(value): value for value in given}.values() if len(each) > 1]
        is_order = name in ("sorted", "falling")
        if informative and (self.said.speaks_of_order if is_order else self.said.speaks_of_distinct):
            return False
        if is_order:  # one of n! orders; 1/20! is below _CHANCE by far
            return math.prod(1 / math.factorial(min(len(each), 20)) for each in informative) > _CHANCE
        # How many different characters or elements there may be.
        elements = self.given.get((*place, "*"), [])
        n_values: float = len(self.characters(place) if isinstance(given[0], str) else elements)
        if not isinstance(given[0], str) and (numbers := [each for each in elements if _is_number(each)]):
            n_values = max(numbers) - min(numbers) + 1
        # About the chance that as many draws from `n_values` values are all different (birthday problem). That
        # neighbours alone differ is likelier: taken for a constraint, it costs new inputs and is never wrong.
        n_values = max(n_values, 1)
        return math.prod(max(1 - len(each) / n_values / 2, 0.0) ** len(each) for each in informative) > _CHANCE

    def allows(self, record: Record) -> bool:
        """Whether a record satisfies all constraints, and its values lie in their domains."""
        values = list(_walk(record, self.row_places))
        return (
            all(self._is_in_domain(place, value) for place, value in values)
            and all(_is_length(record, *each) for each in self.lengths)
            and all(test(record[one], record[other]) for test, one, other in self.relations)
            and all(test(value) for place, _, test in self.properties for at, value in values if at == place)
        )

    def _is_in_domain(self, place: Place, value: Any) -> bool:
        alike = self.given_of_type.get((place, type(value)))
        if not alike:
            return False
        if isinstance(value, bool) or value is None:
            return True
        if isinstance(value, int | float):
            if place in self.length_places:
                return True
            low, high = self.range(place, type(value))
            return low <= value <= high and (len(alike) < 6 or len(set(alike)) > 2 or value in alike)
        least, most = self.sizes(place, type(value))
        if isinstance(value, str):
            return least <= len(value) <= most and (set(value) <= self.characters(place) or value in alike)
        return least <= len(value) <= most or value in alike

    def _range(self, place: Place, kind: type) -> tuple[Any, Any]:
        """The lowest and the highest number of a type that new records may have at a place. Starts from the given
        values' range, and widens it where the statement, or what right programs do with numbers (`treatment`), allows
        that; bounds that the statement names narrow it last."""
        given = self.given_of_type[place, kind]
        low, high, values = min(given), max(given), set(given)
        is_field, is_only_field = len(place) == 1, len(place) == len(self.records[0]) == 1
        only_calculated_with = self.treatment.is_plain  # by right programs, which do the same with all numbers
        is_switch = (len(values) > 1 and {0, 1} >= values) or (is_field and not is_only_field and values == {0})
        if is_switch and not (is_field and only_calculated_with and self.said.speaks_of_numbers):
            return low, high  # other values would have no meaning
        if isinstance(low, int) and isinstance(high, int):
            low = self._lowest(is_field, low, high, {len(str(each)) for each in given})
            if low < 0:  # as far above 0 as below
                low, high = min(low, -high), max(high, -low)
            low, high = self._widened_to_named(is_field, is_only_field, low, high)
            # Integers of both signs, and those only calculated with, may have one digit more.
            is_scale = high >= _NEAR or (self.said.is_fixed_scale and not only_calculated_with)
            if (only_calculated_with or (low < 0 and not is_field)) and not is_scale:
                high = max(_ENOUGH, 2 * 10 ** len(str(high)) if low < 0 else 2 * high)
                low = min(low, -high) if low < 0 else low
        elif low < 0 or (only_calculated_with and not self.said.limits_signs):  # decimals
            low = min(low, -high)
        # Small numbers cost programs little time when doubled. Beside other fields they may be limited by these, unless
        # the statement speaks of numbers without any bound (`names_no_bound`).
        if 0 < high <= _SMALL and (is_only_field or (is_field and self.said.names_no_bound)):
            high = max(2 * high, _SMALL) if is_only_field else 2 * high
            low = -high if low < 0 else low
        if is_only_field and self.said.names_no_bound:  # a program may tell the first multiples of a named number apart
            high = max([high, *(3 * each for each in self.stated if 1 < each <= 2 * _SMALL)])
        # Which value a stated bound is of is not known: those that hold for all given values are taken to be of these.
        containing = [(least, most) for least, most in self.bounds if least <= min(given) and max(given) <= most]
        return (max([low, *(least for least, _ in containing)]), min([high, *(most for _, most in containing)]))

    def _widened_to_named(self, is_field: bool, is_only_field: bool, low: int, high: int) -> tuple[int, int]:
        """A range that includes the integers, up to _NEAR, that programs may tell apart: for elements of lists those
        that the statement or a right program names, as they cost no time, and for an only argument those that a right
        program compares with, and their neighbours."""
        if not is_field:
            near = [each for each in self.named if abs(each) <= _NEAR]
            return min([low, *near]) if low < 0 else low, max([high, *near])
        if is_only_field:
            near = [each + step for each in self.treatment.compared for step in (-1, 0, 1) if abs(each) <= _NEAR]
            near = [each for each in near if each > 0 or self.said.names_zero]
            return min([low, *near]), max([high, *near])
        return low, high

    def _lowest(self, is_field: bool, low: int, high: int, digits: set[int]) -> int:
        """How far down integers reach: to 1 or 0 where nothing speaks against it, and below where the statement speaks
        of integers without limiting them. `digits` has the numbers of digits that given ones have."""
        if low < 0 or (self.treatment.is_plain and not self.said.limits_signs):
            return min(low, -max(high, 1))
        if self.treatment.takes_zero and not self.said.limits_zero:
            return 0
        if not is_field or self.has_fields_only:  # beside a list, the statement speaks of the list's elements
            if self.said.names_negative or (self.said.is_signed and (not is_field or self.said.is_plainly_signed)):
                return -max(high, 1)
            if self.said.may_be_zero:
                return 0
        if low <= 1 or self.said.names_least or (len(digits) == 1 and digits != {1} and self.said.names_digits):
            return low
        return 1

    def _sizes(self, place: Place, kind: type) -> tuple[int, int]:
        """The least and the greatest length that lists or texts at a place may have."""
        given = self.given_of_type[place, kind]
        lengths = [len(each) for each in given]
        least, most = min(lengths), max(lengths)
        if isinstance(given[0], str) and least == most == 1 and len(set(given)) > 1:
            return 1, 1
        stated = [each for each in self.said.least_lengths if each <= least]
        if least == most > 1 and len(set(map(repr, given))) > 1 and self._is_fixed(place, given, most):
            return (0 if self.said.may_be_empty and not stated else least), most
        least = min(least, 1 if least < 4 else 2)
        if stated:
            least = max(stated)
        elif self.may_be_empty and (len(place) == 1 or self.said.names_empty_elements):
            least = 0
        longest = [high for low, high in self.bounds if low <= min(lengths) and max(lengths) <= high]
        near = [each + 2 for each in self.stated if most <= each <= 2 * _LONG]  # a program may tell lengths apart
        return least, max(most, min([max([most + 2, _LONG if most > 1 else _ROW, *near]), *longest]))

    def _is_fixed(self, place: Place, given: Sequence[Any], size: int) -> bool:
        """Whether values that all have one length must have it, rather than have it by chance."""
        if place in self.counted_places:
            return False
        is_free = all(map(_is_words, given)) if isinstance(given[0], str) else self.said.is_list
        return not is_free or len(set(map(repr, given))) >= _FEW or self.said.counts(size)

    def _characters(self, place: Place) -> set[str]:
        """What strings at a place are made of: the characters given, and of a kind with many all."""
        given = self.given_of_type.get((place, str), [])
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
        if isinstance(value, list) and place not in self.row_places and self.given.get((*place, "*")):
            least, most = self.sizes(place, kind)
            inner = rng.choice(self.given[(*place, "*")])
            few = [self._small((*place, "*"), inner) for _ in range(3)]
            return [copy.deepcopy(rng.choice(few)) for _ in range(self._small_size(least, most))]
        return copy.deepcopy(rng.choice(self.given_of_type.get((place, kind), [value])))

    def _small_size(self, least: int, most: int) -> int:
        size = self.rng.randrange(5) if self.rng.random() < 0.7 else self.rng.randint(least, min(most, 2 * _LONG))
        return min(max(size, least), most)

    def mutated(self) -> Record:
        """A given record with one to three changes, each of a value, or to that of another record."""
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
        if (place, type(value)) not in self.given_of_type:
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
        """A mutation of a string: its words or characters exchanged, a given string's end, one letter repeated, a
        palindrome, another case. It may still break constraints: the caller checks them."""
        rng, given = self.rng, self.given_of_type[place, str]
        if len(value) > MOST_ELEMENTS:
            return rng.choice(given)
        if self.may_be_empty and rng.random() < _EMPTY:
            return ""
        characters = sorted(self.characters(place))
        separator = next((each for each in (" ", ",", "-", "_", ":") if any(each in other for other in given)), None)
        vocabulary = [word for each in given for word in each.split(separator) if word] + self.quoted
        # If the statement quotes every word (as "push" and "pop"), others are no input: words are exchanged only whole.
        if separator is not None and (rng.random() < 0.5 or set(vocabulary) <= set(self.quoted)):
            words = value.split(separator) if value else []
            return separator.join(self._elements(words, lambda: rng.choice(vocabulary)))
        mutation = rng.choice(_STRING_MUTATIONS)
        if mutation == "end of another":
            return value[: rng.randrange(len(value) + 1)] + rng.choice(given)[rng.randrange(len(value) + 1) :]
        if mutation == "one character" and value:
            return rng.choice(value) * len(value)
        if mutation == "mirrored":
            return value + value[::-1]
        if mutation == "palindrome":  # of the same length
            half = len(value) // 2
            return value[: half + len(value) % 2] + value[:half][::-1]
        if mutation == "case" and value.swapcase() != value:
            at = rng.randrange(len(value))
            return value[:at] + value[at:].swapcase() if rng.random() < 0.5 else value.swapcase()
        # Also where the drawn mutation changes nothing: one change of the characters, as of a list's elements.
        return "".join(self._elements(list(value), lambda: rng.choice(characters))) if characters else value

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
        """A mutation of the list `values`: one element changed, elements dropped, repeated or added, sorted, or a new
        list of another length. May change `values` itself. New elements are given ones, or copies of the list's own,
        half of them mutated."""
        rng, element_place = self.rng, (*place, "*")
        if self.may_be_empty and rng.random() < _EMPTY:
            return []
        is_row = place in self.row_places
        if is_row or (values and rng.random() < 0.3):
            if values:  # change one element
                number = rng.randrange(len(values))
                values[number] = self._changed((*place, number) if is_row else element_place, values[number], record)
            return values
        pool = self.given.get(element_place, [])
        if not pool:
            return values

        def new_element() -> Any:
            value = copy.deepcopy(rng.choice(values if values and rng.random() < 0.2 else pool))
            return self._changed(element_place, value, record) if rng.random() < 0.5 else value

        if isinstance(pool[0], int | str) and rng.random() < 0.1:
            return sorted(values, key=lambda each: (str(type(each)), each), reverse=rng.random() < 0.5)
        if rng.random() < 0.1:  # a new list, of any length
            size = rng.randint(*self.sizes(place, type(self.given[place][0]))) if place in self.given else len(values)
            return [new_element() for _ in range(size)]
        return self._elements(values, new_element)

    def _elements(self, values: list[Any], element: Callable[[], Any]) -> list[Any]:
        """`values` with one random change. `element` makes a new element. May change `values` itself."""
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
        for place, name, test in self.properties:
            if name not in ("sorted", "falling", "distinct"):
                continue
            for at, value in list(_walk(record, self.row_places)):
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
            may_be_row = isinstance(value, tuple) or (isinstance(value, list) and len(place) > 1)
            if may_be_row and {*place[1:]} <= {"*"}:  # what lies in a dict has a place that no row has
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


def _properties(given: Sequence[Any], speaks_of_parity: bool) -> dict[str, Test]:
    """The properties, name to test, of values of the type of the `given` ones of a place. If too few are given, those
    are left out that they may have by chance. `speaks_of_parity`: the statement names even or odd sizes."""
    kinds = {type(value) for value in given}
    are_few = len({repr(value) for value in given}) < _FEW
    if kinds == {int}:
        return {} if are_few else _OF_INTEGERS
    if not kinds <= {list, tuple} and kinds != {str}:
        return {}
    properties = dict(_OF_STRINGS if kinds == {str} else _OF_LISTS)
    if speaks_of_parity or not are_few:
        properties |= _OF_LENGTHS  # even or odd
    if kinds != {str}:
        return properties
    # A text of one character tells nothing of the order of characters.
    if sum(len(set(value)) > 1 for value in given) > 1:
        properties |= _OF_CHARACTERS
    patterns = {_character_pattern(value) for value in given}
    if len(patterns) == 1 and not (pattern := patterns.pop()).isalnum():  # such as 99:99, a time
        properties["pattern"] = lambda value: _character_pattern(value) == pattern
    words = [word for value in set(given) for word in value.split()]
    if len(vocabulary := set(words)) <= len(words) / 2:  # words repeat: they are likely all that there are
        properties["vocabulary"] = lambda value: set(value.split()) <= vocabulary
    return properties


def _is_words(text: str) -> bool:
    return bool(re.fullmatch(r"[A-Za-z ]+", text))


def _character_pattern(text: str) -> str:
    """What a text looks like: digits as 9, letters as a or A."""
    return re.sub(r"[a-z]", "a", re.sub(r"[A-Z]", "A", re.sub(r"\d", "9", text)))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_sized(value: Any) -> bool:
    return isinstance(value, list | tuple | str)


def _is_comparable(values: Any) -> bool:
    return all(isinstance(value, int | float) for value in values) or all(isinstance(value, str) for value in values)


def _bounds(most: Any, values: Any) -> bool:
    """Whether integers, in a list or in lists in a list, are between 0 and an integer."""
    if not isinstance(most, int) or not isinstance(values, list | tuple):
        return False
    inner = [each for value in values for each in (value if isinstance(value, list | tuple) else [value])]
    return all(isinstance(each, int) and 0 <= each <= most for each in inner)


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
    "at most": lambda value, most: _is_number(value) and _is_number(most) and value <= most,
    "less": lambda value, limit: _is_number(value) and _is_number(limit) and value < limit,
    "index": lambda value, sized: _is_number(value) and _is_sized(sized) and 0 <= value < len(sized),
    "position": lambda value, sized: _is_number(value) and _is_sized(sized) and 0 <= value <= len(sized),
    "inside": lambda value, container: (
        (isinstance(container, list | tuple) or (isinstance(container, str) and isinstance(value, str)))
        and value in container
    ),
    "bounds": _bounds,
    "rearranged": lambda one, other: (
        isinstance(one, list | str)
        and isinstance(other, list | str)
        and sorted(map(repr, one)) == sorted(map(repr, other))
    ),
}
_OF_INTEGERS: dict[str, Test] = {
    "even": lambda value: value % 2 == 0,
    "odd": lambda value: value % 2 == 1,
    "power of two": lambda value: value > 0 and not value & (value - 1),
}
_OF_LENGTHS: dict[str, Test] = {
    "even length": lambda values: len(values) % 2 == 0,
    "odd length": lambda values: len(values) % 2 == 1,
}
_OF_LISTS: dict[str, Test] = {
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
_OF_STRINGS: dict[str, Test] = {
    "brackets": _has_brackets,
    "digits": str.isdigit,
    "stripped": lambda text: text == text.strip(),
    "single spaces": lambda text: "  " not in text,
}
_OF_CHARACTERS: dict[str, Test] = {
    "palindrome": lambda text: text == text[::-1],
    "distinct": _OF_LISTS["distinct"],
    "sorted": _OF_LISTS["sorted"],
}
