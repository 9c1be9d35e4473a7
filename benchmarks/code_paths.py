"""How much code a GRPO step and a grading pass go through, and what the tree is like: for tables of before and after.

    python benchmarks/code_paths.py [--root CHECKOUT] [--json FILE] [--before FILE] [--static]

A real `coderl train` of nano, on the embedded servers, is traced from the start of its second step, where the pool's
rows are chosen, to its commit, and on to what is logged and shown of it. What runs once, at start-up or in the first
step, is left out, and so is the drawing of the history, which no step waits for. Then a right completion of a bundled
problem is graded through an embedded sandbox, from its text to its reward. Counted are files and named functions of
flows/ and coderl_tasks/, but not of the embedded servers, which are processes of their own.

--root measures another checkout, with this interpreter: nothing of the project is imported here, and what the traced
processes need of it is found by name. --before prints the figures that --json wrote beside those of now.
"""

import argparse
import ast
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import tokenize
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from statistics import median
from types import CodeType, FrameType
from typing import Any

from rich.console import Console
from rich.table import Table

PACKAGES = ("flows", "coderl_tasks")
SERVERS = ("local_servers/", "coderl_tasks/local/", "coderl_tasks/embedded/")
"""Where the embedded servers are, here and in earlier checkouts: counted apart, and traced nowhere."""
POOL = ("preset=nano", "limit=24", "profile_samples=2", "max_tests=1", "band_low=0", "band_high=1")
TRAIN = (
    "preset=nano",
    "batch_size=16",
    "group_size=8",
    "max_tokens=32",
    "eval_every=-1",
    "save_every=0",
    "max_steps=2",
)
WATCHER = "watch-"
HISTORY = "step_history_markdown"
"""What draws the history of the step before, in a thread of its own, while a step is under way."""
STEP_FILE, STEP, COMMIT, TRACED_STEP = "flows/train.py", "_step", "write_commit", 1
DIRECTIVE = re.compile(r"#(!| ?(noqa|fmt|type|ruff|isort|pyrefly|pragma)\b)")
NOT_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


