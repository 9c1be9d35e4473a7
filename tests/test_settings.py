import re
from operator import attrgetter
from typing import get_args

import pytest
from pydantic import BaseModel

from coderl_tasks.cli.arguments import parse_key_values, settings_help
from coderl_tasks.environments import environment_of
from coderl_tasks.errors import ConfigError
from coderl_tasks.paths import INTRO_DATASET, SMOLLM2_MODEL
from coderl_tasks.settings import (
    CurateSettings,
    EvaluateSettings,
    FlowSettings,
    PipelineSettings,
    TrainSettings,
    about,
    all_settings,
    parse_settings,
)
from coderl_tasks.settings.setting import SettingsT, recipe_names, words_of


def parse(model: type[SettingsT], *words: str) -> SettingsT:
    return parse_settings(model, parse_key_values(words, model))


def sizes(settings: TrainSettings) -> tuple[int, int]:
    """(problems per step, completions per problem), which the recipe's names have to agree with."""
    problems, completions = settings.problems_per_step, settings.completions_per_problem
    assert (settings.group_size, settings.batch_size) == (problems, problems * completions)
    return problems, completions


def test_defaults_are_those_of_the_contract() -> None:
    settings = TrainSettings()
    assert settings.model_name == "Qwen/Qwen3-4B-Instruct-2507"
    assert sizes(settings) == (8, 16)
    assert (settings.batch_size, settings.group_size) == (128, 8)
    assert (settings.learning_rate, settings.lora_rank, settings.max_tokens) == (4e-5, 32, 24576)
    assert (settings.temperature, settings.format_coef, settings.reward_timeout) == (1.0, 0.1, 6.0)
    assert (settings.save_every, settings.eval.every, settings.max_steps) == (10, 10, -1)
    assert (settings.adam.beta1, settings.adam.beta2, settings.adam.eps) == (0.9, 0.95, 1e-12)


@pytest.mark.parametrize("words", [("max_steps=3",), ("--max_steps=3",), ("--max_steps", "3"), ("--max-steps", "3")])
def test_the_three_spellings_mean_the_same(words: tuple[str, ...]) -> None:
    assert parse(TrainSettings, *words).max_steps == 3


def test_nested_keys_lists_flags_and_none() -> None:
    settings = parse(
        PipelineSettings, "preset=nano", "train.max_steps=3", "curate.splits=taco,lcbv5", "evaluate.compare_to=none"
    )
    assert settings.train.max_steps == 3
    assert settings.curate.splits == ["taco", "lcbv5"]
    assert settings.evaluate.compare_to is None
    assert parse(CurateSettings, "--replace").replace is True
    assert parse(CurateSettings, "--replace", "seed=1").seed == 1


def test_thinking_is_on_off_or_left_to_the_format() -> None:
    given = (("thinking=on",), ("--thinking",), ("thinking=off",), ("--thinking", "off"), ())
    assert [parse(TrainSettings, *words).thinking for words in given] == [True, True, False, False, None]


def test_none_of_shares_or_prices_is_an_empty_mapping() -> None:
    settings = parse(CurateSettings, "mix=none", "mix_splits=none", "prices=none")
    assert settings.model_dump() == CurateSettings().model_dump()
    assert parse(CurateSettings, *words_of(settings.changed())).model_dump() == settings.model_dump()
    written = ("mix=hard:0.7,easy:0.3", "prices=prefill:0.5,sample:1")
    as_json = ('mix={"hard": 0.7, "easy": 0.3}', 'prices={"prefill": 0.5, "sample": 1}')
    assert parse(CurateSettings, *as_json).model_dump() == parse(CurateSettings, *written).model_dump()


@pytest.mark.parametrize("model", [CurateSettings, TrainSettings, EvaluateSettings])
def test_no_setting_is_infinite(model: type[FlowSettings]) -> None:
    keys = [key for key, field in all_settings(model) if float in (field.annotation, *get_args(field.annotation))]
    assert "max_usd" in keys and "reward_timeout" in keys
    for key in keys:
        with pytest.raises(ConfigError, match=f"{key}='inf': "):
            parse(model, f"{key}=inf")


def test_preset_fills_only_what_is_not_given() -> None:
    settings = parse(TrainSettings, "preset=nano", "max_steps=7")
    assert settings.model_name == "data/nano"
    assert settings.max_steps == 7
    assert parse(PipelineSettings, "preset=nano").evaluate.dataset == "data/mini"


def test_smoke_sets_the_steps_unless_they_are_given_and_stays_with_the_sizes_of_nano() -> None:
    assert parse(TrainSettings, "preset=smoke").max_steps == 50
    assert parse(TrainSettings, "preset=smoke", "max_steps=2").max_steps == 2
    assert not parse(TrainSettings, "preset=smoke").names_model
    filled = parse(TrainSettings, "preset=smoke", "seed=3", "batch_size=16").with_preset("nano")
    nano = parse(TrainSettings, "preset=nano", "seed=3", "batch_size=16")
    assert filled.names_model and filled.given == {"preset", "seed", "batch_size", "model_name"}
    differing = {"preset": "smoke", "max_steps": 50}
    assert filled.model_dump() == nano.model_dump() | differing
    assert parse(PipelineSettings, "preset=smoke").curate.preset == "smoke"


