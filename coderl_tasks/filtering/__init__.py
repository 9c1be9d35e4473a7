"""The stages of a curation that need no model: parse, sanity, trim, de-duplicate, decontaminate.

They stream: what is kept lies in parquet parts, and only signatures of the problems stay in memory.
"""
