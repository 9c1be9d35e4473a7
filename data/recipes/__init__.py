"""How the bundled problems (data/mini, data/skewed, data/words) and the nano base model (data/nano) are made."""
