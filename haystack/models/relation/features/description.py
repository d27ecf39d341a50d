"""Descriptions of objects and pairs by the shape and place of their masks; no picture is read.

Everything follows from one pass over the id map: sums over pixels, counts of neighbouring pixels
that belong to two objects, and a coarse table of where each mask lies. All functions are pure and
work on the tensors' device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from haystack.models.relation.inputs import SceneInput

MAX_SIDE = 320
"""The id map is thinned out until its longer side has at most this many pixels."""
GRID = 48
"""Cells along each side of the coarse mask tables, over the whole image."""
PAIR_GRID = 6
"""Cells along each side of a pair's mask maps, over its union box."""
REACHES = (1, 6)
"""Distances in (thinned) pixels at which two masks count as touching, and as near."""

OBJECT_COLUMNS = (
    *("root of area share", "share of box filled", "centre x", "centre y", "spread x", "spread y"),
    *("box x1", "box y1", "box x2", "box y2", "box width", "box height", "log box aspect"),
    *("share of left border", "share of right border"),
    *("share of top border", "share of bottom border"),
    *("log outline over root of area", "log neighbours", "share larger", "log others of its class"),
)
"""What ``describe_objects`` computes; lengths are relative to the image's sides."""

_CONTACT_COLUMNS = (
    *("log length", "share of outline of s", "share of outline of o"),
    *("over longest of s", "over longest of o"),
    *("s left of o", "s right of o", "s above o", "s below o"),
)

PAIR_COLUMNS = (
    *("centre dx", "centre dy", "centre distance", "dx over sizes", "dy over sizes"),
    *("log area ratio", "log width ratio", "log height ratio", "same class"),
    *(
        "box IoU",
        "box of s in o",
        "box of o in s",
        "mask of s in box of o",
        "mask of o in box of s",
    ),
    *("gap x", "gap y", "shared x of s", "shared x of o", "shared y of s", "shared y of o"),
    *("top - top", "bottom - bottom", "top - bottom", "bottom - top"),
    *("left - left", "right - right", "left - right", "right - left"),
    *("height difference in shared columns", "shared columns of s", "shared columns of o"),
    *(f"touch: {name}" for name in _CONTACT_COLUMNS),
    *(f"near: {name}" for name in _CONTACT_COLUMNS),
    *("union width", "union height", "nearness rank of o", "nearness rank of s"),
)
"""What ``describe_pairs`` computes, before the mask maps; s = subject, o = object."""

PAIR_WIDTH = len(PAIR_COLUMNS) + 2 * PAIR_GRID**2
OBJECT_WIDTH = len(OBJECT_COLUMNS)


@dataclass(frozen=True)
class MaskTables:
    """What one pass over an index map [h, w] yields for its n objects.

    Args:
        pixels: of the index map, h * w.
        areas: float [n], pixels.
        centres: float [n, 2], mean x and y, relative to width and height; 0.5 where empty.
        spreads: float [n, 2], standard deviation of x and y, relative to width and height.
        borders: float [n, 4], share of the left, right, top and bottom image border.
        beside: float [reaches, n + 1, n + 1], [k, i, j] = number of pixels of i whose neighbour
            ``REACHES[k]`` to the right belongs to j; the last index is void.
        above: the same for the neighbour below.
        grid: float [n, GRID, GRID], pixels of each object in each cell of the image.
    """

    pixels: int
    areas: Tensor
    centres: Tensor
    spreads: Tensor
    borders: Tensor
    beside: Tensor
    above: Tensor
    grid: Tensor


