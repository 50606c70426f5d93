"""A judge whose instances are killed while it judges: every judgement is what it is undisturbed."""

import asyncio
import re
from pathlib import Path

import pytest
from gateway_runs import Processes, get, healthy, loads, post
from judge_model import make_judge

from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.task import spec_of
from gleaner.actors.reward.verifiers.judge.verifier import Judged, JudgeVerifier
from gleaner.configs.load import from_tree
from gleaner.configs.schema import Config
from gleaner.nodeagent.model_discovery import VARIABLE, with_judge

pytestmark = [pytest.mark.realprocess, pytest.mark.long, pytest.mark.timeout(600)]

MODEL = "judge-tiny"
ITEMS = 24
LETTERS = 150


def served(folder: Path) -> list[str]:
    """Options of an instance."""
    return [
        *("--model", str(folder), "--listen", "127.0.0.1:0"),
        *("--slots", str(ITEMS), "--max-tokens", "4096"),
    ]


def start(processes: Processes, folder: Path) -> tuple[str, list[str]]:
    """Two instances of the judge behind a gateway: its URL and theirs."""
    for number in range(2):
        processes.start(f"instance-{number}", "engine", "serve", *served(folder))
    urls = [processes.url(f"instance-{number}") for number in range(2)]
    options = [word for url in urls for word in ("--engine-url", url)]
    options += ["--set", f"gateway.model_name={MODEL}", "--listen", "127.0.0.1:0"]
    processes.start("gateway", "gateway", *options)
    url = processes.url("gateway")
    processes.wait(lambda: len(healthy(url)) == 2, "the instances to be in use")
    return url, urls


def judge(**own: object) -> Config:
    """A job with a judge that is among the gateways of this host."""
    judge = {"place": "instances", "model": MODEL, "rubric_text": "Right is 9.", "scale": [0, 9]}
    judge |= {"max_tokens": 2000, "deadline_s": 300.0, "attempts": 1, "temperature": 1.0, **own}
    task = {"name": "sums", "data": "sums.jsonl", "verifier": "judge"}
    return with_judge(from_tree({"task": task, "reward": {"judge": judge}}, "test"))


async def judged(config: Config) -> list[Judged]:
    """All responses, at the same time."""
    items = [(Entry(question=f"{number}+2?", answer=None), f"It is {number}.") for number in range(ITEMS)]
    verifier = JudgeVerifier(spec_of(config.task[0], config))
    try:
        return await asyncio.to_thread(verifier._judged, items)
    finally:
        await asyncio.to_thread(verifier.close)


async def begun(config: Config, url: str, instance: str, least: int) -> "asyncio.Task[list[Judged]]":
    """Judgements under way, of which the instance has so many. Those that were over before a look are made
    again: a busy machine looks seldom."""
    async with asyncio.timeout(240):
        while True:
            under_way = asyncio.create_task(judged(config))
            while not under_way.done():
                if (await asyncio.to_thread(loads, url)).get(instance, 0) >= least:
                    return under_way
                await asyncio.sleep(0.01)
            await under_way


def texts(found: list[Judged]) -> list[str]:
    return [one.votes[0].text for one in found]


async def test_killed_judge_instance_changes_no_judgement(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))  # of the gateway too
    monkeypatch.delenv(VARIABLE, raising=False)
    folder = make_judge(tmp_path / "judge", LETTERS)
    url, instances = await asyncio.to_thread(start, processes, folder)
    config = judge()
    assert config.reward.judge.url == f"{url}/v1", "it was found by its model"

    calm = await judged(config)
    assert [one.judgement.status for one in calm] == ["ok"] * ITEMS, calm[0]
    assert all(re.fullmatch(r"[a-z]*<score>[0-9]</score>", text) for text in texts(calm))
    assert len(set(texts(calm))) == ITEMS, "tokens follow from seeds, and seeds from items"

    under_way = await begun(config, url, instances[0], ITEMS // 4)
    processes.kill("instance-0")
    assert not under_way.done(), "judgements were under way"
    struck = await under_way
    assert texts(struck) == texts(calm)
    assert [one.judgement for one in struck] == pytest.approx([one.judgement for one in calm])
    assert all(one.judgement.status == "ok" and one.votes[0].calls == 1 for one in struck)
    assert healthy(url) == [instances[1]]

    processes.start("instance-2", "engine", "serve", *served(folder))
    joined = await asyncio.to_thread(processes.url, "instance-2")
    await asyncio.to_thread(post, f"{url}/workers", {"url": joined})
    await asyncio.to_thread(processes.wait, lambda: len(healthy(url)) == 2, "the instance that joined")
    under_way = await begun(config, url, joined, 1)
    named = next(one for one in get(f"{url}/workers?engines=1")["workers"] if one["url"] == instances[1])
    await asyncio.to_thread(post, f"{url}/workers/{named['id']}", None, "DELETE")  # a notice, not a kill
    assert texts(await under_way) == texts(calm)
    assert processes.end("gateway") == 0
    assert not list((tmp_path / "state" / "models").glob("*.json"))
