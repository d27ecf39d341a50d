"""VCTree's dynamic trees, built for all images of a batch at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class BinaryTrees:
    """Left-child, right-sibling trees over the objects of B images, as one forest of N nodes.

    Every object is one node; indices refer to the concatenated objects, -1 means "none".

    Args:
        left: int64 [N], the first child, in the order in which children were attached.
        right: int64 [N], the next sibling.
        parent: int64 [N], the node whose left or right this node is.
        depth: int64 [N], 0 for roots.
    """

    left: Tensor
    right: Tensor
    parent: Tensor
    depth: Tensor

    @cached_property
    def order(self) -> Tensor:
        """All nodes, level by level from the roots, in ascending order within a level."""
        return torch.argsort(self.depth, stable=True)

    @cached_property
    def level_sizes(self) -> list[int]:
        """Nodes of each depth."""
        sizes: list[int] = torch.bincount(self.depth).tolist()
        return sizes

    @cached_property
    def rank(self) -> Tensor:
        """Place of each node within its level; int64 [N]."""
        sizes = torch.tensor(self.level_sizes, device=self.depth.device)
        first = sizes.cumsum(0) - sizes
        return torch.argsort(self.order) - first[self.depth]


def build_trees(scores: Tensor, present: Tensor) -> BinaryTrees:
    """Maximum spanning trees by Prim's algorithm, all images in step (Tang et al., 2019, 3.2).

    The root is the object whose row has the largest mean. Then, again and again, the best score
    from an attached object (row) to a free one (column) attaches that one as its last child.
    Ties go to the earliest attached parent, then to the lowest object.

    Args:
        scores: float [B, n, n], padded; row = parent, column = child.
        present: bool [B, n], which places hold an object; each image has at least one, and its
            objects come first.

    Returns:
        The trees in left-child, right-sibling form, over the N = present.sum() objects.
    """
    # Scores of weights that diverged: any tree will do, the gradient tells.
    scores = scores.nan_to_num()
    images, size = present.shape
    device = scores.device
    counts = present.sum(1)
    batch = torch.arange(images, device=device)
    places = torch.arange(size, device=device)

    sums = scores.masked_fill(~present[:, None, :], 0).sum(2)
    root = _first_maximum(sums.masked_fill(~present, -torch.inf))
    tables = torch.full((4, images, size), -1, dtype=torch.int64, device=device)
    left, right, parent, last_child = tables.unbind(0)
    depth = torch.zeros((images, size), dtype=torch.int64, device=device)

    free = present.clone()
    free[batch, root] = False
    best = scores[batch, root]
    # For every free object the attached parent with the best score, and when that was attached.
    best_parent = root[:, None].expand(images, size).clone()
    best_rank = torch.zeros((images, size), dtype=torch.int64, device=device)
    for step in range(1, size):
        growing = step < counts
        value = best.masked_fill(~free, -torch.inf)
        ties = (value == value.amax(1, keepdim=True)) & free
        key = (best_rank * size + places).masked_fill(~ties, size * size)
        child = key.argmin(1)
        above = best_parent[batch, child]
        sibling = last_child[batch, above]
        first = growing & (sibling < 0)
        later = growing & (sibling >= 0)
        _assign(left, batch, above, child, first)
        _assign(right, batch, sibling.clamp(min=0), child, later)
        binary_parent = torch.where(sibling < 0, above, sibling)
        _assign(parent, batch, child, binary_parent, growing)
        _assign(depth, batch, child, depth[batch, binary_parent] + 1, growing)
        _assign(last_child, batch, above, child, growing)
        free[batch, child] = False

        row = scores[batch, child]
        better = (row > best) & growing[:, None]
        best = torch.where(better, row, best)
        best_parent = torch.where(better, child[:, None], best_parent)
        best_rank = torch.where(better, step, best_rank)

    first_node = (counts.cumsum(0) - counts)[:, None]

    def flat(table: Tensor) -> Tensor:
        return torch.where(table < 0, table, table + first_node)[present]

    return BinaryTrees(flat(left), flat(right), flat(parent), depth[present])


def _first_maximum(values: Tensor) -> Tensor:
    """Index of the first maximum of each row; ``argmax`` promises no order on accelerators."""
    size = values.shape[1]
    places = torch.arange(size, device=values.device)
    ties = values == values.amax(1, keepdim=True)
    return torch.where(ties, places, size - 1).amin(1)


def _assign(table: Tensor, batch: Tensor, column: Tensor, value: Tensor, where: Tensor) -> None:
    """table[b, column[b]] = value[b] for the images for which ``where`` holds."""
    table[batch, column] = torch.where(where, value, table[batch, column])