def index_map(scene: SceneInput, device: torch.device) -> Tensor:
    """Object number of each pixel of the thinned id map; int64 [h, w], void = N.

    Where a scene has no id map, its boxes are painted, the largest first.
    """
    stride = max(1, -(-max(scene.height, scene.width) // MAX_SIDE))
    count, start = len(scene), stride // 2
    if scene.id_map is None:
        boxes = torch.from_numpy(scene.boxes).to(device)
        xs = torch.arange(start, scene.width, stride, device=device) + 0.5
        ys = torch.arange(start, scene.height, stride, device=device) + 0.5
        painted = torch.full((len(ys), len(xs)), count, dtype=torch.int64, device=device)
        order = torch.argsort(box_areas(boxes), descending=True, stable=True)
        for number in order.tolist():
            x1, y1, x2, y2 = boxes[number].unbind()
            inside = ((ys >= y1) & (ys < y2))[:, None] & ((xs >= x1) & (xs < x2))
            painted[inside] = number
        return painted
    thinned = torch.from_numpy(scene.id_map[start::stride, start::stride].copy()).to(device).long()
    ids, order = torch.from_numpy(scene.segment_ids).to(device).sort()
    place = torch.searchsorted(ids, thinned).clamp(max=count - 1)
    return torch.where(ids[place] == thinned, order[place], count)


def mask_tables(index: Tensor, count: int) -> MaskTables:
    """Sums, contacts and coarse tables of the masks in an index map.

    Args:
        index: int64 [h, w], object numbers, ``count`` = void.
        count: n, number of objects.
    """
    height, width = index.shape
    flat = index.flatten()
    xs = (torch.arange(width, device=index.device) + 0.5) / width
    ys = (torch.arange(height, device=index.device) + 0.5) / height
    columns = (torch.arange(width, device=index.device) * GRID) // width
    rows = (torch.arange(height, device=index.device) * GRID) // height

    # Per object and column, per object and row: integers, so that sums are exact in any order.
    by_column = _counts(index * width + torch.arange(width, device=index.device), count, width)
    by_row = _counts(
        index * height + torch.arange(height, device=index.device)[:, None], count, height
    )
    areas = torch.bincount(flat, minlength=count + 1)[:count].float()
    moments = []
    for table, places in ((by_column, xs), (by_row, ys)):
        share = table / areas.clamp(min=1)[:, None]
        mean = share @ places
        moments.append((mean, (share @ places.square() - mean.square()).clamp(min=0).sqrt()))
    empty = areas == 0
    centres = torch.stack([mean for mean, _ in moments], dim=1).masked_fill(empty[:, None], 0.5)

    edges = (index[:, 0], index[:, -1], index[0], index[-1])
    borders = [torch.bincount(edge, minlength=count + 1)[:count] / len(edge) for edge in edges]
    beside, above = [], []
    for reach in REACHES:
        beside.append(_neighbours(index[:, :-reach], index[:, reach:], count))
        above.append(_neighbours(index[:-reach], index[reach:], count))
    cells = rows[:, None] * GRID + columns
    grid = _counts(index * GRID**2 + cells, count, GRID**2).view(count, GRID, GRID)
    return MaskTables(
        pixels=index.numel(),
        areas=areas,
        centres=centres,
        spreads=torch.stack([spread for _, spread in moments], dim=1),
        borders=torch.stack(borders, dim=1),
        beside=torch.stack(beside),
        above=torch.stack(above),
        grid=grid,
    )


def describe_scene(scene: SceneInput, device: torch.device) -> tuple[Tensor, Tensor]:
    """Descriptions of a scene's objects and of all its ordered pairs.

    Returns:
        float [N, OBJECT_WIDTH] and float [N (N - 1), PAIR_WIDTH], pairs row-major.
    """
    index = index_map(scene, device)
    tables = mask_tables(index, len(scene))
    labels = torch.from_numpy(scene.labels).to(device)
    size = torch.tensor([scene.width, scene.height] * 2, dtype=torch.float32, device=device)
    boxes = torch.from_numpy(scene.boxes).to(device) / size
    objects = describe_objects(tables, boxes, labels)
    apart = ~torch.eye(len(scene), dtype=torch.bool, device=device)
    subject, target = torch.nonzero(apart).unbind(1)
    pairs = describe_pairs(tables, boxes, labels)[subject, target]
    return objects, torch.cat([pairs, mask_maps(tables, boxes, subject, target)], dim=1)


def describe_objects(tables: MaskTables, boxes: Tensor, labels: Tensor) -> Tensor:
    """``OBJECT_COLUMNS`` of every object.

    Args:
        tables: see ``mask_tables``.
        boxes: float [N, 4], relative to the image's sides.
        labels: int64 [N], object classes.

    Returns:
        float [N, OBJECT_WIDTH].
    """
    areas = tables.areas / tables.pixels
    sides = boxes[:, 2:] - boxes[:, :2]
    touch = _contacts(tables, 0)
    outline = touch.sum((0, 2))
    neighbours = (touch.sum(0)[:, :-1] > 0).sum(1)
    larger = (areas[None] > areas[:, None]).float().mean(1)
    same = (labels[:, None] == labels).sum(1) - 1
    columns = [
        areas.sqrt()[:, None],
        (areas / box_areas(boxes).clamp(min=1e-6)).clamp(max=1)[:, None],
        tables.centres - 0.5,
        tables.spreads,
        boxes,
        sides,
        _log_ratio(sides[:, 0], sides[:, 1])[:, None],
        tables.borders,
        (outline / tables.areas.clamp(min=1).sqrt()).log1p()[:, None],
        torch.stack([neighbours.float().log1p(), larger, same.float().log1p()], dim=1),
    ]
    return torch.cat(columns, dim=1)


def describe_pairs(tables: MaskTables, boxes: Tensor, labels: Tensor) -> Tensor:
    """``PAIR_COLUMNS`` of every pair, the diagonal included.

    Args:
        tables: see ``mask_tables``.
        boxes: float [N, 4], relative to the image's sides.
        labels: int64 [N], object classes.

    Returns:
        float [N, N, len(PAIR_COLUMNS)]; first index = subject.
    """
    columns = [
        *_offsets(tables, boxes, labels),
        *_box_relations(tables, boxes),
        *_edge_differences(boxes),
        *_column_relations(tables),
    ]
    for reach in range(len(REACHES)):
        columns += _contact_columns(tables, reach)
    low = torch.minimum(boxes[:, None, :2], boxes[None, :, :2])
    high = torch.maximum(boxes[:, None, 2:], boxes[None, :, 2:])
    nearness = _nearness_rank(tables.centres)
    columns += [*(high - low).unbind(-1), nearness, nearness.T]
    return torch.stack(columns, dim=-1)


def mask_maps(tables: MaskTables, boxes: Tensor, subject: Tensor, target: Tensor) -> Tensor:
    """Where the two masks lie inside their pair's union box.

    Args:
        tables: see ``mask_tables``.
        boxes: float [N, 4], relative to the image's sides.
        subject: int64 [R], subjects of the pairs.
        target: int64 [R], objects of the pairs.

    Returns:
        float [R, 2 * PAIR_GRID^2], the share of each cell that the subject's mask covers, row by
        row, then the same for the object's mask.
    """
    low = torch.minimum(boxes[subject, :2], boxes[target, :2])
    high = torch.maximum(boxes[subject, 2:], boxes[target, 2:])
    union = torch.cat([low, high], dim=1)
    cell = (box_areas(union) * tables.pixels / PAIR_GRID**2).clamp(min=1e-6)[:, None]
    integral = _integral(tables.grid)
    maps = [
        mass_in_boxes(integral, rows, union, PAIR_GRID).flatten(1) / cell
        for rows in (subject, target)
    ]
    return torch.cat(maps, dim=1).clamp(0, 1)


def mass_in_boxes(integral: Tensor, rows: Tensor, boxes: Tensor, cells: int) -> Tensor:
    """Pixels of given masks inside the cells of given boxes, by interpolated integral images.

    Args:
        integral: float [N, GRID + 1, GRID + 1].
        rows: int64 [K], the mask of each box.
        boxes: float [K, 4], relative to the image's sides.
        cells: each box is cut into cells x cells equal parts.

    Returns:
        float [K, cells, cells], first rows (y), then columns (x).
    """
    steps = torch.linspace(0, 1, cells + 1, device=boxes.device)
    sides = boxes[:, 2:] - boxes[:, :2]
    corners = ((boxes[:, :2, None] + sides[:, :, None] * steps) * GRID).clamp(0, GRID)
    whole = corners.floor().clamp(max=GRID - 1)
    part = corners - whole
    x, y = whole.long().unbind(1)
    along_x, along_y = part.unbind(1)
    upper, lower = integral[rows[:, None], y], integral[rows[:, None], y + 1]
    lines = torch.lerp(upper, lower, along_y[:, :, None])
    x = x[:, None, :].expand(-1, cells + 1, -1)
    points = torch.lerp(lines.gather(2, x), lines.gather(2, x + 1), along_x[:, None, :])
    return points.diff(dim=1).diff(dim=2)


def box_areas(boxes: Tensor) -> Tensor:
    """Width times height of boxes [..., 4]."""
    return (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(-1)


def _counts(keys: Tensor, count: int, width: int) -> Tensor:
    """How often object i meets place j, from keys i * width + j; float [count, width], no void."""
    table = torch.bincount(keys.flatten(), minlength=(count + 1) * width)
    return table.view(count + 1, width)[:count].float()


def _neighbours(first: Tensor, second: Tensor, count: int) -> Tensor:
    keys = first * (count + 1) + second
    table = torch.bincount(keys.flatten(), minlength=(count + 1) ** 2)
    return table.view(count + 1, count + 1).float()


def _contacts(tables: MaskTables, reach: int) -> Tensor:
    """Pixels of i that have j to their right, left, below, above; float [4, n, n + 1], i != j."""
    beside, above = tables.beside[reach], tables.above[reach]
    stacked = torch.stack([beside, beside.T, above, above.T])
    same = torch.eye(len(beside), dtype=torch.bool, device=beside.device)
    return stacked.masked_fill(same, 0)[:, :-1]


def _contact_columns(tables: MaskTables, reach: int) -> list[Tensor]:
    directed = _contacts(tables, reach)
    outline = directed.sum((0, 2)).clamp(min=1)
    directed = directed[:, :, :-1]
    length = directed.sum(0)
    largest = length.amax(1).clamp(min=1)
    shares = directed / length.clamp(min=1)
    return [
        (length / REACHES[reach]).log1p() / 4,
        length / outline[:, None],
        length / outline,
        length / largest[:, None],
        length / largest,
        *shares.unbind(0),
    ]


def _offsets(tables: MaskTables, boxes: Tensor, labels: Tensor) -> list[Tensor]:
    dx, dy = (tables.centres[:, None] - tables.centres[None]).unbind(-1)
    sides = (boxes[:, 2:] - boxes[:, :2]).clamp(min=1e-4)
    mean_sides = (sides[:, None] + sides[None]) / 2
    areas = tables.areas.clamp(min=1)
    return [
        dx,
        dy,
        (dx.square() + dy.square()).sqrt(),
        (dx / mean_sides[..., 0]).tanh(),
        (dy / mean_sides[..., 1]).tanh(),
        _log_ratio(areas[:, None], areas[None]) / 2,
        _log_ratio(sides[:, None, 0], sides[None, :, 0]),
        _log_ratio(sides[:, None, 1], sides[None, :, 1]),
        (labels[:, None] == labels).float(),
    ]


def _box_relations(tables: MaskTables, boxes: Tensor) -> list[Tensor]:
    low = torch.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    shared = (high - low).clamp(min=0)
    gap = (low - high).clamp(min=0)
    intersection = shared.prod(-1)
    areas = box_areas(boxes).clamp(min=1e-6)
    union = areas[:, None] + areas[None] - intersection
    count = len(boxes)
    rows, columns = torch.meshgrid(
        torch.arange(count, device=boxes.device),
        torch.arange(count, device=boxes.device),
        indexing="ij",
    )
    mass = mass_in_boxes(_integral(tables.grid), rows.flatten(), boxes[columns.flatten()], 1)
    inside = mass.view(count, count) / tables.areas.clamp(min=1)[:, None]
    sides = (boxes[:, 2:] - boxes[:, :2]).clamp(min=1e-4)
    return [
        intersection / union,
        intersection / areas[:, None],
        intersection / areas,
        inside,
        inside.T,
        *gap.unbind(-1),
        shared[..., 0] / sides[:, None, 0],
        shared[..., 0] / sides[:, 0],
        shared[..., 1] / sides[:, None, 1],
        shared[..., 1] / sides[:, 1],
    ]


def _edge_differences(boxes: Tensor) -> list[Tensor]:
    differences = []
    for low, high in ((boxes[:, 1], boxes[:, 3]), (boxes[:, 0], boxes[:, 2])):
        for first, second in ((low, low), (high, high), (low, high), (high, low)):
            differences.append(first[:, None] - second[None])
    return differences


def _column_relations(tables: MaskTables) -> list[Tensor]:
    """Which of two masks is higher where both occupy the same columns of the image."""
    mass = tables.grid.sum(1)  # [n, columns]
    mass = mass / tables.areas.clamp(min=1)[:, None]
    heights = (torch.arange(GRID, device=mass.device) + 0.5) / GRID
    weighted = (tables.grid * heights[:, None]).sum(1) / tables.areas.clamp(min=1)[:, None]
    both = mass @ mass.T
    difference = (weighted @ mass.T - mass @ weighted.T) / both.clamp(min=1e-9)
    used = (mass > 0).float()
    shared = used @ used.T
    columns = used.sum(1).clamp(min=1)
    return [difference, shared / columns[:, None], shared / columns]


def _nearness_rank(centres: Tensor) -> Tensor:
    """[i, j] = 1 / (1 + number of objects nearer to i than j is), i itself not counted."""
    distance = (centres[:, None] - centres[None]).square().sum(-1)
    distance = distance.masked_fill(
        torch.eye(len(centres), dtype=torch.bool, device=centres.device), torch.inf
    )
    nearer = (distance[:, None, :] < distance[:, :, None]).sum(-1)
    return 1 / (1 + nearer)


def _integral(grid: Tensor) -> Tensor:
    padded = torch.nn.functional.pad(grid, (1, 0, 1, 0))
    return padded.cumsum(1).cumsum(2)


def _log_ratio(first: Tensor, second: Tensor) -> Tensor:
    return (first.clamp(min=1e-4) / second.clamp(min=1e-4)).log().clamp(-5, 5)
