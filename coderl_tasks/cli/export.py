"""`coderl export`: a run's policy as a folder that transformers, peft and vLLM load."""

import asyncio
import importlib.util
import os
import shlex
import shutil
import signal
from argparse import Namespace
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import polars as pl

from coderl_tasks.errors import ConfigError, InfraError, TerminatedError
from coderl_tasks.evaluation.policy import SavedPolicy, saved_policy
from coderl_tasks.export.download import SampledSequence, fetch_adapter, finish_adapter
from coderl_tasks.export.model_card import model_card
from coderl_tasks.journal.atomic import DamagedFileError, read_json, scan_parquet, sync_folder
from coderl_tasks.journal.run_names import record_path
from coderl_tasks.journal.steps import scored_files
from coderl_tasks.paths import find_local, local_model_folder
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA
from coderl_tasks.services import Services, services

if TYPE_CHECKING:  # the SDK takes seconds to import
    import tinker

PACKAGES = ("torch", "safetensors", "peft")
SEQUENCES, LONGEST = 4, 256
"""Of the check: how many sampled sequences, and how many of each one's tokens."""
Sampled = list[SampledSequence]
VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What `vllm serve --max-lora-rank` takes."""


def export(options: Namespace) -> int:
    """Writes the policy of a run after a step to the new folder `--out`. All options are checked before the download,
    which is long."""
    policy = saved_policy(record_path(options.run), options.step)
    out: Path = options.out.expanduser()
    checks = not options.no_check
    _require_options(options, out)
    from coderl_tasks.policy.clients import served_by

    base = str(policy.config["model_name"])
    why = f" ({policy.why})" if policy.why is not None else ""
    print(f"step {policy.step}{why}: {policy.state_path}{', which expires' if policy.expires else ''}")
    with _complete_or_absent(out) as folder:
        adapter = folder / "adapter" if options.merge else folder  # a merged model lies in the folder itself
        adapter.mkdir(exist_ok=True)
        with services(base) as used:
            print("\n".join(line for line in used.lines if line.startswith("Tinker")))  # no sandbox is used
            sequences = asyncio.run(_while_service_answers(used, _fetch(used, policy, adapter, checks=checks)))
            is_loaded = checks or options.merge
            server = asyncio.run(served_by(used.tinker_url, used.tinker_api_key, base)) if is_loaded else ""
        # As the adapter's files name it: of a local folder its path. A hub model that this machine has in a package
        # keeps its name: whoever loads the adapter gets it from the hub.
        base_name = base if find_local(base) is None else str(local_model_folder(base) or base)
        config = finish_adapter(adapter, base_name)
        is_float32 = " float32," in server  # only coderl's own server names its precision; then the check is stricter
        checked = _check_and_merge(base, folder, adapter, sequences, is_float32, options.merge) if is_loaded else None
        name = (options.push or out.name).rpartition("/")[2]  # without the owner
        (folder / "README.md").write_text(model_card(policy, name=name, merged=options.merge, checked=checked))
    print(f"exported: {out}; {f'checked: {checked}' if checked else 'not checked'}")
    print("\n".join(_commands(out.resolve(), base_name, int(config["r"]), merged=options.merge)))
    # The commands name the hub's model; a merged model needs no base.
    base_folder = local_model_folder(base)
    if base_folder is not None and str(base_folder) != base_name and not options.merge:
        print(f"base:     {base_folder} on this machine, where the hub is not reachable")
    if options.push is not None:
        print(f"pushed: {_push(out, options.push, public=options.public)}")
    return 0


def _require_options(options: Namespace, out: Path) -> None:
    """Raises ConfigError where the folder `out`, a package or what `--push` needs is wrong or missing."""
    if out.exists() or out.is_symlink():
        raise ConfigError(f"{out} exists: give --out a folder that does not")
    if not out.parent.is_dir():
        raise ConfigError(f"{out.parent} is not a directory: give --out a folder in an existing one")
    # Only the comparison and the merge load the model here, and need its packages.
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing and (options.merge or not options.no_check):
        otherwise = "" if options.merge else ", or --no-check to export without comparing log-probabilities"
        raise ConfigError(f"{', '.join(missing)} not installed: pip install 'coderl[export]'{otherwise}")
    if options.push is not None:
        from huggingface_hub import get_token
        from huggingface_hub.utils import HFValidationError, validate_repo_id

        try:
            validate_repo_id(options.push)
        except HFValidationError as error:
            raise ConfigError(f"--push {options.push}: {' '.join(str(error).split())}") from error
        if get_token() is None:
            raise ConfigError("--push needs a Hugging Face token: `hf auth login`, or set HF_TOKEN")


async def _while_service_answers(used: Services, work: Coroutine[Any, Any, Sampled]) -> Sampled:
    """What `work` returns; InfraError once the service has been silent for ten minutes: the SDK waits for ever."""
    from coderl_tasks.policy.clients import lost

    task, silence = asyncio.ensure_future(work), asyncio.ensure_future(lost(used.tinker_url))
    try:
        await asyncio.wait((task, silence), return_when=asyncio.FIRST_COMPLETED)
        if silence.done():
            silence.result()
        return task.result()
    finally:
        task.cancel()
        silence.cancel()


async def _fetch(used: Services, policy: SavedPolicy, adapter: Path, *, checks: bool) -> Sampled:
    """Write the adapter to its folder; with `checks` also what to compare it with, sampled from the same policy."""
    from coderl_tasks.policy.clients import connect, disconnect, rest_client

    service = await connect(used.tinker_url, used.tinker_api_key)
    try:
        rest = await rest_client(used.tinker_url, used.tinker_api_key)
        client = await fetch_adapter(service, rest, policy.state_path, adapter)
        if not checks:
            return []
        return recorded_sequences(policy) or await fresh_sequences(client, policy)
    finally:
        await disconnect(service)


def recorded_sequences(policy: SavedPolicy) -> list[SampledSequence]:
    """A few of the run's rollouts that this policy sampled, each cut off at LONGEST tokens; none of the last step's,
    and none where the run was sampled at another temperature than 1."""
    # At another temperature a service may report the log-probabilities of the scaled distribution.
    if policy.config.get("temperature") != 1.0:
        return []
    for file in policy.run.glob("steps/*/commit.json"):
        with suppress(DamagedFileError):  # the next start of the run sets it aside
            # An act of steer=act raises the temperature, which config.json does not say.
            if any(act["setting"] == "temperature" for act in read_json(file).get("acts", ())):
                return []
    # A policy samples the step after it; with overlap the one after that.
    files = [policy.run / f"steps/{policy.step + ahead:06d}/scored.parquet" for ahead in (1, 2)]
    rows = _rollouts([file for file in files if file.is_file()]).filter(pl.col("sampler_step") == policy.step)
    sampled = rows.head(SEQUENCES).select("prompt_tokens", "completion_tokens", "logprobs").iter_rows()
    return [SampledSequence(prompt, tokens[:LONGEST], logprobs[:LONGEST]) for prompt, tokens, logprobs in sampled]


async def fresh_sequences(client: "tinker.TrainingClient", policy: SavedPolicy) -> list[SampledSequence]:
    import tinker

    from coderl_tasks.policy.clients import tinker_errors

    files = scored_files(policy.run)
    if not (prompts := _rollouts(files[-1:])["prompt_tokens"].to_list()):
        raise ConfigError(f"{policy.run} has no rollouts to take prompts from: --no-check exports without comparing")
    params = tinker.SamplingParams(max_tokens=64, temperature=1.0, seed=0)
    with tinker_errors("sampling a few tokens for the check"):
        sampler = await client.save_weights_and_get_sampling_client()
        sampled = []
        for prompt in prompts[:SEQUENCES]:
            answer = (await sampler.sample(tinker.ModelInput.from_ints(prompt), 1, params)).sequences[0]
            sampled.append(SampledSequence(prompt, list(answer.tokens), list(answer.logprobs or ())))
    return sampled


def _rollouts(files: list[Path]) -> pl.DataFrame:
    """One rollout of each group in these files, of those with tokens and log-probabilities; with several turns its
    first answer alone, since the environment's replies come between the answers."""
    columns = ["sampler_step", "group_index", "prompt_tokens", "completion_tokens", "logprobs"]
    if not files:
        return pl.DataFrame(schema=dict.fromkeys(columns, pl.Null))
    first_answer = pl.col("turns").list.first().struct.field("n_tokens")  # null without turns
    n_tokens = pl.coalesce(first_answer, pl.col("completion_tokens").list.len())
    answer = pl.col("completion_tokens", "logprobs").list.head(n_tokens)
    found = scan_parquet(files, ROLLOUT_SCHEMA).filter(pl.col("logprobs").is_not_null()).with_columns(answer)
    rows = found.select(columns).filter(pl.col("completion_tokens").list.len() > 0).collect()
    return rows.unique(["sampler_step", "group_index"], keep="first", maintain_order=True)


