"""The score card of a grader: which attacks get a reward from it, and which honest programs it misjudges."""
