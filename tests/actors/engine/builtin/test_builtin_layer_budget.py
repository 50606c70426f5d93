"""Which layers are streamed: the fewest that fit, spread over the model."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.actors.engine.builtin.layer_budget import (
    BUFFERS,
    DoesNotFit,
    layers_offloaded,
    streamed_first,
)


def needed(offloaded: int, layer_bytes: int, layers: int, activation_bytes: int) -> int:
    """Memory of a pass with so many layers in host memory."""
    buffers = BUFFERS if offloaded else 0
    return (layers - offloaded + buffers) * layer_bytes + activation_bytes


@given(
    reserve_bytes=st.integers(0, 400),
    layer_bytes=st.integers(1, 20),
    layers=st.integers(1, 16),
    activation_bytes=st.integers(0, 100),
)
def test_layers_offloaded_is_the_fewest_that_fits_by_brute_force(
    reserve_bytes: int, layer_bytes: int, layers: int, activation_bytes: int
) -> None:
    fitting = [
        count
        for count in range(layers + 1)
        if needed(count, layer_bytes, layers, activation_bytes) <= reserve_bytes
    ]
    if fitting:
        assert layers_offloaded(reserve_bytes, layer_bytes, layers, activation_bytes) == fitting[0]
        return
    with pytest.raises(DoesNotFit) as refused:
        layers_offloaded(reserve_bytes, layer_bytes, layers, activation_bytes)
    enough = refused.value.needed_bytes
    assert enough > reserve_bytes
    layers_offloaded(enough, layer_bytes, layers, activation_bytes)
    with pytest.raises(DoesNotFit):
        layers_offloaded(enough - 1, layer_bytes, layers, activation_bytes)


def test_longer_input_offloads_more_layers() -> None:
    counts = [layers_offloaded(1000, 50, 16, activations) for activations in range(0, 901, 50)]
    assert counts[0] == 0
    assert counts == sorted(counts)
    assert counts[-1] == 16
    with pytest.raises(DoesNotFit, match="1001 bytes"):
        layers_offloaded(1000, 50, 16, 901)


@pytest.mark.parametrize("layers", [1, 2, 5, 16, 28, 64])
def test_streamed_layers_are_spread_over_the_model(layers: int) -> None:
    order = streamed_first(layers)
    assert sorted(order) == list(range(layers))
    for count in range(2, layers + 1):
        streamed = sorted(order[:count])
        ends = [*streamed, streamed[0] + layers]
        widest = max(after - before for before, after in pairwise(ends))
        assert widest <= 4 * -(-layers // count), "no long run of resident or of streamed layers alone"


def test_impossible_sizes_are_refused() -> None:
    for arguments in [(100, 0, 4, 0), (100, 1, 0, 0), (100, 1, 4, -1)]:
        with pytest.raises(ValueError, match="expected at least 1"):
            layers_offloaded(*arguments)
