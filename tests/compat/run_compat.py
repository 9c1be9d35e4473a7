"""Runs other people's clients, unmodified, against the embedded servers and looks at what they did.

    python tests/compat/run_compat.py [--only TEXT]

The clients are the newest tinker-cookbook's (environment.py installs it): its arithmetic recipe in three modes with its
default loss, its supervised recipe killed and resumed, its temperature validator and its code grading harness. The
model is nano, which knows no arithmetic: completions are cut off where some of them have not ended, so that the reward
for ending gives a gradient. Nothing is asked of a hub.

A trial is judged by what it wrote (metrics, checkpoints, verdicts) and by what the server counted. One line per trial;
exit code 1 if one is not as it should be: its files are then kept, in the folder that is named.
"""

import argparse
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import environment
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from coderl_tasks.errors import InfraError
from coderl_tasks.journal.atomic import read_rows
from coderl_tasks.paths import DATA, NANO_MODEL, PROJECT_ROOT, coderl_home
from coderl_tasks.services import embedded_sandbox, embedded_tinker
from coderl_tasks.services.supervisor import EmbeddedServer
from local_servers.tinker.checkpoint_store import CheckpointStore

sys.path.append(str(PROJECT_ROOT))  # as pytest has it: known submissions

from tests.grading.submission_cases import Problem, Verdict, call_submissions, stdin_submissions

LIMIT_S = 300.0
"""A client that takes longer has failed."""
AT_A_TIME = 2
"""Clients at work at a time: one starts up, which is a third of its time, while another trains."""
STEPS = 3
GROUPS, GROUP_SIZE = 12, 4
"""More than half of the groups have completions that ended and others that did not: each step has some of these."""
SIZES = (f"groups_per_batch={GROUPS}", f"group_size={GROUP_SIZE}", "max_tokens=32", f"max_steps={STEPS}")
MODEL = (f"model_name={NANO_MODEL}", "renderer_name=qwen3_instruct")
STALE = 2
SAVE_EVERY, BATCHES, BATCH = 4, 16, 8
SAME_LOGPROB = 1e-3
"""Log-probabilities of the same tokens may differ by so much for reasons of arithmetic."""
VERDICTS = (Verdict.PASSED, Verdict.WRONG_ANSWER, Verdict.RUNTIME_ERROR)
"""Programs that deserve others use up time and memory, which a stock sandbox does not limit as ours does."""


class Differs(Exception):
    """What a client did is not what it should have done."""


@dataclass(frozen=True)
class Bench:
    """Where trials run: `folder` holds a folder for each; `stock` is a server like a stock Sandbox Fusion."""

    folder: Path
    tinker: str
    key: str
    sandbox: str
    stock: str

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        """The environment of a client: the embedded servers, no hub, and none of the project's modules."""
        names = {
            "TINKER_BASE_URL": self.tinker,
            "TINKER_API_KEY": self.key,
            "TINKER_TELEMETRY": "0",
            "SANDBOX_URL": f"{self.sandbox}/run_code",
            "HF_HOME": str(self.folder / "huggingface"),
            "HF_HUB_OFFLINE": "1",
            "PYTHONUNBUFFERED": "1",
        }
        return {**{name: value for name, value in os.environ.items() if name != "PYTHONPATH"}, **names, **more}

    @contextmanager
    def started(self, name: str, *words: str, **more: str) -> "Iterator[subprocess.Popen[bytes]]":
        """`python words...` in the clients' environment; its output goes to NAME.log. Killed at the end."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(environment.PYTHON), *words],
                cwd=self.folder,
                env=self.environment(more),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def run(self, name: str, *words: str, **more: str) -> str:
        """Run a client to its end; what it said. Raises Differs if it fails or takes longer than LIMIT_S."""
        with self.started(name, *words, **more) as process:
            try:
                code = process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                raise Differs(f"not done after {LIMIT_S:.0f} s") from None
        output = (self.folder / f"{name}.log").read_text(errors="replace")
        if code != 0:
            lines = [line for line in output.splitlines() if line.strip()]
            raise Differs(f"ended with {code}: {lines[-1][:300] if lines else 'without a word'}")
        return output


def expect(as_it_should: bool, what: str) -> None:
    if not as_it_should:
        raise Differs(what)


def steps_of(folder: Path) -> list[dict[str, Any]]:
    """The metrics of a run's steps, numbered from 0 and finite."""
    rows = [row for row in read_rows(folder / "metrics.jsonl") if "grad_norm" in row]
    numbers = [row["step"] for row in rows]
    expect(numbers == list(range(len(rows))), f"the metrics are of steps {numbers}")
    odd = {name for row in rows for name, value in row.items() if isinstance(value, float) and not math.isfinite(value)}
    expect(not odd, f"metrics that are not finite: {sorted(odd)}")
    return rows


