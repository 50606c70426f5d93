"""Campaign plan: the job, the number of runs, the faults, the required paths.

Owns the TOML of `configs/campaigns/*.toml` and its errors. Runs nothing (`campaign` does).
"""

import random
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gleaner.chaos.bounds import Bounds, bounds_of
from gleaner.chaos.coverage import unknown
from gleaner.chaos.fault_targets import FaultTargets
from gleaner.chaos.faults import FAIL_LOAD, FOREIGN_RESULT, KINDS, MACHINE_KINDS, STAY
from gleaner.chaos.schedule import Schedule
from gleaner.chaos.shapes import wanted
from gleaner.chaos.swarm import Options, draw
from gleaner.chaos.traces import read_all
from gleaner.configs.load import PRESETS, ConfigError, from_tree
from gleaner.configs.schema import Config
from gleaner.configs.trace import Trace, TraceError
from gleaner.sim.models.scorer import MEDIAN_S
from gleaner.sim.run_setup import SCORES, SCORES_PORT

CAMPAIGNS = PRESETS / "campaigns"
"""Folder of the packaged campaigns."""
SHARED: Mapping[str, object] = {"with": f"http://{SCORES}:{SCORES_PORT}", "deadline_s": 20.0}
"""Settings `[reward.share]` of runs with a shared service. Some outages last longer than its deadline."""
REAL = "real-"
"""Prefix of the names of campaigns on real processes, which `rlctl chaos` runs."""


class BadCampaign(ValueError):
    """An invalid campaign; `str` names the file, the fault and the next step."""