FAMILIES = ("adam=beta1:0.8,eps:1e-8", 'adam={"beta1": 0.8, "eps": 1e-8}'), ("adam.beta1=0.8", "adam.eps=1e-8")


@pytest.mark.parametrize("words", [*((word,) for word in FAMILIES[0]), FAMILIES[1]])
def test_a_family_is_a_mapping_a_json_object_or_dotted(words: tuple[str, ...]) -> None:
    in_a_pipeline = parse(PipelineSettings, *(f"train.{word}" for word in words)).train
    for train in (parse(TrainSettings, *words), in_a_pipeline):
        assert (train.adam.beta1, train.adam.beta2, train.adam.eps) == (0.8, 0.95, 1e-8)
        assert train.given == {"adam.beta1", "adam.eps"}
        assert train.changed() == {"adam.beta1": 0.8, "adam.eps": 1e-8}
        assert parse(TrainSettings, *words_of(train.changed())).model_dump() == train.model_dump()


def test_what_is_not_given_of_a_family_a_preset_or_a_recorded_run_fills_in() -> None:
    settings = parse(TrainSettings, "preset=gsm8k", "adam=beta1:0.8", "eval=on:validation")
    assert (settings.adam.beta1, settings.adam.eps) == (0.8, 1e-8)
    assert (settings.eval.every, settings.eval.limit, settings.eval.ends_limit) == (6, 40, 40)
    resumed = parse(TrainSettings, "rolling_save.every=5").filled_from({"rolling_save": {"every": 2, "keep": 9}})
    assert (resumed.rolling_save.every, resumed.rolling_save.keep, resumed.rolling_save.hours) == (5, 9, 168)
    limited = parse(TrainSettings, "eval.limit=7").with_changes(eval={"every": 3})
    assert (limited.eval.limit, limited.eval.ends_limit, limited.eval.every) == (7, 7, 3)


@pytest.mark.parametrize(
    ("word", "kind", "total", "warmup"),
    [
        ("schedule=cosine:200", "cosine", 200, 0),
        ("schedule=linear:200,warmup:10", "linear", 200, 10),
        ("schedule=warmup:10", "constant", None, 10),
        ("schedule=kind:cosine,total:200", "cosine", 200, 0),
        ("schedule=constant", "constant", None, 0),
    ],
)
def test_a_schedule_is_a_kind_and_its_steps(word: str, kind: str, total: int | None, warmup: int) -> None:
    schedule = parse(TrainSettings, word).schedule
    assert (schedule.kind, schedule.total, schedule.warmup) == (kind, total, warmup)


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        (("eval_every=5",), "eval.every", 5),
        (("weight_decay=0.1",), "adam.weight_decay", 0.1),
        (("--grad_clip_norm=2",), "adam.grad_clip_norm", 2.0),
        (("loss_fn=ppo", "--clip_low_threshold=0.9"), "loss.clip_low", 0.9),
        (("loss_fn=ppo", "clip_high_threshold=1.3"), "loss.clip_high", 1.3),
        (("schedule=cosine", "scheduler_total_steps=90"), "schedule.total", 90),
    ],
)
def test_the_recipes_names_of_members_are_accepted(words: tuple[str, ...], key: str, value: float) -> None:
    settings = parse(TrainSettings, *words)
    assert attrgetter(key)(settings) == value and key in settings.given
    pipeline = parse(PipelineSettings, *(f"--train.{word.removeprefix('--')}" for word in words))
    assert attrgetter(key)(pipeline.train) == value


def test_the_form_of_the_ui_takes_the_recipes_names_and_sends_them_empty() -> None:
    properties = TrainSettings.model_json_schema()["properties"]
    empty = {name: properties[name]["default"] for name in recipe_names(TrainSettings)}
    assert len(empty) == 6 and set(empty.values()) == {None}
    assert TrainSettings.model_validate({**empty, "eval": {"every": 3}}).eval.every == 3


@pytest.mark.parametrize(
    ("words", "problems", "completions"),
    [
        (("batch_size=64",), 8, 8),
        (("group_size=4",), 4, 32),  # as the recipe has it: batch_size stays
        (("problems_per_step=4",), 4, 16),
        (("completions_per_problem=4",), 8, 4),
        (("batch_size=60", "group_size=12"), 12, 5),
        (("problems_per_step=3", "completions_per_problem=7"), 3, 7),
        (("batch_size=24", "completions_per_problem=6"), 4, 6),
        (("batch_size=24", "problems_per_step=6"), 6, 4),
        (("group_size=6", "completions_per_problem=4", "batch_size=24"), 6, 4),
        (("group_size=5", "problems_per_step=5"), 5, 16),
        (("batch_size=none", "group_size=none", "problems_per_step=4", "completions_per_problem=2"), 4, 2),
    ],
)
def test_the_sizes_of_a_step_by_either_pair_of_names(words: tuple[str, ...], problems: int, completions: int) -> None:
    assert sizes(parse(TrainSettings, *words)) == (problems, completions)