def steps_applied(checkpoint: dict[str, Any]) -> int:
    """The optimizer steps that the server counts in the lineage of a checkpoint."""
    return CheckpointStore(coderl_home() / "tinker").find(checkpoint["state_path"]).optimizer_steps


def final_checkpoint(folder: Path) -> dict[str, Any]:
    last = read_rows(folder / "checkpoints.jsonl")[-1]
    expect(last["name"] == "final", f"the last checkpoint is {last['name']}")
    return last


def arithmetic(bench: Bench, mode: str, *words: str) -> str:
    """The arithmetic recipe, STEPS steps with its default loss."""
    folder = bench.folder / mode
    recipe = ("-m", "tinker_cookbook.recipes.math_rl.train", "env=arithmetic")
    bench.run(mode, *recipe, *MODEL, *SIZES, f"log_path={folder}", *words)
    rows = steps_of(folder)
    expect(len(rows) == STEPS, f"{len(rows)} steps instead of {STEPS}")
    episodes = [row["env/all/total_episodes"] for row in rows]
    expect(episodes == [GROUPS * GROUP_SIZE] * STEPS, f"completions per step: {episodes}")
    expect(min(row["grad_norm"] for row in rows) > 0, "a step without a gradient")
    applied = steps_applied(final_checkpoint(folder))
    expect(applied == STEPS, f"the server applied {applied} optimizer steps")
    # Sampled by the policy that is trained, the same tokens have the same log-probabilities.
    off = max(abs(row["optim/kl_sample_train_v1"]) for row in rows if not row.get("async/staleness_max"))
    expect(off < SAME_LOGPROB, f"sampled and trained log-probabilities differ by {off:.1e} on average")
    config = json.loads((folder / "config.json").read_text())
    if config.get("async_config") is None:
        return f"{STEPS} steps of {config['loss_fn']}"
    stale = max(row["async/staleness_max"] for row in rows)
    expect(stale > 0, "nothing was sampled ahead")
    return f"{STEPS} steps of {config['async_config']['loss_fn']}, up to {stale} off-policy"


def supervised(bench: Bench) -> str:
    """The supervised recipe on a local file, killed after its first checkpoint and started again."""
    folder, conversations = bench.folder / "chat_sl", bench.folder / "conversations.jsonl"
    rows = [json.loads(line) for line in (DATA / "mini" / "primeintellect-train.jsonl").read_text().splitlines()]
    with conversations.open("w") as file:
        for row in rows[: BATCHES * BATCH]:
            turns = [("user", row["problem"]), ("assistant", f"```python\n{row['solutions'][0]}\n```")]
            file.write(json.dumps({"messages": [{"role": role, "content": text} for role, text in turns]}) + "\n")
    recipe = ("-m", "tinker_cookbook.recipes.chat_sl.train", *MODEL, f"dataset={conversations}")
    settings = (f"batch_size={BATCH}", f"save_every={SAVE_EVERY}", "learning_rate=1e-3", "lr_schedule=constant")
    words = (*recipe, *settings, f"log_path={folder}", "behavior_if_log_dir_exists=resume")
    checkpoints, deadline = folder / "checkpoints.jsonl", time.monotonic() + LIMIT_S
    with bench.started("chat_sl", *words) as process:
        while not (checkpoints.exists() and checkpoints.read_text().endswith("\n")):
            expect(process.poll() is None, "it ended before its first checkpoint")
            expect(time.monotonic() < deadline, f"no checkpoint after {LIMIT_S:.0f} s")
            time.sleep(0.02)
    saved = read_rows(checkpoints)[-1]
    expect(saved["name"] != "final", "it was done before it was killed")
    before = {row["step"]: row["train_mean_nll"] for row in read_rows(folder / "metrics.jsonl")}
    output = bench.run("chat_sl", *words)
    expect(f"Resumed training from {saved['state_path']}" in output, f"not resumed from {saved['name']}")
    after = steps_of(folder)
    expect(len(after) == BATCHES, f"{len(after)} steps instead of {BATCHES}")
    # The cookbook saves with the next step on its way, and names the step before it: some steps are trained twice.
    at, had, got = int(saved["batch"]), steps_applied(saved), steps_applied(final_checkpoint(folder))
    expect(got == had + BATCHES - at, f"{got} optimizer steps, {BATCHES - at} of them after a checkpoint with {had}")
    again = after[at]["train_mean_nll"]
    expect(again < before[0], f"the loss after resuming is {again:.2f}, at the start it was {before[0]:.2f}")
    last = after[-1]["train_mean_nll"]
    return f"killed and resumed at step {at} of {BATCHES}; loss {before[0]:.2f}, then {again:.2f}, at last {last:.2f}"


