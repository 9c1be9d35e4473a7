"""The rollout engine, for training, profile and evaluation: requests -> completions -> graded frames."""
