"""checkers=infer: which built-in comparator a problem needs whose references do not print what its tests expect.

A wrong reference and a problem with several right answers look alike: the outputs differ. So a comparator is inferred
only if nothing speaks against it; otherwise the problem stays `undecided` with the reason, and its tests compare as
before. The rules, for a problem that names no comparator and no checker:

1. *Candidates.* Three freedoms: letter case, numbers (the tolerance that the statement names, else 1e-6 for integers
   too), and order (lines, else tokens, else `set`). Of each the strictest under which every reference that answers all
   tests agrees with the expected outputs. `exact` is no candidate: it accepts less than the default. If two freedoms
   explain the outputs, or the statement names another one too, no single comparator is right.
2. *Evidence.* The statement says so, and one reference answers. Or no reference prints what the tests expect, and two
   differ from each other: one right reference beside one that prints another order is what a forgotten tie-break looks
   like. That elements may be repeated only words can say. Where the statement allows any order and no reference shows
   one, its words must be able to mean one thing only: lines of one token, a single line, a list of scalars.
3. *Against it.* The statement says that any of several answers is right, which no comparator can check. Against order:
   the statement asks for some order, or frees only a part of it (ties, the members of each group); one input holds
   several cases, whose answers must not mix; or the tokens are those of the input, or 1 to n, in every test, so that
   their order is the answer, and a program that echoes the input would pass.
4. *Known-wrong programs* must still fail. Those are the problem's own (`wrong_solutions`) that fail now, and mutants of
   the references that differ from them in a way in which the references do not differ from each other: tokens that
   change their line though references only change the order within lines, or integers beside inexact decimals. A
   mutant that only prints in another order is not known to be wrong if order is what references differ in; one whose
   tokens differ fails under every candidate anyway. So mutants run only where a candidate is coarser than what was
   seen: `tokens_any_order`, `set` and `float`. Failing completions of a profile are not known to be wrong: they failed
   under the comparator in doubt (and the profile comes later).
"""

import ast
import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, zip_longest
from typing import Any, NamedTuple

from coderl_tasks.curation.mutants import mutants
from coderl_tasks.curation.phrases import Said, said_of_answers
from coderl_tasks.curation.recorded_checks import graded
from coderl_tasks.grading.judge import Judge
from coderl_tasks.policy.selection import seed_for
from coderl_tasks.problems.assertion_tests import NOT_PYTHON
from coderl_tasks.problems.comparators import DEFAULT, TOLERANCE, UNORDERED, comparator, is_number, lines, parse_value
from coderl_tasks.problems.problem import Problem

CASE, FLOAT = "case_insensitive", "float"
MOST_MUTANTS = 24  # of a problem's references, by turns
MUTANT_LIMIT_S = 2.0  # of CPU time per test, if the problem has more: a mutant without end costs this
Answers = Sequence[str]
"""What a program answers, test by test, or the expected outputs."""


class Inference(NamedTuple):
    """The inferred comparator, "" if it is undecided, and one line that says what it rests on, or what is missing."""

    comparator: str
    reason: str