def validator(bench: Bench) -> str:
    """The temperature validator: sampled log-probabilities are those of the scaled distribution."""
    script = environment.script("tests/validate_temperature_logprobs.py")
    output = bench.run("validator", str(script), f"base_model={NANO_MODEL}", "num_trials=40")
    number = r"\s+(\d+\.\d+|nan)"
    rows = re.findall(rf"^\s+(\d+\.\d+)\s+(\d+)\s+(\d+){number}{number}\s*$", output, re.MULTILINE)
    expect(len(rows) > 1, "it printed no table")
    *temperatures, sequence = [(float(row[0]), int(row[2]), float(row[4])) for row in rows]
    for temperature, pairs, worst in temperatures:
        expect(pairs > 0, f"no two tokens to compare at temperature {temperature}")
        expect(worst < SAME_LOGPROB, f"at temperature {temperature} differences of log-probabilities are {worst} off")
    expect(sequence[1] > 0 and sequence[2] < SAME_LOGPROB, f"in a sequence log-probabilities are {sequence[2]} off")
    return f"{len(temperatures)} temperatures, {sum(pairs for _, pairs, _ in temperatures)} pairs of tokens"


def in_lcb_form(problem: Problem) -> list[dict[str, Any]]:
    """A problem's tests as the harness takes them: a functional input has an argument per line."""
    if problem.kind == "stdin":
        return [{"input": test.input, "output": test.expected, "testtype": "stdin_stdout"} for test in problem.tests]
    return [
        {
            "input": "\n".join(json.dumps(argument) for argument in json.loads(test.input)),
            "output": test.expected,
            "testtype": "functional",
            "metadata": {"func_name": problem.entry_point},
        }
        for test in problem.tests
    ]


def as_it_reads(code: str) -> str:
    """A program with its usual way to its input made one that the harness has: it replaces `sys.stdin`."""
    return "import sys\n" + code.replace("open(0).read()", "sys.stdin.read()")


def grading(bench: Bench) -> str:
    """The code grading harness on known submissions: the embedded sandbox gives the verdicts that a stock one gives."""
    styles: dict[str, tuple[Problem, str, bool]] = {}
    for name, problem, code, verdict in (*stdin_submissions(), *call_submissions()):
        if verdict in VERDICTS and "import coderl_tasks" not in code:  # which the stock sandbox here has
            style = f"{problem.kind}, {name.partition(': ')[2]}"
            styles.setdefault(style, (problem, as_it_reads(code), verdict is Verdict.PASSED))
    known = [right for _, _, right in styles.values()]
    cases = bench.folder / "programs.json"
    cases.write_text(json.dumps([(in_lcb_form(problem), code) for problem, code, _ in styles.values()]))
    verdicts = {}
    for name, url in (("embedded", bench.sandbox), ("stock", bench.stock)):
        answers = bench.folder / f"verdicts-{name}.json"
        script = str(Path(__file__).with_name("grade_programs.py"))
        bench.run(f"grading-{name}", script, str(cases), str(answers), SANDBOX_URL=f"{url}/run_code")
        verdicts[name] = json.loads(answers.read_text())
    ours, theirs = verdicts["embedded"], verdicts["stock"]
    other = [style for style, one, two in zip(styles, ours, theirs, strict=True) if one != two]
    expect(not other, f"verdicts differ from those on a stock sandbox: {', '.join(other)}")
    for right in (True, False):
        agreed = sum(verdict is truth is right for verdict, truth in zip(ours, known, strict=True))
        expect(agreed > 0.75 * known.count(right), f"{agreed} of {known.count(right)} programs get {right}")
    wrong = sum(verdict != truth for verdict, truth in zip(ours, known, strict=True))
    return f"{len(ours)} programs as on a stock sandbox; the harness itself misjudges {wrong}"


