"""From problems to a pool: profile the base model's pass rate, keep what it solves sometimes."""

from coderl_tasks.curation.difficulty import difficulty
from coderl_tasks.curation.find_pool import FoundPool, find_pool
from coderl_tasks.curation.pool import EmptyPoolError, Pool, build_pool, require_problems, write_pool
from coderl_tasks.curation.profile import drop_long_prompts, profile_frame, profile_shard

__all__ = [
    "EmptyPoolError",
    "FoundPool",
    "Pool",
    "build_pool",
    "difficulty",
    "drop_long_prompts",
    "find_pool",
    "profile_frame",
    "profile_shard",
    "require_problems",
    "write_pool",
]
