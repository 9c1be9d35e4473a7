"""The rollout engine: requests -> completions, recorded as they arrive -> graded frames.

Training, profile and evaluation differ in what they request and when they stop, not in what happens to a group.
"""
