"""A composed problem: operations, layout, constants and wording; from them its task, programs and expected answers."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from data.recipes.layouts import FUNCTION_LAYOUTS, STDIN_LAYOUTS, Layout
from data.recipes.operations import AGGREGATES, FILTERS, TRANSFORMS, Aggregate, Filter, Slip, Transform

FUNCTION_NAMES = ("solve", "answer", "compute", "evaluate", "process", "combine", "measure", "summarize")
OPENINGS = ("You are given n integers (n >= 2).", "Given are n integers (n >= 2).")
IN_ORDER = "Do the following in this order, each on what the step before leaves."

Step = Transform | Filter


@dataclass(frozen=True, slots=True)
class Combination:
    """Which operations a problem composes; constants and layout do not count.

    They are applied from the last field to the first, `earlier` in its order: steps before the filter, which only
    chains have (data/skewed). The nano model's teacher knows none of these.
    """

    aggregate: Aggregate
    transform: Transform | None
    filter: Filter | None
    earlier: tuple[Step, ...] = ()

    @property
    def steps(self) -> tuple[Step | None, ...]:
        """What comes before the aggregate, in the order of `Composed.constants`; None where it has no such step."""
        return (self.transform, self.filter, *self.earlier)

    @property
    def key(self) -> str:
        parts = (self.transform, self.filter, *reversed(self.earlier))
        return "/".join((self.aggregate.name, *(part.name if part else "-" for part in parts)))

    @property
    def operations(self) -> int:
        return 1 + sum(step is not None for step in self.steps)

    @property
    def narrows(self) -> bool:
        """Whether some list of two or more numbers loses all of them on the way."""
        filters = [step for step in self.steps if isinstance(step, Filter)]
        return len(filters) > 1 or any(not keep.positional for keep in filters)


def all_combinations() -> list[Combination]:
    """Every combination of at most three operations that makes sense, in a fixed order."""
    return [
        Combination(aggregate, transform, keep)
        for aggregate in AGGREGATES
        for transform in (None, *TRANSFORMS)
        for keep in (None, *FILTERS)
        if (aggregate.transforms or transform is None)
        and not (aggregate.name == "count" and (keep is None or keep.positional))
    ]


@dataclass(frozen=True, slots=True)
class Composed:
    """One problem before its tests: two are the same problem exactly if they are equal.

    `constants` are those of the combination's steps as written in programs: "", a literal, or "k". `wording` picks the
    opening and the phrases of the transforms and of the aggregate.
    """

    combination: Combination
    layout: Layout
    constants: tuple[str, ...]
    wording: tuple[int, int, int]
    name: str

    def apply(self, numbers: list[int], k: int) -> int | list[int] | None:
        """The right answer; None where the statement rules these numbers out (nothing remains)."""
        parts = self.combination
        for step, constant, _ in self.in_order():
            value = k if constant == "k" else int(constant or 0)
            if isinstance(step, Filter):
                numbers = step.apply(numbers, value)
            else:
                numbers = [step.apply(number, value) for number in numbers]
        if not numbers and parts.aggregate.on_empty != "fine":
            return 0 if parts.aggregate.on_empty == "zero" else None
        return parts.aggregate.apply(numbers)

    def in_order(self) -> list[tuple[Step, str, str]]:
        """(step, its constant, its slot in the program) of all steps as they are applied."""
        transform, keep, *earlier = zip(self.combination.steps, self.constants, strict=True)
        slots = [f"earlier {number}" for number in range(len(earlier))]
        named = zip([*earlier, keep, transform], [*slots, "filter", "transform"], strict=True)
        return [(step, constant, slot) for (step, constant), slot in named if step is not None]

    def shortened(self) -> "list[Composed]":
        """The problems without one of the steps: what someone solves who overlooks it."""
        parts, shorter = self.combination, []
        for index, step in enumerate(parts.steps):
            rest = self.constants[:index] + self.constants[index + 1 :]
            if index > 1:
                earlier = parts.earlier[: index - 2] + parts.earlier[index - 1 :]
                shorter.append(replace(self, combination=replace(parts, earlier=earlier), constants=rest))
            elif step is not None:
                without = replace(parts, filter=None) if index else replace(parts, transform=None)
                constants = ("", *rest) if index == 0 else (rest[0], "", *rest[1:])
                shorter.append(replace(self, combination=without, constants=constants))
        return shorter

    @property
    def may_be_empty(self) -> bool:
        """Whether tests hold lists of which no number passes the filters."""
        return self.combination.narrows and self.combination.aggregate.on_empty != "never"

    def slots(self) -> dict[str, tuple[str, tuple[Slip, ...]]]:
        """The places of the program where a piece is written: slot -> (right code, slips)."""
        parts = self.combination
        b = "b" if any(parts.steps) else self.layout.array
        slots: dict[str, tuple[str, tuple[Slip, ...]]] = {}

        def put(slot: str, code: str, slips: Sequence[Slip], **words: str) -> None:
            def fill(text: str) -> str:
                for word, value in words.items():
                    text = text.replace("{" + word + "}", value)
                return text

            slots[slot] = (fill(code), tuple(Slip(fill(slip.code), slip.rate) for slip in slips))

        if not self.layout.functional:
            put("read", self.layout.read[-1], self.layout.slips)
        for step, constant, slot in self.in_order():
            put(slot, step.code, step.slips, k=constant)
        guarded = self.may_be_empty and parts.aggregate.on_empty == "zero"
        code = parts.aggregate.guarded if guarded else parts.aggregate.code
        put("aggregate", code, parts.aggregate.guard_slips if guarded else parts.aggregate.slips, b=b)
        if parts.aggregate.lists and not self.layout.functional:
            put("print", "print(*{})", (Slip("print({})", 0.4),))
        return slots

    def program(self, written: Mapping[str, str] | None = None) -> str:
        """The program with `written` (slot -> code) in its slots, the right code in the others."""
        code = {slot: right for slot, (right, _) in self.slots().items()} | dict(written or {})
        lines = self._head(code.get("read"))
        body = self._assignments(code)
        if self.layout.functional:
            body.append(f"return {code['aggregate']}")
        else:
            body.append(code.get("print", "print({})").replace("{}", code["aggregate"]))
        indent = " " * 4 * sum(line.endswith(":") for line in lines)
        return "\n".join(lines + [indent + line for line in body]) + "\n"

    def _assignments(self, code: Mapping[str, str]) -> list[str]:
        """`b = ...` for each filter together with a transform right after it; any other step has a line of its own."""
        lines: list[str] = []
        source, steps = self.layout.array, self.in_order()
        while steps:
            condition, expression = "", None
            if isinstance(steps[0][0], Filter):
                keep, _, slot = steps.pop(0)
                if isinstance(keep, Filter) and keep.positional:
                    source += code[slot]
                else:
                    condition = f" if {code[slot]}"
            if steps and isinstance(steps[0][0], Transform):
                expression = code[steps.pop(0)[2]]
            comprehended = condition or expression is not None
            lines.append(f"b = [{expression or 'x'} for x in {source}{condition}]" if comprehended else f"b = {source}")
            source = "b"
        return lines

    def _head(self, read: str | None) -> list[str]:
        if self.layout.functional:
            return self.starter_lines()
        if self.layout.name == "with_k":
            return [str(read), self.layout.read[0]]
        return [*self.layout.read[:-1], str(read)]

    def starter_lines(self) -> list[str]:
        """The signature of a functional problem."""
        returns = "List[int]" if self.combination.aggregate.lists else "int"
        return [line.replace("{name}", self.name).replace("{returns}", returns) for line in self.layout.read]

    def task(self) -> str:
        """What to do, in one paragraph."""
        parts, (opening, transform_word, aggregate_word) = self.combination, self.wording
        sentences = [
            OPENINGS[opening] if not self.layout.functional else "You are given a list of at least 2 integers."
        ]
        if parts.earlier:
            sentences.append(IN_ORDER)
        for step, constant, _ in self.in_order():
            say = f"Keep only the {step.say}." if isinstance(step, Filter) else step.say[transform_word]
            sentences.append(say.replace("{k}", constant))
        verb = "Return" if self.layout.functional else "Print"
        sentences.append(f"{verb} {parts.aggregate.say[aggregate_word]}.")
        if parts.narrows:
            if parts.aggregate.on_empty == "zero":
                sentences.append(f"{verb} 0 if no number remains.")
            elif parts.aggregate.on_empty == "never":
                sentences.append("At least one number remains.")
        return " ".join(sentences)


def draw(
    combination: Combination,
    rng: random.Random,
    layouts: Sequence[Layout] = (*STDIN_LAYOUTS, *FUNCTION_LAYOUTS),
) -> Composed | None:
    """A random problem of this combination in one of these layouts; None if the drawn layout needs a k it has not."""
    layout = rng.choice(list(layouts))
    wanting = [part is not None and bool(part.constants) for part in combination.steps]
    if layout.has_k and sum(wanting) != 1:
        return None
    constants = tuple(
        "" if part is None or not part.constants else "k" if layout.has_k else str(rng.choice(part.constants))
        for part in combination.steps
    )
    wording = (rng.randrange(2), rng.randrange(2), rng.randrange(2))
    return Composed(combination, layout, constants, wording, rng.choice(FUNCTION_NAMES))


def draw_numbers(problem: Composed, rng: random.Random) -> tuple[list[int], int]:
    """Random numbers and a k, with zeros, signs, repetitions, two-digit numbers and neighbours of the constants."""
    parts = [p for p in problem.combination.steps if p and p.constants]
    k = rng.choice(parts[0].constants) if problem.layout.has_k else 0
    near = [k if c == "k" else int(c) for c in problem.constants if c] or [0]
    draws: tuple[Callable[[], int], ...] = (
        lambda: rng.randint(-9, 9),
        lambda: rng.randint(-40, 40),
        lambda: rng.randint(10, 130) * rng.choice((1, -1)),
        lambda: rng.choice(near) * rng.choice((1, 1, -1)) + rng.choice((-1, 0, 0, 1)),
    )
    favourite = rng.choice(draws)
    numbers = [rng.choice((favourite, *draws))() for _ in range(rng.randint(2, 8))]
    if rng.random() < 0.3:
        numbers[-1] = numbers[0]
    return numbers, k
