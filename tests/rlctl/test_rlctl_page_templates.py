"""The templates of pages: they escape what they are given, and refuse to go without it."""

from pathlib import Path

import pytest
from jinja2 import UndefinedError

from gleaner.rlctl import page_templates
from gleaner.rlctl.page_templates import render, style_sheet

PAGES = {"run", "what_if", "chaos"}
VALUES = {
    "title": "<a & \"b\" 'c'>",
    "lead": "<lead>",
    "notes": ["<note>", "{{ 7 * 7 }}"],
    "unfinished": ["<unfinished>"],
    "tiles": [("<name>", "<value>", "<beside>")],
    "progress_plot": "<svg></svg>",
    "step_plot": None,
    "names": ["", "<run>"],
    "rows": [("<row>", "<cell>"), ("count", 1234567)],
    "caption": "<caption>",
    "fleets": [("<fleet>", "<svg></svg>")],
    "settings": "[job]  \n<b>",
}


def test_every_value_is_escaped_but_pictures_are_not() -> None:
    page = render("what_if", **VALUES)
    for word in ("lead", "note", "unfinished", "name", "value", "beside", "run", "row", "cell", "caption"):
        assert f"<{word}>" not in page
        assert f"&lt;{word}&gt;" in page
    assert "<title>&lt;a &amp; &#34;b&#34; &#39;c&#39;&gt; · what-if · Gleaner</title>" in page
    assert "{{ 7 * 7 }}" in page
    assert "<pre>[job]  \n&lt;b&gt;</pre>" in page
    assert page.count("<svg></svg>") == 2
    assert '<td class="number">1,234,567</td>' in page
    assert style_sheet() in page


@pytest.mark.parametrize("page", sorted(PAGES))
def test_a_page_is_refused_where_a_value_of_it_is_missing(page: str) -> None:
    with pytest.raises(UndefinedError, match="is undefined"):
        render(page)


def test_every_template_is_a_page_or_a_part_of_one() -> None:
    files = {file.name for file in (Path(page_templates.__file__).parent / "templates").iterdir()}
    parts = {"base.html.jinja", "cost.html.jinja", "elements.html.jinja", "style.css"}
    assert files == {f"{page}.html.jinja" for page in PAGES} | parts
