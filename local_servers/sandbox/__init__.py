"""The embedded sandbox server: Sandbox Fusion's /run_code with kernel isolation."""
