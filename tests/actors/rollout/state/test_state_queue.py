"""Queue order: waiting requests are served in one order, whatever made them wait."""

from hypothesis import given
from hypothesis import strategies as st

from gleaner.actors.rollout.state.queue import RequestQueue

requests = st.lists(
    st.tuples(st.sampled_from(["step-1", "step-2"]), st.integers(0, 5), st.integers(0, 3), st.integers(0, 9)),
    max_size=40,
)


@given(requests, st.data())
def test_longest_prefix_precedes_the_batch_order(
    drawn: list[tuple[str, int, int, int]], data: st.DataObject
) -> None:
    waiting, model = RequestQueue(), dict[str, tuple[str, tuple[int, bool, int, int]]]()
    for batch, group, sample, tokens in drawn:
        name = f"{batch}/{group}/{sample}"
        waiting.add(name, batch, group, sample, tokens, int(tokens > 0))
        model.setdefault(name, (batch, (-tokens, tokens == 0, group, sample)))
    for name in data.draw(st.lists(st.sampled_from(sorted(model)), unique=True)) if model else []:
        waiting.remove(name)
        del model[name]
    waiting.remove("nobody")
    assert len(waiting) == len(model)
    assert waiting.names() == set(model)
    assert sorted(waiting.batches()) == sorted({batch for batch, _ in model.values()})
    for batch in ("step-1", "step-2"):
        order = sorted((key, name) for name, (of, key) in model.items() if of == batch)
        count = data.draw(st.integers(0, 10))
        assert waiting.count(batch) == len(order)
        assert waiting.first(batch, count) == [name for _, name in order][:count]
