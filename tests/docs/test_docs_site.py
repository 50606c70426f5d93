"""The docs site: navigation, links and API pages are complete.

The hook of the site keeps links working.
"""

import re
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import gleaner

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NAMED = re.compile(r"^::: (\S+)$", re.MULTILINE)


@pytest.fixture
def hook() -> ModuleType:
    spec = spec_from_file_location("repository_links", DOCS / "repository_links.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pages(nav: object) -> set[str]:
    """Every page that the navigation names."""
    if isinstance(nav, str):
        return {nav}
    inner = nav.values() if isinstance(nav, dict) else nav
    assert isinstance(inner, list) or isinstance(nav, dict)
    return set().union(*map(pages, inner))  # type: ignore[arg-type]


def test_navigation_names_every_page() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert pages(nav) == {path.name for path in DOCS.glob("*.md")}
    assert [next(iter(part)) for part in nav] == ["Start", "Guides", "Reference", "Explanations"]


def test_api_pages_name_objects_that_exist() -> None:
    for page in ("api_client.md", "api_actors.md"):
        for path in NAMED.findall((DOCS / page).read_text()):
            module, _, name = path.rpartition(".")
            assert getattr(import_module(module), name).__doc__, path


def test_api_page_has_everything_gleaner_exports() -> None:
    text = (DOCS / "api_client.md").read_text()
    for name in gleaner.__all__:
        own = getattr(gleaner, name)
        assert f"## gleaner.{name}\n" in text
        assert f"::: {own.__module__}.{own.__qualname__}\n" in text


def test_link_out_of_docs_becomes_text_without_a_repository(hook: ModuleType) -> None:
    markdown = (
        "See the [README](../README.md#x), [`nodeagent/node.py`](../nodeagent/node.py), [a](actors.md)."
    )
    plain = hook.rewritten(markdown, "index.md", ROOT, str(DOCS), "")
    assert plain == "See the README (`README.md`), `nodeagent/node.py`, [a](actors.md)."
    linked = hook.rewritten(markdown, "index.md", ROOT, str(DOCS), "https://example.org/g/")
    assert "[README](https://example.org/g/blob/main/README.md#x)" in linked


def test_link_to_a_missing_file_fails_the_build(hook: ModuleType) -> None:
    with pytest.raises(hook.BrokenLink, match=r"index.md: the link to ../GONE.md leads to no file"):
        hook.rewritten("[x](../GONE.md)", "index.md", ROOT, str(DOCS), "")


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("Where do I change ...", "where-do-i-change-"),
        ("Control links (`links`)", "control-links-links"),
        ("The same bits, whatever dies", "the-same-bits-whatever-dies"),
    ],
)
def test_heading_anchor_matches_github(hook: ModuleType, heading: str, anchor: str) -> None:
    assert hook.anchor(heading, "-") == anchor
