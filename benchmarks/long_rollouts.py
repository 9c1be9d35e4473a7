"""What memory a training run takes whose completions are long, and how fast what it leaves opens.

    python benchmarks/long_rollouts.py [--steps 12] [--tokens 24000] [--groups 64] [--completions 16] [--untrained]
    python benchmarks/long_rollouts.py --steps 200 --tokens 2400        # is it flat? A tenth of the tokens, many steps
    python benchmarks/long_rollouts.py --steps 4 --made-up 200          # what reads a long run (34 GB on the disk)

A real `coderl train` of nano on the embedded servers, behind a gateway that makes up what takes long: it lets the
server sample a single token per completion and train on a few, and answers with random tokens in their place, as many
as asked for, with log-probabilities. All groups of a step arrive nearly at once. Every other completion ends in a
program, which fails: the rewards of each group differ, and the update gets every token of the step. With `--untrained`
none does, and no group is trained on.

A row per step: what of the run's process is resident when the step is committed, and the least and the most that was
since the step before (from /proc, looked at ten times a second; MB); then by how much each of these grows per step (a
straight line through all but the first two steps, which load what later ones use). Then the seconds, start of the
command included, in which what reads the run answers, with the largest resident set of each. With `--made-up N` the run
is first made one of N steps: those trained again and again, under further numbers.
"""

import argparse
import asyncio
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
from aiohttp import web
from overlap import servers
from sampling_gateway import Gateway
from tinker.proto import tinker_public_pb2 as pb

from coderl_tasks.insight.named_queries import CURATION, NAMED_QUERIES
from coderl_tasks.journal.atomic import append_row, read_rows, write_parquet
from coderl_tasks.journal.run_directory import committed_steps
from coderl_tasks.journal.steps import StepJournal, index_step
from coderl_tasks.paths import NANO_MODEL, PROJECT_ROOT
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA
from coderl_tasks.problems import load_problems
from coderl_tasks.problems.problem import problems_frame
from coderl_tasks.prompts.tokenizer import load_tokenizer
from local_servers.tinker.promises import PROTOBUF

LOOK_S = 0.1
CONTEXT = 32_768
TRAINED_TOKENS = 8
"""What the server behind the gateway is given to train on, per request."""
PROGRAM = "\n```python\nprint('no')\n```"


class LongAnswers(Gateway):
    """Makes completions of `tokens` random tokens out of the server's, every other one with an `ending`, and answers to
    passes over them."""

    def __init__(self, target: str, tokens: int, words: np.ndarray, ending: list[int]) -> None:
        super().__init__(target)
        self._tokens, self._words, self._ending = tokens, words, ending
        self._draw = np.random.default_rng(0)
        # What the requests asked for whose answers are to be made up: completions, or the log-probabilities sent.
        self._samples: dict[str, int] = {}
        self._passes: dict[str, list[bytes]] = {}

    async def _pass_on(self, request: web.Request) -> web.Response:
        body = await request.read()
        if request.path == "/api/v1/asample":
            asked = json.loads(body)
            asked["sampling_params"]["max_tokens"] = 1
            answer = await self._send(request, json.dumps(asked).encode())
            self._samples[_id_of(answer)] = int(asked["num_samples"])
            return answer
        if request.path == "/api/v1/forward_backward":
            message = pb.ForwardBackwardRequest()
            message.ParseFromString(body)
            sent = [bytes(datum.loss_fn_inputs["logprobs"].dense) for datum in message.data]
            del message.data[1:]
            _shorten(message.data[0])
            answer = await self._send(request, message.SerializeToString())
            self._passes[_id_of(answer)] = sent
            return answer
        answer = await self._send(request, body)
        if request.path == "/api/v1/get_server_capabilities":
            offered = json.loads(_bytes_of(answer))
            for model in offered["supported_models"]:
                model["max_context_length"] = CONTEXT
            return web.json_response(offered)
        if request.path == "/api/v1/retrieve_future" and answer.content_type == PROTOBUF:
            request_id = json.loads(body)["request_id"]
            # In a thread: other requests are answered meanwhile.
            if request_id in self._samples:
                made = await asyncio.to_thread(self._sampled, self._samples.pop(request_id))
                return web.Response(body=made, content_type=PROTOBUF)
            if request_id in self._passes:
                return web.Response(body=_passed(self._passes.pop(request_id)), content_type=PROTOBUF)
        return answer

    def _sampled(self, count: int) -> bytes:
        ids = self._words[self._draw.integers(len(self._words), size=(count, self._tokens))].astype(np.int32)
        if self._ending:
            ids[::2, -len(self._ending) :] = self._ending
        logprobs = -self._draw.standard_exponential((count, self._tokens), dtype=np.float32)
        sequences = [
            pb.SampledSequence(stop_reason=pb.STOP_REASON_LENGTH, tokens=a.tobytes(), logprobs=b.tobytes())
            for a, b in zip(ids, logprobs, strict=True)
        ]
        return pb.SampleResponse(sequences=sequences).SerializeToString()