@dataclass(frozen=True, slots=True)
class _Evidence:
    """A problem, what its statement says, and what the references answered that answered every test."""

    problem: Problem
    said: Said
    references: Sequence[Answers] = ()
    programs: Sequence[str] = ()  # of the references

    @property
    def expected(self) -> Answers:
        return [test.expected for test in self.problem.tests]

    def agree(self, name: str, wanted: Answers, got: Answers) -> bool:
        """Whether two programs' answers agree in every test under a comparator."""
        pairs = zip(wanted, got, strict=True)
        return all(comparator(name).accepts(self.problem.kind, one, other) for one, other in pairs)

    def all_agree(self, name: str) -> bool:
        return all(self.agree(name, self.expected, reference) for reference in self.references)

    def disagreeing(self, name: str) -> list[Answers]:
        """The references that do not agree with the expected outputs under a comparator."""
        return [each for each in self.references if not self.agree(name, self.expected, each)]

    @property
    def order(self) -> Sequence[str]:
        """The comparators that allow any order, the strictest first: if repeated elements do not matter, one."""
        return UNORDERED[-1:] if self.said.repeats else UNORDERED

    def phrase(self, name: str) -> str:
        """What the statement says for a candidate."""
        if name in UNORDERED:
            return self.said.repeats if name == UNORDERED[-1] else self.said.any_order
        return self.said.any_case if name == CASE else self.said.tolerance

    def elements(self) -> list[list[Any]]:
        """By test the lines of the expected output, each as its tokens, or the elements of the expected value."""
        if self.problem.kind == "call":
            values = [parse_value(each) for each in self.expected]
            return [value if isinstance(value, list) else [value] for value in values]
        return [[line.split() for line in lines(_bytes(each))] for each in self.expected]

    @property
    def is_one_line(self) -> bool:
        return self.problem.kind == "stdin" and all(len(each) < 2 for each in self.elements())

    def stated_freedoms(self) -> list[str]:
        """Candidates by the statement alone, as far as they accept more of these tests' answers than the default."""
        said = self.said
        # Tests may be many megabytes: most statements say nothing of the kind.
        tokens = [token for each in self.expected for token in _tokens(each)] if said.any_case or said.tolerance else []
        freedoms = []
        if said.any_case and any(token.lower() != token.upper() for token in tokens):
            freedoms.append(CASE)
        if said.tolerance:
            is_loose = max(map(float, said.tolerance.partition(":")[2].split(","))) > TOLERANCE
            if any(_is_integer(token) or (is_loose and is_number(token)) for token in tokens):
                freedoms.append(said.tolerance)
        if said.any_order:
            # The elements of each test, or of a single line its tokens.
            parts = [each[0] if len(each) == 1 and isinstance(each[0], list) else each for each in self.elements()]
            if any(len(set(map(repr, each))) > 1 for each in parts):
                freedoms.append(self.order[0])
        return freedoms


async def infer_comparator(
    problem: Problem, codes: Sequence[str], judge: Judge, seed: int, *, disagree: bool
) -> Inference | None:
    """Infers which comparator a problem needs that is freer than the default; None if neither its references (`codes`)
    nor the statement suggest one. `disagree` says that a reference fails tests by its answers. The problem's time limit
    has to be enough for its references. Raises InfraError if one cannot be run."""
    evidence = _Evidence(problem.whole(), said_of_answers(problem.statement))
    stated = evidence.stated_freedoms()
    if not (disagree or stated):
        return None
    distinct = list({shape(code): code for code in codes}.values())
    outputs = await asyncio.gather(*(judge.outputs(problem, code) for code in distinct))
    pairs = zip(distinct, outputs, strict=True)
    # Those that answer every test.
    complete = [(code, answers) for code, answers in pairs if len(answers) == len(problem.tests)]
    if not complete:
        return None
    programs, references = zip(*complete, strict=True)
    evidence = replace(evidence, references=references, programs=programs)
    disagreeing = evidence.disagreeing(DEFAULT)
    fitting = _comparators_that_fit(evidence, stated, bool(disagreeing))
    if not fitting:
        if stated and disagreeing:  # neither what the statement allows nor the default accepts all references
            return Inference("", f"the references do not agree as {', '.join(stated)}")
        return None
    name = fitting[0]  # the only one: two are an objection
    if why_not := _objection(evidence, fitting, stated) or _missing_evidence(evidence, name):
        return Inference("", why_not)
    if passing := await _passing_wrong_program(evidence, name, judge, seed):
        return Inference("", f"{name} would do, but {passing} passes under it")
    return Inference(name, _reason_in_words(evidence, name, len(disagreeing)))


