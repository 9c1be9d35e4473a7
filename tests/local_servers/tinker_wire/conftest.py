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
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinker
from tinker import types
from tinker.proto.request_conv import forward_backward_request_to_proto
from tinker.types import ForwardBackwardInput, ForwardBackwardRequest

from coderl_tasks.paths import local_model_folder
from local_servers.tinker import models
from local_servers.tinker.engines import EnginePool
from local_servers.tinker.tinker_server import running
from tests.conftest import Found, Share

API_KEY = "tml-test"
CONTEXT = 128
VOCABULARY = 300
PROTOBUF = "application/x-protobuf"
TRY_AGAIN = 408
SERVER = """
import pathlib, sys
from coderl_tasks.paths import local_model_folder
from local_servers.interface import serve_tinker
port, root, model = sys.argv[1:]
served = {"folder_of": local_model_folder, "root": pathlib.Path(root), "key": None, "device": "cpu", "dtype": "float32"}
serve_tinker(int(port), "127.0.0.1", [model], **served)
"""


@pytest.fixture(scope="session")
def model_folder(random_qwen3: Callable[..., Any], common: Path, share: Share) -> Iterator[Path]:
    """A random two-layer Qwen3 model with a byte-level tokenizer of its own."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = common / "tiny-bytes"

    def make(_: ExitStack) -> Found:
        special = ["<|endoftext|>", "<|im_end|>"]
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        vocabulary = {token: number for number, token in enumerate(special + alphabet)}
        backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=special[1], pad_token=special[0])
        tokenizer.save_pretrained(folder)
        model = random_qwen3(VOCABULARY, CONTEXT, 1, width=64, tie_word_embeddings=False, initializer_range=0.1)
        model.save_pretrained(folder)

    with share("tiny-bytes-model", make):
        yield folder


@dataclass
class Server:
    """A server process over a home folder of its own; `restart` keeps the port and the home."""

    model: Path
    home: Path
    port: int = 0
    process: subprocess.Popen[str] = field(init=False)
    url: str = field(init=False)

    def address(self, url: str) -> None:
        self.url, self.port = url, int(url.rsplit(":", 1)[1])

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
        self.address(line.split()[1])
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


class Wire:
    """One model of a server, driven without the SDK's clients."""

    def __init__(self, server: Server, base_model: str) -> None:
        self.server = server
        body: dict[str, Any] = {"tags": [], "user_metadata": None, "sdk_version": "0"}
        self.session_id = self.post("create_session", body)["session_id"]
        self.create = {
            "session_id": self.session_id,
            "model_seq_id": 0,
            "base_model": base_model,
            "lora_config": {"rank": 4, "seed": 7},
        }
        accepted = self.post("create_model", self.create)
        self.model_id = self.retrieve(accepted["request_id"])["model_id"]
        assert self.post("create_model", self.create) == accepted

    def post(self, path: str, body: dict[str, Any] | bytes, status: int = 200) -> Any:
        got, answer = self.server.call(f"/api/v1/{path}", body)
        assert got == status, answer
        return answer

    def retrieve(self, request_id: str, status: int = 200) -> Any:
        got = TRY_AGAIN
        while got == TRY_AGAIN:  # as clients do, where the server is not done in half a minute
            got, answer = self.server.call("/api/v1/retrieve_future", {"request_id": request_id}, accept=PROTOBUF)
        assert got == status, answer
        return answer

    def forward_backward(self, seq_id: int, data: list[types.Datum], status: int = 200) -> Any:
        inputs = ForwardBackwardInput(data=data, loss_fn="cross_entropy")
        message = forward_backward_request_to_proto(ForwardBackwardRequest(inputs, self.model_id, seq_id))
        return self.post("forward_backward", message.SerializeToString(), status)

    def optim_step(self, seq_id: int) -> Any:
        return self.post(
            "optim_step", {"model_id": self.model_id, "seq_id": seq_id, "adam_params": {"learning_rate": 0.01}}
        )

    def steps(self) -> int:
        return self.server.stats()["models"][self.model_id]["optimizer_steps"]


@pytest.fixture(scope="session")
def server(model_folder: Path, common: Path, share: Share) -> Iterator[Server]:
    """The server most tests share, those of other workers too: it serves more than what one test asks of it."""
    server = Server(model_folder, common / "tiny-bytes-home")

    def start(running: ExitStack) -> Found:
        running.callback(server.start().terminate)
        return server.url

    with share("tiny-bytes-server", start) as url:
        server.address(url)
        yield server


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
