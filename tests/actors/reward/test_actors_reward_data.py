"""Problem files of the user: the row of a (split, index), and the errors of bad files."""

import json
import os
import sys
from pathlib import Path

import pytest

from gleaner.actors.reward.data import DataProblems
from gleaner.actors.reward.source import BadTask
from gleaner.actors.reward.tables import table
from gleaner.configs.schema import Task


def written(path: Path, count: int, first: int = 0) -> str:
    lines = [json.dumps({"prompt": f"problem {n}", "answer": n}) for n in range(first, first + count)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def problems(data: str, **more: object) -> DataProblems:
    return DataProblems(Task(name="mine", data=data, **more), seed=1)  # type: ignore[arg-type]


def all_of(made: DataProblems, split: str) -> list[str]:
    return [made.entry(split, index).question for index in range(made.count(split))]  # type: ignore[arg-type]


def test_every_row_is_in_one_split(tmp_path: Path) -> None:
    made = problems(written(tmp_path / "a.jsonl", 200), heldout_problems=12)
    train, heldout = all_of(made, "train"), all_of(made, "heldout")
    assert (len(train), len(heldout)) == (188, 12)
    assert sorted(train + heldout) == sorted(f"problem {n}" for n in range(200))
    assert all_of(made, "warmup") == train
    assert train != sorted(train), "they are shuffled"


def test_file_repeats_its_problems_and_held_out_ones(
    tmp_path: Path,
) -> None:
    data = written(tmp_path / "a.jsonl", 100)
    one, same = problems(data), problems(data)
    other = DataProblems(Task(name="mine", data=data), seed=2)
    assert all_of(one, "train") == all_of(same, "train") != all_of(other, "train")
    assert sorted(all_of(one, "heldout")) == sorted(all_of(other, "heldout"))


def test_repeated_prompt_is_in_one_split(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"p {n % 20}", "answer": n}) + "\n" for n in range(200)))
    made = problems(str(path))
    assert not set(all_of(made, "train")) & set(all_of(made, "heldout"))


def test_held_out_problems_may_have_their_own_file(tmp_path: Path) -> None:
    made = problems(written(tmp_path / "a.jsonl", 5), heldout_data=written(tmp_path / "b.jsonl", 3, 100))
    assert (made.count("train"), made.count("heldout")) == (5, 3)
    assert set(all_of(made, "heldout")) == {"problem 100", "problem 101", "problem 102"}


def test_index_beyond_the_last_starts_again(tmp_path: Path) -> None:
    made = problems(written(tmp_path / "a.jsonl", 20))
    assert made.entry("train", made.count("train")) == made.entry("train", 0)
    with pytest.raises(BadTask, match="begin at 0"):
        made.entry("train", -1)


def test_warm_start_answers_are_texts(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"prompt": str(n), "answer": [n]}) + "\n" for n in range(20)))
    found = problems(str(path)).problem("train", 0)
    assert found.answer == f"[{found.question}]"


def test_bad_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "x"}\n\n{"prompt": \n')
    with pytest.raises(BadTask, match=r"a\.jsonl: line 3: no JSON"):
        problems(str(path))


@pytest.mark.parametrize("name", ["gone.jsonl", "a.csv", "pipe.jsonl", "empty.jsonl", "one.jsonl"])
def test_unusable_file_is_refused_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.csv").write_text("x")
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "one.jsonl").write_text('{"prompt": "x"}\n')
    with pytest.raises(BadTask, match=name):
        problems(str(tmp_path / name))


@pytest.mark.parametrize("name", ["a.parquet", "folder"])
def test_parquet_and_dataset_folders_are_read(tmp_path: Path, name: str) -> None:
    datasets = pytest.importorskip("datasets")
    parquet = pytest.importorskip("pyarrow.parquet")
    turns = [{"role": "user", "content": "p"}]
    made = datasets.Dataset.from_list([{"prompt": turns, "answer": str(number)} for number in range(3)])
    made.save_to_disk(str(tmp_path / "folder"))
    parquet.write_table(made.data.table, tmp_path / "a.parquet")
    source = table(str(tmp_path / name))
    assert (len(source), source.row(1)) == (3, {"prompt": turns, "answer": "1"})
    assert source.place(1).endswith(f"{name}: row 1")


def test_folder_of_several_sets_is_refused_by_names(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    one = datasets.Dataset.from_list([{"prompt": "p"}])
    datasets.DatasetDict(train=one, test=one).save_to_disk(str(tmp_path / "both"))
    with pytest.raises(BadTask, match=r"several sets \(train, test\); name the folder of one"):
        table(str(tmp_path / "both"))


def test_invalid_parquet_is_refused_by_name(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and more")
    with pytest.raises(BadTask, match=r"a\.parquet: cannot be read"):
        table(str(tmp_path / "a.parquet"))


def test_missing_parquet_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(BadTask, match=r"gleaner\[data\]"):
        table(str(tmp_path / "a.parquet"))
