"""What the end of a step waited for, as one message has it. How it is found is rollout's."""

import msgspec


class CriticalPath(msgspec.Struct, frozen=True, kw_only=True):
    """Stages of the response that the trainer got last. Seconds, in sequence; together they span from the
    batch's start, or from the end of the previous step if that was later, to the step's end.

    weights_s: until the instance that it was sent to first served the weights; place_s: until it was sent
    there; prefill_s: until its first token; decode_s: until its last one; verdict_s: until its group was
    scored; hand_out_s: until the trainer got the group; train_s: until the step's end. request: its id;
    instance: where it was sent last; sends: how often it was sent. scoring_s: in which any response of the
    batch waited for its verdict, each second once; those beyond verdict_s are hidden behind other work.
    """

    request: str
    instance: str
    sends: int
    weights_s: float
    place_s: float
    prefill_s: float
    decode_s: float
    verdict_s: float
    hand_out_s: float
    train_s: float
    scoring_s: float = 0.0