def _comparators_that_fit(evidence: _Evidence, named: Sequence[str], has_deviating: bool) -> list[str]:
    """Of each freedom the strictest comparator that accepts all references (rule 1)."""
    if has_deviating:
        # Without a word on errors an integer that is printed as one is exact: references may have lost precision.
        pairs = [pair for each in evidence.references for pair in zip(evidence.expected, each, strict=True)]
        exact = evidence.said.tolerance or all(_same_integers(*pair) for pair in pairs)
        numbers = [evidence.said.tolerance or f"{FLOAT}:1e-6"] if exact else []
        ladders = [[CASE], numbers, evidence.order]
        return [name for ladder in ladders if (name := next(filter(evidence.all_agree, ladder), ""))]
    names = [name for name in named if evidence.all_agree(name)]
    return ["tokens_any_order" if name == UNORDERED[0] and evidence.is_one_line else name for name in names]


def _objection(evidence: _Evidence, names: Sequence[str], named: Sequence[str]) -> str:
    """What speaks against the candidates (rules 1 and 3); "" if nothing does."""
    said = evidence.said
    if said.several:
        return f'the statement says "{said.several}"'
    kinds = {"any order" if name in UNORDERED else name for name in (*names, *named)}
    if len(kinds) > 1:
        return f"no comparator allows all of this: {', '.join(sorted(kinds))}"
    if names[0] not in UNORDERED:
        return ""
    asked = said.ordered or said.cases
    if asked:
        return f'{names[0]} would do, but the statement says "{asked}"'
    return "the order of given tokens is the answer" if _order_is_the_answer(evidence) else ""


def _missing_evidence(evidence: _Evidence, name: str) -> str:
    """The evidence that a candidate lacks (rule 2); "" if it has enough."""
    stricter = dict(pairwise((DEFAULT, *UNORDERED)))
    below = next((each for each, looser in stricter.items() if looser == name), DEFAULT)
    deviating = evidence.disagreeing(below)  # the others would do with less
    if evidence.phrase(name):
        composite = any(isinstance(part, list) and len(part) > 1 for each in evidence.elements() for part in each)
        if deviating or name not in UNORDERED or not composite or (name == "tokens_any_order" and evidence.is_one_line):
            return ""
        return "the statement allows any order, and no reference shows of what"
    alike = "exact" if name.startswith(FLOAT) else below  # close decimals are alike under the default
    differ = any(not evidence.agree(alike, deviating[0], other) for other in deviating[1:])
    if differ and len(deviating) == len(evidence.references) and name != UNORDERED[-1]:
        return ""
    return f"{name} would do, but references that need it may be wrong, as the statement does not allow it"


def _reason_in_words(evidence: _Evidence, name: str, n_deviating: int) -> str:
    said = f' the statement says "{phrase}";' if (phrase := evidence.phrase(name)) else ""
    known = f"; none of {wrong} known-wrong programs passes" if (wrong := len(evidence.problem.wrong_solutions)) else ""
    references = f"{n_deviating} of {len(evidence.references)} references differ from the expected outputs"
    return f"inferred:{said} {references}, and all agree as {name}{known}"


def _order_is_the_answer(evidence: _Evidence) -> bool:
    """Whether in every test with several tokens these are the input's, all or all but the first or the first line's, or
    consecutive integers from 0 or 1: so that any program that prints those passes in any order."""
    rich = 0
    for test in evidence.problem.tests:
        if evidence.problem.kind == "call":
            value, arguments = parse_value(test.expected), parse_value(test.input)
            tokens = [repr(each) for each in value] if isinstance(value, list) else []
            given = [[repr(each) for each in argument] for argument in arguments if isinstance(argument, list)]
        else:
            tokens, rows = test.expected.split(), test.input.splitlines()
            given = [test.input.split(), test.input.split()[1:], " ".join(rows[1:]).split()]
        if len(set(tokens)) < 2:
            continue
        rich += 1
        given += [[str(number + start) for number in range(len(tokens))] for start in (0, 1)]
        if not any(Counter(tokens) == Counter(each) for each in given):
            return False
    return rich > 0


