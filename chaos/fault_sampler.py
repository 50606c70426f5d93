"""Draws the parameters of one fault: host, process, duration, amount.

Owns the ranges, with one method for each kind. Pure. `swarm` chooses the kinds and their rates; `bounds`
chooses which faults fit together.
"""

import random
from collections.abc import Callable

from gleaner.chaos.bounds import Bounds
from gleaner.chaos.fault_targets import (
    COMMITTERS,
    CRASHES,
    GATEWAY_CRASH,
    HANGS,
    PLANNER_CRASH,
    RANKS,
    REWARD_COMMITTER,
    REWARD_CRASHES,
    SERVICE_CRASHES,
    SERVICE_PLACE,
    FaultTargets,
)
from gleaner.chaos.faults import (
    FOREIGN_RESULT,
    FROZEN_DEAD_S,
    AnyFault,
    BadLink,
    BadScorer,
    ClockJump,
    CorruptChunk,
    CrashActor,
    DiskFull,
    FalseNotice,
    ForeignResult,
    Freeze,
    Hang,
    KillHost,
    KillInCommit,
    KillOnMessage,
    KillProcess,
    KillZone,
    Notice,
    Partition,
    Process,
    Reset,
    RestartStorm,
    ScorerFault,
    Sickness,
    SickVerifier,
    Slow,
    Zombie,
)
from gleaner.chaos.kill_points import (
    CALLED,
    CALLED_BY_GATEWAY,
    GOT,
    MOMENT_SHARES,
    REWARD_GOT,
    REWARD_SENT,
    SENT,
    SERVICE_GOT,
)
from gleaner.chaos.machine_sampler import MachineDrawer

NOTICES_S = (0.0, 30.0, 120.0)
"""Notices that clouds give: none, Azure's and GCP's half a minute, AWS's two minutes."""
JUMPS_S = (-86_400.0, -3600.0, -30.0, -2.0, 2.0, 30.0, 3600.0, 86_400.0)
"""A day (a wrong date), an hour (a wrong zone), half a minute and two seconds (NTP steps)."""
CALLERS_HOST = "client"

SCORER_FAULTS: tuple[ScorerFault, ...] = ("hang", "crash", "lie")
SICKNESSES: tuple[Sickness, ...] = ("raise", "hang", "crash")


