"""Loading of settings: accepted files, refusals and their messages."""

import re
import tomllib
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gleaner.configs import check
from gleaner.configs.load import ConfigError, dump, from_tree, load
from gleaner.configs.schema import Config

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.toml"


def refused(path: Path | str, *sets: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, sets)
    return str(caught.value)


def write(folder: Path, text: str) -> Path:
    file = folder / "my.toml"
    file.write_text(text)
    return file


def test_preset_loads_by_path_and_by_name() -> None:
    assert load(QUICKSTART) == load("quickstart")
    assert load("quickstart").job.name == "quickstart"


def test_empty_file_gives_the_defaults(tmp_path: Path) -> None:
    assert load(write(tmp_path, "")) == Config()


def test_set_option_overrides_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, "[rollout]\nprompts = 7\nsamples = 3\n")
    config = load(file, ["rollout.prompts=9", "seeding.memory=false", "training.betas=[0.8, 0.9]"])
    assert (config.rollout.prompts, config.rollout.samples) == (9, 3)
    assert config.seeding.memory is False
    assert config.training.betas == (0.8, 0.9)


def test_refusal_names_file_key_expectation_value_and_origin(tmp_path: Path) -> None:
    file = write(tmp_path, "")
    assert refused(file, "rollout.prompts=abc") == (
        f"{file}: rollout.prompts: expected an integer ≥ 1, got 'abc' (--set)"
    )
    file = write(tmp_path, "[rollout]\nprompts = 0\n")
    assert refused(file) == f"{file}: rollout.prompts: expected an integer ≥ 1, got 0"


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("rolout.prompts=3", "rolout.prompts: unknown key; did you mean rollout.prompts?"),
        ("rollout.prompt=3", "rollout.prompt: unknown key; did you mean rollout.prompts?"),
        ("prompts=3", "prompts: unknown key; did you mean rollout.prompts?"),
        ("training.seed=3", "training.seed: unknown key; did you mean job.seed?"),
        ("rollout.zzzz=3", "rollout.zzzz: unknown key; known here: rollout.prompts, "),
        ("zzzz=3", "zzzz: unknown key; known here: ablation, engine, "),
        ("rollout=3", "rollout: is a section; set one of its keys, for example rollout.prompts"),
        ("rollout.prompts", "expected section.key=value, got 'rollout.prompts'"),
        ("rollout.temperature=nan", "rollout.temperature: expected a number > 0, got nan"),
        ("rollout.temperature=inf", "rollout.temperature: expected a number > 0, got inf"),
        ("rollout.prompts=true", "rollout.prompts: expected an integer ≥ 1, got true"),
        ("rollout.prompts=3.0", "rollout.prompts: expected an integer ≥ 1, got 3.0"),
        ("training.betas=[1]", "training.betas: expected a list of 2, each a number ≥ 0 and < 1, got [1]"),
        ("engine.kind=other", "engine.kind: expected one of 'builtin', 'sglang', "),
        (
            "prices.currency=",
            "prices.currency: expected a text of at least 1 and at most 8 characters, got ''",
        ),
        ("model.head_dim=3", "model.head_dim: expected an integer ≥ 2, divisible by 2, got 3"),
        ("seeding.memory=1", "seeding.memory: expected true or false, got 1"),
        ("task.params=4", "task.params: expected a table of plain values, got 4"),
    ],
)
def test_bad_set_option_is_explained(tmp_path: Path, typed: str, answer: str) -> None:
    file = write(tmp_path, "")
    message = refused(file, typed)
    assert message.startswith(f"{file}: {answer}")
    assert message.endswith("(--set)")


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("model.kv_heads=2", "model.kv_heads: expected a divisor of heads (3), got 2"),
        ("seeding.initial_s=99", "seeding.initial_s: expected a number from min_s (0) to max_s (20), got 99"),
        ("liveness.dead_s=0.1", "liveness.dead_s: expected more than beat_s"),
        (
            "training.micro_batch_groups=64",
            "training.micro_batch_groups: expected at most rollout.prompts (32)",
        ),
    ],
)
def test_contradictory_settings_are_refused(tmp_path: Path, typed: str, answer: str) -> None:
    assert answer in refused(write(tmp_path, ""), typed)


@pytest.mark.parametrize("section", ["engine", "training"])
def test_exact_job_takes_one_thread(tmp_path: Path, section: str) -> None:
    file = write(tmp_path, f"[job]\nexact = true\n[{section}]\nthreads = 2\n")
    assert f"{section}.threads: expected 1 where job.exact is set, got 2" in refused(file)


def test_exact_job_is_on_policy(tmp_path: Path) -> None:
    file = write(tmp_path, "[job]\nexact = true\n[rollout]\nstaleness = 1\n")
    assert "rollout.staleness: expected 0 where job.exact is set, got 1" in refused(file)


