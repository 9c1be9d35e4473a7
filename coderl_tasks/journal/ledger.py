"""The ledger of tokens: what a run, a curation or an evaluation has spent, what that costs, and what it still may.

    prompt       prefill: the prompt of each group once
    cached       prefill that is cached: the same prompt for the group's other completions
    completion   sampled
    training     forward and backward: prompt and completion of what is trained on, once per epoch
    base         prefill by the base model: prompt and completion of what `kl.base_every` measures the KL on

1. A group reserves the most that it can cost before its request is sent, and is charged its real cost when it comes.
   Spending never passes the cap, and less than the cost of one group is left of it. In training a group counts as if
   all of it were trained on, until its step's commit corrects that.
2. What was spent before is read from the journal. What was in flight when a run was killed is not counted; a service
   may bill it.
3. What the base model reads for `kl.base_every` counts from the step's commit on, so that it may pass a cap once, by 16
   sequences. With `kl.penalty_coef` the price of training has it.

Not covered: storage of checkpoints, requests that failed and were sent again, and updates that are replayed after a
crash. Tokens are counted as the service's clients do (the length of each datum's input); no bill was compared.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, astuple, dataclass
from operator import add, sub
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import polars as pl

from coderl_tasks.addresses import explained, filesystem, joined
from coderl_tasks.errors import BudgetReachedError, ConfigError
from coderl_tasks.journal.atomic import make_folder, read_json, scan_parquet, write_json
from coderl_tasks.journal.steps import BASELINE, FINAL, FINGERPRINT_FILE, Commit, same_samples
from coderl_tasks.policy.rollout import ENVIRONMENT, KEPT, REPEATED, TURN_TOKENS
from coderl_tasks.settings import CurateSettings, FlowSettings, TrainSettings
from coderl_tasks.settings.flow_settings import COST_SETTINGS

if TYPE_CHECKING:  # the SDK behind it takes seconds to import, and showing what was spent needs none
    from fsspec import AbstractFileSystem

    from coderl_tasks.policy.sampling import GroupRequest

LOST_FILE = "lost.json"
MILLION = 1e6
LISTINGS = 10
LEAST_USD = 1e-9  # a cap is above 0
METRICS = ("tokens_prompt", "tokens_prompt_cached", "tokens_completion", "tokens_training", "tokens_base")
"""The columns of metrics.jsonl that have a step's tokens, in the order of Tokens; older rows lack the last."""
_OWN_EVALUATION = re.compile(rf"step-.*|({BASELINE}|{FINAL})(-step-.*|-before(-\d+)?)?")
"""The names of the evaluations that training makes, also of earlier ones under another name (`EvalJournal.keep_as`)."""
_GROUP_KEY = ("step", "group_index", "attempt")  # the columns of rollouts that tokens are counted by


@dataclass(frozen=True, slots=True)
class Tokens:
    """Numbers of tokens by kind."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    training: int = 0
    base: int = 0

    def __add__(self, other: Self) -> "Tokens":
        return Tokens(*map(add, astuple(self), astuple(other)))

    def __sub__(self, other: Self) -> "Tokens":
        return Tokens(*map(sub, astuple(self), astuple(other)))

    @property
    def counted(self) -> int:
        """What max_tokens_total counts: each group's prompt once, and the completions."""
        return self.prompt + self.completion

    def in_words(self) -> str:
        """All kinds that there are any of."""
        names = ("prompt", "cached prompt", "completion", "training", "base model's")
        kinds = zip(names, astuple(self), strict=True)
        return ", ".join(f"{number:,} {kind}" for kind, number in kinds if number) + " tokens"


@dataclass(frozen=True, slots=True)
class Price:
    """USD per million tokens of each kind, None where not known. `source`: a price list's date, or the setting."""

    prefill: float
    cached: float
    sample: float
    train: float | None
    source: str

    def usd(self, tokens: Tokens) -> float | None:
        """What so many tokens cost; None if a price that is needed is not known."""
        if tokens.training and self.train is None:
            return None
        prefilled = tokens.prompt + tokens.base
        sampled = prefilled * self.prefill + tokens.cached * self.cached + tokens.completion * self.sample
        return (sampled + tokens.training * (self.train or 0.0)) / MILLION


