"""The stages of a curation that need no model: parse, sanity, trim, de-duplicate, decontaminate."""
