"""How Sphinx builds the site: `make docs`. What it makes of the code is in `generated.py`."""

import re

from pygments.lexers.sql import PostgresLexer
from sphinx.application import Sphinx

from docs.generated import PAGES

project = "Millrace"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "Millrace"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False

# links to headings, as a forge makes them
myst_heading_anchors = 3
# single backticks of docstrings are code
default_role = "code"
napoleon_use_ivar = True
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
add_module_names = False
# names of other packages, whose pages are elsewhere: a build asks no network
nitpick_ignore_regex = [
    ("py:.*", r"(psycopg|psycopg_pool|pyspark|dagster|pydantic|collections|datetime|pathlib|threading|uuid)\..*"),
    # an annotation in quotes has no package
    ("py:class", r"(Async)?ConnectionPool|AESSIV|BaseModel|DataFrame|SparkColumn|SparkSession|StructType"),
    # what only our own code passes
    ("py:class", r"millrace\.personal\.folder\.Holder|millrace\.event_store\.new_events\.LaterEvent"),
    # type variables
    ("py:class", r"millrace\.commands\.decider\.(Command|State)|millrace\.event_s\w+\.\w+\.Model"),
]
OUTSIDE = re.compile(r"\]\((\.\./[A-Z]+\.md)(#[\w-]+)?\)")


def setup(app: Sphinx) -> None:
    """Connect what a page says with what the code says."""
    app.add_lexer("sql", PostgresLexer)
    app.connect("source-read", complete)
    # before napoleon
    app.connect("autodoc-process-docstring", keep_sentence, priority=400)


def complete(_app: Sphinx, page: str, source: list[str]) -> None:
    """Let a reference page say what the code says, and links to Markdown outside of docs/ lead to the files."""
    text = OUTSIDE.sub(r"](path:\1)", source[0])
    source[0] = PAGES[page](text) if page in PAGES else text


def keep_sentence(_app: Sphinx, what: str, _name: str, _object: object, _options: object, lines: list[str]) -> None:
    """Keep the first words of an attribute's sentence: napoleon takes those before a colon for its type."""
    if what in {"attribute", "property"}:
        lines.insert(0, "\\")
