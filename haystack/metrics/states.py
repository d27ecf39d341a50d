"""The integer states that all recalls share, and how recalls are read off them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from haystack.errors import InputError
from haystack.metrics.base import HaystackMetric, check_cutoffs
from haystack.metrics.functional.ranking import NEVER
from haystack.metrics.functional.recall import (
    UNIT,
    diversity_weighted_mean,
    frequency_weighted_recall,
    mean_recall,
)
from haystack.metrics.kinds import RECALLS, UNCONSTRAINED, Order, Recall
from haystack.metrics.protocols import Protocol
from haystack.metrics.tables import Column, TripletTable, image_cells, predicate_cells
from haystack.metrics.training import TrainingTriplets


class RecallStates(HaystackMetric):
    """The integer sums that a choice of recalls is read off.

    Args:
        num_predicates: P.
        recalls: names in :data:`haystack.metrics.RECALLS`.
        ks: the cut-offs K.
        protocol: its choices.
        training: what the training annotations showed, where a recall needs it.
        zero_shot: the triplets that count as zero-shot; by default those that training lacks.
        tau: of wIMR, see :func:`haystack.metrics.functional.diversity_weighted_mean`.
        **kwargs: see :class:`HaystackMetric`.
    """

    ks: Tensor
    image_hits: Tensor
    image_counts: Tensor
    predicate_hits: Tensor
    predicate_counts: Tensor
    frequency_hits: Tensor
    frequency_counts: Tensor

    def __init__(
        self,
        num_predicates: int,
        recalls: Sequence[str],
        ks: Sequence[int],
        protocol: Protocol,
        training: TrainingTriplets | None = None,
        zero_shot: TrainingTriplets | None = None,
        tau: float = 0.5,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not isinstance(num_predicates, int) or num_predicates < 1:
            raise InputError(f"expected at least one predicate, got {num_predicates!r}")
        if training is not None:
            training.check_predicates(num_predicates)
        self.num_predicates = num_predicates
        self.recalls = tuple(RECALLS[name] for name in recalls)
        self.orders = {recall.order for recall in self.recalls}
        self.protocol = protocol
        self.training_triplets = TrainingTriplets([]) if training is None else training
        self.zero_shot_triplets = zero_shot
        self.tau = tau
        self.register_buffer("ks", check_cutoffs(ks), persistent=False)
        self.limit = int(self.ks[-1])
        self.image_columns = self._columns("images", "nothing")
        self.predicate_columns = self._columns("predicates", "diversity")
        shape = (len(self.predicate_columns), len(ks))
        self._add_counts("image_hits", len(self.image_columns), len(ks))
        self._add_counts("image_counts", len(self.image_columns))
        self._add_counts("predicate_hits", num_predicates, *shape)
        self._add_counts("predicate_counts", num_predicates, shape[0])
        weighted = any(recall.averaged == "frequency" for recall in self.recalls)
        frequencies = len(self.training_triplets.frequencies) if weighted else 0
        self._add_counts("frequency_hits", frequencies, len(ks))
        self._add_counts("frequency_counts", frequencies)
        self._distinguish(*self._choices())

    def _choices(self) -> tuple[object, ...]:
        """What tells the sums of two metrics apart."""
        return (
            self.num_predicates,
            self.recalls,
            tuple(self.ks.tolist()),
            self.protocol,
            self.training_triplets.keys.tolist(),
            self.training_triplets.frequency_index.tolist(),
            None if self.zero_shot_triplets is None else self.zero_shot_triplets.keys.tolist(),
        )

    def _columns(self, *averaged: str) -> tuple[Column, ...]:
        """What is counted for the recalls that are averaged so; each column once."""
        columns = {self._column(r): None for r in self.recalls if r.averaged in averaged}
        return tuple(columns)

    def _column(self, recall: Recall) -> Column:
        of_predicates = recall.averaged in ("predicates", "diversity")
        pooled = self.protocol.pooled_predicates if of_predicates else recall.averaged == "nothing"
        return Column(recall.order, recall.subset, pooled)

    def _table(
        self,
        ranks: Mapping[Order, Tensor],
        images: Tensor,
        predicates: Tensor,
        num_images: int,
        *,
        classes: Tensor | None = None,
        first_of_pair: Tensor | None = None,
        in_image_means: Tensor | None = None,
        in_predicate_means: Tensor | None = None,
        uncomputed: Sequence[Order] = (),
    ) -> TripletTable:
        """The table of a batch under the protocol; what is None is true of all triplets.

        Args:
            ranks: order -> int64 [T].
            images: int64 [T], ascending.
            predicates: int64 [T].
            num_images: images of the batch.
            classes: int64 [T, 3], rows (subject class, object class, predicate).
            first_of_pair: bool [T].
            in_image_means: bool [T].
            in_predicate_means: bool [T].
            uncomputed: orders that are not defined for this batch.
        """
        every = torch.ones_like(images, dtype=torch.bool)
        index = None if classes is None else self.training_triplets.find(classes)
        cut = self.protocol.unconstrained_candidates
        ranks = dict(ranks)
        if cut is not None and "unconstrained" in ranks:
            ranked = ranks["unconstrained"]
            ranks["unconstrained"] = ranked.where(ranked < cut, NEVER)
        return TripletTable(
            images=images,
            predicates=predicates,
            num_images=num_images,
            ranks=ranks,
            subsets={
                "all": every,
                "pairs": every if first_of_pair is None else first_of_pair,
                "unseen": self._unseen(classes, index, every),
            },
            in_image_means=every if in_image_means is None else in_image_means,
            in_predicate_means=every if in_predicate_means is None else in_predicate_means,
            frequency_index=index,
            uncomputed=(*uncomputed, *(UNCONSTRAINED if cut == 0 else ())),
        )

    def _unseen(self, classes: Tensor | None, index: Tensor | None, every: Tensor) -> Tensor:
        """Which triplets are zero-shot."""
        if classes is not None and self.zero_shot_triplets is not None:
            return self.zero_shot_triplets.find(classes) > 0
        return every if index is None else index == 0

    def _add(self, name: str, rows: Tensor, images: Tensor, cells: Tensor | None = None) -> None:
        """Add to a state what each image adds; all states of counts are made here alone.

        Args:
            name: of the state.
            rows: int64 [N, ...]; their shape is that of a cell.
            images: int64 [N], the image of each row, 0.. in the batch.
            cells: int64 [N], where each row is added, the state's leading dimensions flattened;
                None: the state is one cell.
        """
        state = getattr(self, name)
        if cells is None:
            setattr(self, name, state + rows.sum(0))
            return
        flat = state.reshape(-1, *rows.shape[1:])
        setattr(self, name, flat.index_add(0, cells, rows).view(state.shape))

    def _add_table(self, table: TripletTable) -> None:
        """Add a batch."""
        if len(table.images) == 0:
            return
        if self.image_columns:
            cut = self.protocol.pair_recall_cuts_truth
            cells = image_cells(table, self.image_columns, self.ks, cut_pairs=cut)
            self._add("image_hits", cells.numerators(self.image_columns), cells.images)
            self._add("image_counts", cells.denominators(self.image_columns), cells.images)
        if self.predicate_columns:
            cells = predicate_cells(table, self.predicate_columns, self.ks, self.num_predicates)
            hits = cells.numerators(self.predicate_columns)
            counts = cells.denominators(self.predicate_columns)
            self._add("predicate_hits", hits, cells.images, cells.predicates)
            self._add("predicate_counts", counts, cells.images, cells.predicates)
        if table.frequency_index is not None and len(self.frequency_counts):
            counts = table.in_image_means.to(torch.int64)
            hits = (table.ranks["constrained"][:, None] < self.ks) * counts[:, None] * UNIT
            self._add("frequency_hits", hits, table.images, table.frequency_index)
            self._add("frequency_counts", counts, table.images, table.frequency_index)

    def _scalars(self) -> dict[str, Tensor]:
        """The recalls by name, ``R@20``, ...; of one order all K after each other."""
        images = mean_recall(self.image_hits, self.image_counts[:, None])
        named: dict[str, Tensor] = {}
        for recall in self.recalls:
            if recall.averaged in ("images", "nothing"):
                values = images[self.image_columns.index(self._column(recall))]
            elif recall.averaged == "frequency":
                values = self._frequency_weighted()
            else:
                values = self._over_predicates(recall)
            named |= self._at(recall, recall.name, values)
        return named

    def _vectors(self) -> dict[str, Tensor]:
        """The recalls of each predicate [P] behind the means over predicates."""
        named: dict[str, Tensor] = {}
        for recall in self.recalls:
            if recall.vector:
                named |= self._at(recall, recall.vector, self._of_predicates(recall).T)
        return named

    def _entered(self) -> dict[str, Tensor]:
        """How many predicates entered each mean over predicates."""
        entered = {}
        for recall in self.recalls:
            if recall.vector:
                values = self._of_predicates(recall)[:, 0]
                every = self.protocol.absent_predicates == "undefined"
                count = torch.tensor(len(values)) if every else (~values.isnan()).sum()
                entered[recall.name] = count.to(values.device)
        return entered

    def _at(self, recall: Recall, name: str, values: Tensor) -> dict[str, Tensor]:
        """Values [K, ...] by name; a recall that knows no K has one."""
        if recall.order == "reachable":
            return {name: values[-1]}
        return {f"{name}@{k}": value for k, value in zip(self.ks.tolist(), values, strict=True)}

    def _of_predicates(self, recall: Recall) -> Tensor:
        """Recall of each predicate, [P, K]; absent ones as the protocol says."""
        column = self.predicate_columns.index(self._column(recall))
        values = mean_recall(self.predicate_hits[:, column], self.predicate_counts[:, column, None])
        # Where a protocol computes nothing without graph constraint, its peer prints ng-mR all the
        # same, as 0, and has no ng-IMR to print.
        nothing = self.protocol.unconstrained_candidates == 0
        if nothing and recall.order == "independent-unconstrained":
            return values
        return values.nan_to_num() if self.protocol.absent_predicates == "zero" else values

    def _over_predicates(self, recall: Recall) -> Tensor:
        values = self._of_predicates(recall)
        if recall.averaged == "diversity":
            diversity = self.training_triplets.diversity(self.num_predicates)
            return diversity_weighted_mean(values, diversity, self.tau)
        if self.protocol.absent_predicates == "undefined":
            return values.mean(0)
        return torch.nanmean(values, dim=0)

    def _frequency_weighted(self) -> Tensor:
        return frequency_weighted_recall(
            self.frequency_hits, self.frequency_counts, self.training_triplets.frequencies
        )
