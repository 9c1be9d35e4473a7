"""The policy in training: a client brought to the state before any step, from checkpoints and the journal.

1. A client that failed in an update is not trusted again: it is dropped, and the next use restores.
2. Restoring loads the last checkpoint and replays the recorded updates since: nothing is sampled again, and in the
   lineage that survives each optimizer step is applied once.
3. Sampler weights are saved once a step, under a name of their own.
"""

import logging
from typing import Any

import tinker

from coderl_tasks.errors import ConfigError, DataError
from coderl_tasks.journal.checkpoints import read_checkpoints, save_checkpoint_async
from coderl_tasks.journal.run_directory import RunDirectory
from coderl_tasks.journal.steps import step_name
from coderl_tasks.policy.clients import create_training_client, restore_training_client
from coderl_tasks.policy.sdk_errors import tinker_errors
from coderl_tasks.policy.update import UpdateResult, adam_params, update_policy_async
from coderl_tasks.settings import TrainSettings
from coderl_tasks.training.session import Session

logger = logging.getLogger(__name__)
INITIAL = "initial"


class Learner:
    """The training client of one run; `applied` counts the steps whose update its weights hold."""

    def __init__(self, session: Session, directory: RunDirectory, settings: TrainSettings) -> None:
        self._session = session
        self._directory = directory
        self._settings = settings
        self._client: tinker.TrainingClient | None = None
        self._sampler: tuple[int, tinker.SamplingClient] | None = None
        self.applied = 0

    async def sampling_client(self, step: int) -> tinker.SamplingClient:
        """A client that samples from the policy after `step` updates."""
        if self._sampler is None or self._sampler[0] != step:
            client = await self._client_before(step)
            with tinker_errors("saving the sampler's weights"):
                self._sampler = (step, await client.save_weights_and_get_sampling_client())
        return self._sampler[1]

    async def update(self, step: int) -> UpdateResult:
        """Apply the recorded rollouts of `step` to the policy before it."""
        client = await self._client_before(step)
        return await self._apply(client, step, self.adam_params())

    def steps_to_replay(self) -> range:
        """The committed steps whose updates are applied again when the run goes on: those since the last checkpoint."""
        newest = max((int(row["step"]) for row in self._states(self._directory.next_step)), default=-1)
        return range(newest + 1, self._directory.next_step)

    def is_saved(self, step: int) -> bool:
        """Whether a checkpoint of the policy after `step` is recorded."""
        return any(row["step"] == step for row in read_checkpoints(self._directory.path))

    async def save(self, step: int) -> None:
        """Record a checkpoint (state and sampler weights) of the policy after `step`."""
        client = await self._client_before(step + 1)
        await save_checkpoint_async(
            client, step_name(step), self._directory.path, {"step": step, "dataset_offset": self._offset(step)}
        )

    def adam_params(self) -> tinker.AdamParams:
        """The optimizer's parameters as the settings give them."""
        settings = self._settings
        return adam_params(
            settings.learning_rate, beta1=settings.adam_beta1, beta2=settings.adam_beta2, eps=settings.adam_eps
        )

    def drop(self) -> None:
        """Forget the clients: the next use makes new ones and restores from the last durable state."""
        self._client, self._sampler = None, None

    async def _client_before(self, step: int) -> tinker.TrainingClient:
        """The training client whose weights hold exactly the updates of the steps before `step`."""
        if self._client is None or self.applied > step:
            self._client, self.applied = await self._restore(step)
        client = self._client
        while self.applied < step:
            commit = self._directory.step(self.applied).read_commit()
            if commit is None:
                raise ConfigError(f"{self._directory.path}: step {self.applied} has no commit to replay")
            logger.info("replaying the update of step %d from its recorded rollouts", self.applied)
            await self._apply(client, self.applied, tinker.AdamParams(**commit.adam))
        return client

    async def _apply(self, client: tinker.TrainingClient, step: int, adam: tinker.AdamParams) -> UpdateResult:
        scored = self._directory.step(step).read_scored()
        if scored is None:
            raise DataError(
                f"{self._directory.path}: the scored rollouts of step {step} are missing or damaged: "
                "start the run again to score its samples again"
            )
        self._client = None  # not trusted again unless the update succeeds
        result = await update_policy_async(client, scored, adam)
        self._client, self.applied = client, step + 1
        return result

    async def _restore(self, step: int) -> tuple[tinker.TrainingClient, int]:
        """A client at the newest checkpoint before `step` (a new adapter without one), and the updates it holds."""
        service = await self._session.service()
        rows = self._states(step)
        if rows:
            newest = max(rows, key=lambda row: int(row["step"]))
            return await restore_training_client(service, newest["state_path"]), int(newest["step"]) + 1
        settings = self._settings
        if settings.init_from is not None:
            client = await restore_training_client(service, settings.init_from)
        else:
            client = await create_training_client(
                service, settings.model_name, lora_rank=settings.lora_rank, seed=settings.seed
            )
        await save_checkpoint_async(
            client, INITIAL, self._directory.path, {"step": -1, "dataset_offset": 0}, kind="state"
        )
        return client, 0

    def _states(self, step: int) -> list[dict[str, Any]]:
        """The checkpoints before `step` that training can go on from."""
        return [row for row in read_checkpoints(self._directory.path) if "state_path" in row and row["step"] < step]

    def _offset(self, step: int) -> int:
        return (step + 1) * self._settings.group_size