def _check_and_merge(
    base: str, folder: Path, adapter: Path, sequences: Sampled, exact: bool, merge: bool
) -> str | None:
    """Compares the log-probabilities of the model `base` with the adapter with those of the sampled `sequences`; with
    `merge` writes the merged model to `folder`, and compares that too. Returns the result in words, None without
    sequences. With `exact` the server computed in float32, as transformers then does. CoderlError if they differ."""
    from coderl_tasks.export import transformers_model

    model = transformers_model.load_adapted(base, adapter, exact=exact)
    result = None
    if sequences:
        fit = transformers_model.require_agreement("the adapter in transformers", model, sequences, exact=exact)
        with model.disable_adapter():  # to show how far apart the two models are
            base_fit = transformers_model.agreement(model, sequences)
        of_base = f"the base model's differ by {base_fit.mean:.1e} on average"
        where = f"{fit.sequences} completions of {fit.tokens} tokens ({of_base})"
        result = f"log-probabilities agree with those sampled to {fit.largest:.1e} nats in {where}"
    if merge:
        transformers_model.write_merged(model, base, folder)
        if sequences:
            merged = transformers_model.load_model(str(folder), exact=exact)  # as another program will load it
            transformers_model.require_agreement("the merged model", merged, sequences, exact=exact)
    return result


