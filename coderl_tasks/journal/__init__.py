"""The run directory: the record of every step, from which a crashed run goes on."""
