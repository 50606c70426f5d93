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


def after(one: WidthPlanner, state: WidthState, seeding: SeedingState, times: StepTimes) -> WidthState:
    return one.next(state, seeding, times, state.step + 1)


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
        assert after(paper, state, seeding, told(0, begins)).width == width
        assert paper.early(state, seeding, told(0, begins), 0).width == width


def test_job_begins_with_its_first_width_and_keeps_it_when_the_plan_is_off() -> None:
    off = planner("off", [4, 1])
    state = off.initial()
    assert state == WidthState(width=4)
    assert state is not None
    assert after(off, state, SEEDING, told(9999)) is state
    assert WidthPlanner(Engine()).initial() is None


def test_retractions_since_the_last_step_count_when_the_balancer_was_restarted() -> None:
    paper, state = planner("paper"), WidthState(width=1)
    for total in (100, 200, 100):  # 100 in each step: the last sum began anew
        state = after(paper, state, SEEDING, told(total))
    assert state.kinds["plain"].retracted == (100, 100, 100)
    assert after(paper, state, SEEDING, told(206)).width == 2


def test_kinds_of_rounds_have_their_own_widths_by_the_published_rule() -> None:
    paper, state, total = planner("paper"), WidthState(width=2), 0
    for more, done, ahead in (
        (100, "short", "short"),
        (0, "short", "long"),
        (20, "long", "short"),
        (200, "short", "long"),
    ):
        total += more
        state = after(paper, state, SEEDING, told(total, rounds(done, ahead)))
    assert {kind: one.width for kind, one in state.kinds.items()} == {"short": 4, "long": 2}
    assert state.width == 2, "the step ahead is a long round"
    assert after(paper, state, SEEDING, told(total + 20, rounds("long", "short"))).width == 4


def test_predicted_width_is_wider_when_caches_are_short() -> None:
    found = after(planner("model"), WidthState(width=1), SEEDING, TIMES)
    assert found.width > 1
    assert found.paces == {1: PACE}
    assert after(planner("model", relaunch_s=1e6), WidthState(width=1), SEEDING, TIMES).width == 1


def test_predicted_width_is_of_the_kind_of_round_ahead() -> None:
    few = structs.replace(LEARNT, lengths=[[[100] * 4 for _ in range(16)]], log_mean=4.6)
    kinds = {
        "short": KindState(t_seed_s=5.0, learnt=few),
        "long": KindState(t_seed_s=5.0, learnt=LEARNT),
    }
    seeding = structs.replace(SEEDING, kinds=kinds)
    model = planner("model")
    long = after(model, WidthState(width=1), seeding, told(0, rounds("short", "long")))
    short = after(model, WidthState(width=1), seeding, told(0, rounds("long", "short")))
    assert (long.width > 1, short.width) == (True, 1)


def test_width_stays_when_nothing_was_measured() -> None:
    state = WidthState(width=2)
    for plan in ("paper", "model"):
        assert after(planner(plan), state, SEEDING, structs.replace(TIMES, seen=None)) is state
        assert after(planner(plan), state, SEEDING, structs.replace(TIMES, mean_prem=0.0)) is state
    assert after(planner("model"), state, SeedingState(t_seed_s=1.0, n_prem=1), TIMES).width == 2


def test_width_is_never_above_the_devices_of_a_host() -> None:
    one = structs.replace(TIMES, instance_engines=2.0)  # two engines of width 1
    assert after(planner("model"), WidthState(width=1), SEEDING, one).width <= 2


def test_early_width_is_the_width_of_its_step_and_of_no_other() -> None:
    model = planner("model")
    early = model.early(WidthState(width=1), SEEDING, TIMES, 5)
    assert (early.width, early.step) == (after(model, WidthState(width=1), SEEDING, TIMES).width, 5)
    assert early.width > 1
    few = structs.replace(LEARNT, lengths=[[[100] * 4 for _ in range(16)]], log_mean=4.6)
    other = structs.replace(SEEDING, learnt=few)
    assert model.next(early, other, TIMES, 5) == early, "one change a step"
    assert model.early(early, other, TIMES, 5) is early
    assert model.next(early, other, TIMES, 6).width < early.width


def test_kinds_count_a_step_once_by_the_published_rule_when_it_is_decided_early() -> None:
    paper, state = planner("paper"), WidthState(width=2)
    for step in range(1, 4):
        state = paper.next(paper.early(state, SEEDING, told(0), step), SEEDING, told(0), step)
    assert (state.width, state.kinds["plain"].retracted) == (2, (0, 0, 0))
    assert paper.early(state, SEEDING, told(0), 4).width == 1


def test_idle_time_of_the_trainers_update_hides_a_relaunch() -> None:
    """Only what is left of the relaunch is weighed: after the shortest idle time of the last steps."""
    now = WidthState(width=1, paces={1: PACE})
    gain_s = 2000.0  # no gain of four rounds of SEEDING is so large
    model = planner("model", relaunch_s=gain_s)
    assert model.early(now, SEEDING, TIMES, 1).width == 1
    measured = now
    for step, idle_s in enumerate((1.0, gain_s, gain_s, gain_s)):
        measured = model.next(measured, SEEDING, structs.replace(TIMES, idle_s=idle_s), step)
    assert measured.idle_s == (1.0, gain_s, gain_s, gain_s)
    assert model.early(measured, SEEDING, TIMES, 9).width == 1, "one of four steps was short"
    measured = model.next(measured, SEEDING, structs.replace(TIMES, idle_s=gain_s), 4)
    assert model.early(measured, SEEDING, TIMES, 9).width > 1
    assert model.next(measured, SEEDING, TIMES, 9).width == 1, "after the step nothing is hidden"


def test_width_is_left_to_the_plan_when_nothing_is_known_before_it() -> None:
    unknown, state = SeedingState(t_seed_s=1.0, n_prem=1), WidthState(width=1)
    model = planner("model")
    assert model.early(state, unknown, TIMES, 1) is state
    assert model.next(state, SEEDING, TIMES, 1).width > 1