async def _passing_wrong_program(evidence: _Evidence, name: str, judge: Judge, seed: int) -> str:
    """Which wrong program the comparator `name` accepts, in words, "" if none (rule 4). A mutant that passes counts as
    wrong if it breaks a stricter relation of expected and actual answers that every reference keeps: where tokens may
    come in any order, such a relation is "each line has the same tokens"."""
    problem = replace(evidence.problem, comparator=name)
    # One that passes with the present comparator too says nothing about `name`.
    for number, code in enumerate(problem.wrong_solutions, 1):
        if (await graded(judge, problem, code)).passed and not (await graded(judge, evidence.problem, code)).passed:
            return f"known-wrong program {number}"

    def holds(relation: Relation, answers: Answers) -> bool:
        return all(relation(one, other) for one, other in zip(evidence.expected, answers, strict=True))

    # Relations compare lines: of an output of one line in any order they say no more than the comparator.
    says_nothing = evidence.is_one_line and name in UNORDERED
    relations = () if says_nothing else _FINER_RELATIONS.get(name.partition(":")[0], ())
    kept_by_references = [each for each in relations if all(map(partial(holds, each), evidence.references))]
    if not kept_by_references:  # then nothing tells a wrong mutant that passes from a right one
        return ""
    drawn = [mutants(code, seed_for(seed, "mutants", problem.problem_id), MOST_MUTANTS) for code in evidence.programs]
    round_robin = [code for turn in zip_longest(*drawn) for code in turn if code is not None]
    limit_s = min(problem.time_limit_s or judge.timeout_s, MUTANT_LIMIT_S)  # a mutant may never end
    problem = replace(problem, time_limit_s=limit_s)

    async def is_wrong(code: str) -> bool:
        if not (await graded(judge, problem, code)).passed:
            return False
        answers = await judge.outputs(problem, code)
        return len(answers) == len(problem.tests) and not all(holds(each, answers) for each in kept_by_references)

    wrong = await asyncio.gather(*map(is_wrong, round_robin[:MOST_MUTANTS]))
    return "a wrong mutant of a reference" if any(wrong) else ""


Relation = Callable[[str, str], bool]
"""Whether two outputs differ only as a relation allows that is finer than some comparator."""


def _bags(text: str) -> list[tuple[bytes, ...]]:
    """The lines, each as its tokens without their order."""
    return [tuple(sorted(line.split())) for line in lines(_bytes(text))]


def _same_integers(wanted: str, got: str) -> bool:
    """Whether all that both sides print as integers, place by place, is the same."""
    pairs = zip(_tokens(wanted), _tokens(got), strict=False)
    return all(one == other for one, other in pairs if _is_integer(one) and _is_integer(other))


def _same_beside_decimals(wanted: str, got: str) -> bool:
    has_decimals = any(is_number(token) and not _is_integer(token) for token in _tokens(wanted))
    return not has_decimals or _same_integers(wanted, got)


_FINER_RELATIONS: dict[str, tuple[Relation, ...]] = {
    "tokens_any_order": (
        lambda wanted, got: _bags(wanted) == _bags(got),
        lambda wanted, got: sorted(_bags(wanted)) == sorted(_bags(got)),
    ),
    "set": (lambda wanted, got: set(_bags(wanted)) == set(_bags(got)),),
    FLOAT: (_same_beside_decimals,),
}


def _tokens(text: str) -> list[bytes]:
    """The tokens of an output, or the scalars of a JSON value."""
    return _bytes(text).translate(bytes.maketrans(b"[]{},:", b"      ")).split()


def _is_integer(token: bytes) -> bool:
    return is_number(token) and token.lstrip(b"-").isdigit()


def shape(code: str) -> str:
    """What two copies of a program have in common: its syntax, without layout and comments."""
    try:
        return ast.dump(ast.parse(code))
    except NOT_PYTHON:
        return code


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