@pytest.mark.parametrize(
    ("words", "train_batch_size"),
    [
        (("problems_per_step=4",), None),  # 32 completions: all at once
        (("batch_size=32", "group_size=4"), None),
        (("problems_per_step=4", "train_batch_size=none"), None),
        (("problems_per_step=4", "train_batch_size=16"), 16),
        (("problems_per_step=8",), 64),
    ],
)
def test_a_presets_mini_batch_is_for_steps_that_are_as_large(
    words: tuple[str, ...], train_batch_size: int | None
) -> None:
    settings = parse(TrainSettings, "preset=gsm8k", *words)
    assert isinstance(settings, TrainSettings) and settings.train_batch_size == train_batch_size
    for again in (parse(TrainSettings), parse(TrainSettings, "preset=gsm8k"), settings):
        assert again.filled_from(settings.content()).content() == settings.content()


@pytest.mark.parametrize(
    ("words", "is_warned"),
    [
        (("preset=gsm8k", "group_size=8"), True),
        (("preset=gsm8k", "group_size=8", "batch_size=256"), True),
        (("preset=nano", "environment=gsm8k", "group_size=4"), True),
        (("preset=gsm8k",), False),
        (("preset=gsm8k", "group_size=32"), False),  # as the preset has it
        (("preset=gsm8k", "group_size=16"), False),  # 16 completions for each of them: both mean the same
        (("preset=gsm8k", "group_size=8", "completions_per_problem=8"), False),
        (("preset=gsm8k", "problems_per_step=8"), False),
        (("preset=nano", "group_size=4"), False),  # the pipeline's recipe, whose group_size it is
    ],
)
def test_the_notebooks_group_size_is_warned_of(words: tuple[str, ...], is_warned: bool) -> None:
    warning = parse(TrainSettings, *words).size_warning
    assert (warning is not None) is is_warned
    if warning:
        size = words[-1].partition("=")[2] if "group_size" in words[-1] else "8"
        assert f"group_size={size} is completions_per_problem={size} here" in warning


@pytest.mark.parametrize(
    ("words", "problems", "completions"),
    [
        ((), 3, 8),
        (("problems_per_step=4",), 4, 8),
        (("group_size=4",), 4, 6),
        (("completions_per_problem=2",), 3, 2),
        (("problems_per_step=4", "batch_size=8"), 4, 2),
    ],
)
def test_the_sizes_of_a_resumed_run_are_what_is_given_and_else_what_it_recorded(
    words: tuple[str, ...], problems: int, completions: int
) -> None:
    recorded = parse(TrainSettings, "batch_size=24", "group_size=3").model_dump(mode="json")
    assert recorded.keys().isdisjoint({"problems_per_step", "completions_per_problem"})
    resumed = parse(TrainSettings, *words).filled_from(recorded)
    assert sizes(resumed) == sizes(resumed.with_changes(seed=1)) == (problems, completions)