PRICES = {
    "Qwen/Qwen3.5-4B": Price(0.33, 0.066, 1.005, 0.737, "2026-10-04"),
    "Qwen/Qwen3.5-9B": Price(0.66, 0.132, 1.995, 1.463, "2026-10-04"),
    "Qwen/Qwen3-8B": Price(0.195, 0.039, 0.60, 0.44, "2026-10-07"),
    "Qwen/Qwen3.6-35B-A3B": Price(0.54, 0.108, 1.335, 1.177, "2026-07-22"),
    "Qwen/Qwen3.6-27B": Price(1.86, 0.372, 5.595, None, "2026-10-07"),
    "Qwen/Qwen3.8-27B": Price(1.86, 0.372, 5.595, None, "2026-10-07"),
    "Qwen/Qwen3.5-397B-A17B": Price(3.0, 0.6, 7.5, None, "2026-10-07"),
}
"""By the model's name on the Tinker service, as on these days others quoted its page of prices
(https://tinker-docs.thinkingmachines.ai/tinker/models/models_and_pricing/) for the shorter context; prices change.
The cached price of Qwen3-8B is from the page's "80% discount on cached prefill tokens"."""

Charge = Callable[[pl.DataFrame, pl.DataFrame | None], None]  # see `Budget.reserve`


class Budget:
    """What one run has spent, and may. Without settings there is no cap, and it only counts."""

    def __init__(self, settings: FlowSettings | None = None, spent: Iterable[Tokens] = ()) -> None:
        self.max_tokens = None if settings is None else settings.max_tokens_total
        self.max_usd = None if settings is None else settings.max_usd
        self.price = None if settings is None else cost_price(settings)
        self.epochs = settings.epochs_per_rollout_batch if isinstance(settings, TrainSettings) else 0
        self.flow = "" if settings is None else type(settings).__name__.removesuffix("Settings").lower()  # the command
        self.spent = sum(spent, Tokens())
        self.provisional_training: dict[int, int] = {}  # by step: training tokens charged as if all were trained on
        self._in_flight: list[Tokens] = []  # what each group reserved
        self._shares: list[tuple[float, float]] = []  # tokens and USD that were set aside
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def reserve(self, request: "GroupRequest") -> AsyncIterator[Charge]:
        """Reserves the most that `request` can cost while the block lasts. While that does not fit, waits for groups in
        flight, which may cost less than they reserved. Raises BudgetReachedError if none is in flight.

        Yields `charge(group, before)`, which charges the real cost: that of the frame `group`, less that of the frame
        `before` if this part of the group was charged already."""
        epochs = self.epochs if request.step >= 0 else 0  # profiles and evaluations are not trained on
        n, prompt = request.num_samples, len(request.prompt_tokens)
        completion = n * request.max_tokens
        training = epochs * (n * prompt + completion)
        most = Tokens(prompt=prompt, cached=prompt * max(0, n - 1), completion=completion, training=training)
        while (passed_cap := self._cap_passed_by(most)) is not None:
            if not self._in_flight:
                raise BudgetReachedError(*passed_cap, flow=self.flow)
            self._freed.clear()
            await self._freed.wait()
        # There is no await between the last check and this line: no other group can take the budget in between.
        self._in_flight.append(most)

        def charge(group: pl.DataFrame, before: pl.DataFrame | None) -> None:
            tokens = frame_tokens(group, epochs)
            if before is not None:
                tokens -= frame_tokens(before, epochs)
            self.spent += tokens
            if epochs:
                # Which rollouts are trained on is not decided yet: `commit` replaces this part of `spent`.
                earlier = self.provisional_training.get(request.step, 0)
                self.provisional_training[request.step] = earlier + tokens.training

        try:
            yield charge
        finally:
            self._in_flight.remove(most)
            self._freed.set()

    @asynccontextmanager
    async def share(self, shares: int) -> AsyncIterator[Callable[[Tokens], dict[str, float]]]:
        """Sets aside one of `shares` equal shares of what is left while the block lasts, for a flow run that keeps to
        caps of its own. Waits while that many are set aside. Yields `caps_after(before)`, which returns the run's
        settings `max_tokens_total` and `max_usd`: the share plus what was spent `before` on its record."""
        while len(self._shares) >= shares:
            self._freed.clear()
            await self._freed.wait()
        # What is neither spent nor set aside is divided by the number of shares that are still to be had.
        left, tokens, usd = shares - len(self._shares), 0.0, 0.0
        if self.max_tokens is not None:
            aside = sum(share[0] for share in self._shares)
            tokens = max(0.0, self.max_tokens - self.spent.counted - aside) // left
        if self.max_usd is not None:
            aside = sum(share[1] for share in self._shares)
            usd = max(0.0, self.max_usd - self._usd(self.spent) - aside) / left
        mine = tokens, usd

        def caps_after(before: Tokens) -> dict[str, float]:
            caps: dict[str, float] = {}  # a cap must be above 0
            if self.max_tokens is not None:
                caps["max_tokens_total"] = max(1, before.counted + int(tokens))
            if self.max_usd is not None:
                caps["max_usd"] = max(LEAST_USD, self._usd(before) + usd)
            return caps

        self._shares.append(mine)
        try:
            yield caps_after
        finally:
            self._shares.remove(mine)
            self._freed.set()

    def commit(self, step: int, trained: int, base: int) -> None:
        """Put right what `step` is charged with for training: `trained` tokens. The base model read `base` tokens."""
        self.spent += Tokens(base=base)
        if step in self.provisional_training:
            self.spent += Tokens(training=trained - self.provisional_training.pop(step))

    def _cap_passed_by(self, most: Tokens) -> tuple[str, float, str] | None:
        """The cap that `most` would pass, its value, and what to say of it; None if it fits."""
        then = sum(self._in_flight, self.spent + most)
        if self.max_tokens is not None and then.counted > self.max_tokens:
            reason = f"{self.spent.counted:,} tokens are spent, and the next group may take {most.counted:,}"
            return "max_tokens_total", self.max_tokens, reason
        if self.max_usd is not None and self.price is not None:
            spent, more = self._usd(self.spent), self._usd(most)
            if self._usd(then) > self.max_usd:
                return "max_usd", self.max_usd, f"{spent:.4g} USD are spent, and the next group may cost {more:.4g}"
        return None

    def _usd(self, tokens: Tokens) -> float:
        usd = None if self.price is None else self.price.usd(tokens)
        assert usd is not None, "require_price has seen to it"
        return usd


