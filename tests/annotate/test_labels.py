from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haystack.annotate.labels import KNOWN, Contradiction, resolve
from haystack.annotate.records import VERDICTS, Answer, GoldItem, Proposal

EATING, HOLDING, RIDING = 0, 1, 2


def said(verdict, who="ann", *, image="1", subject=0, object_=1, predicate=EATING, purpose="label"):
    asked = Proposal(image, subject, object_, predicate, f"{image}.jpg", 0.0, 0, 0)
    return Answer(asked, verdict, who, "key", None, "2000-01-01T00:00:00.000000Z", purpose)


def adjudicated(verdict, who="lead", **asked):
    return said(verdict, who, purpose="adjudication", **asked)


def known(verdict, **asked):
    return GoldItem(said(verdict, **asked).proposal, verdict, "lead", "2000")


def test_each_verdict_alone():
    labels = resolve(
        [
            said("correct"),
            said("incorrect", predicate=HOLDING),
            said("no_relation", object_=2),
            said("skip", object_=3),
            said("skip", image="2"),
        ]
    )
    image = labels.images["1"]
    assert list(labels.images) == ["1"]
    assert (image.image_id, image.image_key) == ("1", "1.jpg")
    assert image.positives == ((0, 1, EATING),)
    assert image.negatives == ((0, 1, HOLDING),)
    assert image.no_relation == ((0, 2, -1),)
    assert image.faulty == ()
    assert (labels.skipped, labels.dropped, labels.disagreements) == (2, 0, ())


def test_the_majority_decides():
    votes = ("correct", "correct", "incorrect")
    labels = resolve(said(verdict, f"a{n}") for n, verdict in enumerate(votes))
    assert labels.images["1"].positives == ((0, 1, EATING),)
    votes = ("correct", "incorrect", "incorrect", "skip")
    labels = resolve(said(verdict, f"a{n}") for n, verdict in enumerate(votes))
    assert labels.images["1"].negatives == ((0, 1, EATING),)


def test_a_tie_is_left_out_and_reported():
    labels = resolve([said("correct", "ann"), said("incorrect", "bob")])
    assert labels.images == {}
    (tie,) = labels.disagreements
    assert (tie.image_id, tie.row) == ("1", (0, 1, EATING))
    assert tie.votes == (("ann", "correct"), ("bob", "incorrect"))


def test_no_relation_counts_as_incorrect_for_the_other_predicates_of_the_pair():
    # Ann refuses the pair as a whole, Bob says that it eats: a tie about both.
    labels = resolve([said("no_relation", "ann", predicate=HOLDING), said("correct", "bob")])
    assert "1" in labels.images  # nobody contradicts ann about holding
    assert labels.images["1"].negatives == ((0, 1, HOLDING),)
    assert {tie.row for tie in labels.disagreements} == {(0, 1, EATING), (0, 1, -1)}


def test_no_relation_by_the_majority_leaves_no_positive_row():
    labels = resolve(
        [
            said("no_relation", "ann", predicate=HOLDING),
            said("no_relation", "cat", predicate=RIDING),
            said("correct", "bob"),
        ]
    )
    image = labels.images["1"]
    assert image.positives == ()
    assert image.no_relation == ((0, 1, -1),)
    assert image.negatives == ()  # eating, holding and riding are all covered by the -1 row


def test_what_was_called_incorrect_keeps_its_row_beside_no_relation():
    labels = resolve([said("no_relation"), said("incorrect", predicate=HOLDING)])
    image = labels.images["1"]
    assert (image.negatives, image.no_relation) == (((0, 1, HOLDING),), ((0, 1, -1),))


def test_one_who_said_correct_cannot_also_mean_no_relation_at_all():
    labels = resolve([said("no_relation"), said("correct", predicate=HOLDING)])
    image = labels.images["1"]
    assert image.positives == ((0, 1, HOLDING),)
    assert image.negatives == ((0, 1, EATING),)  # what was asked is still answered
    assert image.no_relation == ()


@pytest.mark.parametrize(("verdict", "segment"), [("subject_faulty", 0), ("object_faulty", 1)])
def test_rows_that_touch_a_faulty_segment_are_dropped(verdict, segment):
    labels = resolve(
        [
            said(verdict, "bob"),
            said("correct", "ann", subject=segment, object_=5),
            said("no_relation", "ann", subject=6, object_=segment),
            said("correct", "ann", subject=5, object_=6),
            said("correct", "ann", image="2", subject=segment, object_=5),
        ]
    )
    image = labels.images["1"]
    assert image.faulty == (segment,)
    assert image.positives == ((5, 6, EATING),)
    assert image.no_relation == ()
    assert labels.dropped == 2
    assert labels.images["2"].positives == ((segment, 5, EATING),)


def test_an_image_with_nothing_but_a_fault_is_kept():
    labels = resolve([said("object_faulty")])
    assert labels.images["1"].faulty == (1,)


def test_if_one_annotator_answers_twice_the_last_counts():
    labels = resolve([said("correct"), said("incorrect")])
    assert labels.images["1"].negatives == ((0, 1, EATING),)


def test_an_adjudication_decides_whoever_else_said_what():
    votes = [said("correct", "ann"), said("correct", "bob"), adjudicated("incorrect")]
    labels = resolve(votes)
    assert labels.images["1"].negatives == ((0, 1, EATING),)
    (row,) = labels.decisions
    assert (row.rule, row.votes) == ("adjudication", (("lead", "incorrect"),))
    tie = resolve([*votes, adjudicated("correct", "boss")])
    assert tie.images == {}
    assert [row.rule for row in tie.disagreements] == ["adjudication"]
    undecided = resolve([*votes[:2], adjudicated("skip")])
    assert undecided.images["1"].positives == ((0, 1, EATING),)
    assert undecided.skipped == 1