@pytest.mark.parametrize(
    ("model", "words", "says"),
    [
        (TrainSettings, ("lr=3",), "unknown setting 'lr': did you mean learning_rate?"),
        (TrainSettings, ("n=3",), "unknown setting 'n': did you mean completions_per_problem?"),
        (CurateSettings, ("n=3",), "unknown setting 'n': did you mean profile_samples?"),
        (PipelineSettings, ("steps=3",), "unknown setting 'steps': did you mean train.max_steps?"),
        (PipelineSettings, ("evaluate.model=x",), "did you mean evaluate.model_name?"),
        (TrainSettings, ("batch_sise=3",), "unknown setting 'batch_sise': did you mean batch_size?"),
        (TrainSettings, ("batch=64",), "unknown setting 'batch': did you mean batch_size?"),
        # The names of the recipes.
        (TrainSettings, ("n_grpo_steps=60",), "did you mean max_steps?"),
        (TrainSettings, ("rollout_batch_size=256",), "did you mean batch_size?"),
        (TrainSettings, ("use_std_normalization=true",), "did you mean advantage (std_normalised where it is true, "),
        (TrainSettings, ("normalize_by_std=true",), "did you mean advantage (std_normalised where it is true, "),
        (
            TrainSettings,
            ("cliprange=0.2",),
            "did you mean loss.clip_low (1 - cliprange) or loss.clip_high (1 + cliprange)?",
        ),
        (TrainSettings, ("sampling_temperature=1",), "did you mean temperature?"),
        (TrainSettings, ("sampling_max_tokens=9",), "did you mean max_tokens?"),
        (TrainSettings, ("completions_per_prompt=16",), "did you mean completions_per_problem?"),
        (TrainSettings, ("n_questions_per_step=32",), "did you mean problems_per_step?"),
        (TrainSettings, ("n_samples=40",), "did you mean completions_per_problem or eval.limit?"),
        (TrainSettings, ("beta1=0.9",), "did you mean adam.beta1?"),
        (TrainSettings, ("eps=1e-8",), "did you mean adam.eps?"),
        (TrainSettings, ("base_model=x",), "did you mean model_name?"),
        (TrainSettings, ("num_iterations=1",), "did you mean epochs_per_rollout_batch?"),
        (TrainSettings, ("warmup=1",), "did you mean schedule.warmup?"),
        # The names of TRL and verl.
        (TrainSettings, ("beta=0.04",), "did you mean loss.beta or kl.penalty_coef (the weight of the KL to the base"),
        (TrainSettings, ("kl_loss_coef=0.001",), "did you mean kl.penalty_coef?"),
        (TrainSettings, ("save_steps=5",), "did you mean save_every?"),
        (TrainSettings, ("eval_steps=5",), "did you mean eval.every?"),
        (TrainSettings, ("total_training_steps=5",), "did you mean max_steps?"),
        (TrainSettings, ("num_train_epochs=3",), "did you mean max_steps (num_train_epochs x the pool's "),
        (
            TrainSettings,
            ("epochs=3",),
            "did you mean epochs_per_rollout_batch (over a step's completions) or max_steps (epochs x the pool's ",
        ),
        (TrainSettings, ("adv_estimator=rloo",), "did you mean advantage (std_normalised for grpo, leave_one_out for"),
        (
            TrainSettings,
            ("resume_from_checkpoint=x",),
            "did you mean log_path (of a run, to resume it) or init_from (a state, for a new run)?",
        ),
        (TrainSettings, ("max_cost=5",), "did you mean max_usd?"),
        (TrainSettings, ("clip_ratio_high=0.28",), "did you mean loss.clip_high (1 + clip_ratio_high)?"),
        (EvaluateSettings, ("max_response_length=512",), "did you mean max_tokens?"),
        (EvaluateSettings, ("load_checkpoint_path=x",), "did you mean checkpoint?"),
        (TrainSettings, ("actor_rollout_ref.rollout.n=8",), "rollout.n': did you mean completions_per_problem?"),
        # No setting's name, nor a misspelled one.
        (TrainSettings, ("seq_len=512",), "unknown setting 'seq_len': see --help"),
        (TrainSettings, ("max_model_len=512",), "unknown setting 'max_model_len': see --help"),
        (TrainSettings, ("compute_reward=x.py",), "did you mean reward_file?"),
        (TrainSettings, ("reward_fn=x.py",), "did you mean reward_file?"),
        (TrainSettings, ("base_url=x",), "unknown setting 'base_url': it is the environment variable TINKER_BASE_URL"),
        (PipelineSettings, ("train.base_url=x",), "it is the environment variable TINKER_BASE_URL"),
        (EvaluateSettings, ("TINKER_API_KEY=tml-x",), "it is the environment variable TINKER_API_KEY"),
        (CurateSettings, ("sandbox_url=x",), "it is the environment variable SANDBOX_URL"),
        (PipelineSettings, ("n_grpo_steps=3",), "did you mean train.max_steps?"),
        (
            PipelineSettings,
            ("train.cliprange=3",),
            "did you mean train.loss.clip_low (1 - cliprange) or train.loss.clip_high",
        ),
        (TrainSettings, ("xyzzy=3",), "unknown setting 'xyzzy': see --help"),
        (PipelineSettings, ("max_steps=3",), "unknown setting 'max_steps': did you mean train.max_steps?"),
        (PipelineSettings, ("train.max_step=3",), "did you mean train.max_steps?"),
        (PipelineSettings, ("train=3",), "train='3': train is a group of settings: write train.<setting>=value"),
        (TrainSettings, ("batch_size=abc",), "batch_size='abc': not a whole number"),
        (TrainSettings, ("learning_rate=abc",), "learning_rate='abc': not a number"),
        (TrainSettings, ("learning_rate=0",), "learning_rate='0': must be more than 0"),
        (CurateSettings, ("replace=perhaps",), "replace='perhaps': neither true nor false"),
        # Names of before.
        (TrainSettings, ("smoke=true",), "did you mean preset (smoke=true is preset=smoke)?"),
        (TrainSettings, ("new=true",), "did you mean resume (new=true is resume=never)?"),
        (TrainSettings, ("warmup_steps=3",), "did you mean schedule.warmup?"),
        (TrainSettings, ("learning_rate_schedule=cosine",), "did you mean schedule.kind?"),
        (TrainSettings, ("adam_beta1=0.9",), "did you mean adam.beta1?"),
        (TrainSettings, ("dro_beta=0.9",), "did you mean loss.beta?"),
        (TrainSettings, ("kl_penalty_coef=0.1",), "did you mean kl.penalty_coef?"),
        (TrainSettings, ("rolling_save_keep=4",), "did you mean rolling_save.keep?"),
        (TrainSettings, ("eval_limit=4",), "did you mean eval.limit?"),
        (TrainSettings, ("eval_on=test",), "did you mean eval.on?"),
        (TrainSettings, ("validation_size=4",), "did you mean eval.validation_size?"),
        (TrainSettings, ("overlong_tokens=4",), "did you mean truncation.overlong_tokens?"),
        (TrainSettings, ("wandb_project=x",), "did you mean trackers.wandb?"),
        (TrainSettings, ("trackio_name=x",), "did you mean trackers.name?"),
        (TrainSettings, ("trackers=none",), "trackers.wandb=none and trackers.trackio=none end them"),
        (TrainSettings, ("group_size_adaptive=true",), "did you mean first_completions?"),
        (TrainSettings, ("order_from=x",), "did you mean pool (its profile alone decides)?"),
        (PipelineSettings, ("train.eval_limit=4",), "did you mean train.eval.limit?"),
        (PipelineSettings, ("train.smoke=true",), "did you mean train.preset"),
        # Families.
        (
            TrainSettings,
            ("adam=0.9",),
            "adam='0.9': write adam=beta1:...,beta2:...,eps:...,weight_decay:...,grad_clip_norm:...",
        ),
        (TrainSettings, ("loss=ppo",), "some of these; loss_fn names the loss itself"),
        (TrainSettings, ("adam=",), "adam=None: write adam=beta1:..."),
        (TrainSettings, ("adam={beta1",), "adam={beta1: not JSON ("),
        (TrainSettings, ("adam=beta1:x",), "adam.beta1='x': not a number"),
        (TrainSettings, ("adam=bta1:0.9",), "unknown setting 'adam.bta1': did you mean adam.beta1?"),
        (TrainSettings, ("adam=beta1:0.9,beta1:0.8",), "adam.beta1 is given twice"),
        (TrainSettings, ("eval.every=5", "eval_every=4"), "eval.every is given twice, as eval_every too"),
        (TrainSettings, ("adam.beta1=0.9", "adam=eps:1e-8"), "adam is given twice"),
        (TrainSettings, ("eval=every:0",), "eval.every='0': makes no sense: use -1"),
        (TrainSettings, ("eval.limit=0",), "eval.limit='0': use -1 for all"),
        (TrainSettings, ("schedule=cosin:9",), "schedule.kind='cosin': must be 'constant', 'linear' or 'cosine'"),
        (PipelineSettings, ("train.adam=0.9",), "adam='0.9': write adam=beta1:"),
        (TrainSettings, ("reward=half",), "reward='half': must be 'binary' or 'fraction'"),
        (TrainSettings, ("dataset=",), "dataset=None: needs a value"),
        (CurateSettings, ("splits=,",), "splits=',': needs a value"),
        (EvaluateSettings, ("benchmark=,",), "benchmark=',': needs a value"),
        (CurateSettings, ("prices=prefill:inf,sample:1",), "prices.prefill='inf': not a finite number"),
        (TrainSettings, ("batch_size=12",), "batch_size=12 completions per step do not divide by 8 problems per step"),
        (TrainSettings, ("batch_size=8",), "at least 2 completions"),
        (TrainSettings, ("batch_size=9", "completions_per_problem=2"), "not divide by 2 completions per problem"),
        (TrainSettings, ("group_size=4", "problems_per_step=5"), "two names of one size"),
        (
            TrainSettings,
            ("batch_size=64", "group_size=4", "completions_per_problem=8"),
            "batch_size=64 (completions per step) is not 4 problems per step x 8 completions per problem",
        ),
        (TrainSettings, ("completions_per_problem=1",), "completions_per_problem='1': must be at least 2"),
        (TrainSettings, ("refill=1.1",), "refill=1.1 of problems_per_step=8 replaces no group: use 1.125 or more"),
        (TrainSettings, ("first_completions=16",), "first_completions=16 of completions_per_problem=16: use from 2"),
        (EvaluateSettings, ("n_samples=4",), "greedy completions of a problem are all the same; add temperature=0.7"),
        (EvaluateSettings, ("top_p=0.9",), "a greedy completion has no other tokens"),
        (EvaluateSettings, ("compare=a,b,c",), "name two, A,B, or the seeds of one, A1+A2+A3"),
        (EvaluateSettings, ("compare=a",), "name two, A,B, or the seeds of one, A1+A2+A3"),
        (EvaluateSettings, ("compare=a+b,c+d+e",), "name as many seeds of A as of B"),
        (EvaluateSettings, ("compare=a,b", "log_path=c"), "each side in a folder of its own"),
        (TrainSettings, ("refill=inf",), "refill='inf': not a finite number"),
        (TrainSettings, ("dynamic_sampling=true",), "unknown setting 'dynamic_sampling': did you mean refill?"),
        (TrainSettings, ("advantage=median",), "advantage='median': must be 'mean_centred', 'std_normalised', "),
        (TrainSettings, ("advantage_eps=0.1",), "advantage_eps=0.1 needs advantage=std_normalised"),
        (TrainSettings, ("advantage=maxrl",), "format_coef=0.1 can make negative: use format_coef=0"),
        (TrainSettings, ("loss_fn=stable_reinforce",), "loss_fn='stable_reinforce': it reads records of the sampler"),
        (TrainSettings, ("loss_fn=mse",), "loss_fn='mse': must be 'importance_sampling', 'ppo', "),
        (TrainSettings, ("clip_low_threshold=0.9",), "loss.clip_low is of loss_fn=ppo, cispo, gspo: importance_"),
        (TrainSettings, ("loss_fn=ppo", "loss=beta:0.1"), "loss.beta is of loss_fn=dro: ppo has none"),
        (TrainSettings, ("loss_fn=ppo", "clip_high_threshold=0.2"), "loss.clip_high='0.2': must be at least 1"),
        (
            TrainSettings,
            ("train_batch_size=129",),
            "is more than the 128 completions of a step (batch_size): train_batch_size=none trains on all at once",
        ),
        (
            TrainSettings,
            ("preset=gsm8k", "problems_per_step=4", "train_batch_size=64"),
            "train_batch_size=64 is more than the 32 completions of a step",
        ),
        (
            TrainSettings,
            ("schedule=cosine",),
            "cosine needs the steps of the whole training: write schedule=cosine:STEPS",
        ),
        (TrainSettings, ("scheduler_total_steps=9",), "schedule.total=9 needs schedule=linear or cosine"),
        (TrainSettings, ("schedule=linear:5,warmup:5",), "schedule.warmup=5 leaves nothing of schedule.total=5"),
        (TrainSettings, ("truncation=graded:9",), "truncation.overlong_tokens=9 needs truncation=penalised: leave it"),
        (TrainSettings, ("truncation=penalised:9", "max_tokens=8"), "truncation.overlong_tokens=9 is more than max_to"),
        (
            TrainSettings,
            ("advantage=maxrl", "format_coef=0", "truncation=penalised"),
            "truncation=penalised can make negative: use truncation=masked",
        ),
        (TrainSettings, ("kl=penalty_coef:0.1", "temperature=0.8"), "at temperature 1, and temperature=0.8: leave one"),
        (TrainSettings, ("eval_every=0",), "use -1"),
        (TrainSettings, ("max_steps=0",), "max_steps='0': trains nothing: coderl evaluate measures a policy"),
        (TrainSettings, ("max_steps",), "'max_steps' is not a setting"),
        (TrainSettings, ("--max_steps",), "--max_steps needs a value"),
        (TrainSettings, ("seed=1", "seed=2"), "seed is given twice"),
        (TrainSettings, ("seed.a=1",), "seed is a setting, not a group of them: write seed=value"),
        (CurateSettings, ("band_low=0.9", "band_high=0.2"), "band_low=0.9 is above band_high=0.2"),
        (CurateSettings, ("profile_samples=17",), "profile_samples='17': must be at most 16"),
        (CurateSettings, ("profile_mode=none", "profile_samples=4"), "profile_samples is of a profile"),
        (CurateSettings, ("profile_mode=none", "band_low=0.2"), "band_low is of a profile, and profile_mode"),
        (CurateSettings, ("profile_mode=none", "mix=hard:1"), "mix is of a profile, and profile_mode=none"),
        (CurateSettings, ("mix=hrad:1",), "mix: 'hrad' must be 'hard', 'medium' or 'easy'"),
        (PipelineSettings, ("trian.max_steps=1",), "unknown setting 'trian.max_steps': did you mean train.max_steps?"),
        (TrainSettings, ("init_from=foo",), "init_from='foo': not a state: take a state_path (tinker://...)"),
        (CurateSettings, ("mix=hard",), "shares look like"),
        (CurateSettings, ('mix={"hard": 1',), "not JSON (Expecting ',' delimiter: line 1 column 11 (char 10)): shares"),
        (TrainSettings, ("prices=sample:1,prefill:1,sample:5",), "sample is given twice"),
        (CurateSettings, ("mix_splits=taco:0",), "above 0"),
        (EvaluateSettings, ("temperature=-1",), "temperature='-1'"),
        (EvaluateSettings, ("temperature=1e-45",), "temperature='1e-45': must be from 0.01 to 100; "),
        (CurateSettings, ("temperature=1e9",), "must be from 0.01 to 100; "),
        (TrainSettings, ("temperature=0.001",), "must be from 0.01 to 100; "),
        (TrainSettings, ("temperature=0",), "must be more than 0"),
        (
            TrainSettings,
            ("lora_rank=1000000",),
            "lora_rank='1000000': must be at most 512: a higher rank trains as many",
        ),
        (PipelineSettings, ("train.x=1",), "unknown setting 'train.x'"),
    ],
)
def test_bad_input_is_one_clear_line(model: type[BaseModel], words: tuple[str, ...], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(model, *words)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("model", [CurateSettings, TrainSettings, EvaluateSettings])
def test_no_name_that_other_tools_have_for_a_setting_is_one_of_ours(model: type[BaseModel]) -> None:
    names = [name for _, field in all_settings(model) for name in about(field).elsewhere]
    assert names
    assert {*model.model_fields, *recipe_names(model)}.isdisjoint(names)


@pytest.mark.parametrize("model", [CurateSettings, TrainSettings, EvaluateSettings, PipelineSettings])
def test_help_lists_every_knob(model: type[BaseModel]) -> None:
    text = settings_help("train", model, "all")
    shown = [(key, field) for key, field in all_settings(model) if not about(field).hidden]
    assert all(f"  {key}=" in text for key, _ in shown)
    assert "  group_size=" not in text
    assert all(field.description for _, field in all_settings(model))
    assert "Undefined" not in text
    for columns in (80, 120):
        lines = (
            settings_help("train", model, "all", columns).partition("[default]:")[2].partition("preset=nano fills")[0]
        )
        described = [line for line in lines.splitlines() if " " in line.strip()]  # long keys stand by themselves
        assert max(map(len, described)) <= columns


@pytest.mark.parametrize("model", [CurateSettings, TrainSettings, EvaluateSettings])
def test_help_shows_fifteen_settings_and_all_others_by_group(model: type[FlowSettings]) -> None:
    text = settings_help("train", model)
    assert len(re.findall(r"^  \w+=", text, re.M)) == 15
    groups = re.findall(r"^  (\w+) ", text.partition("groups of settings")[2], re.M)
    by_group = "\n".join(settings_help("train", model, group) for group in groups)
    everything = settings_help("train", model, "all")
    for key in re.findall(r"^  ([\w.]+)=", everything, re.M):
        assert f"\n  {key}=" in by_group
    assert len(groups) > 5 and "preset=nano fills" in everything


def test_help_knows_the_parts_of_a_pipeline_and_the_members_of_a_family() -> None:
    assert "  train.eval.every=" in settings_help("pipeline", PipelineSettings, "train")
    assert "  eval.every=INT" in settings_help("train", TrainSettings, "eval")
    with pytest.raises(ConfigError, match=r"--help evil: there is no such group of settings: model, data, .*, all"):
        settings_help("train", TrainSettings, "evil")


def test_what_was_changed_can_be_given_again_as_words() -> None:
    words = (
        "preset=nano",
        "splits=taco,lcbv5",
        "mix=hard:0.5,easy:0.5",
        "check_solutions=no",
        "shards=here",
        "limit=-1",
    )
    settings = parse(CurateSettings, *words)
    again = words_of(settings.changed())
    assert sorted(again) == sorted(word.replace("=no", "=false") for word in words)
    assert parse(CurateSettings, *again).model_dump() == settings.model_dump()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (TrainSettings, ("problems_per_step=16", "batch_size=128")),
        (TrainSettings, ("max_steps_off_policy=1", "loss_fn=importance_sampling")),
        (TrainSettings, ("eval=limit:5,ends_limit:-1",)),
        (EvaluateSettings, ("max_turns=1", "stop_after_code=false", "max_tokens=24576")),
        (PipelineSettings, ("preset=nano", "train.max_steps_off_policy=1", "train.loss_fn=importance_sampling")),
    ],
)
def test_a_default_that_was_given_is_given_again(model: type[FlowSettings], words: tuple[str, ...]) -> None:
    settings = parse(model, *words)
    again = parse(model, *words_of(settings.changed()))
    assert again.model_dump() == settings.model_dump()
    if not isinstance(settings, PipelineSettings):  # an evaluation takes from its run what is not given
        assert again.given == settings.given


