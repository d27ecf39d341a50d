"""Priors of predicates given the classes of subject and object, as logits to add."""

from __future__ import annotations

from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from haystack.errors import InputError
from haystack.statistics import TripletStatistics

Placement = Literal["train", "test"]


@runtime_checkable
class LogitPrior(Protocol):
    """What is known of a pair's predicates before the image is looked at.

    A debiasing method that adds a vector for each predicate, or for each predicate and pair of
    classes, to the logits of a relation model is one of these.

    Attributes:
        placement: whether it is added in training, before the loss, or at test time.
    """

    placement: Placement

    def bias(self, subjects: Tensor, objects: Tensor) -> Tensor:
        """What to add to the logits of the predicates.

        Args:
            subjects: int64 [R], class of each pair's subject, 0..C-1.
            objects: int64 [R], class of each pair's object.

        Returns:
            float [R, P]. The logit of "no relation" stays as it is.
        """
        ...


def add_prior(logits: Tensor, prior: LogitPrior, subjects: Tensor, objects: Tensor) -> Tensor:
    """Logits with a prior.

    Args:
        logits: float [R, P], of the predicates, without "no relation".
        prior: what to add.
        subjects: int64 [R], class of each pair's subject.
        objects: int64 [R], class of each pair's object.

    Raises:
        InputError: the prior knows another number of predicates.
    """
    bias = prior.bias(subjects, objects)
    if bias.shape != logits.shape:
        raise InputError(
            f"expected a prior for logits {list(logits.shape)}, got one for {list(bias.shape)}"
        )
    return logits + bias.to(logits.dtype)


class PKOPrior(nn.Module):
    r"""Predicate knowledge on objects: which predicates a class takes part in, each alike.

    :math:`b_{ijk} = \log(q^s_{ki} + \epsilon) + \log(q^o_{kj} + \epsilon)`, where :math:`q^s_{ki}
    = \tilde A^s_{ki} / \sum_c \tilde A^s_{ci}` and :math:`\tilde A^s_{ki}` is the share of class i
    among the subjects of predicate k in training: the posterior of k given its subject if all
    predicates were equally frequent; likewise :math:`q^o` for objects (Rethinking the Evaluation
    of Unbiased Scene Graph Generation, 2022, equation 2). The paper prints minus signs, which
    would prefer the predicates that a class was never seen with; its text, which follows the
    frequency prior of MOTIFS, and its results need plus. It does not give epsilon.

    A class that training lacks says nothing: all predicates get the same. Added at test time; of
    itself, without a model's logits, it is the paper's baseline "PKO".

    Args:
        statistics: counts of the training annotations.
        epsilon: keeps unseen predicates finite.

    Raises:
        InputError: epsilon is not above 0.

    Example:
        >>> import numpy as np
        >>> counts = np.array([[8, 1], [0, 1]])  # of subject classes and predicates
        >>> triplets = np.array([[0, 0, 0], [0, 0, 1], [1, 0, 1]])
        >>> statistics = TripletStatistics(counts, counts.sum(0)[:, None], triplets,
        ...                                np.array([8, 1, 1]))
        >>> prior = PKOPrior(statistics, epsilon=1e-9)
        >>> prior.bias(torch.tensor([0]), torch.tensor([0])).exp()  # 2/3 and 1/3 of halves
        tensor([[0.3333, 0.1667]])
    """

    placement: Placement = "test"
    subject_bias: Tensor
    object_bias: Tensor

    def __init__(self, statistics: TripletStatistics, epsilon: float = 1e-3) -> None:
        super().__init__()
        if not epsilon > 0:
            raise InputError(f"expected an epsilon above 0, got {epsilon}")
        for name, counts in (
            ("subject_bias", statistics.subject_predicate),
            ("object_bias", statistics.predicate_object.T),
        ):
            posterior = _posterior(torch.from_numpy(counts.copy()).double())
            self.register_buffer(name, (posterior + epsilon).log().float())

    def bias(self, subjects: Tensor, objects: Tensor) -> Tensor:
        """What to add to the logits of the predicates, float32 [R, P]; see :class:`LogitPrior`."""
        return self.subject_bias[subjects] + self.object_bias[objects]


def _posterior(counts: Tensor) -> Tensor:
    """p(predicate | class) under a uniform prior of predicates, from counts [C, P]."""
    likelihood = counts / counts.sum(0, keepdim=True).clamp(min=1)
    total = likelihood.sum(1, keepdim=True)
    uniform = torch.full_like(likelihood, 1 / max(counts.shape[1], 1))
    return torch.where(total > 0, likelihood / total.clamp(min=1e-300), uniform)
