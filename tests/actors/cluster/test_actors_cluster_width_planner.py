"""The width from step to step: by kind of round, by prediction, and without data."""

from msgspec import structs

from gleaner.actors.cluster.seeding import KindState, SeedingState
from gleaner.actors.cluster.step_statistics import StepStatistics
from gleaner.actors.cluster.width_planner import WidthPlanner, WidthState
from gleaner.actors.cluster.widths import KindWidth
from gleaner.actors.protocol.step_times import RoundKinds, Seen, StepTimes
from gleaner.actors.protocol.throughput import EnginePace
from gleaner.configs.schema import Engine

PACE = EnginePace(
    step_s=0.02, context_s=1e-7, row_s=1e-5, slots=256, cache_tokens=60_000, weight_tokens=90_000
)
LEARNT = StepStatistics(
    lengths=[[[8000] * 4 for _ in range(16)]],
    log_mean=9.0,
    groups=64,
    samples=8,
    limit=8000,
    prompt_tokens=100.0,
    train_token_s=1e-6,
    update_s=1.0,
    reserved=PACE,
    preemptible=PACE,
    reserved_engines=1,
)
SEEDING = SeedingState(t_seed_s=5.0, n_prem=2, learnt=LEARNT)
SEEN = Seen(
    step_s=900.0,
    seeding_s=5.0,
    update_s=1.0,
    rolled_s=800.0,
    start_s=1.0,
    reserved=PACE,
    preemptible=PACE,
    requests=512,
    groups=64,
    limit=8000,
    lengths=[[8000] * 4],
    prompt_tokens=100.0,
)
TIMES = StepTimes(
    train_wait_s=1.0,
    remote_wait_s=1.0,
    train_s=9.0,
    remote_s=800.0,
    mean_prem=2.0,
    next_prem=2,
    instance_engines=4.0,
    seen=SEEN,
)


def planner(plan: str, widths: list[int] | None = None, relaunch_s: float = 1.0) -> WidthPlanner:
    settings = Engine(kind="sglang", widths=widths or [1, 2, 4], width_plan=plan, relaunch_s=relaunch_s)  # type: ignore[arg-type]
    return WidthPlanner(settings)


def rounds(done: str, ahead: str) -> RoundKinds:
    return RoundKinds(done=done, ahead=ahead, shorts=4.0, surplus=16)


def told(total: int, kinds: RoundKinds | None = None) -> StepTimes:
    return structs.replace(TIMES, retracted=total, rounds=kinds)


def test_width_is_that_of_the_kind_that_begins_by_the_plan() -> None:
    paper = planner("paper")
    kinds = {"plain": KindWidth(width=1), "short": KindWidth(width=4)}
    begins = structs.replace(rounds("plain", "plain"), begins=0.03)
    for gain, width in ((0.02, 1), (0.03, 4), (None, 1)):
        seeding = structs.replace(SEEDING, tail_gain=gain)
        state = WidthState(width=1, kinds=kinds)
        assert paper.next(state, seeding, told(0, begins)).width == width


def test_job_begins_with_its_first_width_and_keeps_it_when_the_plan_is_off() -> None:
    off = planner("off", [4, 1])
    state = off.initial()
    assert state == WidthState(width=4)
    assert state is not None
    assert off.next(state, SEEDING, told(9999)) is state
    assert WidthPlanner(Engine()).initial() is None


def test_retractions_since_the_last_step_count_when_the_balancer_was_restarted() -> None:
    paper, state = planner("paper"), WidthState(width=1)
    for total in (100, 200, 100):  # 100 in each step: the last sum began anew
        state = paper.next(state, SEEDING, told(total))
    assert state.kinds["plain"].retracted == (100, 100, 100)
    assert paper.next(state, SEEDING, told(206)).width == 2


def test_kinds_of_rounds_have_their_own_widths_by_the_published_rule() -> None:
    paper, state, total = planner("paper"), WidthState(width=2), 0
    for more, done, ahead in (
        (100, "short", "short"),
        (0, "short", "long"),
        (20, "long", "short"),
        (200, "short", "long"),
    ):
        total += more
        state = paper.next(state, SEEDING, told(total, rounds(done, ahead)))
    assert {kind: one.width for kind, one in state.kinds.items()} == {"short": 4, "long": 2}
    assert state.width == 2, "the step ahead is a long round"
    assert paper.next(state, SEEDING, told(total + 20, rounds("long", "short"))).width == 4


def test_predicted_width_is_wider_when_caches_are_short() -> None:
    after = planner("model").next(WidthState(width=1), SEEDING, TIMES)
    assert after.width > 1
    assert after.paces == {1: PACE}
    assert planner("model", relaunch_s=1e6).next(WidthState(width=1), SEEDING, TIMES).width == 1


def test_predicted_width_is_of_the_kind_of_round_ahead() -> None:
    few = structs.replace(LEARNT, lengths=[[[100] * 4 for _ in range(16)]], log_mean=4.6)
    kinds = {
        "short": KindState(t_seed_s=5.0, learnt=few),
        "long": KindState(t_seed_s=5.0, learnt=LEARNT),
    }
    seeding = structs.replace(SEEDING, kinds=kinds)
    model = planner("model")
    long = model.next(WidthState(width=1), seeding, told(0, rounds("short", "long")))
    short = model.next(WidthState(width=1), seeding, told(0, rounds("long", "short")))
    assert (long.width > 1, short.width) == (True, 1)


def test_width_stays_when_nothing_was_measured() -> None:
    state = WidthState(width=2)
    for plan in ("paper", "model"):
        assert planner(plan).next(state, SEEDING, structs.replace(TIMES, seen=None)) is state
        assert planner(plan).next(state, SEEDING, structs.replace(TIMES, mean_prem=0.0)) is state
    assert planner("model").next(state, SeedingState(t_seed_s=1.0, n_prem=1), TIMES).width == 2


def test_width_is_never_above_the_devices_of_a_host() -> None:
    one = structs.replace(TIMES, instance_engines=2.0)  # two engines of width 1
    assert planner("model").next(WidthState(width=1), SEEDING, one).width <= 2
