"""Our Qwen3 against Hugging Face's; the only test file that imports transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file, save_file

from gleaner.actors.engine.builtin.engine import BuiltinEngine
from gleaner.actors.engine.builtin.engine_size import EngineSize
from gleaner.actors.engine.worker.engine_port import Assignment
from gleaner.actors.model.checkpoint import load_checkpoint, save_checkpoint

if TYPE_CHECKING:
    from transformers import Qwen3ForCausalLM

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def their_model(tied: bool) -> Qwen3ForCausalLM:
    from transformers import Qwen3Config as TheirConfig  # seconds: not in every worker
    from transformers import Qwen3ForCausalLM

    torch.manual_seed(3)
    config = TheirConfig(
        vocab_size=96,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        tie_word_embeddings=tied,
        rope_parameters={"rope_theta": 5e5, "rope_type": "default"},
        rms_norm_eps=1e-5,
        initializer_range=0.15,
        eos_token_id=[1, 2],
        attn_implementation="eager",
    )
    model = Qwen3ForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
    return model


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def theirs(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Qwen3ForCausalLM, Path]:
    model = their_model(request.param)
    model.save_pretrained(tmp_path / "theirs")
    return model, tmp_path / "theirs"


@torch.no_grad()
def test_our_logits_equal_those_of_transformers(theirs: tuple[Qwen3ForCausalLM, Path]) -> None:
    model, directory = theirs
    ours = load_checkpoint(directory)
    tokens = torch.randint(0, 96, (3, 37))
    torch.testing.assert_close(ours(tokens), model(tokens).logits, atol=1e-4, rtol=0)
    assert [name for name, _ in ours.named_parameters()] == [name for name, _ in model.named_parameters()]
    assert ours.config.eos_token_ids == (1, 2)


@torch.no_grad()
def test_engine_decodes_greedy_tokens_and_logprobs_of_transformers(
    theirs: tuple[Qwen3ForCausalLM, Path],
) -> None:
    model, directory = theirs
    prompt = [5, 17, 80, 3, 3, 41]
    engine = BuiltinEngine(load_checkpoint(directory), EngineSize(slots=2, max_tokens=64), eos_token_ids=[])
    engine.add([Assignment(ticket=9, prompt=prompt, seed=0, max_new_tokens=24, temperature=0.0)])
    rows = [engine.step() for _ in range(24)]
    response = [int(row.tokens[0]) for row in rows]
    logprobs = model(torch.tensor([prompt + response])).logits[0].log_softmax(-1)[len(prompt) - 1 : -1]
    assert response == logprobs.argmax(-1).tolist()
    theirs_at = logprobs.gather(1, torch.tensor(response).unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(
        torch.tensor([float(r.logprobs[0]) for r in rows]), theirs_at, atol=1e-4, rtol=0
    )


@torch.no_grad()
def test_transformers_loads_what_we_save(theirs: tuple[Qwen3ForCausalLM, Path], tmp_path: Path) -> None:
    model, directory = theirs
    (directory / "tokenizer.json").write_text("{}")
    (directory / "notes.txt").write_text("not part of a checkpoint")
    ours = load_checkpoint(directory)
    for parameter in ours.parameters():
        parameter.mul_(1.25)
    save_checkpoint(ours.state_dict(), tmp_path / "saved", like=directory)
    again = type(model).from_pretrained(tmp_path / "saved")
    tokens = torch.randint(0, 96, (2, 11))
    torch.testing.assert_close(again(tokens).logits, ours(tokens), atol=1e-4, rtol=0)
    assert not torch.allclose(again(tokens).logits, model(tokens).logits, atol=1e-2)
    names = {path.name for path in (tmp_path / "saved").iterdir()}
    assert names == {"config.json", "generation_config.json", "tokenizer.json", "model.safetensors"}


@torch.no_grad()
def test_bfloat16_checkpoint_names_its_dtype_and_loads(tmp_path: Path) -> None:
    model = their_model(tied=True)
    model.save_pretrained(tmp_path / "a")
    ours = load_checkpoint(tmp_path / "a", dtype=torch.bfloat16)
    save_checkpoint(ours.state_dict(), tmp_path / "b", like=tmp_path / "a")
    again = type(model).from_pretrained(tmp_path / "b")
    assert {p.dtype for p in again.parameters()} == {torch.bfloat16}
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), ours.parameters(), strict=True))


@torch.no_grad()
def test_shards_load_like_a_single_file(tmp_path: Path) -> None:
    model = their_model(tied=False)
    model.save_pretrained(tmp_path / "one")
    model.save_pretrained(tmp_path / "many", max_shard_size="50KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    one, many = (
        load_checkpoint(tmp_path / "one").state_dict(),
        load_checkpoint(tmp_path / "many").state_dict(),
    )
    assert one.keys() == many.keys()
    assert all(torch.equal(one[name], many[name]) for name in one)


def test_config_of_transformers_4_has_equal_meaning(tmp_path: Path) -> None:
    their_model(tied=True).save_pretrained(tmp_path)
    new = load_checkpoint(tmp_path).config
    config = json.loads((tmp_path / "config.json").read_bytes())
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    config["rope_scaling"] = None
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load_checkpoint(tmp_path).config == new
    assert new.rope_theta == 5e5


def test_tied_checkpoint_may_contain_the_output_matrix(tmp_path: Path) -> None:
    their_model(tied=True).save_pretrained(tmp_path)
    before = load_checkpoint(tmp_path).state_dict()
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    after = load_checkpoint(tmp_path).state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
