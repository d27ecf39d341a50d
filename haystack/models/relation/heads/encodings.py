"""Box encodings that OpenPSG's heads share (its "+1" conventions included)."""

from __future__ import annotations

import torch
from torch import Tensor


def encode_boxes(boxes: Tensor, sizes: Tensor) -> Tensor:
    """Nine numbers per box, relative to the image.

    Args:
        boxes: float [N, 4], x1, y1, x2, y2 in pixels.
        sizes: float [N, 2], height and width of each box's image.

    Returns:
        float [N, 9]: w/W, h/H, cx/W, cy/H, x1/W, y1/H, x2/W, y2/H, wh/(WH), where w = x2 - x1 + 1
        and cx = x1 + w/2, the same for h and cy.
    """
    x1, y1, x2, y2 = boxes.unbind(-1)
    height, width = sizes.unbind(-1)
    w, h = x2 - x1 + 1, y2 - y1 + 1
    columns = [
        w / width,
        h / height,
        (x1 + 0.5 * w) / width,
        (y1 + 0.5 * h) / height,
        x1 / width,
        y1 / height,
        x2 / width,
        y2 / height,
        w * h / (width * height),
    ]
    return torch.stack(columns, dim=-1)


def encode_overlaps(boxes: Tensor, present: Tensor, sizes: Tensor) -> Tensor:
    """Six numbers per object about the boxes that it overlaps.

    Args:
        boxes: float [B, n, 4], padded.
        present: bool [B, n], which places hold an object.
        sizes: float [B, 2], height and width of each image.

    Returns:
        float [B, n, 6]: k = number of boxes with a positive intersection (itself included, widths
        counted as x2 - x1 + 1), sum of intersections over the image area, sum of IoUs, the second
        and third over k, and the box area (without + 1) over the image area.
    """
    top_left = torch.maximum(boxes[:, :, None, :2], boxes[:, None, :, :2])
    bottom_right = torch.minimum(boxes[:, :, None, 2:], boxes[:, None, :, 2:])
    intersection = (bottom_right - top_left + 1).clamp(min=0).prod(-1)
    intersection = intersection * (present[:, :, None] & present[:, None, :])
    areas = (boxes[..., 2:] - boxes[..., :2] + 1).prod(-1)
    union = areas[:, :, None] + areas[:, None, :] - intersection
    iou = intersection / (union + 1e-9)
    image_area = sizes.prod(-1)[:, None]
    count = (intersection > 0).sum(2).to(boxes.dtype)
    covered = intersection.sum(2) / image_area
    overlap = iou.sum(2)
    share = count.clamp(min=1)
    area = (boxes[..., 2:] - boxes[..., :2]).prod(-1) / image_area
    columns = [count, covered, overlap, covered / share, overlap / share, area]
    return torch.stack(columns, dim=-1)
