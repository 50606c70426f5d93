"""report.json and report.html of a run, from its history and its settings."""

from pathlib import Path

import msgspec

from gleaner.actors.training.history import AnyRecord, Run, read_history
from gleaner.configs.load import ConfigError, dump, from_tree, load
from gleaner.configs.schema import Config
from gleaner.rlctl.report.model import Report, report_of, story_of


def make(run: str | Path) -> Report:
    """Write report.json and report.html into a run's folder and return the numbers.

    Works for a run that is still running or was stopped. Raises HistoryError where the folder has no readable
    history.jsonl, ConfigError where its config.toml is damaged, OSError where it cannot be written.
    """
    from gleaner.rlctl.report.page import (
        page_of,  # loads matplotlib, a second that other commands need not pay
    )

    folder = Path(run)
    records = read_history(folder / "history.jsonl")
    config = _settings(folder / "config.toml", records)
    report = report_of(records, config)
    page = page_of(report, story_of(records), dump(config) if config else "")
    _replace(folder / "report.json", msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    _replace(folder / "report.html", page.encode())
    return report


def _settings(file: Path, records: list[AnyRecord]) -> Config | None:
    if file.exists():
        return load(file)
    recorded = next((record.config for record in records if isinstance(record, Run)), None)
    try:
        return from_tree(recorded, "history.jsonl") if recorded else None
    except ConfigError:
        return None  # written by another version; the report then goes without prices


def _replace(file: Path, content: bytes) -> None:
    """Replace the file atomically: a reader sees the old page or the new one, never a part of one."""
    draft = file.with_name(f".{file.name}.draft")
    try:
        draft.write_bytes(content)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