def test_of_the_form_of_the_ui_which_gives_every_field_only_changes_are_given_again() -> None:
    properties = TrainSettings.model_json_schema()["properties"]
    filled = {key: field["default"] for key, field in properties.items() if "default" in field}
    settings = TrainSettings.model_validate(filled | {"lora_rank": 8, "adam": {"eps": 1e-9}})
    assert settings.changed() == {"lora_rank": 8, "adam.eps": 1e-9}


@pytest.mark.parametrize(
    ("model", "words", "saved", "says"),
    [
        (TrainSettings, ("temperature=0.7",), {"kl": {"penalty_coef": 0.1}}, "kl.penalty_coef compares log-prob"),
        (
            TrainSettings,
            ("max_tokens=1024",),
            {"truncation": {"kind": "penalised", "overlong_tokens": 2048}},
            "truncation.overlong_tokens=2048 is more than max_tokens=1024",
        ),
        (
            TrainSettings,
            ("schedule.kind=constant",),
            {"schedule": {"kind": "cosine", "total": 200}},
            "schedule.total=200 needs schedule=linear or cosine",
        ),
        (
            TrainSettings,
            ("loss_fn=importance_sampling",),
            {"loss_fn": "ppo", "loss": {"clip_low": 0.9}},
            "loss.clip_low is of loss_fn=ppo, cispo, gspo: importance_sampling has none",
        ),
        (EvaluateSettings, ("reward_timeout=10",), {"environment": "gsm8k"}, "reward_timeout=10.0 is a setting of "),
        (
            EvaluateSettings,
            ("max_turns=2",),
            {"environment": "tool", "max_tool_calls": 4},
            "max_turns=2 is a setting of environment=code or custom",
        ),
    ],
)
def test_what_contradicts_a_recorded_run_is_one_clear_line(
    model: type[FlowSettings], words: tuple[str, ...], saved: dict[str, object], says: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)) as caught:
        parse(model, *words).filled_from(saved)
    assert "\n" not in str(caught.value)