class Tracer:
    """Notes, while it is `on`, which of the project's functions any thread calls, and each read of a parquet file."""

    def __init__(self, root: Path) -> None:
        self.on = False
        self.reads: Counter[str] = Counter()
        self._root = f"{root}{os.sep}"
        self._places: dict[CodeType, str | None] = {}
        self._seen: set[CodeType] = set()
        self._seen_after: set[CodeType] = set()
        self._committed = False
        self._around: set[CodeType] = set()
        self._drawing: set[int] = set()
        self.on_call: Callable[[str], None] = lambda place: None

    def install(self) -> None:
        import polars as pl

        for name in ("read_parquet", "scan_parquet"):
            setattr(pl, name, self._counted(name, getattr(pl, name)))
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def start(self) -> None:
        frame: FrameType | None = sys._getframe()
        while frame is not None:  # coroutines that wait for what is traced: they go on within it, and are no part of it
            self._around.add(frame.f_code)
            frame = frame.f_back
        self.on = True

    def found(self) -> dict[str, Any]:
        """Functions by file: up to the commit, if there is one, and those that are only called after it."""
        self.on = False
        return {
            "functions": self._by_file(self._seen),
            "after": self._by_file(self._seen_after - self._seen),
            "reads": dict(self.reads),
        }

    def _by_file(self, codes: set[CodeType]) -> dict[str, list[str]]:
        named: dict[str, set[str]] = {}
        for code in codes:
            named.setdefault(str(self._place(code)), set()).add(code.co_qualname)
        return {file: sorted(names) for file, names in sorted(named.items())}

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event not in ("call", "return") or (place := self._place(code)) is None:
            return
        thread = threading.get_ident()
        if code.co_name == HISTORY:
            (self._drawing.add if event == "call" else self._drawing.discard)(thread)
        if thread in self._drawing or code.co_name == HISTORY:
            return
        if event == "return":
            self._committed |= self.on and code.co_name == COMMIT
            return
        self.on_call(place)
        if self.on and not code.co_name.startswith("<") and code not in self._around:
            # The supervisor's pings of its servers, which come at any moment, are no part of what is traced.
            if threading.current_thread().name.startswith(WATCHER):
                return
            (self._seen_after if self._committed else self._seen).add(code)

    def _place(self, code: CodeType) -> str | None:
        """The file that the code is in, from the root, if it is the project's."""
        if code not in self._places:
            file = code.co_filename.removeprefix(self._root)
            ours = file.startswith(tuple(f"{package}/" for package in PACKAGES)) and not file.startswith(SERVERS)
            self._places[code] = file if ours else None
        return self._places[code]

    def _counted(self, name: str, read: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            if self.on:
                caller = sys._getframe(1).f_code
                self.reads[f"{name} in {self._place(caller)}: {caller.co_qualname}"] += 1
            return read(*arguments, **options)

        return counted


def trace_step(root: Path, out: Path, words: list[str]) -> None:
    """Run the `coderl` command, and write what its step went through to `out` when that step is done."""
    tracer = Tracer(root)
    steps = iter(range(TRACED_STEP + 1))

    def wrap(place: str) -> None:
        # The module is imported by the command itself, which sets the environment up first.
        module = sys.modules.get(STEP_FILE.removesuffix(".py").replace("/", "."))
        if place != STEP_FILE or not hasattr(module, STEP):
            return
        tracer.on_call = lambda place: None
        step = getattr(module, STEP)

        async def traced(*arguments: Any) -> Any:
            if next(steps, None) != TRACED_STEP:
                return await step(*arguments)
            tracer.start()
            result = await step(*arguments)
            out.write_text(json.dumps(tracer.found()))
            return result

        setattr(module, STEP, traced)

    tracer.on_call = wrap
    tracer.install()
    coderl(root)(words)


def trace_grading(root: Path, out: Path) -> None:
    import asyncio

    grading, problems = import_module("coderl_tasks.grading"), import_module("coderl_tasks.problems")
    solved = problems.load_problems("data/mini", role="train", limit=40).problems
    problem = next(problem for problem in solved if problem.kind == "stdin" and problem.solutions)
    text = f"The program:\n```python\n{problem.solutions[0]}\n```\n"
    tracer = Tracer(root)

    async def grade(url: str) -> Any:
        async with grading.SandboxClient([url]) as client:
            judge = grading.Judge(client)
            await grading.score_completion(judge, problem, "```python\nprint()\n```")  # what runs once
            tracer.install()
            tracer.start()
            scored = await grading.score_completion(judge, problem, text)
            out.write_text(json.dumps(tracer.found()))
            return scored

    with defined(root, "embedded_sandbox")() as server:
        scored = asyncio.run(grade(server.address))
    if not scored.grade.passed:
        raise SystemExit(f"a right program was graded {scored}")


def coderl(root: Path) -> Callable[[list[str]], None]:
    """What the console script `coderl` calls."""
    module, name = tomllib.loads((root / "pyproject.toml").read_text())["project"]["scripts"]["coderl"].split(":")
    function: Callable[[list[str]], None] = getattr(import_module(module), name)
    return function


def defined(root: Path, name: str) -> Any:
    """The function of that name, from whichever file defines it."""
    for file in sources(root):
        if re.search(rf"^(async )?def {name}\b", file.read_text(), re.MULTILINE):
            module = ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
            return getattr(import_module(module), name)
    raise SystemExit(f"no function {name} in {root}")


def sources(root: Path) -> list[Path]:
    return sorted(file for package in PACKAGES for file in (root / package).rglob("*.py"))


def traced(root: Path, folder: Path) -> dict[str, Any]:
    """The step and the grading pass, each in a process of its own."""
    environment = dict.fromkeys(("TINKER_API_KEY", "TINKER_BASE_URL", "SANDBOX_URL"), "")
    environment = {**os.environ, **environment, "PYTHONPATH": str(root), "CODERL_HOME": str(folder / "home")}

    def run(*words: str) -> None:
        command = [sys.executable, __file__, "--root", str(root), *words]
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stdout}{done.stderr}")

    run("--command", "curate", *POOL, f"name={folder / 'pool'}")
    run(
        "--trace-step",
        str(folder / "step.json"),
        "train",
        *TRAIN,
        f"pool={folder / 'pool'}",
        f"log_path={folder / 'run'}",
    )
    run("--trace-grading", str(folder / "grading.json"))
    return {name: json.loads((folder / f"{name}.json").read_text()) for name in ("step", "grading")}


