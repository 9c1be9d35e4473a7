"""`coderl export` of a run made on the embedded server: what it writes, what it says, and that transformers agrees."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from coderl_tasks.cli import doctor, main
from coderl_tasks.cli import export as export_command
from coderl_tasks.errors import ConfigError
from coderl_tasks.evaluation.policy import saved_policy
from coderl_tasks.export import transformers_model
from coderl_tasks.export.download import CONFIG, WEIGHTS, finish_adapter, tensor_names
from coderl_tasks.export.transformers_model import Agreement
from coderl_tasks.insight.record import load_run
from coderl_tasks.insight.report import run_page
from coderl_tasks.journal.atomic import read_json, write_json, write_parquet
from coderl_tasks.journal.steps import step_name
from coderl_tasks.paths import NANO_MODEL, local_model_folder
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA

Export = Callable[..., tuple[int, str, str]]
NANO = str(local_model_folder(NANO_MODEL))


@pytest.fixture
def export(
    run: Path, flow_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Export:
    """`export(*options)`: of the undisturbed run, in this process, on the session's servers; exit code, out, err."""
    for name in ("TINKER_BASE_URL", "TINKER_API_KEY", "SANDBOX_URL", "HOME"):
        monkeypatch.setenv(name, flow_environment[name])

    def work(*options: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["export", str(run), *map(str, options)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return work


def test_an_adapter_that_peft_and_transformers_take(export: Export, run: Path, tmp_path: Path) -> None:
    out, left = tmp_path / "mine", tmp_path / ".mine.999999999.export"
    left.mkdir()  # of an export that was killed
    code, said, failed = export("--out", out)
    assert code == 0, failed
    assert sorted(path.name for path in out.iterdir()) == ["README.md", CONFIG, WEIGHTS]
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert said.startswith("step 2 (the last checkpoint): tinker://")
    # The last policy sampled no step: its tokens were sampled for the check.
    assert "; checked: log-probabilities agree with those sampled to " in said
    assert f"vllm serve {NANO} --enable-lora --max-lora-rank 32 --lora-modules mine={out}" in said
    names: dict[str, Any] = {}
    shown = said[said.index("from transformers") :].splitlines()
    exec("\n".join(line.strip() for line in shown), names)
    assert "lora_A" in str(names["model"])
    assert names["tokenizer"].encode("print(1)") == AutoTokenizer.from_pretrained(NANO).encode("print(1)")
    card = (out / "README.md").read_text()
    for part in (
        "library_name: peft",
        "license: apache-2.0",
        "| trained | 3 GRPO steps on verifiable rewards: the last checkpoint |",
        "pool `small`: 12 problems, measured pass rates 0",
        "| final | after step 2 | 4 |",
        "`final` against `baseline`, paired over 4 problems:",
        "| lora_rank | `32` |",
    ):
        assert part in card, card
    code, _, failed = export("--out", out)
    assert (code, failed) == (2, f"coderl export: {out} exists: give --out a folder that does not\n")


def test_a_merged_model_of_a_step_whose_state_expires(export: Export, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "merged"
    code, said, failed = export("--step", 0, "--merge", "--out", out)
    assert code == 0, failed
    assert (
        re.match("step 0: tinker://.*, which expires\n", said)
        and f"vllm serve {out} --served-model-name merged" in said
    )
    assert sorted(path.name for path in (out / "adapter").iterdir()) == [CONFIG, WEIGHTS]
    # Both ends of nano share one matrix: merging the adapter of the upper one leaves the lower one as it was.
    merged, base = (AutoModelForCausalLM.from_pretrained(path, dtype="float32") for path in (out, NANO))
    before, after = base.state_dict(), merged.state_dict()
    assert torch.equal(after["model.embed_tokens.weight"], before["model.embed_tokens.weight"])
    assert not torch.equal(after["lm_head.weight"], before["lm_head.weight"])
    assert AutoTokenizer.from_pretrained(out).chat_template == AutoTokenizer.from_pretrained(NANO).chat_template
    # The next step was sampled from it: the rollouts of the run are what was compared.
    policy = saved_policy(run, "0")
    recorded = export_command.recorded_sequences(policy)
    assert recorded and f"of {sum(len(one.logprobs) for one in recorded)} tokens" in said
    assert transformers_model.agreement(merged, recorded).largest < transformers_model.EXACT
    assert transformers_model.agreement(base, recorded).largest > transformers_model.EXACT


def test_of_several_turns_the_first_answer_is_compared_and_what_has_no_log_probabilities_is_not(
    run: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("*.lock"))
    file = copy / "steps/000001/scored.parquet"
    rollouts = pl.read_parquet(file)
    first, second = (pl.col("sample_index") == index for index in (0, 1))
    turns = pl.Series([[{"n_tokens": 5}, {"n_tokens": 2}]] * rollouts.height, dtype=ROLLOUT_SCHEMA["turns"])
    changed = rollouts.with_columns(
        logprobs=pl.when(~first).then("logprobs"),
        turns=pl.when(second).then(turns),
    )
    write_parquet(file, changed)
    groups = rollouts.filter(second).iter_rows(named=True)
    expected = [(row["prompt_tokens"], row["completion_tokens"][:5], row["logprobs"][:5]) for row in groups]
    assert len(expected) == 3 and min(len(tokens) for _, tokens, _ in expected) == 5
    found = export_command.recorded_sequences(saved_policy(copy, "0"))
    assert [(one.prompt, one.completion, one.logprobs) for one in found] == expected
    # At another temperature a service may report other log-probabilities than the policy's.
    commit = read_json(copy / "steps/000001/commit.json")
    act = {"setting": "temperature", "by": 0.1, "from_step": 2, "why": "a"}
    write_json(copy / "steps/000001/commit.json", commit | {"acts": [act]})
    assert export_command.recorded_sequences(saved_policy(copy, "0")) == []


def test_an_adapter_that_is_not_the_policy_is_not_exported(
    export: Export, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def scaled(folder: Path, base: str) -> dict[str, Any]:
        config = finish_adapter(folder, base)
        (folder / CONFIG).write_text(json.dumps(config | {"lora_alpha": 2 * config["lora_alpha"]}))
        return config

    monkeypatch.setattr(export_command, "finish_adapter", scaled)
    code, _, failed = export("--out", tmp_path / "out")
    assert code == 1 and "the adapter in transformers does not give the log-probabilities" in failed
    assert failed.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
    code, said, _ = export("--out", tmp_path / "out", "--no-check")
    assert code == 0 and "; not checked" in said


def test_what_is_refused_before_anything_is_asked_for(
    export: Export, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    for options, why in (
        (("--step", "best"), "none was evaluated on them"),
        (("--step", "7"), r"of step 7 there is no state to export (there are: 0, 1, 2)"),
        (("--step", "first"), "give a step's number, last or best"),
        (("--push", "me/mine"), "--push needs a Hugging Face token: `hf auth login`, or set HF_TOKEN"),
        (("--push", "no name"), "--push no name:"),
    ):
        code, _, failed = export("--out", tmp_path / "out", *options)
        assert code == 2 and why in failed and failed.count("\n") == 1, failed
    monkeypatch.setattr(export_command, "PACKAGES", ("torch", "no_such_package"))
    code, _, failed = export("--out", tmp_path / "out")
    assert code == 2 and "no_such_package not installed: pip install 'coderl[export]', or --no-check" in failed
    assert list(tmp_path.iterdir()) == []


def test_a_hub_that_does_not_answer_leaves_the_export(
    export: Export, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_made_up")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    out = tmp_path / "out"
    code, _, failed = export("--out", out, "--no-check", "--push", "me/mine")
    assert code == 1 and f"the export is complete: hf upload me/mine {out}" in failed.splitlines()[-1]
    assert (out / WEIGHTS).is_file()


def test_the_best_checkpoint_is_that_of_the_validation_problems(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("*.lock"))
    assert (saved_policy(copy, None).step, saved_policy(copy, "last").step) == (2, 2)
    config = json.loads((copy / "config.json").read_text())
    write_json(copy / "config.json", config | {"eval": {**config["eval"], "on": "validation"}})
    for step, rate in ((1, 0.5), (2, 0.25)):
        folder = copy / "evals" / step_name(step)
        folder.mkdir(exist_ok=True)
        write_json(folder / "summary.json", {"pass_at_1": rate})
    for wanted in ("best", None):
        best = saved_policy(copy, wanted)
        assert (best.step, best.why) == (1, "the best Pass@1 on the validation problems, 50.0%, of 2 checkpoints")
    with pytest.raises(ConfigError, match="no run directory"):
        saved_policy(tmp_path, None)


def test_the_report_says_until_when_states_are_kept(run: Path) -> None:
    page = run_page(load_run(run))
    (state,) = page["expiring_states"]  # the others are checkpoints
    assert state.step == 0
    saved = (run / "steps/000000/commit.json").stat().st_mtime
    assert (state.expires.timestamp() - saved) == pytest.approx(168 * 3600)
    html = (run / "report.html").read_text()
    assert f"step 0, {state.expires:%Y-%m-%d %H:%M} UTC" in html and "--step STEP" in html


def test_doctor_says_which_runs_depend_on_states_that_expire(
    export: Export, run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(doctor, "DEFAULT_ROOT", str(tmp_path))
    assert doctor.check_checkpoints(None).detail == "no run depends on a state that expires"
    copy = tmp_path / "my run"
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("*.lock"))
    assert doctor.check_checkpoints(None).listing == ()  # its last step is a checkpoint
    (copy / "checkpoints.jsonl").write_text("")
    # As after a kill: its last checkpoint is older than the state of its last step.
    (line,) = doctor.check_checkpoints(None).listing
    path = json.loads((copy / "steps/000000/commit.json").read_text())["state_path"]
    said = re.fullmatch(
        r"my run, step 0: expires (\S+ \S+) UTC; (.*); tinker checkpoint set-ttl (\S+) --remove .*", line
    )
    assert said is not None and said[3] == path
    assert said[2] == "coderl export 'my run' --step 0 --out DIR takes it away"
    for variable in ("TINKER_BASE_URL", "TINKER_API_KEY"):  # as after a run on the embedded server, with none running
        monkeypatch.setenv(variable, "")
    assert doctor.check_checkpoints(None).listing == (line.partition("; tinker ")[0],)


def test_names_that_only_tinker_uses_are_transformers(export: Export, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    tensors = {f"base_model.model.{layer}.lora_{side}.weight": torch.zeros(2, 2)
               for layer in ("model.unembed_tokens", "model.layers.0.mlp.up_proj") for side in "AB"}  # fmt: skip
    save_file(tensors, tmp_path / WEIGHTS)
    (tmp_path / CONFIG).write_text(json.dumps({"r": 2, "target_modules": "all-linear"}))
    config = finish_adapter(tmp_path, "org/model")
    assert config == {"r": 2, "target_modules": ["lm_head", "up_proj"], "base_model_name_or_path": "org/model"}
    assert sorted(load_file(tmp_path / WEIGHTS)) == sorted(tensor_names(tmp_path / WEIGHTS))
    assert "base_model.model.lm_head.lora_A.weight" in tensor_names(tmp_path / WEIGHTS)
    save_file({"base_model.model.model.layers.0.mlp.experts.w1.lora_A.weight": torch.zeros(2, 2)}, tmp_path / WEIGHTS)
    with pytest.raises(ConfigError, match="layers that transformers' data/nano does not have"):
        transformers_model.load_adapted(NANO_MODEL, tmp_path, exact=True)


def test_rounding_is_allowed_for_where_a_service_rounds() -> None:
    found = Agreement(sequences=4, tokens=256, largest=0.4, mean=0.02)
    assert found.fault(exact=False) is None
    assert found.fault(exact=True) == "0.4 nats at a token, and 0.0003 is the limit"
    assert Agreement(4, 256, 0.4, 0.06).fault(exact=False) == ("0.06 nats per token on average, 0.05 is the limit")