def test_what_contradicts_a_preset_that_fills_in_later_is_one_clear_line() -> None:
    settings = parse(TrainSettings, "truncation=penalised:2048")
    with pytest.raises(ConfigError, match=r"^truncation\.overlong_tokens=2048 is more than max_tokens=128$"):
        settings.with_preset("nano")


@pytest.mark.parametrize("model", [CurateSettings, TrainSettings, EvaluateSettings, PipelineSettings])
def test_the_form_of_the_ui_offers_the_preset_and_none(model: type[FlowSettings | PipelineSettings]) -> None:
    preset = model.model_json_schema()["properties"]["preset"]
    assert (preset["enum"], preset["default"]) == (["none", "nano", "smollm2", "gsm8k", "smoke"], "none")
    assert parse_settings(model, {"preset": "none"}).preset is None
    assert parse_settings(model, {"preset": "nano"}).preset == "nano"


def test_the_pretrained_models_preset_is_sized_for_an_hour_on_two_cores() -> None:
    curate, train, evaluate = (
        parse(model, "preset=smollm2") for model in (CurateSettings, TrainSettings, EvaluateSettings)
    )
    assert {settings.model_name for settings in (curate, train, evaluate)} == {SMOLLM2_MODEL}
    assert {settings.dataset for settings in (curate, train, evaluate)} == {INTRO_DATASET}
    assert {settings.max_tokens for settings in (curate, train, evaluate)} == {96}
    assert all(isinstance(each, FlowSettings) and each.stop_after_code for each in (curate, train, evaluate))
    assert isinstance(curate, CurateSettings) and isinstance(train, TrainSettings)
    assert (train.problems_per_step, train.completions_per_problem, train.temperature) == (16, 8, 1.0)
    assert curate.limit == -1
    n_train, n_test = 620, 240  # baseline and final evaluation; between them one of eval.limit problems
    evaluations = 2 * n_test + train.eval.limit * ((train.max_steps - 1) // train.eval.every)
    completions = n_train * curate.profile_samples + evaluations
    # With AMX a step of 128 completions takes 24 s on average, which leaves room here, and other completions have 50
    # tokens, 240 per second (benchmarks/learning.md).
    assert 28 * train.max_steps * train.batch_size / 128 + 50 * completions / 240 < 3600


def test_a_preset_says_nothing_of_a_profile_that_is_not_made() -> None:
    unprofiled = parse(CurateSettings, "preset=smollm2", "profile_mode=none")
    assert isinstance(unprofiled, CurateSettings)
    assert not unprofiled.is_profiled and not unprofiled.check_solutions
    with pytest.raises(ConfigError, match="profile_samples is of a profile"):
        parse(CurateSettings, "preset=smollm2", "profile_mode=none", "profile_samples=8")


def test_the_form_of_the_ui_leaves_the_recipes_sizes_empty() -> None:
    properties = TrainSettings.model_json_schema()["properties"]
    filled = {key: field["default"] for key, field in properties.items() if "default" in field}
    assert (filled["batch_size"], filled["group_size"]) == (None, None)
    assert sizes(TrainSettings.model_validate({**filled, "problems_per_step": 4})) == (4, 16)


def test_maxrl_asks_for_a_format_coef_of_0_only_where_there_is_one() -> None:
    assert TrainSettings(environment="gsm8k", advantage="maxrl").advantage == "maxrl"


@pytest.mark.parametrize(
    "given", ["feedback=verdict", "feedback=samples", "turn_credit=last", "max_trajectory_tokens=9"]
)
def test_settings_of_several_turns_are_refused_where_there_is_one(given: str) -> None:
    environment_of(parse(TrainSettings, given, "max_turns=2"))
    with pytest.raises(ConfigError, match=f"{given} needs several turns, and max_turns=1: add max_turns=2"):
        environment_of(parse(TrainSettings, given))
    # What a run has recorded, or the UI's form sends, is not what somebody meant.
    key, _, value = given.partition("=")
    environment_of(parse(TrainSettings).filled_from({key: int(value) if value.isdecimal() else value}))
    properties = TrainSettings.model_json_schema()["properties"]
    filled = {key: field["default"] for key, field in properties.items() if "default" in field}
    environment_of(TrainSettings.model_validate(filled))


def test_a_tool_has_calls_and_no_feedback() -> None:
    turns = environment_of(
        parse(TrainSettings, "environment=tool", "max_trajectory_tokens=99", "turn_credit=last")
    ).turns
    assert (turns.most, turns.tool_calls, turns.tokens, turns.role) == (5, 4, 99, "tool")
    assert environment_of(parse(EvaluateSettings, "environment=tool", "benchmark=mbpp")).turns.tool_calls == 4
    assert not environment_of(parse(TrainSettings, "max_turns=2")).turns.tools
    assert environment_of(parse(TrainSettings, "max_turns=2", "feedback=none")).turns.feedback == "none"
    for words, said in {
        ("max_tool_calls=3",): "max_tool_calls=3 is a setting of environment=tool, .*: add environment=tool, or leave",
        ("environment=tool", "max_tool_calls=0"): "needs max_tool_calls of 1 or more",
        ("environment=tool", "max_turns=2"): "max_turns=2 is a setting of environment=code or custom",
        ("environment=tool", "feedback=none"): "feedback=none is a setting of environment=code",
        ("environment=tool", "advantage=maxrl"): "format_coef",
    }.items():
        with pytest.raises(ConfigError, match=said):
            parse(TrainSettings, *words)
