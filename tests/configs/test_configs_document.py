"""The page of all settings is made from the schema, and is the current one."""

from pathlib import Path

from gleaner.configs import check, document, schema

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_page_names_every_setting_with_its_meaning() -> None:
    page = document.page()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) == len(list(check.known_keys(schema.Config)))
    assert all(len(row.rstrip("| ").rsplit("| ", 1)[-1]) > 10 for row in rows)


def test_committed_page_matches_the_schema() -> None:
    hint = "run `python -m gleaner.configs.document > docs/configuration.md`"
    assert PAGE.read_text() == document.page(), hint
