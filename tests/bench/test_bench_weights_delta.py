"""The bench of weight deltas: it measures as stated, and its page shows the figures."""

from dataclasses import asdict

import numpy as np
import pytest
import torch

from bench.weights import change_rates, delta_codec, delta_codec_page, job_deltas
from bench.weights.simulated_adam import bfloat16, versions


def test_simulated_weights_round_like_torch_and_follow_change_rate() -> None:
    numbers = np.random.default_rng(1).standard_normal(10_000, np.float32)
    there = torch.from_numpy(numbers).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(bfloat16(numbers), there)
    shares = []
    for rate in (1e-7, 1e-6, 1e-5):
        *_, old, new = versions(rate, 1 << 16, 10, seed=1)
        shares.append(float((old != new).mean()))
    assert 0 < shares[0] < shares[1] < shares[2] < 0.5


def test_every_codec_gives_new_image_and_page_shows_figures() -> None:
    *_, before, after = versions(delta_codec_page.AT, 1 << 18, 6, seed=1)
    old, new = delta_codec.image(before.size), delta_codec.image(before.size)
    old[:], new[:] = before, after
    rows = delta_codec.at_rate(delta_codec_page.AT, old, new, rounds=1)
    by_name = {row.name: row for row in rows}
    measured = [by_name[way.name] for way in delta_codec.WAYS]
    assert all(len(row.encode) == len(row.apply) == 1 for row in measured)
    bytewise, _, _, elementwise, *_, coordinates, _ = measured
    assert bytewise.bytes_each < elementwise.bytes_each < coordinates.bytes_each == 6.0
    useless = asdict(delta_codec.GivenUp([0.004], [0.1]))
    results = {"rows": [asdict(row) for row in rows], "given_up": useless, "image_bytes": old.nbytes}
    text = "\n".join(delta_codec_page.lines(results))
    assert all(f"| {way.name} |" in text for way in delta_codec.WAYS)
    assert "| bytes for a changed element |" in text
    assert "no delta after 4.00 ms of a core" in text
    parts = dict(delta_codec_page.parts(rows))
    assert len(parts) == 6
    assert all(rate > 0 for rate in parts.values())


def test_time_to_reject_a_delta_is_measured_both_ways() -> None:
    found = delta_codec.given_up(8 << 20, rounds=1)
    assert len(found.sampled_s) == len(found.encoded_s) == 1


def test_codec_that_loses_a_change_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    lossy = delta_codec.Way("lossy", lambda old, new: b"", lambda payload, into: None, len)
    monkeypatch.setattr(delta_codec, "WAYS", (lossy,))
    old, new = delta_codec.image(1 << 12), delta_codec.image(1 << 12)
    new[7] = 1
    with pytest.raises(AssertionError, match="lossy: another image"):
        delta_codec.at_rate(1e-6, old, new, rounds=1)


def test_changes_are_counted_at_the_given_version_distance() -> None:
    first = np.zeros(1000, np.uint16)
    images = [first + np.uint16(step) * (np.arange(1000) < 10 * step).astype(np.uint16) for step in range(4)]
    near = change_rates.compared("made", 1.0, "bfloat16", images, 1, False)
    far = change_rates.compared("made", 1.0, "bfloat16", images, 3, False)
    begun = change_rates.compared("made", 1.0, "bfloat16", images, 1, True)
    ended = change_rates.compared("made", 1.0, "bfloat16", images[-2:], 1, False, last=True)
    assert (begun.elements, near.elements, far.elements, ended.elements) == (0.01, 0.02, 0.03, 0.03)
    assert (
        "| made, bfloat16 | 1 | 1, the last step | 3.00 % |"
        in change_rates.lines({"rows": [asdict(ended)]})[-1]
    )
    assert begun.next_number == 1.0
    assert far.next_number == 0.0
    assert begun.delta < far.delta < 0.1


def test_job_table_compares_pulled_bytes_with_full_images() -> None:
    row = job_deltas.Row(1e-6, "bfloat16", 9, 1_000_000, 1, 4_000_000, 40_000_000)
    assert row.spared == 0.875
    results = {"began": "then", "took_s": 1, "steps": 12, "rows": [asdict(row)]}
    assert "| 1e-06 | bfloat16 | 9 | 1 | 5.00 MB | 40.00 MB | 88% |" in job_deltas.text(results)
