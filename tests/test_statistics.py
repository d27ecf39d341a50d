import numpy as np
import pytest

from haystack.io import read_psg
from haystack.scene_graph import SceneGraph, Segment, as_triplets
from haystack.statistics import DatasetSummary, TripletStatistics, random_yield


def graph(labels, relations, negatives=()):
    segments = tuple(Segment(i + 1, label, 1, (0, 0, 1, 1)) for i, label in enumerate(labels))
    return SceneGraph(
        "1", 2, 2, "1.jpg", None, segments, as_triplets(relations), as_triplets(negatives)
    )


def test_triplets_are_counted_by_class():
    graphs = [
        graph([4, 5, 4], [(0, 1, 2), (0, 1, 2), (2, 1, 2), (1, 0, 0)]),
        graph([5, 4], [(1, 0, 2)]),
    ]
    statistics = TripletStatistics.from_graphs(graphs, num_objects=6, num_predicates=3)
    assert statistics.subject_predicate[4].tolist() == [0, 0, 3]
    assert statistics.predicate_object[2].tolist() == [0, 0, 0, 0, 0, 3]
    assert statistics.triplets.tolist() == [[4, 5, 2], [5, 4, 0]]
    assert statistics.triplet_counts.tolist() == [3, 1]


def test_no_relations_give_no_counts():
    statistics = TripletStatistics.from_graphs([graph([0], [])], 2, 2)
    assert statistics.triplets.shape == (0, 3)
    assert statistics.subject_predicate.sum() == 0


def test_the_summary_counts_what_a_reader_should_know():
    graphs = [
        graph([0, 1], [(0, 1, 0), (0, 1, 0), (0, 1, 1), (1, 1, 0)], [(1, 0, -1)]),
        graph([0, 1], [], [(0, 1, 2)]),
        graph([0], []),
    ]
    summary = DatasetSummary.from_graphs(graphs, 3)
    assert summary.positives.tolist() == [2, 1, 0]
    assert summary.negatives.tolist() == [0, 0, 1]
    assert summary.images_with.tolist() == [1, 1, 0]
    assert summary.no_relation_pairs == 1
    assert summary.duplicate_rows == 1
    assert summary.self_relations == 1
    assert summary.pairs_with_several_predicates == 1
    assert summary.images_without_relations == 2
    assert summary.images_with_negatives_only == 1


def test_long_tail_figures():
    uniform = DatasetSummary.from_graphs([graph([0, 1], [(0, 1, p) for p in range(4)])], 4)
    assert uniform.long_tail()["gini"] == pytest.approx(0)
    assert uniform.long_tail()["effective_predicates"] == pytest.approx(4)
    single = DatasetSummary.from_graphs([graph([0, 1], [(0, 1, 2)])], 4)
    assert single.long_tail()["gini"] == pytest.approx(0.75)
    assert single.long_tail()["imbalance"] == 1
    nothing = DatasetSummary.from_graphs([], 4)
    assert nothing.long_tail()["gini"] is None
    mini = read_psg("psg-mini")
    figures = DatasetSummary.from_graphs(mini.graphs, 56).long_tail()
    assert figures["predicates_without_positives"] == 26
    assert figures["top_3_share"] == pytest.approx(405 / 707)
    assert np.isfinite(figures["gini"])


@pytest.mark.parametrize("min_count", [0, 1, 2])
def test_the_yield_of_asking_at_random_is_the_share_of_plausible_pairs(min_count):
    rng = np.random.default_rng(4)
    graphs = []
    for _ in range(30):
        labels = rng.integers(0, 4, size=rng.integers(2, 7)).tolist()
        rows = {tuple(rng.integers(0, len(labels), 2).tolist()) for _ in range(5)}
        graphs.append(graph(labels, [(s, o, int(rng.integers(0, 3))) for s, o in rows]))
    statistics = TripletStatistics.from_graphs(graphs[:12], num_objects=4, num_predicates=3)
    shares = random_yield(graphs, statistics, min_count=min_count)
    for predicate in range(3):
        pairs = holding = 0
        for one in graphs:
            held = {tuple(row) for row in one.relations.tolist()}
            for s, subject in enumerate(one.labels):
                for o, target in enumerate(one.labels):
                    if (
                        s != o
                        and statistics.subject_predicate[subject, predicate] >= min_count
                        and statistics.predicate_object[predicate, target] >= min_count
                    ):
                        pairs += 1
                        holding += (s, o, predicate) in held
        assert shares[predicate] == pytest.approx(holding / pairs)


def test_no_plausible_pair_has_no_yield():
    statistics = TripletStatistics.from_graphs([graph([0, 1], [(0, 1, 0)])], 2, 2)
    assert np.isnan(random_yield([graph([0, 1], [])], statistics)).all()
    assert random_yield([graph([0, 1], [])], statistics, min_count=1).tolist() == pytest.approx(
        [0, np.nan], nan_ok=True
    )
