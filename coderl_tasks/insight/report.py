"""A run or a curation as one HTML page: no script, no outside resource, light and dark.

Model output is untrusted: the templates escape everything, and the page's content security policy forbids scripts and
loads.
"""

import re
import shlex
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers.python import PythonLexer

from coderl_tasks.errors import ConfigError
from coderl_tasks.insight import pool_view
from coderl_tasks.insight.figure import Plot
from coderl_tasks.insight.named_queries import PROFILED
from coderl_tasks.insight.plots import difficulty_plot, funnel_plot, pass_rate_plot, samples_plot
from coderl_tasks.insight.record import CurationRecord, is_curation, is_run, load_curation, load_run
from coderl_tasks.insight.run_page import comparison_page, run_page
from coderl_tasks.insight.tables import Table, html_table
from coderl_tasks.journal.atomic import output_file, write_bytes

REPORT = "report.html"
HALF = "backslashreplace"  # JSON of others may have half a surrogate in a text
_PYTHON = re.compile(r"^```(?:python|py)[^\n]*\n(?P<code>.*?)(?=^```|\Z)", re.DOTALL | re.MULTILINE | re.IGNORECASE)
"""A Python block, also one that is not closed, as of a truncated completion."""
# Lines as they are, blank ones at either end too: this is the model's text, not a listing.
_LEXER, _FORMATTER = PythonLexer(stripnl=False, ensurenl=False), HtmlFormatter(nowrap=True)
POOL_QUERIES = ("funnel", "drops", "pool", "pass_rates", "samples", "suspects")


def write_report(path: Path, target: Path | None = None) -> Path:
    """Write the report of the run or curation directory `path` to `target` (None: report.html there); its path."""
    page = render_report(path)
    if target is not None:
        return _written(target, page)
    target = path / REPORT
    write_bytes(target, page.encode(errors=HALF))  # a link there, in a directory of others, is replaced, not followed
    return target


def write_comparison(first: Path, second: Path, target: Path | None = None) -> Path:
    """Write two runs beside each other to `target` (None: a file named after them here). ConfigError for no run."""
    for path in (first, second):
        if not is_run(path):
            raise ConfigError(f"{path} is not a run directory: two runs can be shown beside each other")
    target = target or Path(f"report-{first.resolve().name}-{second.resolve().name}.html")
    return _written(target, _render("compare.html.j2", comparison_page(load_run(first), load_run(second))))


def _written(target: Path, page: str) -> Path:
    with output_file(target) as file:
        file.write(page.encode(errors=HALF))
    return target


def render_report(path: Path) -> str:
    """The HTML page of the run or curation directory `path`; ConfigError if it is neither."""
    if path.is_dir() and is_curation(path):
        return _render("pool.html.j2", pool_page(load_curation(path)))
    if path.is_dir() and is_run(path):
        return _render("run.html.j2", run_page(load_run(path)))
    raise ConfigError(f"{path} is neither a run directory nor a curation directory")


def pool_page(curation: CurationRecord) -> dict[str, Any]:
    """The variables of the template that lays out a curation's page."""
    pool, profile = curation.pool, curation.profile
    place, rows = shlex.quote(str(curation.path)), pool_view.funnel(curation)
    spent, parts = pool_view.spending(profile), pool_view.make_up(pool)
    queries = (name for name in POOL_QUERIES if len(profile) or name not in PROFILED)
    suspected = pool_view.suspects(curation)
    if len(suspected):
        suspected = suspected.sort("in_pool", descending=True, maintain_order=True)
    return {
        "title": curation.path.name,
        "curation": curation,
        "funnel": rows,
        "drops": pool_view.drops_table(rows),
        "funnel_plot": funnel_plot(rows),
        "rates_plot": pass_rate_plot(profile, curation.band) if len(profile) else None,
        "rates_note": pool_view.NOTE_ON_RATES,
        "labels_note": pool_view.NOTE_ON_LABELS,
        "samples_plot": samples_plot(profile) if len(profile) else None,
        "spending": pool_view.spending_table(spent),
        "total": spent[-1] if spent else None,
        "pool_plot": difficulty_plot(pool) if pool_view.is_profiled(pool) else None,
        "make_up": pool_view.make_up_table(parts) if parts else None,
        "some_few": bool(parts and sum(parts[-1].few)),
        "references": pool_view.references_table(curation.solutions) if len(curation.solutions) else None,
        "suspects": len(suspected),
        "suspects_kept": int(suspected["in_pool"].sum()) if len(suspected) else 0,
        "suspect_examples": pool_view.examples(suspected) if len(suspected) else (),
        "manifest": flatten(curation.manifest),
        "queries": [f"coderl query {place} --name {name}" for name in queries],
        "sql": f'coderl query {place} "SELECT split, count(*) FROM pool GROUP BY split"',
    }


def flatten(values: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in values.items():
        pairs += flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else [(f"{prefix}{key}", value)]
    return pairs


def _render(template: str, page: dict[str, Any]) -> str:
    environment = Environment(
        loader=PackageLoader("coderl_tasks.insight"),
        autoescape=True,
        finalize=_drawn,
        undefined=StrictUndefined,  # a value that a template misspells is an error, not an empty place
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "highlighted": highlighted}
    environment.filters |= {"points": lambda share: f"{share * 100:+.1f}", "count": lambda number: f"{number:,}"}
    return environment.get_template(template).render(page)


def _drawn(value: Any) -> Any:
    """A table or a plot of a page as HTML."""
    if isinstance(value, Table):
        return html_table(value)
    return Markup(value.inline_svg()) if isinstance(value, Plot) else value


def highlighted(text: str) -> Markup:
    """A completion as HTML: its Python blocks coloured, all of it escaped."""
    parts, end = [Markup()], 0
    for block in _PYTHON.finditer(text):
        start, end_of_code = block.span("code")
        code = highlight(block["code"], _LEXER, _FORMATTER)
        # The formatter ends each line, also one that the model did not.
        parts += [escape(text[end:start]), Markup(code if block["code"].endswith("\n") else code.removesuffix("\n"))]
        end = end_of_code
    return Markup().join([*parts, escape(text[end:])])


def percent(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value * 100:.{digits}f}%"