class Campaign(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One campaign.

    Args:
        about: one sentence for people.
        seeds: "A:B", from A to before B.
        deadline_s: virtual seconds by which every job must have ended; beyond it, it makes no progress.
        run_s: processor seconds of one run; beyond it the run hangs, which is a violation too.
        settings: of the job (`gleaner.configs.schema`), by section.
        draws: settings of which each run has one of these values, by its seed; a section within another one
            is named with a dot.
        terrain, options: what is drawn from. bounds: default: from the settings.
        traces: availability traces (CSV files, or folders of them, relative to the campaign's file) of which
            pieces are replayed.
        verifier_s: median time of one score.
        shared: share of the runs whose responses a reward service on a host of its own scores, by their
            seed.
        paths: recovery paths that the campaign must take.
        faults: kinds of faults that must fire; none named: all that the options have on.
    """

    about: str
    seeds: str = "0:300"
    deadline_s: Annotated[float, Meta(gt=0)] = 900.0
    run_s: Annotated[float, Meta(gt=0)] = 120.0
    settings: dict[str, object] = {}
    draws: dict[str, dict[str, list[bool | int | float | str]]] = {}
    terrain: FaultTargets = FaultTargets()
    options: Options = Options()
    bounds: Bounds | None = None
    traces: tuple[str, ...] = ()
    verifier_s: Annotated[float, Meta(gt=0)] = MEDIAN_S
    shared: Annotated[float, Meta(ge=0, le=1)] = 0.0
    paths: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()

    @property
    def wanted_faults(self) -> tuple[str, ...]:
        """Kinds that must fire at least once for the campaign to be valid."""
        several = self.terrain.rewards > 1
        never = {FAIL_LOAD} if several else {FAIL_LOAD, FOREIGN_RESULT}
        alone = tuple(kind for kind in KINDS if kind not in never | MACHINE_KINDS)
        drawn = tuple(kind for kind in alone if kind != STAY or self.traces)
        return self.faults or self.options.kinds or drawn

    @property
    def wanted_shapes(self) -> tuple[str, ...]:
        """Shapes that must fire at least once: all shapes of those kinds."""
        terrain = self.terrain
        return wanted(self.wanted_faults, head_returns=terrain.head_returns, rewards=terrain.rewards > 0)


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """A campaign with its settings, checked, and its traces, read. availability: of `load`."""

    name: str
    campaign: Campaign
    config: Config
    traces: Mapping[str, Trace]
    availability: tuple[str, ...] = ()

    def config_of(self, seed: int) -> Config:
        """The settings of the run of this seed. Raises ConfigError where drawn ones do not fit together."""
        values: dict[str, dict[str, object]] = {}
        if random.Random(f"{seed}/shared").random() < self.campaign.shared:
            values["reward.share"] = dict(SHARED)
        if not self.campaign.draws:
            return self.drawn(values, f"seed {seed}") if values else self.config
        rng = random.Random(f"{seed}/settings")
        draws = sorted(self.campaign.draws.items())
        for section, of in draws:
            values.setdefault(section, {}).update({name: rng.choice(of[name]) for name in sorted(of)})
        return self.drawn(values, f"seed {seed}")

    def drawn(self, values: Mapping[str, Mapping[str, object]], which: str) -> Config:
        """The settings with these values in their places. Raises ConfigError."""
        tree: dict[str, Any] = msgspec.to_builtins(self.config)
        for section, settings in values.items():
            place = tree
            for name in section.split("."):
                place = place.setdefault(name, {})
            place.update(settings)
        return from_tree(tree, f"{self.name}: {which}")

    def schedule(self, seed: int) -> Schedule:
        """The schedule of the run of this seed."""
        bounds = self.campaign.bounds or bounds_of(self.config)
        config = self.config_of(seed)
        terrain = msgspec.structs.replace(
            self.campaign.terrain,
            head_durable=config.job.journal_fsync == "commit",
            planner=config.reward.planner.kind != "static",
            shared=bool(config.reward.share.with_),
        )
        return draw(seed, terrain, self.campaign.options, bounds, self.traces)


def load(name: str, availability: Sequence[str] = ()) -> Loaded:
    """The campaign of that name, or in that file. availability: traces that every run follows instead of the
    campaign's own (files, or folders of them). Raises BadCampaign."""
    file = _find(name)
    try:
        campaign = msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8")), Campaign)
    except FileNotFoundError as problem:
        raise BadCampaign(
            f"{file}: no such campaign; there are {', '.join(names())}, or name a file"
        ) from problem
    except (OSError, UnicodeDecodeError) as problem:
        raise BadCampaign(f"{file}: cannot be read: {problem}") from problem
    except tomllib.TOMLDecodeError as problem:
        raise BadCampaign(f"{file}: not valid TOML: {problem}") from problem
    except msgspec.ValidationError as problem:
        raise BadCampaign(f"{file}: {problem}") from problem
    base = file.parent
    if availability:
        campaign, base = _following(campaign, availability, str(file)), Path.cwd()
    if missing := unknown(campaign.paths):
        raise BadCampaign(f"{file}: paths: there is no recovery path {missing[0]}; see docs/chaos.md")
    if missing := sorted(set(campaign.faults) - KINDS.keys()):
        raise BadCampaign(f"{file}: faults: there is no {missing[0]}; there are {', '.join(KINDS)}")
    parse_seeds(campaign.seeds, str(file))
    try:
        config = from_tree(campaign.settings, f"{file}: settings")
        traces = read_all(campaign.traces, base)
        loaded = Loaded(
            name=file.stem, campaign=campaign, config=config, traces=traces, availability=tuple(availability)
        )
        for section, settings in campaign.draws.items():
            for setting, values in settings.items():
                for value in values:
                    loaded.drawn({section: {setting: value}}, "draws")
    except (ConfigError, TraceError) as problem:
        raise BadCampaign(str(problem)) from problem
    return loaded


def _following(campaign: Campaign, availability: Sequence[str], where: str) -> Campaign:
    """The same with these traces, in every run, because the user asked for them. Raises BadCampaign."""
    if not campaign.terrain.preemptible:
        raise BadCampaign(
            f"{where}: has no preemptible hosts (terrain.preemptible) that could follow a trace"
        )
    options = msgspec.structs.replace(campaign.options, trace_share=1.0)
    if options.kinds and STAY not in options.kinds:
        options = msgspec.structs.replace(options, kinds=(*options.kinds, STAY))
    faults = campaign.faults
    if faults and STAY not in faults:
        faults = (*faults, STAY)
    return msgspec.structs.replace(campaign, traces=tuple(availability), options=options, faults=faults)


def names() -> list[str]:
    """Packaged simulated campaigns."""
    return sorted(path.stem for path in CAMPAIGNS.glob("*.toml") if not path.stem.startswith(REAL))


def parse_seeds(text: str, where: str = "--seeds") -> range:
    """`A:B` as a range; a single number is that seed alone. Raises BadCampaign."""
    first, colon, last = text.partition(":")
    try:
        begin = int(first)
        found = range(begin, int(last) if colon else begin + 1)
    except ValueError:
        raise BadCampaign(f"{where}: expected A:B (from seed A to before B), got {text!r}") from None
    if begin < 0 or not found:
        raise BadCampaign(f"{where}: {text!r} names no seed; A must be 0 or more, and B greater than A")
    return found


def _find(name: str) -> Path:
    return (
        CAMPAIGNS / f"{name}.toml" if name in names() and not Path(name).exists() else Path(name).expanduser()
    )
