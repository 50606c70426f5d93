"""Campaign on real processes: settings from TOML, and the packaged ones by name.

Owns names, types, ranges and the errors. `plan` draws from it.
"""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gleaner.chaos.real.faults import KINDS
from gleaner.chaos.real.paths import PATHS
from gleaner.configs.load import PRESETS, ConfigError, from_tree
from gleaner.configs.schema import Config

FOLDER = PRESETS / "campaigns"
MAX_FILE_BYTES = 1 << 20
MIN_DISK_MIB = 96
"""The manager begins no batch below 64 MiB of free space; journals and logs of a short job take a few."""

Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]


class Fleet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The hosts beside the head and the reserved one, and the size of each host's disk."""

    preemptible: Annotated[int, Meta(ge=1, le=16)] = 2
    disk_mib: Annotated[int, Meta(ge=MIN_DISK_MIB, le=65536)] = 160


class Campaign(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """See the module.

    Args:
        on: "processes"; campaigns of simulated clusters have another form.
        about: its purpose, one line.
        faults: number of injected faults; 0: as many as `minutes` allow.
        minutes: no fault is injected later than this.
        pause_s: between a recovery and the next fault; drawn between the two.
        recover_within_s: from the mending of a fault to the recovery; later is a violation.
        within_s: the same for single kinds.
        weights: how often each kind is drawn, beside the others. A kind that is not named is not drawn.
        at_least: kinds that are injected before any is injected a second time (default: all of `weights`); a
            campaign in which one of them never fired is invalid.
        steps_left: a fault is injected only while a job has that many steps left; else the campaign waits for
            the next job.
        without: kinds that are left out all the same, because a machine cannot inject them.
        paths: recovery paths that must have been taken, or the campaign is invalid
        (`gleaner.chaos.real.paths`).
        fleet: the hosts.
        job: settings of each job, as in the file of a run.
    """

    on: Literal["processes"]
    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]
    about: str = ""
    faults: Annotated[int, Meta(ge=0, le=100_000)] = 0
    minutes: Annotated[float, Meta(gt=0, le=10_080)] = 10.0
    pause_s: tuple[NotNegative, NotNegative] = (0.5, 2.0)
    recover_within_s: Positive = 60.0
    within_s: Mapping[str, Positive] = {}
    weights: Mapping[str, NotNegative]
    at_least: tuple[str, ...] | None = None
    without: tuple[str, ...] = ()
    steps_left: Annotated[int, Meta(ge=1)] = 3
    paths: tuple[str, ...] = ()
    fleet: Fleet = Fleet()
    job: Mapping[str, Any] = {}

    def __post_init__(self) -> None:
        named: Mapping[str, Iterable[str]] = {
            "weights": self.weights,
            "within_s": self.within_s,
            "at_least": self.at_least or (),
            "without": self.without,
        }
        for key, kinds in named.items():
            unknown = sorted(set(kinds) - set(KINDS))
            if unknown:
                raise ValueError(f"{key}: there is no fault {unknown[0]!r}; there are {', '.join(KINDS)}")
        if unknown := sorted(set(self.paths) - set(PATHS)):
            raise ValueError(f"paths: there is no {unknown[0]!r}; there are {', '.join(PATHS)}")
        if not self.drawn:
            raise ValueError(
                "weights: no fault has a weight (or all are left out), so there would be no fault"
            )
        idle = [kind for kind in self.must_fire if not self.weights.get(kind)]
        if idle:
            raise ValueError(f"at_least: {idle[0]} has no weight, so it would never be drawn")
        if self.faults and self.faults < len(self.must_fire):
            raise ValueError(
                f"faults: {self.faults} are fewer than the {len(self.must_fire)} kinds of at_least"
            )
        if self.pause_s[0] > self.pause_s[1]:
            raise ValueError(f"pause_s: expected shortest <= longest, got {list(self.pause_s)}")

    @property
    def drawn(self) -> dict[str, float]:
        """How often each kind is drawn; kinds that are never drawn are left out."""
        return {
            kind: weight
            for kind, weight in sorted(self.weights.items())
            if weight > 0 and kind not in self.without
        }

    @property
    def gateway(self) -> bool:
        """Whether its jobs have a gateway."""
        return bool(self.job.get("gateway", {}).get("listen"))

    @property
    def must_fire(self) -> tuple[str, ...]:
        """Kinds without which the campaign is invalid, in the order of `KINDS`."""
        wanted = self.drawn if self.at_least is None else set(self.at_least) - set(self.without)
        return tuple(kind for kind in KINDS if kind in wanted)

    def leaving_out(self, kinds: Iterable[str]) -> "Campaign":
        """The same without these kinds. Raises BadCampaign where they are unknown, or no kind is left."""
        try:
            return msgspec.structs.replace(self, without=tuple(dict.fromkeys([*self.without, *kinds])))
        except ValueError as problem:
            raise BadCampaign(f"campaign {self.name}: {problem}") from problem

    def deadline_s(self, kind: str) -> float:
        """Time limit of a recovery from this kind."""
        return self.within_s.get(kind, self.recover_within_s)

    def settings(self, model: str, seed: int) -> Config:
        """Settings of each job. Raises ConfigError."""
        tree = {key: dict(value) if isinstance(value, Mapping) else value for key, value in self.job.items()}
        tree.setdefault("model", {})["path"] = model
        tree.setdefault("job", {})["seed"] = seed % 2**32
        return from_tree(tree, f"campaign {self.name}: job")


class BadCampaign(ValueError):
    """An invalid campaign; `str` gives the place and the reason."""


def names() -> list[str]:
    """Packaged campaigns on processes."""
    return sorted(path.stem for path in FOLDER.glob("*.toml") if _is_real(path))


def load(path: str) -> Campaign:
    """Read a campaign: a file, or the name of a packaged one. Raises BadCampaign."""
    file = Path(path)
    if not file.exists() and (FOLDER / f"{path}.toml").exists():
        file = FOLDER / f"{path}.toml"
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise BadCampaign(f"{file}: larger than {MAX_FILE_BYTES} bytes; is it a campaign?")
        return read(file.read_text(encoding="utf-8"), str(file))
    except FileNotFoundError as problem:
        raise BadCampaign(f"{path}: no such file; name one, or one of {', '.join(names())}") from problem
    except (OSError, UnicodeDecodeError) as problem:
        raise BadCampaign(f"{file}: cannot be read: {problem}") from problem


def read(text: str, name: str) -> Campaign:
    """Read a campaign from TOML; `name` begins the error text. Raises BadCampaign."""
    try:
        tree = tomllib.loads(text)
        if "on" not in tree:
            raise BadCampaign(
                f'{name}: it lacks `on = "processes"`; one of simulated clusters is run by `rlctl sim run '
                "--campaign ...`"
            )
        campaign = msgspec.convert(tree, Campaign)
        campaign.settings("", 0)
    except tomllib.TOMLDecodeError as problem:
        raise BadCampaign(f"{name}: not valid TOML: {problem}") from problem
    except msgspec.ValidationError as problem:
        raise BadCampaign(f"{name}: {problem}") from problem
    except ConfigError as problem:
        raise BadCampaign(f"{name}: {problem}") from problem
    return campaign


def _is_real(path: Path) -> bool:
    """Whether the file is a campaign on processes."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8")).get("on") == "processes"
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return False
