"""docs/protocol.md: generated from the structs and handlers, and complete."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gleaner.rlctl import conversations, protocol_document, vocabulary

MAKE = "run `python -m gleaner.rlctl.protocol_document`"
TEXT = protocol_document.PAGE.read_text()


@pytest.fixture(autouse=True, scope="module")
def _each_source_is_parsed_once() -> Iterator[None]:
    """The sources do not change between the tests, and parsing all of them takes seconds."""
    plain, known = conversations._made, dict[str, set[str]]()

    def made(module: str, path: Path, kinds: Mapping[str, type]) -> set[str]:
        if module not in known:
            known[module] = plain(module, path, kinds)
        return known[module]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(conversations, "_made", made)
        yield


def test_page_is_generated_from_the_structs() -> None:
    assert protocol_document.updated(TEXT) == TEXT, f"docs/protocol.md is behind the code: {MAKE}"


def test_page_has_every_kind_with_every_field() -> None:
    blocks = {
        block.split("**")[1]: block
        for block in re.findall(r"^\*\*\w+\*\*.*?(?=^\*\*|^#|\Z)", TEXT, re.M | re.S)
    }
    sent = conversations.conversations()
    private = {kind for own in sent.private.values() for kind in own}
    assert len(private) < 10
    for name, cls in vocabulary.kinds().items():
        if name not in private:
            assert set(re.findall(r"^\| `(\w+)` \|", blocks[name], re.M)) == set(cls.__struct_fields__), name


def test_page_has_every_actor_with_its_messages() -> None:
    overview = {
        line.split("`")[1]: set(re.findall(r"\w+", line.split("|")[2]))
        for line in TEXT[TEXT.index("made: overview") :].splitlines()
        if line.startswith("| `")
    }
    assert len(vocabulary.actors()) >= 12
    for actor in vocabulary.actors():
        own = {kind.__name__ for kind in actor.handlers() if kind.__module__ != actor.__module__}
        assert own <= overview[conversations.NAMES[actor.__name__]]


def test_senders_and_replies_are_read_from_the_code() -> None:
    lines = {
        (line.to, line.kind.__name__): line
        for own in conversations.conversations().lines.values()
        for line in own
    }
    register = lines["rollout/manager", "RegisterInstance"]
    assert (register.senders, register.answer) == (("<node>/engine",), "Registered")
    assert lines["<node>/transfer", "Offer"].senders == ("<node>/transfer",)  # of another node
    assert lines["rollout/manager", "Withdraw"].answer == "Withdrawn"  # at once or later
    assert lines["<node>/engine", "CloseSeeding"].answer == "Done"
    unsent = [key for key, line in lines.items() if not line.senders]
    assert not unsent, f"no component sends {unsent}: are they still needed?"


def test_undocumented_fact_is_requested_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(conversations.LATER, "TakeGroups")
    with pytest.raises(conversations.MissingFact, match="TakeGroups is answered later: add its answer"):
        conversations.conversations()
    monkeypatch.delitem(conversations.NAMES, "Trainer")
    with pytest.raises(
        conversations.MissingFact, match=r"NAMES of rlctl/conversations.py: add \['Trainer'\]"
    ):
        conversations.conversations()


def test_page_without_a_slot_is_refused() -> None:
    with pytest.raises(protocol_document.NoSlot, match="written"):
        protocol_document.updated(TEXT.replace("<!-- made: written -->", ""))
