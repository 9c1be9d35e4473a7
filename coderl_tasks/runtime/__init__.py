"""What the flows need of Prefect and of the terminal: display, names, suspension, publishing, shards elsewhere."""