def _bytes_of(answer: web.Response) -> bytes:
    assert isinstance(answer.body, bytes)
    return answer.body


def _id_of(answer: web.Response) -> str:
    return str(json.loads(_bytes_of(answer))["request_id"])


def _shorten(datum: "pb.Datum") -> None:
    """Leave the first tokens of a datum."""
    for chunk in datum.model_input:
        chunk.encoded_text.tokens = chunk.encoded_text.tokens[: 4 * TRAINED_TOKENS]
    for tensor in datum.loss_fn_inputs.values():
        width = 8 if tensor.dtype == pb.DTYPE_INT64 else 4
        tensor.dense = tensor.dense[: width * TRAINED_TOKENS]
        tensor.shape[:] = [TRAINED_TOKENS]


def _passed(sent: list[bytes]) -> bytes:
    """The answer to a pass whose policy gives each token the log-probability that was sent."""
    message = pb.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord", metrics={"loss:sum": 0.0})
    record = message.loss_fn_outputs.add()
    record.type_tag, record.num_datums = "ArrayRecord", len(sent)
    field = record.fields["logprobs"]
    field.data, field.dtype = b"".join(sent), pb.DTYPE_FLOAT32
    field.offsets = np.cumsum([0, *map(len, sent)], dtype=np.int64).tobytes()
    return message.SerializeToString()


def write_pool(path: Path) -> None:
    """The train problems of data/mini as a pool's file."""
    problems = load_problems(str(PROJECT_ROOT / "data" / "mini"), role="train").problems
    write_parquet(path, problems_frame(problems))


def plain_words() -> np.ndarray:
    """The tokens of nano that are letters, digits and spaces: no program begins by chance."""
    tokenizer = load_tokenizer(NANO_MODEL)
    texts = [str(tokenizer.decode([token])) for token in range(len(tokenizer))]
    return np.array([token for token, text in enumerate(texts) if text and text.replace(" ", "x").isalnum()])


def resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def train(environment: dict[str, str], run: Path, words: list[str]) -> float:
    """Run `coderl train`, and print a row per step, and how they grow; the most that was resident, MB."""
    command = [sys.executable, "-m", "coderl_tasks.cli", "train", *words, f"log_path={run}"]
    print(f"{'step':>5} {'seconds':>8} {'resident':>9} {'least':>9} {'most':>9}", flush=True)
    rows: list[tuple[float, float, float]] = []
    with (run.parent / "output").open("w") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
        seen, least, most, peak, begun = 0, math.inf, 0.0, 0.0, time.monotonic()
        while process.poll() is None:
            time.sleep(LOOK_S)
            now = resident_mb(process.pid)
            least, most, peak = min(least, now), max(most, now), max(peak, _high_water(process.pid))
            steps = committed_steps(run) if run.is_dir() else 0
            if steps > seen:
                rows.append((now, least, most))
                print(f"{steps:5} {time.monotonic() - begun:8.1f} {now:9,.0f} {least:9,.0f} {most:9,.0f}", flush=True)
                seen, least, most, begun = steps, math.inf, 0.0, time.monotonic()
    if process.returncode:
        sys.exit(f"the run ended with {process.returncode}:\n{(run.parent / 'output').read_text()[-4000:]}")
    settled = np.array(rows[2:])
    if len(settled) > 1:
        growth = np.polyfit(np.arange(len(settled)), settled, 1)[0]
        print("MB per step " + "  " + " ".join(f"{each:+9.2f}" for each in growth))
    return peak


