"""What a statement says of its inputs, in the words that are usual: whether they may be empty, negative, zero, in any
order, of any size, and between which bounds. Given inputs are few, so that these words decide how far new ones may
differ from them. What a statement does not say is assumed only where the references treat all values alike
(`treatment`).

A pattern that lets inputs differ has others beside it that forbid it, and the answers to inputs that were not meant are
recognised by their kind (`chosen_tests.is_meant`).
"""

import re

_NUMBERS = {"one": 1, "two": 2, "pair": 2, "three": 3, "triple": 3, "four": 4, "five": 5, "six": 6, "seven": 7}
_BOUND = r"(-?\d+(?:\s*(?:\*|\\cdot|\\times|×)\s*10)?(?:\s*(?:\^|\*\*)\s*\{?\d+\}?)?)"
_LESS = r"\s*(<=|≤|⩽|\\leq?(?:slant)?|<)\s*"
_STATED = re.compile(_BOUND + _LESS + r"([^<>≤⩽\d\s\\][^<>≤⩽\n]{0,40}?)" + _LESS + _BOUND)


_AT_LEAST_ONE = (
    r"at least (?:0|1|zero|one)\b(?! (?:hundred|thousand|million)\b)"
    r"(?! \w*(?:numbers?|elements?|integers?|values?|items?|words?|of)\b)"
)
_NEVER_EMPTY = r"(not|non-?|never) ?(be )?empty"
_NOT_BELOW_ZERO = (
    r"\bpositive\b|\bnatural\b|\bwhole\b|unsigned|greater than (0|zero)|(above|over) zero"
    r"|(>=?|≥|\\geq?) *[01]\b|[01] *(<=?|≤|\\leq?)"
)
_NEVER_ZERO = r"\bpositive\b|(one|1) or more|non-?zero|not (be )?(0|zero)\b|" + _AT_LEAST_ONE
_NEVER_NEGATIVE = (
    r"positive (whole |integer|number|value)|positive$|(must|always|are|both|all) positive|natural number|unsigned"
    r"|(not|never|cannot|n't|no) (be )?negative|non-?negative|(zero|one|0|1) or more|" + _AT_LEAST_ONE
)
_VALUES = r"\b(integers?|numbers?)\b"
_ONE_CASE = r"\b(only|all|consists? of|consisting of|contains?) (of )?(only )?(the )?(upper|lower|capital|small)"
_LEAST_LENGTHS = re.compile(r"\bat least (\w+)|\b(\w+) or more\b|\b\w+ *(?:>=|≥|\\geq?) *(\d+)\b", re.IGNORECASE)


