"""The adapter of a saved policy, fetched from the service in PEFT's form.

The service (SDK 0.38) does not hand out training states or sampler weights. So, as in `tinker checkpoint download`, a
new training client loads the state and exports it as "external weights" for an hour; signed addresses give its files.
"""

import json
import logging
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from coderl_tasks.errors import CoderlError, ConfigError, InfraError

if TYPE_CHECKING:  # the SDK takes seconds to import
    import tinker

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
TTL_S = 3600  # the least that a service takes; a killed export leaves one that is gone after that
_RENAMED = {"model.unembed_tokens": "lm_head"}  # what Tinker calls a layer that transformers calls otherwise
_CHUNK = 1 << 20
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SampledSequence:
    """Tokens of a prompt and a completion, and the log-probability of each of the latter, in nats at temperature 1."""

    prompt: list[int]
    completion: list[int]
    logprobs: list[float]


async def fetch_adapter(
    service: "tinker.ServiceClient", rest: "tinker.RestClient", state_path: str, folder: Path
) -> "tinker.TrainingClient":
    """Writes the LoRA adapter of the training state `state_path` to `folder` (files CONFIG and WEIGHTS), and returns a
    client with the state loaded. The service exports it to a checkpoint of its own, which is deleted again. Raises
    ConfigError if the service does not have the state or exports no adapter, InfraError if it fails."""
    from coderl_tasks.policy.clients import delete_checkpoint, tinker_errors

    with tinker_errors(f"loading {state_path} (expired, deleted, or of another service?)", missing_is_fatal=True):
        client = await service.create_training_client_from_state(state_path)
    with tinker_errors(f"exporting {state_path}"):
        exported = await client.save_weights_external(f"export-{secrets.token_hex(4)}", ttl_seconds=TTL_S)
    try:
        with tinker_errors(f"asking for the addresses of {exported.path}"):
            urls = (await rest.get_external_weights_urls(exported.path)).urls
        if missing := {CONFIG, WEIGHTS} - urls.keys():
            raise ConfigError(
                f"the service exported {', '.join(sorted(urls)) or 'no files'}, and no {', '.join(sorted(missing))}"
            )
        for name in (CONFIG, WEIGHTS):
            try:
                async with httpx.AsyncClient(timeout=60.0) as http, http.stream("GET", urls[name]) as response:
                    response.raise_for_status()
                    with (folder / name).open("wb") as out:
                        async for chunk in response.aiter_bytes(_CHUNK):
                            out.write(chunk)
            except httpx.HTTPError as error:
                # The message omits the address: it is signed, so anybody could fetch the weights with it.
                raise InfraError(
                    f"{name} could not be fetched ({type(error).__name__}): run the same command again"
                ) from None
    finally:
        try:
            await delete_checkpoint(rest, exported.path)
        except CoderlError as error:  # only a warning: it must not hide a success, or the error that came first
            logger.warning("%s; it expires in an hour", error)
    return client


def finish_adapter(folder: Path, base_model: str) -> dict[str, Any]:
    """Name `base_model` in the adapter's configuration, and its layers as transformers does; the configuration."""
    config: dict[str, Any] = json.loads((folder / CONFIG).read_text())
    config["base_model_name_or_path"] = base_model

    def renamed(name: str) -> str:
        layer = layer_of(name)
        return name.replace(layer, _RENAMED[layer]) if layer in _RENAMED else name

    if any(renamed(name) != name for name in tensor_names(folder / WEIGHTS)):
        from safetensors.torch import load_file, save_file

        tensors = {renamed(name): tensor for name, tensor in load_file(folder / WEIGHTS).items()}
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
        config["target_modules"] = sorted({layer_of(name).rpartition(".")[2] for name in tensors})
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    return config


def tensor_names(file: Path) -> list[str]:
    """The names of the tensors in a safetensors file, by its header alone."""
    with file.open("rb") as opened:
        header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
    return [name for name in header if name != "__metadata__"]


def layer_of(name: str) -> str:
    """The layer of the base model that a tensor of an adapter is for, as transformers names it."""
    return name.removeprefix(PREFIX).partition(".lora_")[0]