class Drawer:
    """One method for each kind; each draws the parameters of one fault at a given time."""

    def __init__(self, rng: random.Random, terrain: FaultTargets, horizon_s: float, bounds: Bounds) -> None:
        self._rng = rng
        self._terrain = terrain
        self._horizon_s = horizon_s
        self._bounds = bounds
        self.draws: dict[str, Callable[[float], AnyFault]] = {
            "kill_process": self._kill_process,
            "crash_actor": self._crash_actor,
            "kill_host": self._kill_host,
            "kill_zone": self._kill_zone,
            "kill_on_message": self._kill_on_message,
            "kill_in_commit": self._kill_in_commit,
            "freeze": self._freeze,
            "zombie": self._zombie,
            "hang": self._hang,
            "slow": self._slow,
            "partition": self._partition,
            "bad_link": self._bad_link,
            "reset": self._reset,
            "notice": self._notice,
            "false_notice": self._false_notice,
            "clock_jump": self._clock_jump,
            "disk_full": self._disk_full,
            "corrupt_chunk": self._corrupt_chunk,
            "bad_scorer": self._bad_scorer,
            FOREIGN_RESULT: self._foreign_result,
            "sick_verifier": self._sick_verifier,
            "restart_storm": self._restart_storm,
        }
        loses_head = terrain.head_returns and terrain.head_durable
        machines = MachineDrawer(rng, self._length, terrain.preemptible, loses_head=loses_head)
        self.draws.update(machines.draws)
        if terrain.rewards < 2:  # there is no other host whose items a host could answer
            del self.draws[FOREIGN_RESULT]
        if not terrain.preemptible:
            for kind in ("kill_zone", "notice", "false_notice"):
                del self.draws[kind]
        elif not terrain.zones:
            del self.draws["kill_zone"]

    def fault(self, kind: str, at_s: float) -> AnyFault:
        """A fault of this kind."""
        return self.draws[kind](at_s)

    # -- numbers --

    def _between(self, low: float, high: float) -> float:
        return round(self._rng.uniform(low, high), 3)

    def _length(self, at_s: float, low: float, high: float) -> float:
        """Duration of a fault that is over by the horizon."""
        left_s = max(self._horizon_s - at_s, low)
        return self._between(low, max(min(high, left_s), low))

    def _preemptible(self) -> str:
        return f"@preemptible/{self._rng.randrange(self._terrain.preemptible)}"

    def _host(self) -> str:
        """Preemptible hosts are most of a fleet, so most often one of them."""
        if self._terrain.preemptible and self._rng.random() < 0.5:
            return self._preemptible()
        return self._rng.choice(("@head", "@reserved"))

    def _rewards(self, share: float) -> bool:
        """Whether a fault hits the reward tier, in this share; without reward hosts nothing is drawn."""
        return self._terrain.rewards > 0 and self._rng.random() < share

    def _service(self, share: float) -> bool:
        """Whether a fault hits the service that scores for the job; without one nothing is drawn."""
        return self._terrain.shared and self._rng.random() < share

    def _reward_host(self) -> str:
        return f"@reward/{self._rng.randrange(self._terrain.rewards)}"

    def _scoring_host(self) -> str:
        return self._reward_host() if self._terrain.rewards else "@head"

    def _reward_place(self) -> tuple[str, Process]:
        drawn = self._rng.random()
        if drawn < 0.15 and self._terrain.planner:
            return "@head", "reward-planner"
        if drawn < 0.4:
            return "@head", "reward"
        return self._reward_host(), self._rng.choice(("reward-host", "reward-host", "agent"))

    def _place(self) -> tuple[str, Process]:
        if self._service(0.3):
            return SERVICE_PLACE
        if self._rewards(0.6):
            return self._reward_place()
        if self._terrain.clients and self._rng.random() < 0.25:
            return "@head", "gateway"
        host = self._host()
        kinds: dict[str, tuple[Process, ...]] = {
            "@head": ("rollout", "reward", "agent") if self._terrain.head_returns else ("rollout", "reward"),
            "@reserved": ("transfer", "trainer", "agent", *RANKS[: self._terrain.ranks]),
        }
        return host, self._rng.choice(kinds.get(host, ("transfer", "engine", "agent")))

    def _two_hosts(self) -> tuple[str, str]:
        if self._service(0.4):
            ends = ["@head" if self._rng.random() < 0.7 else self._scoring_host(), SERVICE_PLACE[0]]
            self._rng.shuffle(ends)
            return ends[0], ends[1]
        if (self._terrain.callers or self._terrain.clients) and self._rng.random() < 0.3:
            return "@head", CALLERS_HOST
        if self._rewards(0.6):
            ends = ["@head", self._reward_host()]
            self._rng.shuffle(ends)
            return ends[0], ends[1]
        a = self._host()
        others = [name for name in ("@head", "@reserved") if name != a]
        if self._terrain.preemptible and a.startswith("@p") and self._terrain.preemptible > 1:
            number = (int(a.rpartition("/")[2]) + 1) % self._terrain.preemptible
            others.append(f"@preemptible/{number}")
        elif self._terrain.preemptible and not a.startswith("@p"):
            others += [self._preemptible()] * 2
        return a, self._rng.choice(others)

    # -- kinds --

    def _kill_process(self, at_s: float) -> AnyFault:
        host, process = self._place()
        return KillProcess(at_s=at_s, host=host, process=process)

    def _crash_actor(self, at_s: float) -> AnyFault:
        places = [place for place in CRASHES if place[0] != "@preemptible" or self._terrain.preemptible]
        if self._terrain.clients:
            places += [GATEWAY_CRASH] * 3
        if self._service(0.3):
            places = list(SERVICE_CRASHES)
        elif self._rewards(0.6):
            places = [*REWARD_CRASHES, *([PLANNER_CRASH] if self._terrain.planner else [])]
        role, process, actor = self._rng.choice(places)
        host = self._one_of(role)
        return CrashActor(at_s=at_s, host=host, process=process, actor=actor)

    def _one_of(self, role: str) -> str:
        """A host of a role, as a place."""
        if role == "@reward":
            return self._reward_host()
        return self._preemptible() if role == "@preemptible" else role

    def _kill_host(self, at_s: float) -> AnyFault:
        if self._service(0.2):
            return KillHost(at_s=at_s, host=SERVICE_PLACE[0], back_s=self._length(at_s, 0.5, 10.0))
        if self._rewards(0.5):
            return KillHost(at_s=at_s, host=self._reward_host(), back_s=self._length(at_s, 0.5, 10.0))
        hosts = ["@reserved"]
        if self._terrain.preemptible:
            hosts += [self._preemptible()] * 2
        if self._terrain.head_returns:
            hosts.append("@head")
        host = self._rng.choice(hosts)
        back_s = 0.0 if host.startswith("@p") else self._length(at_s, 0.5, 10.0)
        return KillHost(at_s=at_s, host=host, back_s=back_s)

    def _kill_zone(self, at_s: float) -> AnyFault:
        return KillZone(at_s=at_s, zone=self._rng.choice(self._terrain.zones))

    def _kill_on_message(self, at_s: float) -> AnyFault:
        if (self._terrain.callers or self._terrain.clients) and self._rng.random() < 0.5:
            return self._kill_on_call(at_s)
        host, process = self._place()
        if process in RANKS:  # it does not depend on messages
            process = "trainer"
        if process == "gateway":
            return self._kill_on_call(at_s)
        seat = host.partition("/")[0], process
        if seat == SERVICE_PLACE:
            return self._kill_service(at_s)
        got, sent = ({**GOT, **REWARD_GOT}, {**SENT, **REWARD_SENT}) if self._terrain.rewards else (GOT, SENT)
        moment = self._rng.choice(MOMENT_SHARES)
        if moment == "sent" and seat not in sent:
            moment = "received"
        message = self._rng.choice((sent if moment == "sent" else got)[seat])
        count = 1 + int(self._rng.expovariate(1 / 3.0))
        return KillOnMessage(
            at_s=at_s, host=host, process=process, message=message, count=count, moment=moment
        )

    def _kill_service(self, at_s: float) -> AnyFault:
        message, moment = self._rng.choice(SERVICE_GOT)
        host, process = SERVICE_PLACE
        count = 1 + int(self._rng.expovariate(1 / 6.0))
        return KillOnMessage(
            at_s=at_s, host=host, process=process, message=message, count=count, moment=moment
        )

    def _kill_on_call(self, at_s: float) -> AnyFault:
        """Versions are published a few times in a run, and only where rollout may be ahead."""
        called = CALLED_BY_GATEWAY if self._terrain.clients else CALLED
        able = [it for it in called if self._terrain.head_returns or it[0] != "agent"]
        process, message, moment = self._rng.choice(able)
        count = 1 + int(self._rng.expovariate(1.0 if message == "PublishVersion" else 1 / 3.0))
        return KillOnMessage(
            at_s=at_s, host="@head", process=process, message=message, count=count, moment=moment
        )

    def _kill_in_commit(self, at_s: float) -> AnyFault:
        host, process = REWARD_COMMITTER if self._rewards(0.5) else self._rng.choice(COMMITTERS)
        return KillInCommit(at_s=at_s, host=host, process=process, torn=self._rng.random() < 0.5)

    def _freeze(self, at_s: float) -> AnyFault:
        host, process = self._place()
        return Freeze(at_s=at_s, host=host, process=process, for_s=self._length(at_s, 0.05, 4.0))

    def _zombie(self, at_s: float) -> AnyFault:
        process: Process
        if self._rewards(0.5):
            host, process = self._reward_host(), self._rng.choice(("reward-host", "agent"))
        elif self._terrain.preemptible and self._rng.random() < 0.7:
            host, process = self._preemptible(), self._rng.choice(("engine", "transfer", "agent"))
        else:
            host, process = self._rng.choice((("@head", "rollout"), ("@reserved", "trainer")))
        for_s = self._length(at_s, FROZEN_DEAD_S, self._bounds.zombie_s)
        return Zombie(at_s=at_s, host=host, process=process, for_s=for_s)

    def _hang(self, at_s: float) -> AnyFault:
        terrain = self._terrain
        places = [
            (host, process)
            for host, process in HANGS
            if (terrain.preemptible or host != "@preemptible")
            and (terrain.head_returns or (host, process) != ("@head", "agent"))
        ]
        if terrain.clients:
            places.append(("@head", "gateway"))
        places += [("@reserved", rank) for rank in RANKS[: terrain.ranks]]
        if terrain.rewards:
            places += [("@reward", "reward-host"), ("@reward", "agent"), ("@head", "reward")]
        if terrain.planner and terrain.rewards:
            places.append(("@head", "reward-planner"))
        host, process = self._rng.choice(places)
        return Hang(at_s=at_s, host=self._one_of(host), process=process)

    def _slow(self, at_s: float) -> AnyFault:
        host, process = self._place()
        factor = round(2.0 ** self._rng.uniform(0.5, 4.0), 2)
        return Slow(at_s=at_s, host=host, process=process, factor=factor, for_s=self._length(at_s, 1.0, 30.0))

    def _partition(self, at_s: float) -> AnyFault:
        a, b = self._two_hosts()
        for_s = self._length(at_s, 0.2, self._bounds.partition_s)
        return Partition(at_s=at_s, a=a, b=b, both=self._rng.random() < 0.5, for_s=for_s)

    def _bad_link(self, at_s: float) -> AnyFault:
        a, b = self._two_hosts()
        chance = self._rng.random
        return BadLink(
            at_s=at_s,
            a=a,
            b=b,
            for_s=self._length(at_s, 1.0, 30.0),
            loss=self._between(0.0, 0.2) if chance() < 0.6 else 0.0,
            duplicate=self._between(0.0, 0.2) if chance() < 0.5 else 0.0,
            delay_s=self._between(0.0, 0.3) if chance() < 0.5 else 0.0,
            jitter_s=self._between(0.0, 0.3) if chance() < 0.5 else 0.0,
            bytes_per_s=round(10 ** self._rng.uniform(6.5, 8.5)) if chance() < 0.25 else 0.0,
        )

    def _reset(self, at_s: float) -> AnyFault:
        a, b = self._two_hosts()
        return Reset(at_s=at_s, a=a, b=b)

    def _notice(self, at_s: float) -> AnyFault:
        host = self._reward_host() if self._rewards(0.6) else self._preemptible()
        return Notice(at_s=at_s, host=host, notice_s=self._rng.choice(NOTICES_S))

    def _false_notice(self, at_s: float) -> AnyFault:
        return FalseNotice(
            at_s=at_s,
            host=self._reward_host() if self._rewards(0.6) else self._preemptible(),
            notice_s=self._rng.choice(NOTICES_S[1:]),
            back_s=self._length(at_s, 0.5, 20.0),
            hint=self._rng.random() < 0.3,
        )

    def _clock_jump(self, at_s: float) -> AnyFault:
        return ClockJump(at_s=at_s, host=self._host(), by_s=self._rng.choice(JUMPS_S))

    def _disk_full(self, at_s: float) -> AnyFault:
        host = self._rng.choice(("@head", "@head", "@reserved"))
        return DiskFull(at_s=at_s, host=host, for_s=self._length(at_s, 0.5, self._bounds.disk_full_s))

    def _corrupt_chunk(self, at_s: float) -> AnyFault:
        host = self._preemptible() if self._terrain.preemptible else "@reserved"
        return CorruptChunk(at_s=at_s, host=host, count=self._rng.choice((1, 1, 2, 5)))

    def _bad_scorer(self, at_s: float) -> AnyFault:
        how = self._rng.choice(SCORER_FAULTS)
        return BadScorer(at_s=at_s, how=how, count=self._rng.choice((1, 1, 2, 4)))

    def _foreign_result(self, at_s: float) -> AnyFault:
        return ForeignResult(at_s=at_s, host=self._reward_host(), count=self._rng.choice((1, 2, 5)))

    def _sick_verifier(self, at_s: float) -> AnyFault:
        how = self._rng.choice(SICKNESSES)
        return SickVerifier(at_s=at_s, how=how, for_s=self._length(at_s, 2.0, 15.0))

    def _restart_storm(self, at_s: float) -> AnyFault:
        host, process = self._place()
        most = self._bounds.storm if host.startswith("@p") else self._bounds.kills - 1
        kills = self._rng.randint(2, max(most, 2))
        return RestartStorm(
            at_s=at_s, host=host, process=process, kills=kills, every_s=self._between(0.5, 2.0)
        )
