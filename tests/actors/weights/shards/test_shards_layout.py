"""Shard layouts: the parts of any trainer form the image of the checkpoint.

An engine finds its tensors in the chunks that it needs, bit for bit."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gleaner.actors.model.byte_ranges import Run, check_tiling, chunks_needed, cut
from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.training.shares import rows_of
from gleaner.actors.weights.image.manifest import Manifest, hashed
from gleaner.actors.weights.shards.layout import (
    LayoutError,
    Part,
    RankLayers,
    engine_parts,
    even,
    fsdp_parts,
    runs_of,
)
from gleaner.actors.weights.shards.megatron_layout import Heads, TensorRank, megatron_parts

Words = NDArray[np.uint16]  # bfloat16, as bits
LAYERS, EXPERTS, HIDDEN, FFN, VOCABULARY = 2, 8, 6, 16, 37
HEADS = Heads(queries=16, groups=8, elements=2)
ALIGNMENT = 64


@dataclass(frozen=True)
class Model:
    """A mixture of experts with biases, under Hugging Face names, and its image."""

    weights: dict[str, Words]
    tensors: list[TensorSpec]
    image: bytearray


def names(tied: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    rows = {"q": 32, "k": 16, "v": 16}
    yield "model.embed_tokens.weight", (VOCABULARY, HIDDEN)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        yield f"{at}.input_layernorm.weight", (HIDDEN,)
        for which, count in rows.items():
            yield f"{at}.self_attn.{which}_proj.weight", (count, HIDDEN)
            yield f"{at}.self_attn.{which}_proj.bias", (count,)
        yield f"{at}.self_attn.o_proj.weight", (HIDDEN, 32)
        yield f"{at}.self_attn.q_norm.weight", (2,)
        if layer == 0:  # a dense layer first, as in DeepSeek
            yield f"{at}.mlp.gate_proj.weight", (FFN, HIDDEN)
            yield f"{at}.mlp.up_proj.weight", (FFN, HIDDEN)
            yield f"{at}.mlp.down_proj.weight", (HIDDEN, FFN)
            continue
        yield f"{at}.mlp.gate.weight", (EXPERTS, HIDDEN)
        for expert in range(EXPERTS):
            yield f"{at}.mlp.experts.{expert}.gate_proj.weight", (FFN, HIDDEN)
            yield f"{at}.mlp.experts.{expert}.up_proj.weight", (FFN, HIDDEN)
            yield f"{at}.mlp.experts.{expert}.down_proj.weight", (HIDDEN, FFN)
    yield "model.norm.weight", (HIDDEN,)
    if not tied:
        yield "lm_head.weight", (VOCABULARY, HIDDEN)


def a_model(seed: int = 0, tied: bool = False, before: int = 0) -> Model:
    rng = np.random.default_rng(seed)
    weights, tensors, end = {}, [], before
    for name, shape in names(tied):
        weights[name] = rng.integers(0, 1 << 16, shape, dtype=np.uint16)
        tensors.append(TensorSpec(name, "bfloat16", shape, end, weights[name].nbytes))
        end = -(-(end + weights[name].nbytes) // ALIGNMENT) * ALIGNMENT
    image = bytearray(end)
    for spec in tensors:
        image[spec.offset : spec.offset + spec.nbytes] = weights[spec.name].tobytes()
    return Model(weights, tensors, image)


def held(pp: int, stage: int, ep: int, expert: int) -> RankLayers:
    return RankLayers(even(LAYERS, stage, pp), even(EXPERTS, expert, ep), stage == 0, stage == pp - 1)


def megatron_tensors(model: Model, tp: int, index: int) -> dict[str, Words]:
    """The tensors of tensor-parallel rank `index`, by the recipe of Megatron's checkpoint converters.

    They are reshaped by groups, fused and split. The code ignores rows of the image, so that it can be the
    reference."""
    found: dict[str, Words] = {}
    per_group, elements = HEADS.queries // HEADS.groups, HEADS.elements
    for name, value in model.weights.items():
        prefix, _, last = name.rpartition("self_attn.")
        if last.startswith("q_proj"):
            kind = last.rpartition(".")[2]
            q, k, v = (model.weights[f"{prefix}self_attn.{which}_proj.{kind}"] for which in "qkv")
            groups = [
                np.concatenate(
                    [
                        q.reshape(HEADS.groups, per_group * elements, -1)[group],
                        k.reshape(HEADS.groups, elements, -1)[group],
                        v.reshape(HEADS.groups, elements, -1)[group],
                    ]
                )
                for group in range(HEADS.groups)
            ]
            fused = np.split(np.concatenate(groups), tp)[index]
            found[f"{prefix}self_attention.linear_qkv.{kind}"] = fused
        elif "o_proj.weight" in name or "down_proj.weight" in name:
            found[name] = np.split(value, tp, axis=1)[index]
        elif "gate_proj" in name:
            up = model.weights[name.replace("gate_proj", "up_proj")]
            both = np.concatenate([np.split(value, tp)[index], np.split(up, tp)[index]])
            found[name.replace("gate_proj", "linear_fc1")] = both
        elif name.startswith(("model.embed_tokens", "lm_head")):
            padded = np.zeros((-(-VOCABULARY // (4 * tp)) * 4 * tp, HIDDEN), np.uint16)
            padded[:VOCABULARY] = value
            found[name] = np.split(padded, tp)[index]
        else:
            found[name] = value
    return found


def bytes_of(part: Part, mine: dict[str, Words]) -> bytes:
    local = mine[part.local or part.tensor]
    return local[part.at : part.at + part.high - part.low].tobytes()


def write(image: bytearray, runs: tuple[Run, ...], data: bytes, before: int = 0) -> None:
    """Write into the runs in turn; their bytes between and before tensors stay zero."""
    at = 0
    for run in runs:
        begin = max(run.offset, before)
        count = min(run.end - begin, len(data) - at)
        image[begin : begin + count] = data[at : at + count]
        at += count
    assert at == len(data)


sizes = st.tuples(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2]), st.sampled_from([1, 4]))


@settings(deadline=None, max_examples=25)
@given(sizes, sizes, st.booleans(), st.sampled_from([0, 96]), st.integers(70, 900))
def test_any_rank_layout_serves_any_engine_layout(
    source: tuple[int, int, int], target: tuple[int, int, int], tied: bool, before: int, chunk_bytes: int
) -> None:
    model = a_model(tied=tied, before=before)
    tp, pp, ep = source
    whole, made, ranks, hosts = len(model.image), bytearray(len(model.image)), {}, {}
    for stage in range(pp):
        for expert in range(ep):
            here = held(pp, stage, ep, expert)
            together: list[Part] = []
            for index in range(tp):
                mine = megatron_tensors(model, tp, index)
                rank = TensorRank(index, tp, dense=expert == 0, vocabulary_multiple=4)
                parts = megatron_parts(model.tensors, HEADS, here, rank)
                for part in parts:
                    write(made, runs_of([part], model.tensors, whole), bytes_of(part, mine), before)
                ranks[f"{stage}/{expert}/{index}"] = runs_of(parts, model.tensors, whole)
                together += parts
            hosts[f"{stage}/{expert}"] = runs_of(together, model.tensors, whole)
    check_tiling(ranks, whole)
    check_tiling(hosts, whole)
    assert made == model.image
    assert sum(map(len, hosts.values())) <= sum(map(len, ranks.values()))

    shares = {host: hashed(memoryview(made), cut(runs, chunk_bytes)) for host, runs in hosts.items()}
    manifest = Manifest.decode(Manifest.join(1, model.tensors, shares).encode())
    manifest.verify(memoryview(model.image))
    assert manifest.shares() == (shares if len(shares) > 1 else {}), "no shares where one rank has all"
    _, pp, ep = target
    for stage in range(pp):
        for expert in range(ep):
            engine_finds_its_tensors(model, manifest, held(pp, stage, ep, expert), tied)


def engine_finds_its_tensors(model: Model, manifest: Manifest, here: RankLayers, tied: bool) -> None:
    image = bytearray(b"\xa5" * len(model.image))
    parts = engine_parts(model.tensors, here)
    for number in chunks_needed(runs_of(parts, model.tensors, len(model.image)), manifest.chunks):
        chunk = manifest.chunks[number]
        image[chunk.offset : chunk.offset + chunk.length] = model.image[
            chunk.offset : chunk.offset + chunk.length
        ]
    loaded = {part.tensor for part in parts}
    for spec in model.tensors:
        layer = int(spec.name.split(".")[2]) if ".layers." in spec.name else None
        expert = int(spec.name.split(".experts.")[1].split(".")[0]) if ".experts." in spec.name else None
        if layer is not None:
            wanted = layer in here.layers and (expert is None or expert in here.experts)
        elif "embed" in spec.name:
            wanted = here.first or (tied and here.last)
        else:
            wanted = here.last
        assert (spec.name in loaded) == wanted, spec.name
        if wanted:
            read = np.frombuffer(image, np.uint16, spec.nbytes // 2, spec.offset).reshape(spec.shape)
            assert np.array_equal(read, model.weights[spec.name]), spec.name


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 9), st.integers(100, 900))
def test_fsdp2_ranks_form_the_image_with_uneven_shards(ranks: int, chunk_bytes: int) -> None:
    model = a_model()
    whole, made = len(model.image), bytearray(len(model.image))
    owners = {}
    for rank in range(ranks):
        parts = fsdp_parts(model.tensors, rank, ranks)
        mine = {
            name: value[rows_of(len(value), rank, ranks).start : rows_of(len(value), rank, ranks).stop]
            for name, value in model.weights.items()
        }
        for part in parts:
            write(made, runs_of([part], model.tensors, whole), bytes_of(part, mine))
        owners[f"rank-{rank}"] = runs_of(parts, model.tensors, whole)
    check_tiling(owners, whole)
    assert made == model.image
    shares = {name: hashed(memoryview(made), cut(runs, chunk_bytes)) for name, runs in owners.items() if runs}
    Manifest.join(1, model.tensors, shares).verify(memoryview(model.image))


def test_engine_needs_its_experts_rows_of_stacked_tensors() -> None:
    spec = TensorSpec("model.layers.0.mlp.experts.gate_up_proj", "bfloat16", (8, 4, 6), 0, 384)
    here = RankLayers(range(1), even(8, 1, 4), first=True, last=True)
    assert engine_parts([spec], here) == (Part(spec.name, 2, 4),)
    assert runs_of(engine_parts([spec], here), [spec], 384) == (Run(96, 96),)
    with pytest.raises(LayoutError, match="stacked experts"):
        megatron_parts([spec], HEADS, here, TensorRank(0, 1))


def test_ranks_with_shared_rows_form_few_runs_together() -> None:
    spec = TensorSpec("model.layers.0.self_attn.o_proj.weight", "bfloat16", (4096, 64), 0, 4096 * 128)
    here = RankLayers(range(1), range(0), first=True, last=True)
    parts = [megatron_parts([spec], HEADS, here, TensorRank(index, 8)) for index in range(8)]
    assert len(runs_of(parts[3], [spec], spec.nbytes)) == 4096
    assert runs_of([part for some in parts for part in some], [spec], spec.nbytes) == (Run(0, spec.nbytes),)
    tall = TensorSpec(spec.name, "bfloat16", (300_000, 64), 0, 300_000 * 128)
    with pytest.raises(LayoutError, match="too many runs"):
        runs_of(megatron_parts([tall], HEADS, here, TensorRank(0, 8)), [tall], tall.nbytes)


def test_scalars_and_empty_tensors_have_their_place() -> None:
    tensors = [
        TensorSpec("scale", "bfloat16", (), 0, 2),
        TensorSpec("nothing", "bfloat16", (0, 4), 64, 0),
        TensorSpec("last", "bfloat16", (3,), 64, 6),
    ]
    owners = {str(rank): runs_of(fsdp_parts(tensors, rank, 2), tensors, 128) for rank in range(2)}
    assert owners == {"0": (Run(0, 68),), "1": (Run(68, 60),)}
    check_tiling(owners, 128)


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (Part("absent", 0, 1), "absent is no tensor"),
        (Part("w", 0, 5), "does not lie in"),
        (Part("w", 2, 2), "does not lie in"),
        (Part("w", 0, 1, 2, 9), "does not lie in"),
    ],
)
def test_impossible_parts_are_refused_by_name(part: Part, words: str) -> None:
    with pytest.raises(LayoutError, match=words):
        runs_of([part], [TensorSpec("w", "bfloat16", (4, 8), 0, 64)], 64)


def test_indivisible_models_are_refused_by_name() -> None:
    model = a_model()
    with pytest.raises(LayoutError, match="16 tensor-parallel ranks"):
        megatron_parts(model.tensors, HEADS, held(1, 0, 1, 0), TensorRank(0, 16))
    with pytest.raises(LayoutError, match="has 32 rows, not those of"):
        megatron_parts(model.tensors, Heads(16, 8, 4), held(1, 0, 1, 0), TensorRank(0, 1))
    with pytest.raises(LayoutError, match="2 layers or experts cannot be cut into 3"):
        even(LAYERS, 0, 3)
    with pytest.raises(LayoutError, match="do not lie in an image of 10"):
        runs_of([], model.tensors, 10)