def cost_price(settings: FlowSettings) -> Price | None:
    """What the tokens of `settings` cost: by its `prices`, else by PRICES; None where that is not known."""
    price, own = PRICES.get(settings.model_name), dict(settings.prices.items())
    if own:
        price = Price(own["prefill"], own.get("cached", own["prefill"]), own["sample"], own.get("train"), "prices")
    if price is not None and isinstance(settings, TrainSettings) and settings.kl.penalty_coef:
        # The base model reads once what is trained on.
        train = None if price.train is None else price.train + price.prefill / settings.epochs_per_rollout_batch
        return Price(price.prefill, price.cached, price.sample, train, price.source)
    return price


def require_price(settings: FlowSettings) -> None:
    """Raise ConfigError if `max_usd` is asked for and what tokens cost is not known."""
    if settings.max_usd is None:
        return
    price = cost_price(settings)
    if price is None or (price.train is None and isinstance(settings, TrainSettings)):
        wanted = "prefill:0.33,sample:1.005,train:0.737"
        raise ConfigError(
            f"max_usd={settings.max_usd:g}: what {settings.model_name} costs is not known: give prices={wanted} (USD "
            "per million tokens), or use max_tokens_total"
        )


def is_capped(settings: FlowSettings) -> bool:
    return settings.max_tokens_total is not None or settings.max_usd is not None