@pytest.mark.parametrize(
    ("section", "answer"),
    [
        ("min_s = 31", "reward.timeouts.min_s: expected at most max_s (30), got 31"),
        ("factor = 0.9", "reward.timeouts.factor: expected a number ≥ 1, got 0.9"),
        ("audit_share = 1.5", "reward.timeouts.audit_share: expected a number ≥ 0 and ≤ 1, got 1.5"),
        ("adaptive = true", "reward.timeouts.max_s: expected at most reward.deadline_s (2), which is of"),
    ],
)
def test_contradictory_timeouts_are_refused(tmp_path: Path, section: str, answer: str) -> None:
    assert answer in refused(write(tmp_path, f"[reward.timeouts]\n{section}\n"))


def test_exact_job_has_no_adaptive_timeouts(tmp_path: Path) -> None:
    sections = "[job]\nexact = true\n[reward]\ndeadline_s = 30\n[reward.timeouts]\nadaptive = true\n"
    found = refused(write(tmp_path, sections))
    assert "reward.timeouts.adaptive: expected false where job.exact is set" in found


@pytest.mark.parametrize("service", ["cluster", "http://10.0.0.1:8900"])
def test_adaptive_timeouts_are_refused_when_a_service_scores(tmp_path: Path, service: str) -> None:
    sections = (
        f'[reward]\ndeadline_s = 30\nshare = {{ with = "{service}" }}\ntimeouts = {{ adaptive = true }}\n'
    )
    found = refused(write(tmp_path, sections))
    assert "reward.timeouts.adaptive: expected false where reward.share.with names a service" in found


@pytest.mark.parametrize(
    ("setting", "answer"),
    [
        ("link = { workers = 1 }", "reward.stages.link: unknown key"),
        ("run = { cost = 0 }", "reward.stages.run.cost: expected a number > 0, got 0"),
        ("judge = { cost = -1.5 }", "reward.stages.judge.cost: expected a number > 0, got -1.5"),
        ("run = { cost = nan }", "reward.stages.run.cost: expected"),
        ("compile = { workers = -1 }", "reward.stages.compile.workers: expected an integer ≥ 0 and ≤ 4096"),
    ],
)
def test_impossible_stages_are_refused(tmp_path: Path, setting: str, answer: str) -> None:
    assert answer in refused(write(tmp_path, f"[reward.stages]\nseparate = true\n{setting}\n"))


def test_every_problem_is_reported_at_once(tmp_path: Path) -> None:
    file = write(tmp_path, "[job]\nsteps = -1\n[nothing]\nx = 1\n")
    message = refused(file, "rollout.samples=one").splitlines()
    assert len(message) == 3
    assert all(line.startswith(f"{file}: ") for line in message)


def test_name_that_looks_like_a_number_stays_text(tmp_path: Path) -> None:
    assert load(write(tmp_path, ""), ["job.name=2024"]).job.name == "2024"


def test_job_name_cannot_leave_the_runs_folder(tmp_path: Path) -> None:
    for name in ("../x", "a/b", "", ".", "'a\\n'", '"a\\n"'):
        assert "job.name" in refused(write(tmp_path, ""), f"job.name={name}")


def test_task_parameters_are_free_and_set_singly(tmp_path: Path) -> None:
    file = write(tmp_path, "[task]\nname = 'x'\nparams = { low = 1 }\n")
    assert load(file, ["task.params.high=9", "task.params.words=['a']"]).task[0].params == {
        "low": 1,
        "high": 9,
        "words": ["a"],
    }


TWO = "[[task]]\nname = 'a'\ndata = 'a.jsonl'\nshare = 0.4\n[[task]]\nname = 'b'\nshare = 1\n"


def test_several_tasks_use_sections_of_one_name(tmp_path: Path) -> None:
    config = load(write(tmp_path, TWO))
    assert [(task.name, task.share) for task in config.task] == [("a", 0.4), ("b", 1.0)]
    assert config.task[0].data == str(tmp_path / "a.jsonl")
    again = write(tmp_path, dump(config))
    assert load(again) == config
    assert config.train_problems == 2 * 2048