class Said:
    """What a statement says. One without words leaves everything open that given inputs have in common by chance."""

    def __init__(self, statement: str) -> None:
        self.statement = statement
        self._read_lengths()
        self._read_relations()
        self._read_signs()
        self._read_ranges_and_characters()

    def _has(self, *patterns: str) -> bool:
        return re.search("|".join(patterns), self.statement, re.IGNORECASE) is not None

    def _may_have(self, *patterns: str) -> bool:
        """As `_has`, but true of an empty statement: for limits, and for what given inputs may have by chance."""
        return not self.statement.strip() or self._has(*patterns)

    def _read_lengths(self) -> None:
        """What lengths of texts and lists the statement allows."""
        self.may_be_empty = self._has(  # lists and texts
            r"(?<!non-)(?<!not )\bempty\b",
            r"\b(for|there are|has|contains) no (\w+ )?\w+s\b",
            r"\bif there are fewer than (?!(1|one)\b)",
        )
        self.names_empty_elements = self._has(  # of a list
            r"empty (strings?|texts?|words?|lines?|lists?) (in|inside|among|are)\b|lists? in it"
        )
        self.limits_size = self._may_have(  # speaks against empty ones, where programs would take them
            r"fewer than|less than (1|one) \w+|\b(assume|assumed|always|guaranteed?|rely)\b",
            r"\bat least (one|two|three|[1-9])\b|(>=?|≥|\\geq?) *[1-9]",
            _NEVER_EMPTY,
        )
        # A number of elements that all inputs share is no fixed one.
        self.is_list = self._has(r"\b(lists?|arrays?|sequences?|integers|numbers|elements|values|items|words)\b")
        self.names_parity = self._has(  # of a length
            r"(number of \w+|length|size)( of `?\w+`?)? (is|must be|will be|always) (always )?(odd|even)\b"
        )
        self.names_even = self._may_have(r"\b(even|odd|halves|half|pairs?)\b")  # even and odd numbers, or pairs
        words = [word.lower() for each in _LEAST_LENGTHS.findall(self.statement) for word in each if word]
        numbers = [int(word) if word.isdigit() else _NUMBERS.get(word) for word in words]
        self.least_lengths = [each for each in numbers if each is not None] + [1] * self._has(_NEVER_EMPTY)

    def _read_relations(self) -> None:
        """What the statement says of values together. If it says nothing, what few inputs share counts as chance."""
        relates = self._has(
            r"(?<!distance )(?<!difference )\bbetween\b",
            r"\b(from|range|interval|low|lower|high|upper|starts?|ends?|left|right|begin|index|position)\b",
            r"\b(lo|hi|min|max|limit|bounds?|exceeds?)\b|[<>≤≥]|\\l?ge?|\\le",
            r"\b(at most|at least|not (more|less|greater|smaller|larger) than|exceeding) `?[a-z]\b",
        )
        # One input bounds another, say.
        self.relates_inputs = not self.statement.strip() or (relates and not self._has(r"\bany order\b"))
        self.asks_yes_or_no = self._has(  # a question with yes or no for an answer
            r"\b(whether|true|yes|boolean)\b|\b(find out|check|test|decide|tell) if\b",
            r"\b(if|where) (there (is|are)|it has|it is) (none|no \w+|not)\b|\bnot (in|found|present)\b",
        )
        self.speaks_of_order = self._may_have(  # inputs that are in some order
            r"\b(?<!(?:any|its) )(?<!(?:this|that|same) )(?<!their )(?<!original )order\b",
            r"\b(sorted|ascend|descend|increas|decreas|monoton|rising|falling)",
        )
        self.speaks_of_distinct = self._may_have(  # elements that are all different
            r"\bdistinct|\bunique|permutation|\bno two\b|(no|without|any) (duplicate|repeat|repetition)|pairwise",
            r"\bset of|\b(are|be|all) different|different (integers|numbers|elements|letters|characters) ",
        )
        self.is_grid = self._may_have(r"\b(matrix|matrices|grid|board|rectang|square|table)")

    def _read_signs(self) -> None:
        """Whether numbers may be zero or negative. `limits_*` count where right programs treat all numbers alike."""
        # Integers, with no word against negative ones.
        self.is_signed = self._has(r"\bintegers?\b") and not self._has(
            _NOT_BELOW_ZERO,
            r"non-?negative|not negative|zero or more|1 or more|\bnumber of\b|" + _AT_LEAST_ONE,
            r"\bprime|\bdigit|factorial|\bbits?\b|\bbinary\b|\bindex|\bindices|modulo|remainder|\bpower\b|expon",
        )
        self.is_plainly_signed = self.is_signed and not self._has(  # no quantity either
            r"\b(count|times|size|length|age|price|cost|amount|weight|height|width|area|year|day|month|hour|minute)",
            r"\b(second|people|steps?|sum of the first|up to|first n|n-th|nth|terms?|rows?|columns?|points?)",
            r"\b(divis|multipl)",
        )
        self.limits_zero = self._may_have(_NEVER_ZERO, r"(>=?|≥|\\geq?) *[1-9]")
        self.limits_signs = self._may_have(
            _NEVER_NEGATIVE,
            _NOT_BELOW_ZERO,
            r"\b(lengths?|sizes?|prices?|costs?|amounts?|weights?|width|area|age|people|times|how many)\b",
        )
        self.names_zero = self._has(r"\b(0|zero|negative)\b") and not self._has(_NEVER_NEGATIVE)
        may_be_zero = self._has(
            r"zero or more|non-?negative|at least (0|zero)\b|0 or more|not negative|\bwhole numbers?\b",
            r"zero counts|zero gives|\bif `?(?!it\b)\w+`? (is|==|equals) `?(0|zero)\b",
        )
        self.may_be_zero = may_be_zero and not self._has(_NEVER_ZERO)
        names_negative = self._has(
            r"(?<!not )(?<!never )(?<!no )(?<!non-)\bnegative (numbers?|integers?|values?|ones?)\b",
            r"(is|are|be) negative\b|(less|smaller|lower) than (zero|0)\b|\bbelow (zero|0)\b",
        )
        self.names_negative = names_negative and not self._has(_NEVER_NEGATIVE)

    def _read_ranges_and_characters(self) -> None:
        """How large numbers may be, and what texts may be made of."""
        self.speaks_of_numbers = self._has(_VALUES)
        self.is_fixed_scale = self._may_have(  # numbers of a fixed range
            r"\b(ratings?|grades?|scores?|dice|die|percent\w*|months|days|hours|minutes|seconds|angles?|bits?|ascii)\b",
            r"\b(binary|latitude|longitude|probabilit\w+|codes?|age|ages)\b",
        )
        self.names_no_bound = self.speaks_of_numbers and not self._has(  # numbers without any bound
            r"\b(between|from) -?\d|\b(range|interval|at most|up to|limit|bounds?|maximum|max|index|position)\b",
            r"\b(terms?|steps?|digits?|bits?|binary|month|day|hour|minute|second|rating|grade|score|dice|die|times)\b",
            r"\b(prime|power|factorial|fibonacci)\b|n-?th|[<>≤≥]|\\l?ge?|\\le",
        )
        # Some least value, so that the least given one may be it.
        self.names_least = self._has(
            r"\bat least\b|or more\b|more than|greater than|>=?|≥|\\geq?|larger than|\bover\b|exactly"
        )
        self.names_digits = self._has(r"\bdigit")  # how many digits a number has may matter
        self.limits_characters = self._may_have(  # speaks against other characters, where programs would take them
            r"\b(letters?|alphabet\w*|digits?|binary|consist\w*|only|english|dna|brackets?|parenthes\w+|names?|words?)\b",
            r"\b(vowels?|consonants?|case|lowercase|uppercase|ascii|symbols?|commands?|dates?|times?|keys?)\b",
        )
        # Upper and lower case differ.
        tells_cases = self._has(r"\b(upper|lower)[- ]?case\b|\b(capital|small) letters|case[- ]?(in)?sensitive")
        self.tells_cases = tells_cases and not self._has(_ONE_CASE)

    def counts(self, size: int) -> bool:
        """Whether the statement has a number, as a figure or a word, but not as a bound."""
        words = [word for word, number in _NUMBERS.items() if number == size]
        number = rf"(?<!at least )(?<!>= )(?<!>=)(?<!≥ )\b({'|'.join([str(size), *words])})\b(?! or more)"
        return bool(re.search(number, self.statement, re.IGNORECASE))


def stated_bounds(statement: str) -> list[tuple[int, int]]:
    """The intervals that a statement gives for its values, as in `1 <= n <= 10^5`, without the names."""
    found = []
    for low, less, _, below, high in _STATED.findall(statement.replace("$", "").replace(",", "")):
        least, most = _number(low), _number(high)
        if least is not None and most is not None:
            found.append((least + (less == "<"), most - (below == "<")))
    return [(least, most) for least, most in found if least < most]


def _number(text: str) -> int | None:
    factor, _, power = re.sub(r"\\cdot|\\times|×", "*", text).replace("**", "^").replace(" ", "").rpartition("^")
    if not factor:
        return int(power) if power.lstrip("-").isdigit() else None
    exponent = int(power.strip("{}"))
    times, _, base = factor.rpartition("*")
    return int(times or 1) * int(base) ** exponent if exponent <= 18 else None
