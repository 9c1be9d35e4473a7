"""What the report of a curation says: funnel, pass rates, what sampling cost, the pool's make-up, suspects, drops."""

import shlex
from typing import Any

from markupsafe import Markup

from coderl_tasks.insight.funnel import examples, funnel, suspects
from coderl_tasks.insight.pool_plot import difficulty_plot, funnel_plot, pass_rate_plot, samples_plot
from coderl_tasks.insight.pool_tables import FEW_SAMPLES, few_at_half, make_up, reference_counts, spending
from coderl_tasks.insight.record import DIFFICULTIES, CurationRecord

STATEMENT_CHARS = 600
QUERIES = ("funnel", "drops", "pool", "pass_rates", "samples", "suspects")


def pool_page(curation: CurationRecord) -> dict[str, Any]:
    """The values of pool.html.j2."""
    pool, profile = curation.pool, curation.profile
    place = shlex.quote(str(curation.path))
    rows = funnel(curation)
    spent = spending(profile)
    suspected = suspects(curation)
    return {
        "title": curation.path.name,
        "path": str(curation.path),
        "kept": len(pool),
        "dropped": len(curation.dropped),
        "read": rows[0].left,
        "funnel": rows,
        "funnel_plot": Markup(funnel_plot(rows).inline_svg()),
        "statement_chars": STATEMENT_CHARS,
        "rates_plot": Markup(pass_rate_plot(profile, curation.band).inline_svg()) if len(profile) else None,
        "band": curation.band,
        "few_at_half": few_at_half(profile),
        "few_samples": FEW_SAMPLES,
        "samples_plot": Markup(samples_plot(profile).inline_svg()) if len(profile) else None,
        "spending": spent,
        "total": spent[-1] if spent else None,
        "pool_plot": Markup(difficulty_plot(pool).inline_svg()) if len(pool) else None,
        "make_up": make_up(pool),
        "difficulties": DIFFICULTIES,
        "references": reference_counts(curation.solutions),
        "suspects": len(suspected),
        "suspects_kept": int(suspected["in_pool"].sum()) if len(suspected) else 0,
        "suspect_examples": examples(suspected.sort("in_pool", descending=True, maintain_order=True))
        if len(suspected)
        else (),
        "manifest": flatten(curation.manifest),
        "queries": [f"coderl query {place} --name {name}" for name in QUERIES],
        "sql": f'coderl query {place} "SELECT split, avg(pass_rate) FROM profile GROUP BY split"',
    }


def flatten(values: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested settings as (a.b, value) pairs, in order."""
    pairs: list[tuple[str, Any]] = []
    for key, value in values.items():
        pairs += flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else [(f"{prefix}{key}", value)]
    return pairs