def frame_tokens(rollouts: pl.DataFrame | pl.LazyFrame, epochs: int = 0) -> Tokens:
    """Counts the tokens that the service bills for `rollouts`. Training reads each row whose column `trained` is true
    `epochs` times; before that is decided (SAMPLED_SCHEMA lacks the column) all rows count."""
    lazy = rollouts.lazy()
    rows = lazy.select(
        *_GROUP_KEY,
        is_first=pl.col("sample_index") == 0,
        prompt=pl.col("prompt_tokens").list.len().cast(pl.Int64),
        completion=pl.col("completion_tokens").list.len().cast(pl.Int64),
        is_trained=pl.col("trained") if "trained" in lazy.collect_schema() else pl.lit(True),
        **TURN_TOKENS,  # adds ENVIRONMENT, KEPT and REPEATED, sums over the later turns of a row
    )
    # Training reads the whole dialogue. A turn that is split off into a training sequence of its own also reads again
    # what its prompt repeats. REPEATED is what prompts repeat in such turns, KEPT in all later turns.
    training = pl.col("prompt") + pl.col("completion") + pl.col(ENVIRONMENT) + pl.col(REPEATED)
    groups = rows.group_by(_GROUP_KEY).agg(
        # The completions of a group share one prompt: the first pays for it, the others read it from the service's
        # cache, also where `rollouts` holds only these. A profile samples a group in rounds (`attempt`): by a later
        # round the cache has lost the prompt, and its first completion pays again.
        pays=pl.col("is_first").any() | (pl.col("attempt").first() > 0),
        prompt=pl.col("prompt").first(),
        n=pl.len(),
        completion=pl.col("completion").sum(),
        training=training.filter("is_trained").sum(),
        environment=pl.col(ENVIRONMENT).sum(),
        repeated=pl.col(KEPT).sum(),
    )
    totals = groups.select(
        # A later turn of a dialogue pays for the environment's reply, and reads from the cache what its prompt repeats.
        prompt=pl.col("prompt").filter("pays").sum() + pl.col("environment").sum(),
        cached=(pl.col("prompt") * (pl.col("n") - pl.col("pays").cast(pl.Int64)) + pl.col("repeated")).sum(),
        completion=pl.col("completion").sum(),
        training=epochs * pl.col("training").sum(),
    )
    return Tokens(*totals.collect().row(0))


def files_tokens(files: Iterable[Path | bytes], epochs: int = 0) -> Tokens:
    """The tokens of recorded groups in parquet files. One that is missing or damaged is sampled again, and has none."""
    total = Tokens()
    for file in files:
        with suppress(OSError, pl.exceptions.PolarsError):
            total += frame_tokens(scan_parquet(file), epochs)
    return total


def run_budget(settings: TrainSettings, path: Path, commits: list[Commit]) -> Budget:
    """The budget of the run at `path`, with what its steps and evaluations have spent; not its pool's profile."""
    if not is_capped(settings):
        return Budget(settings)
    epochs, committed = settings.epochs_per_rollout_batch, {commit.step: commit for commit in commits}
    # The run's own evaluations: others are of `coderl evaluate`, which has a budget of its own.
    own = (folder for folder in path.glob("evals/*") if _OWN_EVALUATION.fullmatch(folder.name))
    budget = Budget(settings, map(evaluation_tokens, own))
    # Users may keep copies of steps beside them, under other names.
    for folder in sorted(folder for folder in path.glob("steps/*") if folder.name.isdecimal()):
        step, lost = int(folder.name), read_lost(folder)
        if step in committed:
            tokens = metrics_tokens(committed[step].metrics)
        else:
            tokens = folder_tokens(folder, "scored.parquet", "sampled.parquet", epochs=epochs)
            budget.provisional_training[step] = tokens.training
        budget.spent += tokens + lost
    return budget


def metrics_tokens(row: Mapping[str, Any]) -> Tokens:
    """The tokens of a step, from its row of metrics.jsonl."""
    return Tokens(*(row.get(name) or 0 for name in METRICS))


def folder_tokens(folder: Path, *wholes: str, epochs: int = 0) -> Tokens:
    """What the step or evaluation in `folder` has spent: by the first of its files `wholes` that is there, else by its
    groups."""
    whole = next((folder / name for name in wholes if (folder / name).is_file()), None)
    return files_tokens(folder.glob("groups/*.parquet") if whole is None else [whole], epochs)


def add_lost(folder: Path, tokens: Tokens) -> None:
    """Record, in the `folder` of a step, shard or evaluation, tokens that were sampled for it and are let go of."""
    write_json(make_folder(folder) / LOST_FILE, asdict(read_lost(folder) + tokens))


def read_lost(folder: Path) -> Tokens:
    """The tokens that `add_lost` recorded. DamagedFileError if that cannot be read."""
    path = folder / LOST_FILE
    return Tokens(**read_json(path)) if path.is_file() else Tokens()