def test_an_adjudicated_no_relation_settles_the_pair():
    labels = resolve(
        [
            adjudicated("no_relation"),
            said("correct", "ann", predicate=HOLDING),
            said("correct", "bob", predicate=HOLDING),
            said("incorrect", "ann", predicate=RIDING),
        ]
    )
    image = labels.images["1"]
    assert (image.positives, image.negatives) == ((), ((0, 1, RIDING),))
    assert image.no_relation == ((0, 1, -1),)
    assert {row.rule for row in labels.decisions} == {"adjudication"}


def test_an_adjudicated_correct_rules_no_relation_out():
    crowd = [said("no_relation", who, predicate=HOLDING) for who in ("ann", "bob", "cat")]
    labels = resolve([adjudicated("correct"), *crowd, said("incorrect", "ann")])
    image = labels.images["1"]
    assert image.positives == ((0, 1, EATING),)
    assert image.negatives == ((0, 1, HOLDING),)
    assert image.no_relation == ()


def test_an_adjudicator_may_overrule_a_fault():
    reported = said("subject_faulty", "bob")
    assert resolve([reported, said("correct")]).images["1"].faulty == (0,)
    labels = resolve([reported, said("correct"), adjudicated("correct")])
    assert (labels.images["1"].faulty, labels.images["1"].positives) == ((), ((0, 1, EATING),))


def test_gold_items_count_by_their_known_verdict_and_answers_to_them_do_not():
    labels = resolve(
        [
            said("incorrect", "ann", purpose="gold"),
            said("incorrect", "bob"),
            adjudicated("incorrect"),
            said("correct", "ann", predicate=HOLDING, purpose="repeat"),
        ],
        [known("correct")],
    )
    (row,) = labels.decisions
    assert (row.row, row.outcome, row.rule) == ((0, 1, EATING), "positive", "gold")
    assert row.votes == ((KNOWN, "correct"),)
    alone = resolve([], [known("object_faulty"), known("skip", image="2")])
    assert {image: labels.faulty for image, labels in alone.images.items()} == {"1": (1,)}


def test_what_an_annotator_says_both_ways_is_listed():
    labels = resolve(
        [
            said("no_relation"),
            said("correct", predicate=HOLDING),
            said("no_relation", "bob"),
            said("incorrect", "bob", predicate=HOLDING),
        ]
    )
    assert labels.contradictions == (Contradiction("ann", "1", 0, 1, (HOLDING,), (EATING,)),)


def test_decisions_say_how_they_came_about():
    labels = resolve(
        [
            *(said("correct", who) for who in ("ann", "bob")),
            *(said("correct", who, predicate=HOLDING) for who in ("ann", "bob")),
            said("incorrect", "cat", predicate=HOLDING),
        ]
    )
    assert [(row.row[2], row.rule) for row in labels.decisions] == [
        (EATING, "unanimous"),
        (HOLDING, "majority"),
    ]


answers = st.lists(
    st.builds(
        said,
        st.sampled_from(VERDICTS),
        st.sampled_from(["ann", "bob", "cat"]),
        image=st.sampled_from("12"),
        subject=st.integers(0, 1),
        object_=st.integers(2, 3),
        predicate=st.integers(0, 2),
        purpose=st.sampled_from(["label", "label", "adjudication", "gold", "repeat"]),
    ),
    max_size=40,
    unique_by=lambda answer: (answer.proposal.id, answer.annotator),
)
items = st.lists(
    st.builds(
        known,
        st.sampled_from(VERDICTS),
        image=st.sampled_from("12"),
        subject=st.integers(0, 1),
        object_=st.integers(2, 3),
        predicate=st.integers(0, 2),
    ),
    max_size=3,
    unique_by=lambda item: item.proposal.id,
)


@given(answers, items, st.randoms(use_true_random=False))
@settings(max_examples=300)
def test_labels_never_contradict_themselves(found, gold, random):
    labels = resolve(found, gold)
    for image in labels.images.values():
        positives, negatives = set(image.positives), set(image.negatives)
        assert not positives & negatives
        assert not {row[:2] for row in positives} & {row[:2] for row in image.no_relation}
        used = {segment for row in (*positives, *negatives) for segment in row[:2]}
        assert not used & set(image.faulty)
        for tie in labels.disagreements:
            if tie.image_id == image.image_id:
                assert tie.row not in positives | negatives | set(image.no_relation)
    for item in gold:
        proposal, verdict = item.proposal, item.verdict
        image = labels.images.get(proposal.image_id)
        pair = (proposal.subject, proposal.object)
        if verdict == "correct" and not set(pair) & set(image.faulty if image else ()):
            assert (*pair, proposal.predicate) in image.positives
    shuffled = list(found)
    random.shuffle(shuffled)
    assert resolve(shuffled, gold) == labels


@given(answers)
@settings(max_examples=150)
def test_one_adjudicator_of_everything_is_the_only_voice(found):
    lone = [adjudicated(a.verdict, **_asked(a)) for a in found if a.annotator == "ann"]
    with_crowd = [a for a in found if a.annotator != "ann" and a.purpose == "label"]
    asked = {a.proposal.id for a in lone if a.verdict != "skip"}
    overruled = [a for a in with_crowd if a.proposal.id in asked]
    alone, together = resolve(lone), resolve([*lone, *overruled])
    assert together.images == alone.images


def _asked(answer):
    p = answer.proposal
    return {
        "image": p.image_id,
        "subject": p.subject,
        "object_": p.object,
        "predicate": p.predicate,
    }
