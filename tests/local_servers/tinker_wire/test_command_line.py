"""The SDK's own `tinker` command against the server, and what the server refuses to start with."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest
import tinker
import torch
from click.testing import CliRunner
from tinker.cli.__main__ import main_cli

from coderl_tasks.paths import local_model_folder
from local_servers.server_errors import SetupError
from local_servers.tinker.engines import EnginePool
from local_servers.tinker.tinker_server import running
from tests.local_servers.tinker_wire.conftest import NewRun, Server

TinkerCommand = Callable[..., str]


@pytest.fixture
def tinker_command(server: Server) -> TinkerCommand:
    """`tinker ...`, as its console script runs it."""
    env = {"TINKER_BASE_URL": server.url, "TINKER_API_KEY": "tml-test"}

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(main_cli, arguments, env=env, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    return run


def test_the_tinker_command_lists_inspects_downloads_and_deletes(
    client: tinker.ServiceClient, new_run: NewRun, tinker_command: TinkerCommand, tmp_path: Path, base_model: str
) -> None:
    run = new_run(client)
    path = run.save_state("shown").result().path
    listed = json.loads(tinker_command("--format", "json", "run", "list", "--limit", "0"))
    assert run.model_id in [entry["training_run_id"] for entry in listed["runs"]]
    checkpoints = json.loads(tinker_command("--format", "json", "checkpoint", "list", "--run-id", run.model_id))
    assert [entry["tinker_path"] for entry in checkpoints["checkpoints"]] == [path]
    assert path in tinker_command("--format", "json", "checkpoint", "info", path)
    tinker_command("checkpoint", "download", path, "--output", str(tmp_path))
    (config,) = tmp_path.rglob("adapter_config.json")
    assert json.loads(config.read_text())["r"] == 4
    assert (config.parent / "adapter_model.safetensors").stat().st_size > 1000
    tinker_command("checkpoint", "delete", path, "--yes")
    checkpoints = json.loads(tinker_command("--format", "json", "checkpoint", "list", "--run-id", run.model_id))
    assert checkpoints["checkpoints"] == []


async def test_what_cannot_be_served_is_one_clear_line(tmp_path: Path, model_folder: Path, server: Server) -> None:
    with pytest.raises(SetupError, match="not a local model folder"):
        EnginePool(["Qwen/Nope"], local_model_folder)
    engines = EnginePool([str(model_folder)], local_model_folder)
    with pytest.raises(SetupError, match=f"cannot listen on 127.0.0.1:{server.port}"):
        async with running(server.port, "127.0.0.1", engines, tmp_path):
            pass


def test_a_gpu_that_is_not_there_is_one_clear_line(model_folder: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(SetupError, match=r"--device cuda: PyTorch .* sees no GPU here.*--device cpu"):
        EnginePool([str(model_folder)], local_model_folder, device="cuda")


async def test_a_model_is_served_in_bfloat16(tmp_path: Path, model_folder: Path) -> None:
    def train_and_sample(url: str) -> None:
        with tinker.ServiceClient(base_url=url, api_key="tml-test") as service:
            training = service.create_lora_training_client(base_model=str(model_folder), rank=4).result()
            datum = tinker.Datum(
                model_input=tinker.ModelInput.from_ints([1, 2, 3]),
                loss_fn_inputs={"target_tokens": tinker.TensorData(data=[2, 3, 4], dtype="int64")},
            )
            training.forward_backward([datum], "cross_entropy").result()
            training.optim_step(tinker.AdamParams(learning_rate=1e-3)).result()
            sampler = training.save_weights_and_get_sampling_client().result()
            prompt, settings = tinker.ModelInput.from_ints([1, 2, 3]), tinker.SamplingParams(max_tokens=5, seed=0)
            first, second = (sampler.sample(prompt, 2, settings).result() for _ in range(2))
            assert [sequence.tokens for sequence in first.sequences] == [
                sequence.tokens for sequence in second.sequences
            ]

    engines = EnginePool([str(model_folder)], local_model_folder, device="auto", dtype="bfloat16")
    async with running(0, "127.0.0.1", engines, tmp_path) as url:
        await asyncio.to_thread(train_and_sample, url)
        async with aiohttp.ClientSession() as session, session.get(f"{url}/stats") as answer:
            (engine,) = (await answer.json())["engines"].values()
        device = "cuda" if torch.cuda.is_available() else "cpu"
        assert (engine["device"], engine["dtype"]) == (device, "bfloat16")