TRIALS: dict[str, Callable[[Bench], str]] = {
    "math_rl sync": lambda bench: arithmetic(bench, "sync"),
    "math_rl asynchronous": lambda bench: arithmetic(bench, "async", f"max_steps_off_policy={STALE}"),
    "math_rl stream-minibatch": lambda bench: arithmetic(
        bench,
        "stream",
        f"stream_minibatch_config.groups_per_batch={GROUPS}",
        "stream_minibatch_config.num_minibatches=2",
    ),
    "chat_sl": supervised,
    "temperature validator": validator,
    "code grading harness": grading,
}


@contextmanager
def serving(folder: Path) -> Iterator[Bench]:
    """The servers, with a home of their own in `folder`."""
    os.environ["CODERL_HOME"] = str(folder / "home")
    stock = [sys.executable, str(PROJECT_ROOT / "tests" / "grading" / "stock_sandbox.py")]
    (folder / NANO_MODEL).parent.mkdir()
    (folder / NANO_MODEL).symlink_to(
        PROJECT_ROOT / NANO_MODEL
    )  # the clients' working directory knows it by the same name
    with (
        embedded_tinker(NANO_MODEL) as tinker,
        embedded_sandbox() as sandbox,
        EmbeddedServer("stock sandbox", stock, "/v1/ping", folder / "stock.log") as plain,
    ):
        yield Bench(folder, tinker.url, tinker.key, sandbox.address, plain.url)


def run_trials(names: list[str], folder: Path, console: Console) -> list[str]:
    """Run the trials, each with a line when it is done; the names of those that are not as they should be."""
    failed: list[str] = []

    def timed(name: str, bench: Bench) -> tuple[bool, str, float]:
        begun = time.monotonic()
        try:
            said, fine = TRIALS[name](bench), True
        except (Differs, InfraError) as error:
            said, fine = str(error), False
        except Exception as error:  # a newer client may write anything, or not write what was looked for
            said, fine = f"its files were not understood: {type(error).__name__}: {error}", False
        return fine, said, time.monotonic() - begun

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with serving(folder) as bench, Progress(*columns, console=console, transient=True) as progress:
        line = progress.add_task("")
        pool = ThreadPoolExecutor(AT_A_TIME)
        left: dict[Future[tuple[bool, str, float]], str] = {pool.submit(timed, name, bench): name for name in names}
        try:
            while left:
                at_work = ", ".join(name for future, name in left.items() if future.running())
                progress.update(line, description=f"{len(names) - len(left)} of {len(names)} done; at work: {at_work}")
                done, _ = wait(left, timeout=1.0, return_when=FIRST_COMPLETED)
                for future in done:
                    name = left.pop(future)
                    fine, said, seconds = future.result()
                    failed += [] if fine else [name]
                    mark = "[green]ok     [/]" if fine else "[red]differs[/]"
                    console.print(f"{mark} {name:<26}{seconds:6.1f} s  {escape(said)}", soft_wrap=True)
        finally:  # Ctrl-C reaches the clients too: those at work end by themselves
            pool.shutdown(cancel_futures=True)
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="trials that have this in their name")
    arguments = parser.parse_args()
    console = Console(highlight=False)
    names = [name for name in TRIALS if arguments.only in name]
    if not names:
        parser.error(f"no trial has {arguments.only!r} in its name: there are {', '.join(TRIALS)}")
    begun = time.monotonic()
    try:
        with console.status("installing the newest tinker-cookbook"):
            lines = environment.install()
    except InfraError as error:
        console.print(f"compat: nothing was run: {escape(str(error))}", soft_wrap=True)
        sys.exit(1)
    console.print(*lines, sep="\n", markup=False, soft_wrap=True)
    folder = Path(tempfile.mkdtemp(prefix="compat-"))
    installed = time.monotonic()
    failed = run_trials(names, folder, console)
    seconds = f"{time.monotonic() - installed:.0f} s, installing {installed - begun:.0f} s"
    if failed:
        console.print(
            f"{len(failed)} of {len(names)} differ ({seconds}); what they wrote is in {folder}", soft_wrap=True
        )
        sys.exit(1)
    shutil.rmtree(folder)
    console.print(f"{len(names)} of {len(names)} as they should be ({seconds})")


if __name__ == "__main__":
    main()
