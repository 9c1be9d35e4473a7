"""A tiny random model, and real server processes over loopback that the real SDK talks to."""

import asyncio
import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinker
from tinker import types

from coderl_tasks.paths import local_model_folder
from local_servers.tinker import models
from local_servers.tinker.engines import EnginePool
from local_servers.tinker.tinker_server import running

API_KEY = "tml-test"
CONTEXT = 128
VOCABULARY = 300
SERVER = """
import pathlib, sys
from coderl_tasks.paths import local_model_folder
from local_servers.interface import serve_tinker
port, root, model = sys.argv[1:]
served = {"folder_of": local_model_folder, "root": pathlib.Path(root), "key": None, "device": "cpu", "dtype": "float32"}
serve_tinker(int(port), "127.0.0.1", [model], **served)
"""


@pytest.fixture(scope="session")
def model_folder(random_qwen3: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer Qwen3 model with a byte-level tokenizer of its own."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("models") / "tiny"
    special = ["<|endoftext|>", "<|im_end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate(special + alphabet)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=special[1], pad_token=special[0]).save_pretrained(
        folder
    )
    model = random_qwen3(VOCABULARY, CONTEXT, 1, width=64, tie_word_embeddings=False, initializer_range=0.1)
    model.save_pretrained(folder)
    return folder


@dataclass
class Server:
    """A server process over a home folder of its own; `restart` keeps the port and the home."""

    model: Path
    home: Path
    port: int = 0
    process: subprocess.Popen[str] = field(init=False)
    url: str = field(init=False)

    def start(self) -> "Server":
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                SERVER,
                str(self.port),
                str(self.home / "tinker"),
                str(self.model),
            ],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("ready http://127.0.0.1:"), line
        self.url = line.split()[1]
        self.port = int(self.url.rsplit(":", 1)[1])
        return self

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        self.process.terminate()
        return self.process.wait()

    def restart(self) -> None:
        self.kill()
        self.start()

    def client(self) -> tinker.ServiceClient:
        return tinker.ServiceClient(base_url=self.url, api_key=API_KEY)

    def rest(self) -> tinker.RestClient:
        return tinker.RestClient(base_url=self.url, api_key=API_KEY)

    def call(
        self,
        path: str,
        body: Any = None,
        *,
        method: str | None = None,
        key: str | None = API_KEY,
        accept: str = "",
        more: dict[str, str] | None = None,
    ) -> tuple[int, Any]:
        """Raw HTTP: status, and the decoded JSON (or the bytes of another content type)."""
        sent = "application/x-protobuf" if isinstance(body, bytes) else "application/json"
        headers = {"Accept": accept or "application/json", "Content-Type": sent, **(more or {})}
        if key is not None:
            headers["X-API-Key"] = key
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                status, content, kind = response.status, response.read(), response.headers.get("Content-Type", "")
        except urllib.error.HTTPError as error:
            status, content, kind = error.code, error.read(), error.headers.get("Content-Type", "")
        return status, json.loads(content) if "json" in kind else content

    def stats(self) -> dict[str, Any]:
        status, body = self.call("/stats")
        assert status == 200
        return body


@pytest.fixture(scope="session")
def server(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server most tests share."""
    server = Server(model_folder, tmp_path_factory.mktemp("home")).start()
    yield server
    assert server.terminate() == 0


@pytest.fixture
def own_server(model_folder: Path, tmp_path: Path) -> Iterator[Server]:
    """A server that the test may kill and restart."""
    server = Server(model_folder, tmp_path / "home").start()
    yield server
    server.kill()


@pytest.fixture
def impatient_server(model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server in a thread, where a test can set its constants; missing requests are given up in 0.3 s."""
    monkeypatch.setattr(models, "GAP_TIMEOUT_S", 0.3)
    started: Future[str] = Future()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def run() -> None:
        engines = EnginePool([str(model_folder)], local_model_folder)
        async with running(0, "127.0.0.1", engines, tmp_path) as url:
            started.set_result(url)
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    server = Server(model_folder, tmp_path)
    server.url = started.result(timeout=60)
    yield server
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()


@pytest.fixture(scope="session")
def base_model(model_folder: Path) -> str:
    return str(model_folder)


@pytest.fixture
def client(server: Server) -> Iterator[tinker.ServiceClient]:
    with server.client() as client:
        yield client


NewRun = Callable[..., tinker.TrainingClient]
Step = Callable[..., types.ForwardBackwardOutput]
Supervised = Callable[[list[int]], types.Datum]
Fingerprint = Callable[[tinker.TrainingClient, list[types.Datum]], list[float]]


@pytest.fixture(scope="session")
def new_run(base_model: str) -> NewRun:
    """`new_run(client, **settings)`: a training run on the tiny model."""

    def make(client: tinker.ServiceClient, **settings: Any) -> tinker.TrainingClient:
        values: dict[str, Any] = {"rank": 4, "seed": 7, **settings}
        return client.create_lora_training_client(base_model, **values).result()

    return make


@pytest.fixture(scope="session")
def supervised() -> Supervised:
    """`supervised(tokens)`: predict each next token."""

    def make(tokens: list[int]) -> types.Datum:
        return types.Datum(
            model_input=types.ModelInput.from_ints(tokens[:-1]),
            loss_fn_inputs={
                "target_tokens": types.TensorData.from_numpy(np.array(tokens[1:], dtype=np.int64)),
                "weights": types.TensorData.from_numpy(np.ones(len(tokens) - 1, dtype=np.float32)),
            },
        )

    return make


@pytest.fixture(scope="session")
def lesson(supervised: Supervised) -> list[types.Datum]:
    """Three short sequences to learn by heart."""
    texts = ([5, 9, 13, 17, 21, 25, 29, 33], [40, 41, 42, 43, 44], [7, 77, 7, 77, 7, 77, 7])
    return [supervised(text) for text in texts]


@pytest.fixture(scope="session")
def step() -> Step:
    """`step(run, data, loss)`: one update, both requests submitted before either result is awaited."""

    def update(
        run: tinker.TrainingClient, data: list[types.Datum], loss: Any = "cross_entropy", **config: float
    ) -> types.ForwardBackwardOutput:
        forward = run.forward_backward(data, loss, config or None)
        applied = run.optim_step(types.AdamParams(learning_rate=1e-2))
        output = forward.result()
        applied.result()
        return output

    return update


@pytest.fixture(scope="session")
def fingerprint() -> Fingerprint:
    """`fingerprint(run, data)`: all log-probabilities of the data under the run's weights, to the bit."""

    def measure(run: tinker.TrainingClient, data: list[types.Datum]) -> list[float]:
        output = run.forward(data, "cross_entropy").result()
        return [value for datum in output.loss_fn_outputs for value in datum["logprobs"].data]

    return measure
