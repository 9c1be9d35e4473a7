"""From problems to a pool: profile the base model's pass rate, keep what it solves sometimes."""

from coderl_tasks.curation.difficulty import Band, difficulty
from coderl_tasks.curation.find_pool import FoundPool, find_pool
from coderl_tasks.curation.mix import Mix
from coderl_tasks.curation.pool import EmptyPoolError, Pool, build_pool, require_problems, write_pool
from coderl_tasks.curation.profile import Prices, drop_long_prompts, profile_frame, profile_shard
from coderl_tasks.curation.stopping_rule import StoppingRule

__all__ = [
    "Band",
    "EmptyPoolError",
    "FoundPool",
    "Mix",
    "Pool",
    "Prices",
    "StoppingRule",
    "build_pool",
    "difficulty",
    "drop_long_prompts",
    "find_pool",
    "profile_frame",
    "profile_shard",
    "require_problems",
    "write_pool",
]
