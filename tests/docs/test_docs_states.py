"""docs/states.md: its transitions are those of the code; diagrams match its tables."""

import pytest

from tests.docs import state_diagrams, state_walks
from tests.docs.state_walks import Transition

TABLES = state_diagrams.tables(state_diagrams.PAGE.read_text(encoding="utf-8"))


def listed(title: str) -> set[Transition]:
    """The transitions in the table of a section."""
    return {(old, new, event) for (old, new), events in TABLES[title].items() for event in events}


@pytest.mark.timeout(120)
def test_request_and_group_states_match_the_page() -> None:
    requests, groups = state_walks.request_and_group_transitions()
    assert requests == listed("Request")
    assert groups == listed("Group")


async def test_instance_states_match_the_page() -> None:
    assert await state_walks.instance_transitions() == listed("Instance")


def test_version_states_match_the_page() -> None:
    assert state_walks.version_transitions() == listed("Weight version")


@pytest.mark.parametrize("title", sorted(TABLES))
def test_diagram_is_drawn_from_its_table(title: str) -> None:
    drawn = state_diagrams.draw(title, TABLES[title])
    made = state_diagrams.file_of(title).read_text(encoding="utf-8")
    assert made == drawn, "run `python -m tests.docs.state_diagrams`"
    for (_, new), events in TABLES[title].items():
        assert new == "-" or all(f">{event}</text>" in drawn for event in events)
