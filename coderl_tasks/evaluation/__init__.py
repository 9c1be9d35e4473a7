"""Pass@1 of a policy on the test splits, and paired comparisons of two policies.

Nothing is imported here: a report compares evaluations without the Tinker SDK, which takes seconds to import.
"""
