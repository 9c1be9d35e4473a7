"""A cluster of hosts on one machine, and what happens when its parts fail: training and curation go on by themselves.

    sudo python benchmarks/cluster.py [--heartbeat 30] [--steps 10] [--only NAME ...] [--kills 10]

Root and iproute2 are needed, and PostgreSQL's `initdb` and `postgres`. A host is a network, process, mount and host
name namespace of its own, with an address on a bridge: PostgreSQL, a Prefect server on it, two sandboxes, a Tinker
server, and two workers (`coderl up`), which share the folder of the runs. All of it is made by this command and gone at
its end; it uses no other network.

A run of nano is trained undisturbed. Then, for each fault, one more with the same settings is started as a deployment's
run, and the fault is made after some steps. The benchmark repairs what it broke as whoever runs the machines would: it
starts a host again. Neither it nor anybody else touches a flow run.

Columns: seconds from the fault until the next step was committed; steps per second during an outage, as a share of the
undisturbed run's; whether rollouts, metrics without clocks, and weights equal the undisturbed run's; groups that were
recorded and asked for again at the Tinker server; and lines that said what had happened.

Exit code 1 if a run does not end by itself, differs, or asks again for what was recorded.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import polars as pl
from prefect import get_client
from prefect.deployments import run_deployment
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
from rich.console import Console
from rich.table import Table
from sampling_gateway import Gateway
from training_kills import SETTINGS, Plan, Training

from coderl_tasks.cli.arguments import parse_key_values
from coderl_tasks.paths import NANO_MODEL, PROJECT_ROOT
from coderl_tasks.policy.selection import seed_for
from coderl_tasks.runtime.prefect_server import QUIET
from coderl_tasks.runtime.worker import WORKER_LABEL
from coderl_tasks.settings import CurateSettings, TrainSettings, parse_settings

NETWORK, PREFIX = "10.77.41", "crl"
SECRET, KEY = "coderl:benchmark", "tml-benchmark-of-a-cluster"
OUTAGE_S = 60.0
FINISH_S = 900.0
NOBODY = 65534
LIAR = """
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Liar(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        run = {"status": "Finished", "return_code": 0, "stdout": "", "stderr": "", "execution_time": 0.01}
        body = json.dumps({"status": "Success", "message": "", "run_result": run, "files": {}}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_GET = do_POST = answer
    def log_message(self, *_): pass

ThreadingHTTPServer((sys.argv[1], 8080), Liar).serve_forever()
"""
"""A sandbox that says of every program that it ended well and printed nothing."""
AHEAD_S = 600
CLOCK = f"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

int clock_gettime(clockid_t id, struct timespec *now) {{
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(id, now);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += {AHEAD_S};
    return failed;
}}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {{
    struct timespec exact;
    int failed = clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec, now->tv_usec = exact.tv_nsec / 1000;
    return failed;
}}
time_t time(time_t *now) {{
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (now) *now = exact.tv_sec;
    return exact.tv_sec;
}}
"""
"""A library that, loaded first, sets a host's clock ahead: namespaces have the machine's."""
LINES = (
    "no answer",
    "answers again",
    "is down",
    "is back",
    "is slow",
    "is failing",
    "is quarantined",
    "no heartbeat",
    "resumes it",
    "was held",
)
"""What the lines hold that tell people of a fault."""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Host:
    """A host: namespaces of its own, a name, an address. What runs there ends with it."""

    def __init__(self, number: int, name: str, folder: Path, user: int = 0) -> None:
        self.name, self.address, self.folder = name, f"{NETWORK}.{number}", folder / name
        self._namespace, self._link, self._user = f"{PREFIX}-{name}", f"{PREFIX}{number}", user
        self._process: subprocess.Popen[bytes] | None = None
        self.log = folder / f"{name}.log"
        self.folder.mkdir(exist_ok=True)
        ip("netns", "add", self._namespace)
        ip("link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self._namespace)
        ip("link", "set", self._link, "master", PREFIX, "up")
        self._inside("addr", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            self._inside("link", "set", device, "up")

    def _inside(self, *words: str) -> None:
        ip("-n", self._namespace, *words)

    def start(self, *command: str, **environment: str) -> None:
        """Run a command there, as the host's only service; again after `kill`."""
        self.link(up=True)
        as_user = ["setpriv", f"--reuid={self._user}", f"--regid={self._user}", "--clear-groups"] if self._user else []
        script = f'hostname {self.name} && exec "$@"'
        host = ["unshare", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc", "--uts", "sh", "-c", script, "sh"]
        own = {"HOME": str(self.folder), "CODERL_HOME": str(self.folder / "coderl"), **QUIET, **environment}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                ["ip", "netns", "exec", self._namespace, *host, *as_user, *command],
                env=os.environ | own,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=PROJECT_ROOT,
            )

    def link(self, *, up: bool) -> None:
        """Plug the network cable in, or pull it."""
        ip("link", "set", self._link, "up" if up else "down")

    def kill(self) -> None:
        """As if the power failed: its network first, so that no connection is closed in order, then all processes."""
        self.link(up=False)
        if self._process is not None:
            self.signal_all(signal.SIGKILL)
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """SIGTERM to its service, as an upgrade does; returns when it has ended."""
        assert self._process is not None
        for pid in self.processes():
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"coderl_tasks.cli" in command and b"up" in command:
                os.kill(pid, signal.SIGTERM)
        self._process.wait(60)

    def signal_all(self, number: int) -> None:
        for pid in self.processes():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def processes(self) -> list[int]:
        """Ids, as this benchmark sees them, of all that runs there."""
        listed = subprocess.run(["ip", "netns", "pids", self._namespace], check=True, capture_output=True, text=True)
        return [int(pid) for pid in listed.stdout.split() if self._process is None or int(pid) != self._process.pid]

    def remove(self) -> None:
        self.kill()
        ip("link", "del", self._link)  # now: the namespace goes when its last process has ended
        ip("netns", "del", self._namespace)


class Cluster:
    """The hosts, started and stopped as a whole, and the folder that workers share."""

    def __init__(self, folder: Path, heartbeat_s: float, stack: ExitStack) -> None:
        self.folder, self.shared = folder, folder / "shared"
        self.shared.mkdir()
        self._heartbeat = str(heartbeat_s)
        self.ahead: str | None = None  # the host whose clock is AHEAD_S ahead
        names = ("postgres", "prefect", "sandbox-a", "sandbox-b", "tinker", "worker-a", "worker-b")
        self.hosts: dict[str, Host] = {}
        for number, name in enumerate(names):
            self.hosts[name] = Host(10 + number, name, folder, user=NOBODY if name == "postgres" else 0)
            stack.callback(self.hosts[name].remove)
        self.gateway = Gateway(f"http://{self.hosts['tinker'].address}:8410", host=f"{NETWORK}.1")
        self.api = f"http://{self.hosts['prefect'].address}:4200/api"

    def start(self) -> None:
        """All services, and both workers at the same moment."""
        data = self.hosts["postgres"].folder / "data"
        os.chown(self.hosts["postgres"].folder, NOBODY, NOBODY)
        as_nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        # In the C locale and without a password: nothing else is on this network.
        initdb = [*as_nobody, "initdb", "-D", str(data), "-U", "prefect", "--auth=trust", "--locale=C", "-E", "UTF8"]
        subprocess.run(initdb, check=True, capture_output=True, cwd="/")
        with (data / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {NETWORK}.0/24 trust\n")
        for name in ("postgres", "tinker", "sandbox-a", "sandbox-b"):
            self.start_one(name)
        until(lambda: is_listening(self.hosts["postgres"].address, 5432), "PostgreSQL does not listen")
        self.start_one("prefect")
        until(lambda: is_listening(self.hosts["prefect"].address, 4200), "the Prefect server does not listen")
        until(lambda: is_listening(self.hosts["tinker"].address, 8410), "the Tinker server does not listen")
        workers = ("worker-a", "worker-b")
        for name in workers:
            self.start_one(name)
        for name in workers:
            ready = self.hosts[name].log
            until(lambda ready=ready: "prefect deployment run" in ready.read_text(), f"{name} is not ready")  # type: ignore[misc]

    def start_one(self, name: str) -> None:
        """Start a host's service: for the first time, or again."""
        host, coderl = self.hosts[name], [sys.executable, "-m", "coderl_tasks.cli"]
        key_file = self.folder / "key"
        key_file.write_text(KEY)
        key_file.chmod(0o600)
        database = f"postgresql+asyncpg://prefect@{self.hosts['postgres'].address}:5432/postgres"
        if name == "postgres":
            words = ["-D", str(host.folder / "data"), "-c", f"listen_addresses={host.address}", "-k", str(host.folder)]
            (host.folder / "data" / "postmaster.pid").unlink(missing_ok=True)
            host.start("postgres", *words, HOME=str(host.folder))
        elif name == "prefect":
            host.start(
                *(sys.executable, "-m", "prefect", "server", "start", "--host", "0.0.0.0", "--port", "4200"),
                PREFECT_API_URL="",
                PREFECT_HOME=str(host.folder),
                PREFECT_SERVER_UI_API_URL=self.api,
                PREFECT_SERVER_API_AUTH_STRING=SECRET,
                PREFECT_SERVER_CSRF_PROTECTION_ENABLED="true",
                PREFECT_SERVER_DATABASE_CONNECTION_URL=database,
            )
        elif name == "tinker":
            host.start(
                *coderl, "serve", "tinker", "--host", host.address, "--port", "8410", "--key", str(key_file),
                *("--model", NANO_MODEL),
            )  # fmt: skip
        elif name.startswith("sandbox"):
            host.start(*coderl, "serve", "sandbox", "--host", host.address, "--port", "8080", "--key", str(key_file))
        else:
            skew = {"LD_PRELOAD": str(self.folder / "clock.so")} if name == self.ahead else {}
            sandboxes = (self.hosts[each].address for each in ("sandbox-a", "sandbox-b"))
            host.start(
                *(*coderl, "up", "--limit", "2"),
                **skew,
                PREFECT_API_URL=self.api,
                PREFECT_API_AUTH_STRING=SECRET,
                PREFECT_WORKER_HEARTBEAT_SECONDS=self._heartbeat,
                TINKER_BASE_URL=self.gateway.url,
                TINKER_API_KEY=KEY,
                SANDBOX_URL=",".join(f"http://coderl:{KEY}@{address}:8080" for address in sandboxes),
            )

    def set_ahead(self, name: str | None) -> None:
        """Set the clock of a worker's host ahead, or all clocks right."""
        (source := self.folder / "clock.c").write_text(CLOCK)
        library = str(self.folder / "clock.so")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, str(source), "-ldl"], check=True)
        changed, self.ahead = name or self.ahead, name
        if changed is not None:
            self.hosts[changed].kill()
            self.start_again(changed)

    def start_again(self, name: str) -> None:
        """Start a worker's host, and wait until it is ready."""
        log, ready = self.hosts[name].log, "prefect deployment run"
        before = log.read_text().count(ready)
        self.start_one(name)
        until(lambda: log.read_text().count(ready) > before, f"{name} is not ready")

    def lines(self) -> list[str]:
        """What the workers have printed so far that tells of a fault."""
        printed = [line for name in ("worker-a", "worker-b") for line in self.hosts[name].log.read_text().splitlines()]
        return [line for line in printed if any(words in line for words in LINES)]


def is_listening(address: str, port: int) -> bool:
    return (
        subprocess.run(["bash", "-c", f"</dev/tcp/{address}/{port}"], check=False, capture_output=True).returncode == 0
    )


def until(condition: Callable[[], bool], otherwise: str, within_s: float = FINISH_S, pause_s: float = 0.25) -> float:
    """Wait; the seconds that it took."""
    begun = time.monotonic()
    while not condition():
        if time.monotonic() - begun > within_s:
            raise RuntimeError(f"{otherwise} after {within_s:.0f} s")
        time.sleep(pause_s)
    return time.monotonic() - begun


@contextmanager
def clustered(heartbeat_s: float) -> Iterator[Cluster]:
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="coderl-cluster-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)  # PostgreSQL refuses to be root
        ip("link", "add", PREFIX, "type", "bridge")
        stack.callback(ip, "link", "del", PREFIX)
        ip("addr", "add", f"{NETWORK}.1/24", "dev", PREFIX)
        ip("link", "set", PREFIX, "up")
        cluster = Cluster(folder, heartbeat_s, stack)
        stack.enter_context(cluster.gateway.serving())
        os.environ["CODERL_HOME"] = str(cluster.hosts["tinker"].folder / "coderl")  # where the weights are
        stack.enter_context(temporary_settings({PREFECT_API_URL: cluster.api, PREFECT_API_AUTH_STRING: SECRET}))
        cluster.start()
        yield cluster


@dataclass
class Job:
    """A deployment's run in the shared folder."""

    folder: Path
    run: UUID

    def commits(self) -> int:
        return len(list(self.folder.glob("steps/*/commit.json")))

    def shards(self, file: str) -> int:
        """How many files of this name its shards have."""
        return len(list(self.folder.glob(f"shards/*/{file}")))

    def state(self) -> str:
        """Its state's name; empty while the Prefect server does not answer."""

        async def asked() -> str:
            async with get_client() as client:
                return (await client.read_flow_run(self.run)).state_name or ""

        try:
            return asyncio.run(asked())
        except Exception:  # whatever its client raises: the server may be what is down
            return ""

    def worker(self) -> str:
        """The host that works on it."""

        async def asked() -> str:
            async with get_client() as client:
                return str((await client.read_flow_run(self.run)).labels[WORKER_LABEL])

        name = asyncio.run(asked())
        return next(host for host in ("worker-a", "worker-b") if host in name)

    def finish(self) -> str:
        until(
            lambda: self.state() in ("Completed", "Failed", "Cancelled"), f"{self.folder.name} has not ended", pause_s=1
        )
        return self.state()


def submit(deployment: str, name: str, folder: Path, settings: dict[str, Any]) -> Job:
    async def started() -> UUID:
        run = await run_deployment(  # type: ignore[misc]  # a coroutine here, as this is one
            deployment, parameters={"settings": settings}, timeout=0, as_subflow=False, flow_run_name=name
        )
        return UUID(str(run.id))

    return Job(folder, asyncio.run(started()))


@dataclass
class Bench:
    """The cluster, the undisturbed run, and the rows so far."""

    cluster: Cluster
    steps: int
    pool: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    wanted: dict[str, Any] | None = None
    rate: float = 0.0

    def train(self, name: str, steps: int | None = None) -> Job:
        folder = self.cluster.shared / name
        words = [*SETTINGS, "rolling_save.every=1", f"max_steps={steps or self.steps}"]
        words += [f"pool={self.pool}", f"log_path={folder}"]
        settings = parse_settings(TrainSettings, parse_key_values(words, TrainSettings))
        return submit("train/local", name, folder, settings.model_dump(mode="json"))

    def curate(self, name: str, **changes: Any) -> Job:
        folder = self.cluster.shared / name
        words = [
            "preset=nano",
            "limit=24",
            "profile_samples=4",
            "band_low=0",
            "band_high=1",
            "max_tests=3",
            f"name={folder}",
        ]
        settings = parse_settings(CurateSettings, parse_key_values(words, CurateSettings)).with_changes(**changes)
        return submit("curate/local", name, folder, settings.model_dump(mode="json"))

    def training(self, job: Job) -> Training:
        return Training(job.folder, Plan("rolling-1", 0, self.steps, 0, self.pool), None)  # type: ignore[arg-type]

    def undisturbed(self) -> None:
        job = self.train("undisturbed")
        until(lambda: job.commits() >= 2, "no step")
        begun, before = time.monotonic(), job.commits()
        state = job.finish()
        self.rate = (self.steps - before) / (time.monotonic() - begun)
        if state != "Completed":
            raise RuntimeError(
                f"the undisturbed run is {state}: {self.cluster.hosts['worker-a'].log.read_text()[-3000:]}"
            )
        self.wanted = self.training(job).outcome()
        self.row("nothing", "ends", job, None, len(self.cluster.gateway.seeds), set())

    def fault(
        self,
        name: str,
        promise: str,
        fault: Callable[[Job], Callable[[], None] | None],
        heal_after_s: float = 0.0,
        *,
        outage: bool = False,
    ) -> None:
        """Make a fault after some steps. `fault` returns what ends it, which is done `heal_after_s` later; of an
        `outage` the steps that are made meanwhile are counted."""
        said = len(self.cluster.lines())
        job = self.train(name.replace(" ", "-"))
        until(lambda: job.commits() >= 3, "no step")
        seeds, recorded, before = len(self.cluster.gateway.seeds), self.training(job).recorded(), job.commits()
        at = time.monotonic()
        heal = fault(job)
        healing = threading.Timer(heal_after_s, heal) if heal is not None else None
        if healing is not None:
            healing.start()
        went_on_s: float | None = until(lambda: job.commits() > before, f"{name}: no step")
        share = None
        if outage:
            until(lambda: time.monotonic() - at > heal_after_s or job.commits() >= self.steps, "")
            made_in = min(heal_after_s, time.monotonic() - at)
            share = (job.commits() - before) / made_in / self.rate
        if healing is not None:
            healing.join()
        state = job.finish()
        self.row(name, promise, job, went_on_s, seeds, recorded, state=state, share=share, said=said)

    def row(
        self,
        name: str,
        promise: str,
        job: Job,
        went_on_s: float | None,
        seeds: int,
        recorded: set[int],
        *,
        state: str = "Completed",
        share: float | None = None,
        said: int | None = None,
    ) -> None:
        found = self.training(job).outcome() if state == "Completed" else {}
        different = [part for part in self.wanted or {} if found.get(part) != (self.wanted or {})[part]]
        again = sum(seed in recorded for seed in self.cluster.gateway.seeds[seeds:])
        lines = [] if said is None else self.cluster.lines()[said:] + log_lines(job.folder)
        self.add(
            name,
            promise,
            state,
            went_on_s=went_on_s,
            steps_made=None if share is None else f"{share:.0%}",
            different=", ".join(different),
            asked_again=again,
            lines=lines,
        )

    def add(
        self,
        fault: str,
        promise: str,
        state: str,
        *,
        went_on_s: float | None = None,
        steps_made: str | None = None,
        different: str = "",
        asked_again: int | None = None,
        lines: list[str],
    ) -> None:
        """A row; None is what was not measured."""
        self.rows.append(
            {
                "fault": fault,
                "promise": promise,
                "went on after s": None if went_on_s is None else round(went_on_s, 1),
                "steps made": steps_made,
                "state": state,
                "different": different,
                "asked again": asked_again,
                "lines": lines[:6],
            }
        )
        print(json.dumps(self.rows[-1]), flush=True)


def log_lines(run: Path) -> list[str]:
    log = run / "logs.log"
    lines = log.read_text().splitlines() if log.is_file() else []
    return [line.partition(": ")[2] for line in lines if "WARNING" in line and any(words in line for words in LINES)]


def faults(bench: Bench) -> dict[str, Callable[[], None]]:
    """Each scenario by its name."""
    cluster = bench.cluster

    def killed(*names: str) -> Callable[[], None]:
        for name in names:
            cluster.hosts[name].kill()

        def start_again() -> None:
            for name in names:
                cluster.start_one(name)

        return start_again

    def unplugged(name: str) -> Callable[[], None]:
        cluster.hosts[name].link(up=False)
        return lambda: cluster.hosts[name].link(up=True)

    def stopped(job: Job) -> Callable[[], None]:
        name = job.worker()
        cluster.hosts[name].stop()
        return lambda: cluster.start_one(name)

    def slow(name: str) -> Callable[[], None]:
        over = threading.Event()

        def by_jerks() -> None:
            while not over.is_set():
                cluster.hosts[name].signal_all(signal.SIGSTOP)
                time.sleep(1.9)
                cluster.hosts[name].signal_all(signal.SIGCONT)
                time.sleep(0.1)

        threading.Thread(target=by_jerks, daemon=True).start()
        return over.set

    def lying(name: str) -> Callable[[], None]:
        cluster.hosts[name].kill()
        cluster.hosts[name].start(sys.executable, "-c", LIAR, cluster.hosts[name].address)
        return lambda: killed(name)()

    fault = bench.fault
    goes_on, elsewhere = "goes on", "goes on, on the other worker"
    return {
        "worker killed": lambda: fault("worker killed", elsewhere, lambda job: killed(job.worker()), 60),
        "worker stopped": lambda: fault("worker stopped", elsewhere, stopped, 30),
        "both workers killed": lambda: fault(
            "both workers killed", goes_on, lambda _: killed("worker-a", "worker-b"), 20
        ),
        "postgres killed": lambda: fault("postgres killed", goes_on, lambda _: killed("postgres"), 30, outage=True),
        "prefect away": lambda: fault("prefect away", goes_on, lambda _: unplugged("prefect"), OUTAGE_S, outage=True),
        "sandbox killed": lambda: fault("sandbox killed", "the other one is asked", lambda _: killed("sandbox-a"), 30),
        "sandbox slow": lambda: fault("sandbox slow", "gets little", lambda _: slow("sandbox-b"), 30),
        "sandbox lying": lambda: fault("sandbox lying", "is left out", lambda _: lying("sandbox-b"), 30),
        "tinker away": lambda: fault("tinker away", goes_on, lambda _: unplugged("tinker"), OUTAGE_S),
        "curation": lambda: curation(bench),
        "placement": lambda: placement(bench),
        "two users": lambda: two_users(bench),
        "clock": lambda: clock(bench),
    }


def recorded_rounds(pool: Path) -> set[int]:
    """The seeds of the rounds that a curation in shards has recorded."""
    seeds = set()
    for file in (*pool.glob("shards/*/groups/*.parquet"), *pool.glob("shards/*/rollouts.parquet")):
        with suppress(FileNotFoundError):  # a shard that ends removes its groups
            rounds = pl.read_parquet(file, columns=["problem_id", "attempt"]).unique()
            seeds |= {seed_for(0, "profile", number, name) for name, number in rounds.iter_rows()}
    return seeds


def same_pool(whole: Job, job: Job) -> bool:
    files = ("pool.parquet", "profile.parquet")
    return all(pl.read_parquet(whole.folder / file).equals(pl.read_parquet(job.folder / file)) for file in files)


def curation(bench: Bench) -> None:
    """A curation in shards on both workers, one of which is killed; compared with one in one process."""
    cluster = bench.cluster
    whole = bench.curate("whole", shard_size=6)
    if whole.finish() != "Completed":
        raise RuntimeError("the undisturbed curation did not end")
    said = len(cluster.lines())
    job = bench.curate("in-shards", shard_size=6, shards="deployment", shards_in_flight=4)
    until(lambda: job.shards("groups/*") > 0, "no shard has begun")
    before, at = job.shards("profile-*.parquet"), time.monotonic()
    name = job.worker()
    cluster.hosts[name].kill()
    until(lambda: job.shards("profile-*.parquet") > before, "no shard has ended")
    went_on_s = time.monotonic() - at
    cluster.start_one(name)
    state = job.finish()
    different = "" if state != "Completed" or same_pool(whole, job) else "pool"
    lines = cluster.lines()[said:]
    bench.add("worker killed in a curation", "goes on", state, went_on_s=went_on_s, different=different, lines=lines)


def two_users(bench: Bench) -> None:
    """Two people start a run at the same moment, and a third one names the first one's directory."""
    seeds = len(bench.cluster.gateway.seeds)
    said = len(bench.cluster.lines())
    jobs = [bench.train(name) for name in ("user-one", "user-two")]
    until(lambda: jobs[0].commits() > 0, "no step")
    third = bench.train("user-one")
    for job in jobs:
        name = f"two users at once, {job.folder.name}"
        bench.row(name, "both as if alone", job, None, seeds, set(), state=job.finish(), said=said)
    state = third.finish()
    same = Job(jobs[0].folder, third.run)
    bench.add(
        "a third in a directory at work",
        "is refused",
        "Completed: refused" if state == "Failed" else f"not refused: {state}",
        different=", ".join(
            part for part, value in (bench.wanted or {}).items() if bench.training(same).outcome()[part] != value
        ),
        lines=[],
    )


def clock(bench: Bench) -> None:
    """The clock of one worker's host is ahead. Each of the two is killed once while it works on a run."""
    cluster = bench.cluster
    cluster.set_ahead("worker-b")
    said, job, seconds = len(cluster.lines()), bench.train("clock"), []
    until(lambda: job.commits() >= 2, "no step")
    seeds, recorded = len(cluster.gateway.seeds), bench.training(job).recorded()
    for _ in range(2):
        name, before = job.worker(), job.commits()
        if before >= bench.steps:
            raise SystemExit(f"the run had ended before both hosts were killed: more --steps than {bench.steps}")
        cluster.hosts[name].kill()
        seconds.append(until(lambda before=before: job.commits() > before, "no step"))  # type: ignore[misc]
        cluster.start_again(name)
    state, what = job.finish(), f"a host's clock {AHEAD_S} s ahead, each host killed once"
    bench.row(what, "goes on, on the other worker", job, max(seconds), seeds, recorded, state=state, said=said)
    cluster.set_ahead(None)


def placement(bench: Bench, runs: int = 20) -> None:
    """Twenty runs at once on two workers that take two each."""
    begun = time.monotonic()
    jobs = [bench.train(f"placed-{number}", steps=1) for number in range(runs)]
    states = [job.finish() for job in jobs]
    counts = {name: sum(job.worker() == name for job in jobs) for name in ("worker-a", "worker-b")}
    lines = [f"{counts}, in {time.monotonic() - begun:.0f} s"]
    bench.add(f"{runs} runs at once", "even placement", f"{states.count('Completed')} Completed", lines=lines)


def many_kills(bench: Bench, kills: int, seed: int) -> None:
    """Random worker hosts are killed, one after the other, during one curation in shards and one training; each is
    started again 20 s later."""
    draw, sizes = random.Random(seed), {"shard_size": 3, "profile_samples": 16}
    whole = bench.curate("whole-for-kills", **sizes)
    if whole.finish() != "Completed":
        raise RuntimeError("the undisturbed curation did not end")
    pool = bench.curate("kills-in-shards", **sizes, shards="deployment")

    def in_shards() -> int:
        return pool.shards("groups/*") + pool.shards("profile-*.parquet")

    done, again = kill_at_random(bench, draw, pool, kills, in_shards, lambda: recorded_rounds(pool.folder))
    state = pool.finish()
    different, what = "" if same_pool(whole, pool) else "pool", f"{done} kills of random workers in a curation"
    bench.add(what, "ends by itself", state, different=different, asked_again=again, lines=[])
    run = bench.train("many-kills")
    done, again = kill_at_random(bench, draw, run, kills, run.commits, bench.training(run).recorded)
    what, state = f"{done} kills of random workers", run.finish()
    bench.row(what, "ends by itself", run, None, len(bench.cluster.gateway.seeds), set(), state=state)
    bench.rows[-1]["asked again"] = again


def kill_at_random(
    bench: Bench,
    draw: random.Random,
    job: Job,
    kills: int,
    progress: Callable[[], int],
    recorded: Callable[[], set[int]],
) -> tuple[int, int]:
    """Kill a random worker's host, start it again 20 s later, and wait for progress, so many times or until the job has
    ended. Returns how many times, and how many seeds that were recorded before a kill were asked for after it."""
    cluster, done, again = bench.cluster, 0, 0
    until(lambda: progress() > 0, "no progress")
    while done < kills and job.state() != "Completed":
        name = draw.choice(("worker-a", "worker-b"))
        seeds, known = len(cluster.gateway.seeds), recorded()
        cluster.hosts[name].kill()
        time.sleep(20)
        cluster.start_one(name)
        done += 1
        before = progress()
        until(lambda before=before: progress() != before or job.state() == "Completed", "no progress")  # type: ignore[misc]
        again += sum(seed in known for seed in cluster.gateway.seeds[seeds:])
    return done, again


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--heartbeat", type=float, default=30.0, help="seconds between a worker's heartbeats (default: 30)"
    )
    parser.add_argument("--steps", type=int, default=10, help="of a run (default: 10)")
    parser.add_argument("--only", action="append", help="a scenario by its name (may be repeated; default: all)")
    parser.add_argument(
        "--kills", type=int, default=0, help="kills of random workers in one more training and curation (default: 0)"
    )
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("namespaces with a network of their own need root")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the hosts are removed
    with clustered(arguments.heartbeat) as cluster:
        begun = time.monotonic()
        bench = Bench(cluster, arguments.steps, cluster.shared / "pool")
        job = bench.curate("pool")
        if job.finish() != "Completed":
            sys.exit(f"the pool was not made: {cluster.hosts['worker-a'].log.read_text()[-3000:]}")
        bench.undisturbed()
        print(f"two workers started at once, a pool and a run in {time.monotonic() - begun:.0f} s", flush=True)
        for name, scenario in faults(bench).items():
            if not arguments.only or name in arguments.only:
                scenario()
        if arguments.kills:
            many_kills(bench, arguments.kills, arguments.seed)
    table = Table(
        title=f"faults of a cluster, heartbeat {arguments.heartbeat:g} s, runs of {arguments.steps} steps of nano"
    )
    for title in bench.rows[0]:
        table.add_column(title)
    for row in bench.rows:
        table.add_row(*("\n".join(value) if isinstance(value, list) else str(value or "-") for value in row.values()))
    Console(width=200).print(table)
    bad = [row for row in bench.rows if row["different"] or row["asked again"] or "Completed" not in row["state"]]
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
