"""The settings of `coderl curate`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from coderl_tasks.addresses import joined
from coderl_tasks.settings.flow_settings import NONE_IS_A_WORD, FlowSettings, Limit, Names, Temperature, split_shares
from coderl_tasks.settings.setting import PROGRAMS, about, refusing, setting

Share = Annotated[float, Field(ge=0)]
_SPLIT = BeforeValidator(lambda value: split_shares(value, "shares look like hard:0.3,medium:0.5,easy:0.2"))
_NOT_ALL_ZERO = refusing(lambda shares: shares and not sum(shares.values()) > 0, "at least one share has to be above 0")
DifficultyShares = Annotated[dict[Literal["hard", "medium", "easy"], Share], _SPLIT, _NOT_ALL_ZERO]
SplitShares = Annotated[dict[str, Share], _SPLIT, _NOT_ALL_ZERO]
NO_PROFILE = "none"
ProfileMode = Annotated[Literal["adaptive", "screen", "fixed", "none"], NONE_IS_A_WORD]
LABEL_SAMPLES = 3.0
"""Further completions per problem with which labels agree within 3 points as often as those of 16 samples do."""


class CurateSettings(FlowSettings):
    """Raw problems -> pass rates of the base model -> a mixed-difficulty pool."""

    DECIDING: ClassVar[tuple[str, ...]] = (*FlowSettings.DECIDING, "profile_mode")
    GROUPS: ClassVar[dict[str, tuple[str, str]]] = {
        **FlowSettings.GROUPS,
        "rows": ("from_run", "what is read, and which rows are used"),
        "duplicates": ("near_duplicate", "near duplicates, and problems too close to evaluation problems"),
        "solutions": ("check_solutions", "the problems' own reference solutions"),
        "profile": ("profile_mode", "how pass rates are measured, and at what price"),
        "selection": ("band_low", "which of the profiled problems the pool takes"),
        "shards": ("shard_size", "how the profile is divided, and where it runs"),
        "record": ("name", "the pool's name, and whether a finished pool is rebuilt"),
    }

    from_run: str | None = setting(None, common=True, of_profile=True)
    """a run whose last checkpoint is profiled instead of the base model, from its rollouts and, where these do not
    suffice, new samples; other settings default to those of its pool"""
    splits: Names = setting(None, common=True)
    """train splits to read; by default all of the data set"""
    limit: Limit = setting(-1, common=True)
    """read at most this many rows (-1: all)"""
    max_tests: int = setting(15, ge=-1, environments=PROGRAMS)
    """tests kept per problem, longest inputs first (-1: all)"""
    min_tests: int = setting(5, ge=1, environments=PROGRAMS, by_environment={"custom": 1, "gsm8k": 1})
    """different tests that a problem needs, counted before max_tests"""
    max_statement_chars: int = Field(50_000, ge=1)
    """longest statement kept, in characters"""
    max_row_mb: int = Field(512, ge=1)
    """largest raw row that is read, in MiB"""
    # One instruction before each of a user's prompts makes them all resemble each other, and their ground truths may be
    # a few labels: of these only what is the same word for word is a duplicate, or given away.
    near_duplicate: float = setting(0.6, gt=0, le=1, by_environment={"custom": 1.0})
    """similarity of two statements above which their tests decide whether they are the same problem"""
    ngram_overlap: float = Field(0.5, gt=0, le=1)
    """a problem is dropped if it contains this share of an evaluation problem's own 13-word passages"""
    near_evaluation: float = setting(0.6, gt=0, le=1, by_environment={"custom": 1.0})
    """a problem is dropped if its statement is this similar to an evaluation problem's and their tests agree"""
    benchmark: Names = setting(None, environments=PROGRAMS)
    """published benchmarks whose problems are also kept out of the pool; names as for evaluate's benchmark"""
    common_passage: int = setting(10, ge=1, by_environment={"custom": 1})
    """passages that occur in more problems than this count as boilerplate and are ignored"""
    readers: int | None = setting(None, ge=1, decides_content=False)
    """processes that read the data set; by default one per core"""
    check_solutions: bool = setting(True, environments=PROGRAMS, by_environment={"custom": False, "gsm8k": False})
    """drop problems whose own reference solutions fail their tests; by default false with profile_mode=none"""
    max_solutions: int = setting(3, ge=1, environments=PROGRAMS)
    """reference solutions tried per problem, until one passes"""
    checkers: Literal["given", "infer"] = setting("given", environments=PROGRAMS)
    """infer: find a comparator for problems that name none, from their statement and solutions"""
    multi_answer: Literal["keep", "drop"] = setting("keep", environments=PROGRAMS)
    """problems that seem to have several right answers and name no comparator: keep (and flag) or drop them"""
    audit: Literal["off", "flag", "drop"] = setting("off", environments=PROGRAMS)
    """before the profile, find tests that reward wrong programs or fail right ones; flag: add the findings to the pool
    as columns; drop: drop these problems"""
    strengthen: int = setting(0, ge=0, le=1000, environments=PROGRAMS)
    """most generated tests per problem, which fail wrong programs that pass the given tests (0: none). They count for
    rewards and pass rates, never for evaluations"""
    # The notebook trains on all of its data.
    profile_mode: ProfileMode = setting("adaptive", common=True, gsm8k=NO_PROFILE)
    """adaptive: sample until it is clear whether a problem lies in the band; screen: one round per problem, but none
    for problems that look unlearnable by their similarity to others; fixed: profile_samples each; none: sample nothing,
    keep all problems"""
    profile_samples: int = setting(
        16,
        ge=1,
        le=16,
        common=True,
        of_profile=True,
        smollm2=4,
        elsewhere=("n", "k", "samples", "num_samples", "num_generations"),
    )
    """most completions per problem"""
    profile_round: int = setting(2, ge=1, of_profile=True, smollm2=4)
    """completions per problem and round"""
    profile_risk_keep: float = setting(0.1, ge=0, lt=0.5, of_profile=True)
    """adaptive: accepted probability of keeping a problem that all samples would drop"""
    profile_risk_drop: float = setting(0.05, ge=0, lt=0.5, of_profile=True)
    """adaptive: accepted probability of dropping a problem that all samples would keep"""
    screen_skip: float = setting(0.15, ge=0, lt=1, of_profile=True)
    """screen: problems that are learnable with a lower probability are not sampled"""
    screen_drop: float = setting(0.1, ge=0, lt=1, of_profile=True)
    """screen: problems that are learnable with a lower probability are not kept"""
    label_samples: float | None = setting(None, ge=0, le=16, of_profile=True)
    """adaptive: further completions for uncertain labels, per profiled problem on average; by default 3 if mix has
    shares of difficulty, else 0"""
    price_prompt: float | None = Field(None, ge=0)
    """price per million prompt tokens, for the cost column"""
    price_completion: float | None = Field(None, ge=0)
    """price per million completion tokens"""
    temperature: Temperature = setting(1.0, ge=0, of_profile=True, smollm2=0.7)
    """sampling temperature of the profile"""
    band_low: float = setting(0.1, ge=0, le=1, common=True, of_profile=True)
    """lowest pass rate kept in the pool"""
    band_high: float = setting(0.9, ge=0, le=1, common=True, of_profile=True)
    """highest pass rate kept in the pool"""
    mix: DifficultyShares = setting(default_factory=dict, common=True, of_profile=True)
    """shares of difficulty as weights, hard:0.3,medium:0.5,easy:0.2; by default as the data has them"""
    mix_splits: SplitShares = Field(default_factory=dict)
    """shares of splits as weights, taco:0.4,lcbv5:0.6; by default as the data has them"""
    pool_size: Limit = setting(-1, common=True)
    """problems in the pool (-1: as many as the shares allow)"""
    shard_size: int = setting(250, ge=1, decides_content=False)
    """problems per profile shard, each a Prefect task"""
    shards: Literal["here", "deployment"] = setting("here", decides_content=False, of_profile=True)
    """here: profile shards in this process; deployment: as runs of shard_deployment on any machine"""
    shard_deployment: str = setting("profile-shard/local", decides_content=False)
    """the deployment that profiles a shard"""
    shard_address: str | None = setting(None, decides_content=False)
    """where shards are recorded: a path or s3://..., in which each pool has a folder; by default the pool's folder"""
    shards_in_flight: int = setting(4, ge=1, decides_content=False)
    """most runs of shard_deployment in flight"""
    name: str | None = setting(None, common=True, decides_content=False, elsewhere=("output_dir",))
    """name of the pool (a folder below data/pools) or an absolute path; by default the time or the flow run's id. An
    unfinished pool is resumed"""
    replace: bool = setting(False, decides_content=False)
    """rebuild a finished pool of that name with other settings, from its recorded samples"""

    @classmethod
    def _fillings(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        fillings = super()._fillings(values)
        if values.get("profile_mode", fillings.get("profile_mode", "adaptive")) not in (None, NO_PROFILE):
            return fillings
        fields = cls.model_fields
        fillings = {
            key: value for key, value in fillings.items() if key not in fields or not about(fields[key]).of_profile
        }
        # Nothing is sampled, and so nothing is run either, unless it is asked for.
        asks = values.get("checkers") == "infer" or values.get("multi_answer") == "drop"
        return fillings if asks else {**fillings, "check_solutions": False}

    @property
    def is_profiled(self) -> bool:
        """Whether completions are sampled, so that the pool knows pass rates."""
        return self.profile_mode != NO_PROFILE

    @property
    def label_budget(self) -> float:
        """What `label_samples` is: only who asks for difficulties needs labels that are worth more samples."""
        if self.label_samples is not None:
            return self.label_samples
        return LABEL_SAMPLES if self.mix and self.profile_mode == "adaptive" and self.from_run is None else 0.0

    def record_address(self, folder: Path) -> str:
        """Where the shards of the pool in `folder` are recorded."""
        local = str(folder.resolve())  # absolute: a worker has another working directory
        is_here = self.shards == "here" or self.shard_address is None
        return local if is_here else joined(str(self.shard_address), folder.name)

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        """Raises ValueError for settings that contradict each other, and for what shards=deployment cannot do."""
        if not self.is_profiled:  # settings of the profile would do nothing
            for key, field in type(self).model_fields.items():
                default = field.get_default(call_default_factory=True, validated_data={})
                if about(field).of_profile and getattr(self, key) != default:
                    raise ValueError(f"{key} is of a profile, and profile_mode=none makes none: leave one of them out")
        if not self.check_solutions and (self.checkers == "infer" or self.multi_answer == "drop"):
            raise ValueError(
                "checkers=infer and multi_answer=drop run the problems' solutions: use check_solutions=true"
            )
        if self.shards == "deployment" and self.reward_file:
            raise ValueError(
                "reward_file is a file of this machine, and shards=deployment may run on others: use shards=here"
            )
        if self.from_run is not None and self.profile_mode == "screen":
            raise ValueError("from_run knows more of problems than screening does: use profile_mode=adaptive")
        if self.band_low > self.band_high:
            raise ValueError(f"band_low={self.band_low} is above band_high={self.band_high}")
        return self
