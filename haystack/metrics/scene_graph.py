"""All metrics of scene-graph predictions in one torchmetrics class, matched and ranked once."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from haystack.errors import InputError
from haystack.metrics.base import mean_of_defined
from haystack.metrics.batch import Buffer, keys_of, record_name, send
from haystack.metrics.functional import (
    PanopticCounts,
    discrimination_disadvantage_from_histogram,
    dominance_overestimation_from_histogram,
    mean_recall,
    ranks_of,
)
from haystack.metrics.functional.displacement import rank_cells
from haystack.metrics.functional.recall import (
    RANK_UNIT,
    instance_recall_rows,
    predicate_rank_rows,
)
from haystack.metrics.functional.streaming_auroc import auroc_from_histogram
from haystack.metrics.functional.tensors import count_by, ratio
from haystack.metrics.kinds import (
    LABEL_METRICS,
    PANOPTIC_METRICS,
    RECALLS,
    UNCONSTRAINED,
    Order,
    Recall,
    choose_metrics,
)
from haystack.metrics.lists import LIST_PROBLEMS, flatten_lists, is_ranked, rank_lists
from haystack.metrics.objects import OBJECT_PROBLEMS, ObjectMatch, match_batch, match_to_itself
from haystack.metrics.panoptic_quality import mean_qualities, qualities_by_class, segment_rows
from haystack.metrics.predicates import auroc_of_packed, check_bits, count_scores, pack_samples
from haystack.metrics.predictions import PROBLEMS, flatten_predictions
from haystack.metrics.protocols import get_protocol
from haystack.metrics.ranks import ANNOTATED, Batch, rank_batch
from haystack.metrics.states import RecallStates
from haystack.metrics.targets import Targets, flatten_targets
from haystack.metrics.training import TrainingTriplets
from haystack.statistics import TripletStatistics

PER_PREDICATE = "per_predicate/"
PER_CLASS = "per_class/"
SUPPORT = "support/"


class SceneGraphMetrics(RecallStates):
    """Every metric that the field reports, for PredCls, SGCls and SGDet, from one ranking.

    As input to ``update``, two lists of dicts, one dict an image, values tensors or arrays:

    - ``preds``: ``pairs`` int [R, 2], ordered pairs (subject, object) of positions among the
      objects; ``scores`` float [R, P], comparable across pairs; optionally ``no_relation`` float
      [R], and ``pair_scores`` float [R], by which the model orders pairs under the graph
      constraint, if not by their best score. In PredCls pairs refer to the target's objects. In
      SGCls and SGDet they refer to the model's own, given by ``labels`` int [N], where they are
      (``boxes`` float [N, 4], ``masks`` bool [N, H, W] or run-length dicts, or an ``id_map`` int
      [H, W] of positions, -1 = none), and optionally ``object_scores`` float [N], which multiply
      the scores of their pairs. Instead of pairs and scores, ``triplets`` int [K, 3] of the model's
      objects in its order, and optionally ``ng_triplets`` for the order without graph constraint:
      then P-AUC, PDD and PDO are undefined. None instead of a dict: no prediction for the image.
    - ``targets``: ``labels`` int [N], object classes; ``relations`` int [T, 3] and optionally
      ``neg_relations`` int [M, 3], rows (subject, object, predicate); predicate -1 = no relation;
      where objects are matched, ``boxes``, ``masks`` or an ``id_map``, with ``segment_ids`` [N]
      if its values are no positions.

    An ``image_id`` in either names the image in errors. An annotated pair that the predictions
    lack counts as the worst, and so does each pair of an image that they lack. In SGDet, P-AUC,
    PDD and PDO take an annotated pair's scores from the best overlapping predictions of its two
    objects, without object scores, and A@K, which asks for the annotated pairs themselves, is
    undefined: as soon as one image has objects of its own. Where every image lacks a prediction,
    nothing tells what was predicted, and A@K is 0 as R@K is, unless the protocol skips such images.
    Targets on the CPU spare waiting for an accelerator.

    PQ, SQ and RQ (only where ``metrics`` names them) ask for an ``id_map`` on both sides, whatever
    the protocol compares, and for ``iscrowd`` [N] in targets that have crowd regions. An image
    without predicted objects has all its segments missed; pairs of the annotated objects (PredCls)
    count as a perfect segmentation, and where no image has other objects the three are undefined.

    As output of ``compute``: a dict of scalars, NaN where undefined; names and definitions are
    those of :data:`haystack.metrics.RECALLS` (``R@K``, ``mR@K``, ...), ``P-AUC``, ``PDD``,
    ``PDO``, ``InstR`` and ``PRank``; ``PQ``, ``PQ_th`` (things), ``PQ_st`` (stuff), ... as in
    :class:`~haystack.metrics.PanopticQuality`.

    Args:
        num_predicates: P; "no relation" is not among them.
        ks: the cut-offs K of the recalls.
        protocol: a name in :data:`haystack.metrics.PROTOCOLS`.
        from_logits: ``scores`` and ``no_relation`` (then required) are logits; the softmax over
            all P + 1 is taken here.
        per_predicate: ``compute`` also returns ``per_predicate/NAME`` [P] for each metric that is
            a mean over predicates, and counts under ``support/``: ``images``,
            ``images_with_relations``, ``missing_images`` (annotated, but without a predicted
            pair), ``missing_pairs`` (annotated, but not predicted), ``positives`` [P],
            ``negatives`` [P], and for each mean over predicates ``predicates/NAME``, how many
            entered it; and ``per_class/PQ`` [C], ... where they are asked for.
        metrics: names in :data:`haystack.metrics.METRICS`; by default all that can be
            computed.
        training: what training showed, for zR, wR and wIMR: rows (subject class, object class,
            predicate) [S, 3], as often as they occur, or
            :class:`~haystack.statistics.TripletStatistics`.
        zero_shot: rows that count as zero-shot; by default all that ``training`` lacks.
        tau: of wIMR, how much the variety of classes weighs, 0..1.
        auroc_bits: P-AUC from a histogram of 2^auroc_bits bins in constant memory, as
            :class:`~haystack.metrics.PredicateAUROC` in its streaming mode; None: exact.
        num_classes: C, the number of object classes, above all labels; None: not known, so that
            only negative labels are refused.
        num_things: how many of the classes, the first ones, are things; for PQ, SQ and RQ.
        **kwargs: see :class:`~haystack.metrics.base.HaystackMetric`.

    Raises:
        InputError: in ``update`` for annotations, shapes, and on the CPU for scores, pairs, and
            labels and boxes that are compared, where they do not fit; on an accelerator in
            ``compute`` for the latter, unless ``validate``.

    Example:
        >>> from haystack.metrics import SceneGraphMetrics
        >>> metric = SceneGraphMetrics(num_predicates=2, ks=(1,))
        >>> pairs = torch.tensor([[0, 1], [1, 0]])
        >>> scores = torch.tensor([[0.6, 0.1], [0.2, 0.3]])
        >>> target = {
        ...     "labels": torch.tensor([0, 5]),
        ...     "relations": torch.tensor([[0, 1, 0]]),
        ...     "neg_relations": torch.tensor([[1, 0, -1]]),
        ... }
        >>> metric.update([{"pairs": pairs, "scores": scores}], [target])
        >>> values = metric.compute()
        >>> {name: values[name].item() for name in ("P-AUC", "PDD", "PDO", "R@1", "ng-mR@1")}
        {'P-AUC': 1.0, 'PDD': 0.0, 'PDO': 0.5, 'R@1': 1.0, 'ng-mR@1': 1.0}
    """

    PROBLEMS: ClassVar[tuple[str, ...]] = (*PROBLEMS, *OBJECT_PROBLEMS, *LIST_PROBLEMS)
    samples: list[Tensor]
    score_histogram: Tensor
    rank_histogram: Tensor
    label_counts: Tensor
    instances: Tensor
    predicate_rank: Tensor
    seen: Tensor
    lacking: Tensor
    segments: Tensor

    def __init__(
        self,
        num_predicates: int = 56,
        ks: Sequence[int] = (20, 50, 100),
        protocol: str = "paper",
        from_logits: bool = False,
        per_predicate: bool = False,
        metrics: Collection[str] | None = None,
        training: TripletStatistics | Any = None,
        zero_shot: Any = None,
        tau: float = 0.5,
        auroc_bits: int | None = None,
        num_classes: int | None = None,
        num_things: int | None = None,
        **kwargs: Any,
    ) -> None:
        names = choose_metrics(
            metrics, training=training is not None, zero_shot=zero_shot is not None
        )
        super().__init__(
            num_predicates,
            [name for name in names if name in RECALLS],
            ks,
            get_protocol(protocol),
            training=None if training is None else TrainingTriplets.of(training),
            zero_shot=None if zero_shot is None else TrainingTriplets(zero_shot),
            tau=tau,
            **kwargs,
        )
        self.names = names
        self.compares = any(recall.needs_training for recall in self.recalls)
        self.from_logits = from_logits
        self.per_predicate = per_predicate
        self._buffer = Buffer()
        self.auroc_bits = auroc_bits
        self.num_classes = num_classes
        if auroc_bits is None:
            self.add_state("samples", default=[], dist_reduce_fx="cat")
        else:
            check_bits(auroc_bits)
            self._add_counts("score_histogram", 2, num_predicates, 2**auroc_bits)
        self._add_counts("rank_histogram", 2, num_predicates, num_predicates)
        self._add_counts("label_counts", 2, num_predicates)
        self._add_counts("instances", 2)
        self._add_counts("predicate_rank", 2)
        # images, images with triplets, images without a predicted pair, missing pairs
        self._add_counts("seen", 4)
        # batches without scores, without an order without graph constraint, of own objects
        self._add_counts("lacking", 3)
        self.panoptic = any(name in names for name in PANOPTIC_METRICS)
        self.num_things = num_things or 0
        if self.panoptic and (num_classes is None or num_things is None):
            raise InputError("PQ, SQ and RQ ask for num_classes and num_things; give both")
        self._add_counts("segments", (self.panoptic and num_classes) or 0, 4)
        segmented = (num_classes, num_things) if self.panoptic else ()
        self._distinguish(*self._choices(), names, from_logits, *segmented)

    def update(
        self,
        preds: Sequence[Mapping[str, Any] | None],
        targets: Sequence[Mapping[str, Any]],
    ) -> None:
        """Add images, each wholly in one call."""
        if len(preds) != len(targets):
            raise InputError(
                f"expected as many preds as targets, got {len(preds)} and {len(targets)}"
            )
        if not targets:
            return
        annotated = flatten_targets(
            targets, self.num_predicates, self.protocol, self.num_classes
        ).to(self.device)
        objects, num_objects = self._match(preds, targets, annotated)
        own_objects = _own_objects(preds)
        if self.panoptic:
            rows = segment_rows(preds, targets, len(self.segments), self.device)
            self._add("segments", rows.rows, rows.images, rows.classes)
        if is_ranked(preds):
            self._add_lists(preds, targets, annotated, objects, num_objects)
            return
        predicted = flatten_predictions(
            preds,
            num_objects,
            self.num_predicates,
            from_logits=self.from_logits,
            device=self.device,
            keep_repeated=self.protocol.repeated_pairs == "keep",
            buffer=self._buffer,
        )
        if predicted.problems is not None:
            self._note(predicted.problems, 0, targets, preds)
        if own_objects:
            self.lacking = self.lacking + send([False, False, True], torch.int64, self.device)
        batch = Batch(annotated, predicted, objects, own_objects=own_objects)
        self._count_labels(annotated)
        if any(name in self.names for name in LABEL_METRICS):
            self._add_labels(batch)
        if len(annotated.triplet_images):
            ranks, places = rank_batch(
                batch, self.protocol, self.orders, self.limit, places="PRank" in self.names
            )
            self._add_ranks(batch, ranks, places)
        self._add_seen(batch)

    def compute(self) -> dict[str, Tensor]:
        """The metrics by name."""
        self._raise_problems()
        return self._results()

    def _results(self) -> dict[str, Tensor]:
        """What :meth:`compute` returns, from the states alone, without a look at their values."""
        enough = self.label_counts[1] >= self.protocol.min_positives
        labelled = self._labelled(enough)
        results = {name: self._mean(value, enough) for name, value in labelled.items()}
        results |= self._scalars()
        if "InstR" in self.names:
            results["InstR"] = mean_recall(*self.instances)
        if "PRank" in self.names:
            value = ratio(*self.predicate_rank) / RANK_UNIT
            results["PRank"] = value.where(self.lacking[1] == 0, torch.nan)
        results |= self._qualities()
        if self.per_predicate:
            entered = {name: self._counted(value, enough) for name, value in labelled.items()}
            entered |= self._entered()
            vectors = labelled | self._vectors()
            results |= {PER_PREDICATE + name: value for name, value in vectors.items()}
            results |= {SUPPORT + name: value for name, value in self._support(entered).items()}
        return results

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Draw the scalars, see :meth:`HaystackMetric.plot`."""
        values = self.compute() if val is None else val
        if isinstance(values, Mapping):
            values = {name: value for name, value in values.items() if "/" not in name}
        return self._plot(values, ax)

    def _match(
        self,
        preds: Sequence[Mapping[str, Any] | None],
        targets: Sequence[Mapping[str, Any]],
        annotated: Targets,
    ) -> tuple[ObjectMatch | None, tuple[int, ...]]:
        """The match of objects, where there is one to make, and the objects of each image."""
        if _own_objects(preds):
            found = match_batch(preds, targets, self.protocol, self.device, self.num_classes)
            if found.problems is not None:
                self._note(found.problems, len(PROBLEMS), targets, preds)
            sizes = tuple(0 if p is None else len(p["labels"]) for p in preds)
            return found, sizes
        given = [i for i, pred in enumerate(preds) if pred is not None]
        if self.protocol.compares == "phrases" and given:
            raise InputError(
                f"the protocol {self.protocol.name!r} grades the detection of phrases, and the "
                "predictions have no objects of their own; give labels and regions, as 'haystack "
                "predict PICTURES --segments SEGMENTS --model MODEL --out P.parquet' does, or "
                f"choose the protocol {self.protocol.name.removesuffix('-phrdet')!r}",
                record=record_name(given[0], targets, preds),
            )
        if self.protocol.predcls_by_overlap:
            found = match_batch(targets, targets, self.protocol, self.device)
            return found, annotated.num_objects
        if self.protocol.repeated_pairs == "keep":  # which row of a pair hits is to be found out
            return match_to_itself(annotated.num_objects, self.device), annotated.num_objects
        return None, annotated.num_objects

    def _qualities(self) -> dict[str, Tensor]:
        """PQ, SQ and RQ, those that are asked for."""
        if not self.panoptic:
            return {}
        counts = PanopticCounts(*self.segments.unbind(-1))
        by_class = {
            name: value.where(self.lacking[2] > 0, torch.nan)
            for name, value in qualities_by_class(counts).items()
            if name in self.names
        }
        values = mean_qualities(by_class, self.num_things)
        if self.per_predicate:
            values |= {PER_CLASS + name: value for name, value in by_class.items()}
        return values

    def _note(self, flags: Tensor, first: int, *records: Sequence[Any]) -> None:
        """Check the flags [some, images] of the problems from number ``first`` on."""
        names = [record_name(i, *records) for i in range(flags.shape[1])]
        rest = len(self.PROBLEMS) - first - len(flags)
        self._check(torch.nn.functional.pad(flags, (0, 0, first, rest)), names)

    def _add_labels(self, batch: Batch) -> None:
        """P-AUC, PDD and PDO: the score and the rank of each labelled (pair, predicate)."""
        annotated, predicted = batch.annotated, batch.predicted
        predicates, signs = annotated.label_predicates, annotated.label_signs
        row = batch.rows(annotated.label_slots, annotated.label_objects)
        present = row >= 0
        rows = _take(predicted.scores, row)
        own = rows.gather(1, predicates[:, None])[:, 0]
        own = own.where(present, self.protocol.missing_score)
        self._add_samples(own, signs, predicates, annotated.label_images)

        ranked = signs
        last = self.num_predicates - 1
        if not self.protocol.last_predicate_ranked:
            images = _take(predicted.images, row)
            cut = present & ~_take(predicted.has_no_relation, images)
            rows[:, last] = rows[:, last].masked_fill(cut, -math.inf)
            ranked = signs.masked_fill(cut & (predicates == last), 0)
        ranks = ranks_of(rows, predicates).where(present, last)
        cells = rank_cells(ranks, predicates, ranked, self.num_predicates)
        self._add("rank_histogram", ranked.abs(), annotated.label_images, cells)

    def _add_samples(
        self, scores: Tensor, labels: Tensor, predicates: Tensor, images: Tensor
    ) -> None:
        """Add labelled scores [A] of images [A] to what P-AUC is read off."""
        if self.auroc_bits is None:
            self.samples.append(pack_samples(scores, labels, predicates))
        else:
            self.score_histogram = count_scores(self.score_histogram, scores, labels, predicates)

    def _auroc(self) -> Tensor:
        """P-AUC of each predicate, [P]."""
        if self.auroc_bits is None:
            return auroc_of_packed(self.samples, self.num_predicates, self.device)
        return auroc_from_histogram(self.score_histogram).value

    def _count_labels(self, annotated: Targets) -> None:
        positive = annotated.label_signs > 0
        cells = positive * self.num_predicates + annotated.label_predicates
        self._add("label_counts", torch.ones_like(cells), annotated.label_images, cells)

    def _add_lists(
        self,
        preds: Sequence[Mapping[str, Any] | None],
        targets: Sequence[Mapping[str, Any]],
        annotated: Targets,
        objects: ObjectMatch | None,
        num_objects: tuple[int, ...],
    ) -> None:
        """Ranked triplets without scores."""
        if not _own_objects(preds):
            raise InputError(
                "ranked triplets refer to the model's objects; give their labels beside them"
            )
        constrained, unconstrained = (
            flatten_lists(preds, key, num_objects, self.num_predicates, self.device)
            for key in ("triplets", "ng_triplets")
        )
        if constrained is None:
            raise InputError("expected ranked triplets for every image of the batch, or for none")
        for listed in filter(None, (constrained, unconstrained)):
            first = len(PROBLEMS) + len(OBJECT_PROBLEMS)
            self._note(listed.problems, first, targets, preds)
        lacking = [True, unconstrained is None, True]
        self.lacking = self.lacking + send(lacking, torch.int64, self.device)
        batch = Batch(annotated, constrained.predicted, objects, own_objects=True)
        self._count_labels(annotated)
        if len(annotated.triplet_images):
            ranks, places = rank_lists(batch, constrained, unconstrained, self.orders)
            undefined = () if unconstrained is not None else UNCONSTRAINED
            self._add_ranks(batch, ranks, places, undefined)
        self._add_seen(batch)

    def _add_ranks(
        self,
        batch: Batch,
        ranks: Mapping[Order, Tensor],
        places: Tensor | None,
        undefined: Sequence[Order] = (),
    ) -> None:
        """The recalls and PRank: the ranks of each true triplet."""
        annotated = batch.annotated
        images, predicates = annotated.triplet_images, annotated.triplet_predicates
        in_images = batch.entering(self.protocol.skipped_images)
        in_predicates = batch.entering(self.protocol.skipped_in_predicate_means)
        table = self._table(
            ranks,
            images,
            predicates,
            len(annotated.num_objects),
            classes=annotated.triplet_classes if self.compares else None,
            first_of_pair=annotated.first_of_pair,
            in_image_means=None if in_images is None else in_images[images],
            in_predicate_means=None if in_predicates is None else in_predicates[images],
            uncomputed=(*undefined, *(ANNOTATED if batch.own_objects else ())),
        )
        self._add_table(table)
        if "PRank" in self.names and places is not None:
            rows, owners = predicate_rank_rows(places, images, predicates, self.num_predicates)
            self._add("predicate_rank", rows, owners)
        if "InstR" in self.names:
            found, owners = batch.found()
            related = [count > 0 for count in annotated.num_triplets]
            entering = send(related, torch.bool, self.device)
            entering = entering if in_images is None else entering & in_images
            rows = instance_recall_rows(found, owners, len(related), entering)
            self._add("instances", rows, torch.arange(len(rows), device=self.device))

    def _add_seen(self, batch: Batch) -> None:
        """How much was seen, and how much of it the predictions lack."""
        annotated, predicted = batch.annotated, batch.predicted
        num_images = len(annotated.num_objects)
        rows = batch.rows(annotated.pair_slots, annotated.pair_objects)
        missing = count_by(annotated.pair_images, rows < 0, num_images)
        pairs = count_by(annotated.pair_images, torch.ones_like(annotated.pair_images), num_images)
        empty = send([size == 0 for size in predicted.sizes], torch.bool, self.device)
        related = send([count > 0 for count in annotated.num_triplets], torch.int64, self.device)
        nothing = (empty & (pairs > 0)).to(torch.int64)
        rows = torch.stack([torch.ones_like(related), related, nothing, missing], dim=1)
        self._add("seen", rows, torch.arange(num_images, device=self.device))

    def _at(self, recall: Recall, name: str, values: Tensor) -> dict[str, Tensor]:
        """Values by name, NaN where some predictions do not define them.

        Otherwise images without any prediction would define them alone.
        """
        if recall.order in UNCONSTRAINED:
            values = values.where(self.lacking[1] == 0, torch.nan)
        if recall.order in ANNOTATED:
            values = values.where(self.lacking[2] == 0, torch.nan)
        return super()._at(recall, name, values)

    def _labelled(self, enough: Tensor) -> dict[str, Tensor]:
        """P-AUC, PDD and PDO of each predicate."""
        vectors = {}
        if "P-AUC" in self.names:
            vectors["P-AUC"] = self._auroc()
        if "PDD" in self.names:
            vectors["PDD"] = discrimination_disadvantage_from_histogram(self.rank_histogram)
        if "PDO" in self.names:
            vectors["PDO"] = dominance_overestimation_from_histogram(self.rank_histogram)
        defined = enough & (self.lacking[0] == 0)
        return {name: value.where(defined, torch.nan) for name, value in vectors.items()}

    def _counted(self, values: Tensor, enough: Tensor) -> Tensor:
        """How many predicates enter the mean of ``values``."""
        if self.protocol.undefined_in_mean == "propagate":
            return enough.sum()
        return (~values.isnan()).sum()

    def _mean(self, values: Tensor, enough: Tensor) -> Tensor:
        """Mean over the predicates that enter."""
        if self.protocol.undefined_in_mean == "propagate":
            return values.where(enough, 0).sum() / enough.sum()
        return mean_of_defined(values)

    def _support(self, entered: Mapping[str, Tensor]) -> dict[str, Tensor]:
        images, related, missing_images, missing_pairs = self.seen.unbind()
        return {
            "images": images,
            "images_with_relations": related,
            "missing_images": missing_images,
            "missing_pairs": missing_pairs,
            "negatives": self.label_counts[0],
            "positives": self.label_counts[1],
            **{f"predicates/{name}": value for name, value in entered.items()},
        }


def _own_objects(preds: Sequence[Mapping[str, Any] | None]) -> bool:
    return "labels" in keys_of(preds)


def _take(values: Tensor, rows: Tensor) -> Tensor:
    """``values[rows]``, some row for -1, also when there are no values."""
    some = values if len(values) else values.new_zeros(1, *values.shape[1:])
    return some.index_select(0, rows.clamp(min=0))