@contextmanager
def _complete_or_absent(out: Path) -> Iterator[Path]:
    """Yields a temporary folder beside `out`. It is renamed to `out` if the block succeeds and removed otherwise, so an
    export that is interrupted or fails its checks leaves nothing named `out`."""
    for leftover in out.parent.glob(f".{out.name}.*.export"):  # left by an export that was killed
        owner = leftover.name.split(".")[-2]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():  # its process has ended
            shutil.rmtree(leftover)
    folder = out.with_name(f".{out.name}.{os.getpid()}.export")
    folder.mkdir()

    def end(*_: object) -> NoReturn:
        raise TerminatedError("terminated")

    previous_handler = signal.signal(signal.SIGTERM, end)  # by default it would end the process without cleaning up
    try:
        yield folder
        for file in (path for path in folder.rglob("*") if path.is_file()):
            with file.open("rb") as written:
                os.fsync(written.fileno())  # on disk before it has its name
        folder.rename(out)
    except BaseException:  # Ctrl-C too
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        signal.signal(signal.SIGTERM, previous_handler)
    sync_folder(out.parent)


def _commands(out: Path, base: str, rank: int, *, merged: bool) -> list[str]:
    folder, name = shlex.quote(str(out)), shlex.quote(out.name)
    if merged:
        serve, with_peft, tokenizer = [f"serve it: vllm serve {folder} --served-model-name {name}"], "", str(out)
    else:
        least = next((allowed for allowed in VLLM_RANKS if allowed >= rank), rank)
        lora = f"--enable-lora --max-lora-rank {least} --lora-modules {name}={folder}"
        refused = "  (where vLLM refuses a layer of the adapter, lm_head for one: export with --merge, and serve that)"
        serve = [f"serve it: vllm serve {shlex.quote(base)} {lora}", refused]
        with_peft, tokenizer = "  # with peft installed", base
    return [
        *serve,
        "load it:  from transformers import AutoModelForCausalLM, AutoTokenizer",
        f"          model = AutoModelForCausalLM.from_pretrained({str(out)!r}){with_peft}",
        f"          tokenizer = AutoTokenizer.from_pretrained({tokenizer!r})",
    ]


def _push(out: Path, repo: str, *, public: bool) -> str:
    """Upload the folder; the address of the commit. InfraError, with the command that goes on from here."""
    from huggingface_hub import HfApi

    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)
    try:
        api.create_repo(repo, private=not public, exist_ok=True)
        return str(api.upload_folder(repo_id=repo, folder_path=out, commit_message=f"coderl export {out.name}"))
    except Exception as error:  # whose classes are those of the HTTP library that the hub's client has, of two
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        upload = f"hf upload {repo} {shlex.quote(str(out))}"
        raise InfraError(f"{repo} was not pushed ({reason}); the export is complete: {upload}") from error
