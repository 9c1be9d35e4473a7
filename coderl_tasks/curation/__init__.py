"""From problems to a pool: profile the base model's pass rate, keep what it solves sometimes."""