def make_up(run: Path, steps: int) -> None:
    """Copy the committed steps of `run` under further numbers until it has `steps`."""
    trained = committed_steps(run)
    for step in range(trained, steps):
        source, folder = (StepJournal(run, number) for number in (step % trained, step))
        scored, commit = source.read("scored"), source.read_commit()
        assert scored is not None and commit is not None
        scored = scored.with_columns(pl.lit(step, ROLLOUT_SCHEMA["step"]).alias("step"))
        folder.write("scored", scored)
        folder.write_commit(replace(commit, step=step, metrics={**commit.metrics, "step": step}))
        append_row(run / "metrics.jsonl", {**commit.metrics, "step": step})
        index_step(run, step, scored)


def _high_water(pid: int) -> float:
    """The most that was resident of a process, MB; 0 once it has ended."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM")), 0.0)


def opened(environment: dict[str, str], *words: str) -> tuple[float, float]:
    """Run a command that reads the run: its seconds, and the MB of its largest resident set."""
    begun, most = time.monotonic(), 0.0
    with tempfile.TemporaryFile() as output:
        command = [sys.executable, "-m", "coderl_tasks.cli", *words]
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
        while process.poll() is None:
            # Not the largest that wait4 knows: a child's begins with that of the process which started it.
            most = max(most, _high_water(process.pid))
            time.sleep(LOOK_S / 2)
        if process.returncode:
            output.seek(0)
            sys.exit(f"{' '.join(command)} ended with {process.returncode}: {output.read().decode()[-2000:]}")
    return time.monotonic() - begun, most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=24_000, help="of each completion (default: 24,000)")
    parser.add_argument("--groups", type=int, default=64, help="per step (default: 64)")
    parser.add_argument("--completions", type=int, default=16, help="per group (default: 16)")
    parser.add_argument("--untrained", action="store_true", help="no program in any completion")
    parser.add_argument("--made-up", type=int, default=0, metavar="N", help="read a run of N steps")
    parser.add_argument("--unread", action="store_true", help="only train: leave out what reads the run")
    parser.add_argument("--folder", type=Path, help="where everything goes, and stays (default: a temporary one)")
    arguments = parser.parse_args()
    with servers() as environment, tempfile.TemporaryDirectory(prefix="long-rollouts-") as temporary:
        folder = (arguments.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        ending = [] if arguments.untrained else load_tokenizer(NANO_MODEL).encode(PROGRAM)
        gateway = LongAnswers(environment["TINKER_BASE_URL"], arguments.tokens, plain_words(), list(ending))
        write_pool(folder / "pool.parquet")
        words = [
            "preset=nano",
            f"pool={folder / 'pool.parquet'}",
            f"problems_per_step={arguments.groups}",
            f"completions_per_problem={arguments.completions}",
            f"max_tokens={arguments.tokens}",
            f"max_steps={arguments.steps}",
            "eval_every=-1",
        ]
        run = folder / "run"
        with gateway.serving():
            peak = train({**environment, "TINKER_BASE_URL": gateway.url}, run, words)
        print(f"most resident: {peak:,.0f} MB; load {os.getloadavg()[0]:.1f}\n")
        if arguments.unread:
            return
        make_up(run, arguments.made_up)
        spent = [row["time_step_s"] for row in read_rows(run / "metrics.jsonl") if "time_step_s" in row]
        size = sum(file.stat().st_size for file in run.rglob("*.parquet"))
        print(f"{len(spent)} steps of {np.median(spent):.1f} s (median), {size / 1e9:.2f} GB of parquet")
        print(f"{'command':<28} {'seconds':>8} {'most, MB':>9}")
        commands = [["report", str(run)], ["runs", str(run.parent)]]
        commands += [["query", str(run), "--name", name] for name, one in NAMED_QUERIES.items() if one.over != CURATION]
        for command in commands:
            seconds, megabytes = opened(environment, *command)
            name = " ".join(word for word in command if not word.startswith("/"))
            print(f"{name:<28} {seconds:8.1f} {megabytes:9,.0f}", flush=True)


if __name__ == "__main__":
    main()
