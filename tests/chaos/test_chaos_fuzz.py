"""Fuzzing of decoders: no bytes cause undeclared errors or large allocations.

No decoder accepts a field that its input does not have.
"""

import resource
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gleaner.chaos.fuzz import corpus
from gleaner.chaos.fuzz.mutations import MAX_BYTES, mutations
from gleaner.chaos.fuzz.target import Target, WrongAccept, same
from gleaner.transport.refusal import FrameError, Truncated

CORPUS = Path(__file__).parents[1] / "corpus"
MUTATIONS = 5000
SLOW = {
    "config": 600,
    "history": 1000,
    "seal": 1500,
    "job": 1500,
    "keys": 1000,
    "journal": 500,
    "tool_calls": 500,
}
"""Mutations per target. Targets that use files or grammars get fewer: each takes the same share of the time.
"""
GROWTH_KB = 96 << 10
"""The memory that a target may add to this process; a trusted announced length would take gigabytes."""


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Target]:
    return {target.name: target for target in corpus.targets(tmp_path_factory.mktemp("fuzz"))}


NAMES = [
    *(
        "envelope",
        "control_frame",
        "body",
        "token_frame",
        "stream_hello",
        "stream_answer",
        "bulk_request",
        "bulk_answer",
    ),
    *("manifest", "pipe", "keys", "journal", "trace", "config", "history", "seal", "job", "control_page"),
    *("delta_payload", "delta_table", "experts"),
    *("disk_delta", "disk_index", "disk_header", "tool_calls"),
]


def test_every_fuzz_target_is_tried(targets: dict[str, Target]) -> None:
    assert sorted(targets) == sorted(NAMES)
    assert {folder.name for folder in CORPUS.iterdir()} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_decoder_accepts_valid_input_and_names_near_misses(name: str, targets: dict[str, Target]) -> None:
    target = targets[name]
    seeds = target.seeds()
    assert all(target.accepts(seed) for seed in seeds)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    count = SLOW.get(name, MUTATIONS)
    taken = sum(target.accepts(data) for data in mutations(seeds, count, seed=1))
    assert taken > 0  # some mutations are accepted
    assert taken < count or not target.refusals  # and some are refused, if the target refuses anything
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GROWTH_KB


@pytest.mark.parametrize("name", NAMES)
def test_corpus_inputs_do_no_harm(name: str, targets: dict[str, Target]) -> None:
    for data in corpus.inputs(CORPUS, name):
        targets[name].accepts(data)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300))
def test_random_bytes_do_no_harm(name: str, data: bytes, targets: dict[str, Target]) -> None:
    targets[name].accepts(data)


def test_decoder_that_breaks_its_contract_is_found() -> None:
    def forgets(data: bytes) -> None:
        if len(data) < 4:
            raise Truncated("short")
        same(data, data.replace(b"\xff", b"\xfe"))

    def index(data: bytes) -> None:
        if len(data) > 4:
            raise Truncated("long")
        data[3]

    seeds = [bytes(4)]
    for take, found in ((forgets, WrongAccept), (index, IndexError)):
        target = Target("broken", take, (FrameError,), lambda: seeds)
        with pytest.raises(found):
            for data in mutations(seeds, MUTATIONS, seed=1):
                target.accepts(data)


def test_mutations_are_deterministic_and_bounded() -> None:
    first = list(mutations([b"abc", bytes(300)], 2000, seed=7))
    assert first == list(mutations([b"abc", bytes(300)], 2000, seed=7))
    assert len(set(first)) > 1000
    assert max(map(len, first)) <= MAX_BYTES


def test_corpus_keeps_every_find_and_bounded_rest(tmp_path: Path) -> None:
    kept = [corpus.keep(tmp_path, "envelope", bytes([n]), find=False) for n in range(corpus.MAX_KEPT + 5)]
    assert kept.count(None) == 5
    assert corpus.keep(tmp_path, "envelope", bytes(corpus.MAX_INPUT_BYTES + 1), find=False) is None
    find = bytes(corpus.MAX_INPUT_BYTES + 1)
    assert corpus.keep(tmp_path, "envelope", find, find=True) is not None
    assert find in corpus.inputs(tmp_path, "envelope")
