"""The policy in training: a client brought to the state before any step, from saved states and the journal.

1. A client is not used once the session that opened it is released, nor after a failed update. The next use restores.
2. Restoring loads the newest saved state there still is and replays the recorded updates since: nothing is sampled
   again, and in the lineage that survives each optimizer step is applied once.
3. States are saved in two ways: kept ones, in checkpoints.jsonl, and rolling ones, in the step's commit. Of these all
   but the newest few are deleted, and expire where that fails.
4. With overlap weights to sample from are saved by name: the policy in training goes on while they are needed.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import polars as pl
import tinker

from coderl_tasks.errors import ConfigError, DataError, InfraError
from coderl_tasks.journal.checkpoints import CHECKPOINTS_FILE, read_checkpoints, save_checkpoint_async
from coderl_tasks.journal.directory_lock import require_in_place
from coderl_tasks.journal.run_directory import RunDirectory
from coderl_tasks.journal.steps import step_name
from coderl_tasks.policy import clients
from coderl_tasks.policy.selection import seed_for
from coderl_tasks.policy.update import UpdateMethod, UpdateResult, update_policy
from coderl_tasks.rollouts.engine import Session
from coderl_tasks.settings import TrainSettings

logger = logging.getLogger(__name__)
INITIAL = "initial"
DELETE_TIMEOUT_S = 30.0
"""For one request of a deletion, which no step waits longer for: the SDK itself tries for five minutes."""


@dataclass(frozen=True, slots=True)
class SavedState:
    """A training state that is saved at `path`, so many updates into the run."""

    updates: int
    path: str
    expires: bool


@dataclass(slots=True)
class _Trained:
    """A training client, the session that opened it, and the updates that its weights hold."""

    client: tinker.TrainingClient
    opened_by: tinker.ServiceClient
    updates: int


class Learner:
    """The policy of one run. A policy is identified by how many updates it holds: that before step k holds k."""

    def __init__(self, session: Session, directory: RunDirectory, settings: TrainSettings) -> None:
        self._session, self._directory, self._settings = session, directory, settings
        self.method = UpdateMethod.of(settings)
        self._trained: _Trained | None = None
        self._samplers: dict[int, tuple[tinker.ServiceClient, tinker.SamplingClient]] = {}
        # One at a time: with overlap the next step's sampler is opened while an update is under way, and both restore,
        # replay and save with the one client.
        self._client_lock = asyncio.Lock()
        self._deleted: set[str] | None = None  # None: not asked yet what is left of those that are not needed
        self._deletes = True

    async def sampling_client(self, updates: int) -> tinker.SamplingClient:
        """Returns a client that samples from the policy after `updates` updates, one per Tinker session: on the sampler
        weights that were saved then. If none were saved, or the service has dropped them, the policy in training is
        brought to that point, and its weights are saved anew."""
        # Look before taking the lock: an update may hold it for minutes while another step is sampled.
        if updates in self._samplers:
            opened_by, sampler = self._samplers[updates]
            if opened_by is self._session.current:  # the clients of a released session stop working
                return sampler
        # Weights are saved by name only with max_steps_off_policy: otherwise there is no path.
        if updates == 0:
            rows = [row for row in read_checkpoints(self._directory.path) if row["name"] == INITIAL]
            saved_weights = rows[-1].get("sampler_path") if rows else None
        else:
            commit = self._directory.step(updates - 1).read_commit()
            saved_weights = None if commit is None else commit.sampler_path
        opened: tinker.SamplingClient | None = None
        if saved_weights is not None:
            service = await self._session.service()
            try:
                opened = await clients.create_sampling_client(service, sampler_path=saved_weights)
            except ConfigError as error:
                # Restoring the policy instead would be refused for the same reason.
                if clients.is_about_the_account(error):
                    raise
                logger.warning("%s: the policy after %d updates is restored to sample from it", error, updates)
        if opened is None:
            async with self._client_lock:
                trained = await self._bring_policy_to(updates)
                with clients.tinker_errors("saving the sampler's weights"):
                    opened = await trained.client.save_weights_and_get_sampling_client()
                service = trained.opened_by
        self._samplers[updates] = service, opened
        # In use at once: max_steps_off_policy + 1 steps that are sampled, and an evaluation. Drop the oldest clients.
        while len(self._samplers) > self._settings.max_steps_off_policy + 2:
            del self._samplers[next(iter(self._samplers))]
        return opened

    @asynccontextmanager
    async def trainer(self, updates: int) -> AsyncIterator[tinker.TrainingClient]:
        """The policy in training after so many updates, for requests that change nothing; nobody else uses it in the
        block."""
        async with self._client_lock:
            yield (await self._bring_policy_to(updates)).client

    async def update(
        self, step: int, scored: pl.DataFrame, adam: tinker.AdamParams, save: clients.Kind | None
    ) -> tuple[UpdateResult, dict[str, str], dict[str, float]]:
        """Applies the recorded rollouts of `step` (`scored`, ROLLOUT_SCHEMA), and saves what the commit is to name.
        Returns what the update did, the paths of what was saved (`state_path`, `sampler_path`), and the seconds of both
        (`train`, `save`)."""
        async with self._client_lock:
            trained = await self._bring_policy_to(step)
            started = time.monotonic()
            result = await self._apply(trained, step, scored, adam, self.method)
            applied = time.monotonic()
            saved = {}
            # Before the commit that names it: a crash in between repeats the update, and this save is overwritten.
            if save is not None:
                # They expire on the service by themselves, for a run that is never gone on with deletes nothing.
                ttl = round(self._settings.rolling_save.hours * 3600)
                name = f"rolling-{step_name(step)}"
                saved = await clients.save_weights(trained.client, name, kind=save, ttl_seconds=ttl)
            return result, saved, {"train": applied - started, "save": time.monotonic() - applied}

    def saved_states(self, most_updates: int) -> list[SavedState]:
        """The recorded states that hold at most so many updates, the newest first; of rolling ones the newest few."""
        rows, commits = read_checkpoints(self._directory.path), self._directory.commits()
        states = [SavedState(int(row["step"]) + 1, row["state_path"], False) for row in rows if "state_path" in row]
        rolling = [SavedState(c.step + 1, c.state_path, True) for c in commits if c.state_path is not None]
        states += rolling[-self._settings.rolling_states :]
        states = [state for state in states if state.updates <= most_updates]
        # Of two with the same number of updates, first the one that cannot have expired.
        return sorted(states, key=lambda state: (state.updates, not state.expires), reverse=True)

    def outdated(self) -> list[str]:
        """The paths of rolling states and sampler weights that are not needed (all but the newest `rolling_states` of
        either kind), and not known to be deleted. Only what this journal's commits name, not what else its training
        runs have: a copy of the directory may go on with that."""
        keep, commits = self._settings.rolling_states, self._directory.commits()
        states = [commit.state_path for commit in commits if commit.state_path is not None]
        samplers = [commit.sampler_path for commit in commits if commit.sampler_path is not None]
        deleted = self._deleted or set()
        return [path for path in (*states[:-keep], *samplers[:-keep]) if path not in deleted]

    async def delete_outdated(self) -> None:
        """Delete what `outdated` names. After a failure the next step tries again, after a refusal none does. Both are
        only logged: all outdated states expire."""
        if not self._deletes or not (paths := self.outdated()):
            return
        try:
            async with asyncio.timeout(DELETE_TIMEOUT_S):
                rest_client = await self._session.rest()
            if self._deleted is None:  # an earlier start may have deleted nearly all of them
                stored: set[str] = set()
                for training_run in sorted({clients.training_run_of(path) for path in paths}):
                    async with asyncio.timeout(DELETE_TIMEOUT_S):
                        stored |= await clients.stored_checkpoints(rest_client, training_run)
                self._deleted = set(paths) - stored
            # Call `outdated` again: it now leaves out what an earlier start has deleted.
            for path in self.outdated():
                async with asyncio.timeout(DELETE_TIMEOUT_S):
                    await clients.delete_checkpoint(rest_client, path)
                self._deleted.add(path)
        except (InfraError, TimeoutError) as error:
            logger.warning("old states are not deleted yet: %s", error or "no answer")
        except ConfigError as error:  # a refusal
            self._deletes = False
            hours = self._settings.rolling_save.hours
            logger.warning("old states are not deleted, and stay until they expire (%g hours): %s", hours, error)

    def is_saved(self, step: int) -> bool:
        return any(row["step"] == step for row in read_checkpoints(self._directory.path))

    async def save(self, step: int) -> None:
        """Record a checkpoint (state and sampler weights) of the policy after `step`."""
        async with self._client_lock:
            trained = await self._bring_policy_to(step + 1)
            start = {"step": step, "dataset_offset": (step + 1) * self._settings.problems_per_step}
            await save_checkpoint_async(trained.client, step_name(step), self._directory.path, start)

    async def _bring_policy_to(self, updates: int) -> _Trained:
        """Returns the training client with the policy after exactly `updates` updates: recorded ones that it lacks are
        applied again. The caller holds `_client_lock`. Raises ConfigError or DataError if one cannot be."""
        trained = self._trained
        # A client that is ahead cannot go back. The clients of a released Tinker session stop working.
        if trained is None or trained.updates > updates or trained.opened_by is not self._session.current:
            trained = self._trained = await self._restore(updates)
        while trained.updates < updates:
            commit = self._directory.step(trained.updates).read_commit()
            if commit is None:
                raise ConfigError(f"{self._directory.path}: step {trained.updates} has no commit to replay")
            logger.info("replaying the update of step %d from its recorded rollouts", trained.updates)
            scored = self._directory.step(trained.updates).read("scored")
            if scored is None:
                require_in_place(self._directory.path)  # raises if it was moved: then nothing is damaged
                raise DataError(
                    f"{self._directory.path}: the scored rollouts of step {trained.updates} are missing or damaged: "
                    "start the run again to score its samples again; where they are lost too, remove the folders of "
                    f"the steps from {trained.updates:06d} on, to train these steps again, "
                    "and in evals/ those of the evaluations after these steps"
                )
            # Use the recorded parameters: a resume may have changed the settings since.
            adam, method = tinker.AdamParams(**commit.adam), UpdateMethod.recorded(commit.method)
            await self._apply(trained, trained.updates, scored, adam, method)
        return trained

    async def _apply(
        self, trained: _Trained, step: int, scored: pl.DataFrame, adam: tinker.AdamParams, method: UpdateMethod
    ) -> UpdateResult:
        # Dropped until the update succeeds: one that failed, or was cancelled, may have been applied all the same, or
        # some of its optimizer steps: a step is repeated whole, from a state that holds none of them.
        self._trained = None
        # Of the run and the step alone, so that a replay draws the same batches.
        seed = seed_for(self._settings.seed, "mini-batches", step)
        result = await update_policy(trained.client, scored, adam, method, seed)
        trained.updates = step + 1
        self._trained = trained
        return result

    async def _restore(self, updates: int) -> _Trained:
        """Loads the newest saved state with at most so many updates, or an older one if that is refused; if there is
        none, starts a new adapter (or that of `init_from`) and saves it. Raises ConfigError if the start is refused
        too, or the account is; an outage is raised at once."""
        service, settings = await self._session.service(), self._settings
        states = self.saved_states(updates)  # which the steps' commits name too
        start = settings.init_from or "the base model"
        if self._directory.next_step and not read_checkpoints(self._directory.path):
            logger.warning(
                "%s is missing or empty: the policy comes from %s, and the recorded updates since are replayed",
                self._directory.path / CHECKPOINTS_FILE,
                f"the state after step {states[0].updates - 1}" if states else start,
            )
        for state in states:
            try:
                return _Trained(await clients.restore_training_client(service, state.path), service, state.updates)
            except ConfigError as error:
                # A key that is refused is refused for every older state too.
                if clients.is_about_the_account(error):
                    raise
                # Without any state too, as where the directory was copied to another machine: the start and the
                # recorded rollouts decide all later weights.
                instead = f"the policy comes from {start}" if state is states[-1] else "an older state is restored"
                logger.warning("%s: %s, and the recorded updates since are replayed", error, instead)
        if settings.init_from is not None:
            client = await clients.restore_training_client(service, settings.init_from)
        else:
            adapter = {"lora_rank": settings.lora_rank, "seed": settings.seed}
            client = await clients.create_training_client(service, settings.model_name, **adapter)
        # Saved before any step, so that there is always a state that does not expire. With overlap the first steps are
        # sampled from these weights.
        kind: clients.Kind = "both" if settings.max_steps_off_policy else "state"
        loop_state: dict[str, Any] = {"step": -1, "dataset_offset": 0}
        await save_checkpoint_async(client, INITIAL, self._directory.path, loop_state, kind=kind)
        return _Trained(client, opened_by=service, updates=0)