def measures(source: str) -> Counter[str]:
    """A file's lines of code, comment lines and comments beside code. Docstrings and directives are none of these."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str()), lineno=first, end_lineno=int(last)):
                documented.update(range(first, last + 1))
    code: set[int] = set()
    counts: Counter[str] = Counter()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if not DIRECTIVE.match(token.string):
                counts["comment" if token.line.lstrip().startswith("#") else "beside"] += 1
        elif token.type not in NOT_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    counts["code"] = len(code - documented)
    return counts


def upward_imports(root: Path) -> list[str]:
    """Imports that run up the list of directories in docs/architecture.md, flows/ first."""
    table = (root / "docs" / "architecture.md").read_text().split("## The directories")[1].split("\n## ")[0]
    lines = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    places = [(path, number) for number, line in enumerate(lines) for path in re.findall(r"`([\w/.]+)`", line)]
    levels = {path.rstrip("/").removeprefix("coderl_tasks/").removesuffix(".py"): number for path, number in places}
    upward = []
    for file in sources(root):
        parts = file.relative_to(root).with_suffix("").parts
        package = parts[0] if parts[0] == "flows" else parts[1]
        text = file.read_text().split('if __name__ == "__main__":')[0]  # a flow's file is a command too
        for names in re.findall(r"^ *from (?:coderl_tasks\.(\w+)|(flows))", text, re.MULTILINE):
            if package != "__init__" and levels["".join(names)] < levels[package]:
                upward.append(f"{file.relative_to(root)} -> {''.join(names)}")
    return upward


def tree(root: Path) -> dict[str, Any]:
    """What can be counted without running anything."""
    places = [root / place for place in SERVERS]
    servers = [file for place in places for file in sorted(place.rglob("*.py"))]
    files = [file for file in sources(root) if file not in servers]
    counts, of_servers = (
        sum((measures(file.read_text()) for file in some), Counter[str]()) for some in (files, servers)
    )
    whole = {str(file.relative_to(root)): len(file.read_text().splitlines()) for file in files}
    names = Counter(file.name for file in files if file.name != "__init__.py")
    longest = max(whole, key=lambda file: whole[file])
    return {
        "files": len(files),
        "code_lines": counts["code"],
        "server_files": len(servers),
        "server_code_lines": of_servers["code"],
        "server_lines": sum(len(file.read_text().splitlines()) for file in servers),
        "median_lines": median(whole.values()),
        "longest_lines": whole[longest],
        "longest": longest,
        "comments_per_100": round(100 * counts["comment"] / counts["code"], 1),
        "comments_beside_code_per_100": round(100 * counts["beside"] / counts["code"], 1),
        "duplicate_names": {name: count for name, count in sorted(names.items()) if count > 1},
        "upward_imports": upward_imports(root),
    }


def figures(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What a table shows, line by line."""
    for name, title in (("step", "one step, to its commit"), ("grading", "one grading pass")):
        if name in found:
            functions = found[name]["functions"]
            yield f"{title}: files", str(len(functions))
            yield f"{title}: functions", str(sum(map(len, functions.values())))
    if "step" in found:
        further = found["step"]["after"].keys() - found["step"]["functions"].keys()
        yield "further files that log and show it", str(len(further))
        yield "parquet reads of the step", str(sum(found["step"]["reads"].values()))
    numbers = found["tree"]
    yield "files", str(numbers["files"])
    yield "lines of code", str(numbers["code_lines"])
    if "server_files" in numbers:  # not in what earlier versions wrote, which counted the servers among the above
        yield "files of the embedded servers, apart", str(numbers["server_files"])
        yield "lines of code of these", str(numbers["server_code_lines"])
        yield "lines of these, docstrings and blank ones among them", str(numbers["server_lines"])
    yield "lines of the median file", f"{numbers['median_lines']:g}"
    yield "lines of the longest file", f"{numbers['longest_lines']} ({numbers['longest']})"
    yield "comment lines per 100 lines of code", str(numbers["comments_per_100"])
    yield "comments beside code per 100 lines", str(numbers["comments_beside_code_per_100"])
    yield "file names that occur more than once", str(len(numbers["duplicate_names"]))
    yield "imports that run up", str(len(numbers["upward_imports"]))


def show(found: dict[str, Any], before: dict[str, Any] | None) -> None:
    console = Console()
    lines = []
    for name in ("step", "grading"):
        for part, title in (("functions", name), ("after", f"{name}, afterwards")):
            named = found.get(name, {}).get(part, {})
            lines += [f"{title}: {file}: {', '.join(functions)}" for file, functions in named.items()]
        lines += [f"{name}: {times} x {read}" for read, times in found.get(name, {}).get("reads", {}).items()]
    lines += [f"{times} files are called {name}" for name, times in found["tree"]["duplicate_names"].items()]
    lines += [f"up: {line}" for line in found["tree"]["upward_imports"]]
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    table = Table("", *(["before"] if before else []), "now")
    earlier = dict(figures(before)) if before else {}
    for title, value in figures(found):
        table.add_row(title, *([earlier.get(title, "")] if before else []), value)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--root", type=Path, default=Path(__file__).resolve().parents[1], help="the checkout to measure"
    )
    parser.add_argument("--json", type=Path, help="write what was found to this file")
    parser.add_argument("--before", type=Path, help="a file that --json wrote, to compare with")
    parser.add_argument("--static", action="store_true", help="run nothing, count only")
    # In a process of its own: the `coderl` command as it is, with its step traced, and a grading pass.
    parser.add_argument("--command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.add_argument("--trace-step", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.add_argument("--trace-grading", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    if arguments.command:
        coderl(root)(arguments.command)
    elif arguments.trace_step:
        out, *words = arguments.trace_step
        trace_step(root, Path(out), words)
    elif arguments.trace_grading:
        trace_grading(root, arguments.trace_grading)
    else:
        found: dict[str, Any] = {"tree": tree(root)}
        if not arguments.static:
            with tempfile.TemporaryDirectory(prefix="code-paths-") as folder:
                found |= traced(root, Path(folder))
        if arguments.json:
            arguments.json.write_text(json.dumps(found, indent=1) + "\n")
        show(found, json.loads(arguments.before.read_text()) if arguments.before else None)


if __name__ == "__main__":
    main()