def evaluation_tokens(folder: Path) -> Tokens:
    """What an evaluation has spent, also on what was sampled anew since."""
    return folder_tokens(folder, "rollouts.parquet") + read_lost(folder)


def profile_tokens(address: str) -> Tokens:
    """What was spent on the profile of the curation, or of its shard, recorded at `address`; also on what was sampled
    anew since."""
    fs, root = filesystem(address)
    with explained(address):
        for _ in range(LISTINGS):
            with suppress(FileNotFoundError):  # a shard that ends removes its groups
                return _tokens_below(fs, root)
        return _tokens_below(fs, root)


def _tokens_below(fs: "AbstractFileSystem", root: str) -> Tokens:
    fs.invalidate_cache()
    shards = joined(root, "shards")
    by_shard: dict[str, list[str]] = {}
    for file in map(str, fs.find(shards if fs.exists(shards) else root)):
        by_shard.setdefault(file.rpartition("/")[0].removesuffix("/groups"), []).append(file)
    return sum((_shard_tokens(fs, *shard) for shard in by_shard.items()), Tokens())


def _shard_tokens(fs: "AbstractFileSystem", folder: str, files: list[str]) -> Tokens:
    whole, lost, request = (f"{folder}/{name}" for name in ("rollouts.parquet", LOST_FILE, FINGERPRINT_FILE))
    of_groups = f"{folder}/groups/{FINGERPRINT_FILE}"
    wholes = [fs.cat_file(whole)] if whole in files else []
    places: set[tuple[int, int]] = set()
    requests = [json.loads(fs.cat_file(file)) for file in (request, of_groups) if file in files]
    if len(requests) == 2 and same_samples(*requests):
        # A finished shard that is sampled on, or graded again, has rounds in groups/ that the file has too.
        places = {place for each in wholes for place in _places(each)}
    groups = (fs.cat_file(file) for file in files if file.startswith(f"{folder}/groups/") and file.endswith(".parquet"))
    more = Tokens(**json.loads(fs.cat_file(lost))) if lost in files else Tokens()
    return files_tokens([*wholes, *(group for group in groups if not places or not _places(group) <= places)]) + more


def _places(file: bytes) -> set[tuple[int, int]]:
    try:
        return set(scan_parquet(file).select("group_index", "attempt").unique().collect().iter_rows())
    except (OSError, pl.exceptions.PolarsError):
        return set()


def pool_spent(manifest: Mapping[str, Any]) -> Tokens:
    """What a finished pool's manifest says that its profile has spent; none where it does not say."""
    spent = manifest.get("spent")
    if not isinstance(spent, dict):
        return Tokens()
    return Tokens(prompt=int(spent.get("prompt_tokens", 0)), completion=int(spent.get("completion_tokens", 0)))


def curation_budget(settings: CurateSettings, folder: Path) -> Budget:
    """The budget of the curation in `folder`. Where shards are runs of a deployment, what they have spent is counted
    when none is at work any more (`runtime.remote_shards`)."""
    is_counted = is_capped(settings) and settings.shards == "here"
    return Budget(settings, [profile_tokens(str(folder))] if is_counted else ())


def shard_budget(settings: CurateSettings, folder: Path) -> Budget:
    """The budget of the shard in `folder`: the caps of `settings` count all that was spent there."""
    return Budget(settings, [profile_tokens(str(folder))] if is_capped(settings) else ())


def evaluation_budget(settings: FlowSettings, folder: Path) -> Budget:
    return Budget(settings, [evaluation_tokens(folder)] if is_capped(settings) else ())


def recorded_price(config: Mapping[str, Any]) -> Price | None:
    """What the tokens of a run with this configuration cost; None where that is not known."""
    keys = ("model_name", *COST_SETTINGS, "kl", "epochs_per_rollout_batch")
    known = {key: config[key] for key in keys if key in config}
    return cost_price(TrainSettings.model_validate(known))


def cost_line(tokens: Tokens, price: Price | None) -> str:
    """Tokens and what they cost, in words."""
    usd = None if price is None else price.usd(tokens)
    if price is None or usd is None:
        return f"in all {tokens.in_words()}"
    return f"in all {tokens.in_words()}: about {usd:,.2f} USD (prices: {price.source})"
