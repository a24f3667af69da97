from psyche_core.p2p.fetch_plan import MAX_LOST, Answer, FetchPlan, Outcome

A, B, C = b"a" * 32, b"b" * 32, b"c" * 32
ALL = (A, B, C)


def test_sources_come_first_in_their_order_then_members() -> None:
    plan = FetchPlan([C, B])
    asked = [plan.begin(members=ALL, reachable=ALL) for _ in range(4)]
    assert asked == [C, B, A, None]


def test_who_is_no_member_or_not_reachable_is_not_asked() -> None:
    plan = FetchPlan([C, B])
    assert plan.begin(members=(A, B), reachable=(A, C)) == A
    assert plan.begin(members=(A, B), reachable=(A, C)) is None
    assert plan.outcome((A, B)) is Outcome.OPEN
    plan.settle(A, Answer.ABSENT)
    assert plan.outcome((A, B)) is Outcome.OPEN
    assert plan.begin(members=(A, B), reachable=(A, B)) == B


def test_everybody_saying_no_is_not_found_and_a_false_answer_is_rejected() -> None:
    for answer, expected in (
        (Answer.ABSENT, Outcome.NOT_FOUND),
        (Answer.FALSE, Outcome.REJECTED),
        (Answer.TOO_LARGE, Outcome.REJECTED),
    ):
        plan = FetchPlan([A])
        plan.begin(members=(A, B), reachable=ALL)
        plan.settle(A, answer)
        plan.begin(members=(A, B), reachable=ALL)
        plan.settle(B, Answer.ABSENT)
        assert plan.outcome((A, B)) is expected


def test_a_lost_peer_is_asked_again_a_few_times() -> None:
    plan = FetchPlan([A])
    for _ in range(MAX_LOST):
        assert plan.begin(members=(A,), reachable=(A,)) == A
        plan.settle(A, Answer.LOST)
    assert plan.begin(members=(A,), reachable=(A,)) is None
    assert plan.outcome((A,)) is Outcome.NOT_FOUND


def test_added_sources_are_asked_before_other_members() -> None:
    plan = FetchPlan([A])
    plan.begin(members=ALL, reachable=ALL)
    plan.add([C])
    assert plan.begin(members=ALL, reachable=ALL) == C


def test_relayed_sources_are_asked_after_direct_ones_and_other_members_after_all_sources() -> None:
    plan = FetchPlan([A, B])
    asked = [plan.begin(members=ALL, reachable=ALL, slow={A, C}) for _ in ALL]
    assert asked == [B, A, *(each for each in ALL if each not in (A, B, C)), C]


def test_who_is_doubted_is_asked_after_all_others_and_still_asked() -> None:
    plan = FetchPlan([C, B])
    asked = [plan.begin(members=ALL, reachable=ALL, doubted={C}) for _ in range(4)]
    assert asked == [B, A, C, None]


def test_who_had_nothing_is_asked_again_only_when_that_is_said() -> None:
    plan = FetchPlan([A])
    for peer in (A, B):
        assert plan.begin(members=(A, B), reachable=ALL) == peer
    plan.settle(B, Answer.ABSENT)
    assert plan.begin(members=(A, B), reachable=ALL) is None
    assert plan.ask_again()
    assert not plan.ask_again()
    assert plan.begin(members=(A, B), reachable=ALL) == B


def test_who_sent_wrong_bytes_or_was_lost_too_often_is_not_asked_again() -> None:
    plan = FetchPlan([A])
    for _ in range(MAX_LOST):
        plan.begin(members=(A,), reachable=ALL)
        plan.settle(A, Answer.LOST)
    plan.begin(members=ALL, reachable=ALL)
    plan.settle(B, Answer.FALSE)
    assert not plan.ask_again()


def test_who_was_lost_is_asked_after_those_that_were_not() -> None:
    plan = FetchPlan([A])
    assert plan.begin(members=ALL, reachable=ALL) == A
    plan.settle(A, Answer.LOST)
    assert [plan.begin(members=ALL, reachable=ALL) for _ in range(3)] == [B, C, A]


def test_among_equals_the_one_with_the_least_load_comes_first() -> None:
    plan = FetchPlan([B])
    load = {A: 2.0, B: 5.0, C: 1.0}
    assert [plan.begin(members=ALL, reachable=ALL, load=load) for _ in ALL] == [B, C, A], (
        "a source comes before others all the same"
    )
    plan = FetchPlan(ALL)
    assert [plan.begin(members=ALL, reachable=ALL, doubted={C}, load=load) for _ in ALL] == [A, B, C]
    assert FetchPlan(ALL).begin(members=ALL, reachable=ALL, load={}) == A