@pytest.mark.parametrize(
    ("text", "sets", "words"),
    [
        (TWO.replace("share = 1", "shar = 1"), [], "task[1].shar: unknown key; did you mean task.share?"),
        (TWO, ["task.name=x"], "task.name: the file has 2 sections [[task]]; change it there (--set)"),
        (TWO.replace("share = 1", "share = 0"), [], "a share above 0 in every task or in none"),
        (TWO.replace("'b'", "'a'"), [], "the name a is there twice"),
        ("task = []", [], "expected a section of settings, got []"),
        ("task = [3]", [], "task: expected a section of settings, got 3"),
        ("[task]\nverifier = 'math'", [], "expected reasoning-gym without data"),
        ("[task]\ndata = 'x.jsonl'\nverifier = 'reasoning-gym'", [], "scores its own problems only"),
        ("[task]\nsystem = 'x'", [], "system: expected with data only"),
    ],
)
def test_impossible_tasks_are_refused(tmp_path: Path, text: str, sets: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        load(write(tmp_path, text), sets)


def test_relative_path_starts_at_file_or_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    file = write(tmp_path, "[fleet]\ntrace = 'traces/a.csv'\n")
    assert load("../my.toml").fleet.trace == str(tmp_path / "traces" / "a.csv")
    assert load(file, ["fleet.trace=b.csv"]).fleet.trace == str(tmp_path / "here" / "b.csv")
    assert load(file, ["fleet.trace="]).fleet.trace == ""


@pytest.mark.parametrize(
    ("text", "answer"),
    [("[job\nsteps = 1", "line 1"), ("[job]\nsteps = \n", "line 2"), ("a = 1\na = 2\n", "not valid TOML")],
)
def test_broken_toml_is_refused_with_its_line(tmp_path: Path, text: str, answer: str) -> None:
    file = write(tmp_path, text)
    assert refused(file).startswith(f"{file}: not valid TOML")
    assert answer in refused(file)


def test_non_settings_files_are_refused(tmp_path: Path) -> None:
    assert "no such file; name a TOML file or a preset (onehost, quickstart" in refused(
        tmp_path / "none.toml"
    )
    assert "is a folder" in refused(tmp_path)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "expected UTF-8 text" in refused(binary)
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * (2 << 20))
    assert "larger than" in refused(large)
    deep = tmp_path / "deep.toml"
    deep.write_text("a = " + "[" * 20_000)
    assert "not valid TOML" in refused(deep)


def test_dump_writes_every_key_and_reads_back_equal(tmp_path: Path) -> None:
    config = load("quickstart", ["job.seed=7", "task.params.letters=['a', 'b']"])
    text = dump(config)
    assert load(write(tmp_path, text)) == config
    assert from_tree(tomllib.loads(text), "history") == config
    for key in check.known_keys(Config):
        assert key.rpartition(".")[2] in text


def test_refusal_of_a_tree_names_its_source() -> None:
    with pytest.raises(ConfigError, match=r"history: job\.steps: expected an integer ≥ 1, got 0"):
        from_tree({"job": {"steps": 0}}, "history")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*Config.__struct_fields__, "other"]), values, max_size=4))
def test_any_tree_is_a_config_or_config_error(tree: dict[str, object]) -> None:
    problems: tuple[str, ...] = ()
    try:
        config = from_tree(tree, "any")
    except ConfigError as error:
        problems = error.problems or ("no problem named",)
    else:
        assert from_tree(msgspec.to_builtins(config), "again") == config
    assert all(problem.startswith("any: ") for problem in problems)


@given(st.sampled_from(list(check.known_keys(Config))), st.text(max_size=20))
@example("network.keys", "~nobody-of-this-name/keys")
@example("model.path", "a\0b")
def test_any_set_text_is_accepted_or_names_its_section(key: str, raw: str) -> None:
    message = key
    try:
        load("quickstart", [f"{key}={raw}"])
    except ConfigError as error:
        message = str(error)
    assert key.partition(".")[0] in message


def test_settings_cannot_change_after_loading() -> None:
    config = load("quickstart")
    with pytest.raises(AttributeError):
        config.job.seed = 3  # type: ignore[misc]


def test_requests_are_kept_only_for_multi_version_responses(tmp_path: Path) -> None:
    kept = '[engine]\nin_flight = "kept"\n'
    message = refused(write(tmp_path, kept))
    assert "engine.in_flight: expected handed-over where rollout.staleness is 0, got kept" in message
    assert load(str(write(tmp_path, kept + "[rollout]\nstaleness = 1\n"))).engine.in_flight == "kept"
    assert load(str(write(tmp_path, kept + '[training]\nbackend = "own"\n'))).engine.in_flight == "kept"
    message = refused(write(tmp_path, kept + "drain_s = 2.0\n[rollout]\nstaleness = 1\n"))
    assert "engine.drain_s: expected 0 where engine.in_flight is kept, got 2" in message


def test_default_path_is_the_folder_of_its_section_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    file = tmp_path / "job.toml"
    file.write_text('[reward.function]\ncall = "mine:score"\n')
    assert load(file).reward.function.path == str(tmp_path)
    file.write_text('[reward.function]\ncall = "mine:score"\npath = "rewards"\n')
    assert load(file).reward.function.path == str(tmp_path / "rewards")
    file.write_text("[job]\nseed = 1\n")
    assert load(file).reward.function.path == ""
    call = "reward.function.call=mine:score"
    assert load(file, [call]).reward.function.path == str(elsewhere)
    file.write_text('[reward.function]\nstyle = "verl"\n')
    assert load(file, [call]).reward.function.path == str(tmp_path), "the section belongs to the file"
