"""The networks: their structure is read from the file, here is only what each part computes.

YOLOv5 (Ultralytics, 2020), YOLOv7 (Wang et al., CVPR 2023), masks as in YOLACT (Bolya et al., ICCV
2019): every detection has 32 coefficients, and its mask is their product with 32 prototypes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from haystack.errors import InputError
from haystack.io.restricted_pickle import Record, read_pickled_model

_PACKAGES = ("models", "utils")  # as they are called in the authors' repositories


class YOLOOutput(NamedTuple):
    """Candidates for objects in a batch of B pictures.

    boxes: float [B, N, 4], x1, y1, x2, y2 in pixels of the input; scores: float [B, N, classes],
    probabilities; coefficients: float [B, N, 32]; prototypes: float [B, 32, H / 4, W / 4].
    """

    boxes: Tensor
    scores: Tensor
    coefficients: Tensor
    prototypes: Tensor


class YOLO(nn.Module):
    """A network that was read from a file, in inference mode.

    Args:
        layers: in the order of their numbers.
        sources: of each layer: number of the one whose output it takes, or of several; negative
            ones count backwards from the layer.
        names: of the classes, by number.
    """

    def __init__(
        self, layers: list[nn.Module], sources: list[int | list[int]], names: Mapping[int, str]
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.names = dict(names)
        self._sources = [
            [
                s if s >= 0 else number + s
                for s in (source if isinstance(source, list) else [source])
            ]
            for number, source in enumerate(sources)
        ]
        self._last_use = {
            place: number for number, source in enumerate(self._sources) for place in source
        }

    def forward(self, pictures: Tensor) -> YOLOOutput:
        """Candidates in RGB pictures: float [B, 3, H, W] in 0..1, H and W multiples of 32."""
        kept: dict[int, Any] = {-1: pictures}
        for number, (layer, source) in enumerate(zip(self.layers, self._sources, strict=True)):
            given = [kept[place] for place in source]
            many = isinstance(layer, _Head) or len(given) > 1
            kept[number] = layer(given if many else given[0])
            for place in source:
                if self._last_use[place] == number:
                    kept.pop(place, None)
        return kept[len(self.layers) - 1]


def read_yolo(path: str | Path) -> YOLO:
    """The network in a file that YOLOv5's or YOLOv7's training wrote; nothing in it is executed.

    Args:
        path: a ``-seg.pt`` file.

    Raises:
        InputError: unreadable, or not such a network.
    """
    content = read_pickled_model(path, _PACKAGES)
    try:
        # The averaged weights are the better ones, where a file has them beside the others.
        model = content.get("ema") or content["model"]
        records = _parts(_parts(model)["model"])
        numbered = [records[str(number)] for number in range(len(records))]
        layers = [_module(record) for record in numbered]
        if not isinstance(layers[-1], _Head):
            raise InputError(f"ends in {_name(numbered[-1])}, not in a head that gives masks")
        names = model.attributes["names"]
        names = dict(enumerate(names)) if isinstance(names, list) else names
        network = YOLO(layers, [record.attributes["f"] for record in numbered], names)
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"expected a model of YOLOv5 or YOLOv7 with masks, got something else ({error!r})",
            path=path,
        ) from error
    except InputError as error:
        raise InputError(
            f"expected a model of YOLOv5 or YOLOv7 with masks; this one {error.message}", path=path
        ) from error
    return network.eval().requires_grad_(False)


class _Conv(nn.Module):
    def __init__(self, parts: Mapping[str, Any], _: Mapping[str, Any]) -> None:
        super().__init__()
        # In inference a normalisation is part of the convolution before it.
        self.conv = fuse_conv_bn_eval(parts["conv"].eval(), parts["bn"].eval())
        self.act = parts["act"]

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.conv(x))


class _Composite(nn.Module):
    """Parts under the file's names; what is made of them is a function of both."""

    def __init__(
        self,
        compute: Callable[[Any, Any], Tensor],
        parts: Mapping[str, nn.Module],
        settings: Mapping[str, Any],
    ) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)
        self._compute, self.settings = compute, settings

    def forward(self, x: Any) -> Tensor:
        return self._compute(self, x)


def _bottleneck(parts: Any, x: Tensor) -> Tensor:
    y = parts.cv2(parts.cv1(x))
    return x + y if parts.settings["add"] else y


def _c3(parts: Any, x: Tensor) -> Tensor:
    return parts.cv3(torch.cat((parts.m(parts.cv1(x)), parts.cv2(x)), 1))


def _sppf(parts: Any, x: Tensor) -> Tensor:
    pooled = [parts.cv1(x)]
    for _ in range(3):
        pooled.append(parts.m(pooled[-1]))
    return parts.cv2(torch.cat(pooled, 1))


def _sppcspc(parts: Any, x: Tensor) -> Tensor:
    y = parts.cv4(parts.cv3(parts.cv1(x)))
    pooled = torch.cat([y, *(pool(y) for pool in parts.m)], 1)
    return parts.cv7(torch.cat((parts.cv6(parts.cv5(pooled)), parts.cv2(x)), 1))


def _proto(parts: Any, x: Tensor) -> Tensor:
    return parts.cv3(parts.cv2(parts.upsample(parts.cv1(x))))


def _concat(parts: Any, x: list[Tensor]) -> Tensor:
    return torch.cat(x, parts.settings["d"])


class _Head(nn.Module):
    """Candidates on three maps, three anchors a place, and the prototypes of masks.

    YOLOv7 adds a learned constant to each map before the last convolution; the factors that its
    files also hold are not used, there as here.
    """

    anchors: Tensor
    strides: Tensor

    def __init__(self, parts: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.m, self.proto = parts["m"], parts["proto"]
        self.ia = parts.get("ia")
        self.classes, self.coefficients = int(settings["nc"]), int(settings["nm"])
        # Files have anchors in strides.
        strides = torch.as_tensor(settings["stride"].astype("float32"))
        anchors = torch.as_tensor(settings["anchors"].astype("float32"))
        self.register_buffer("strides", strides, persistent=False)
        self.register_buffer("anchors", anchors * strides[:, None, None], persistent=False)

    def forward(self, maps: list[Tensor]) -> YOLOOutput:
        found = []
        for level, features in enumerate(maps):
            if self.ia is not None:
                features = features + self.ia[level].implicit
            answer = self.m[level](features).float()
            batch, _, height, width = answer.shape
            answer = answer.view(batch, len(self.anchors[level]), -1, height, width)
            answer = answer.permute(0, 1, 3, 4, 2)
            centres, sizes, scores, masks = answer.split(
                (2, 2, 1 + self.classes, self.coefficients), -1
            )
            grid = torch.stack(
                torch.meshgrid(
                    torch.arange(width, device=answer.device, dtype=answer.dtype),
                    torch.arange(height, device=answer.device, dtype=answer.dtype),
                    indexing="xy",
                ),
                -1,
            )
            centres = (centres.sigmoid() * 2 - 0.5 + grid) * self.strides[level]
            sizes = (sizes.sigmoid() * 2) ** 2 * self.anchors[level][:, None, None]
            boxes = torch.cat((centres - sizes / 2, centres + sizes / 2), -1)
            scores = scores.sigmoid()
            scores = scores[..., 1:] * scores[..., :1]
            found.append([part.flatten(1, 3) for part in (boxes, scores, masks)])
        boxes, scores, masks = (torch.cat(parts, 1) for parts in zip(*found, strict=True))
        return YOLOOutput(boxes, scores, masks, self.proto(maps[0]).float())


class _Constant(nn.Module):
    def __init__(self, implicit: Tensor) -> None:
        super().__init__()
        self.implicit = nn.Parameter(implicit)


_COMPOSITES: Mapping[str, Callable[[Any, Any], Tensor]] = {
    "Bottleneck": _bottleneck,
    "C3": _c3,
    "SPPF": _sppf,
    "SPPCSPC": _sppcspc,
    "MP": lambda parts, x: parts.m(x),
    "Proto": _proto,
    "Concat": _concat,
}


def _module(record: Record) -> nn.Module:
    """A module of ours for one of the file's, with its parts and numbers."""
    settings, name = record.attributes, _name(record)
    parts = {key: _module(part) for key, part in _parts(record).items()}
    if name in _COMPOSITES:
        return _Composite(_COMPOSITES[name], parts, settings)
    if name == "Conv":
        return _Conv(parts, settings)
    if name in ("Segment", "ISegment"):
        return _Head(parts, {**settings, **settings["_buffers"], **settings["_parameters"]})
    if name in ("ImplicitA", "ImplicitM"):
        return _Constant(_tensor(settings["_parameters"]["implicit"]))
    if name == "Sequential":
        return nn.Sequential(*parts.values())
    if name == "ModuleList":
        return nn.ModuleList(parts.values())
    return _leaf(name, settings)


def _leaf(name: str, settings: Mapping[str, Any]) -> nn.Module:
    if name == "SiLU":
        return nn.SiLU()
    if name == "Upsample":
        return nn.Upsample(settings["size"], settings["scale_factor"], settings["mode"])
    if name == "MaxPool2d":
        return nn.MaxPool2d(settings["kernel_size"], settings["stride"], settings["padding"])
    if name == "Conv2d":
        leaf: nn.Module = nn.Conv2d(
            settings["in_channels"],
            settings["out_channels"],
            settings["kernel_size"],
            settings["stride"],
            settings["padding"],
            settings["dilation"],
            settings["groups"],
            bias=settings["_parameters"]["bias"] is not None,
            device="meta",
        )
    elif name == "BatchNorm2d":
        leaf = nn.BatchNorm2d(settings["num_features"], settings["eps"], device="meta")
    else:
        raise InputError(f"has a part of the kind {name}, which is none of theirs")
    arrays = {**settings["_parameters"], **settings["_buffers"]}
    state = {key: _tensor(array) for key, array in arrays.items() if array is not None}
    leaf.load_state_dict(state, strict=True, assign=True)
    return leaf


def _tensor(array: Any) -> Tensor:
    """A copy in float32, as files hold half the digits; counters stay integers."""
    if any(step == 0 for step, size in zip(array.strides, array.shape, strict=True) if size > 1):
        raise InputError("repeats one number as a weight")
    return torch.tensor(array.astype("float32" if array.dtype.kind == "f" else array.dtype))


def _parts(record: Record) -> Mapping[str, Record]:
    return record.attributes["_modules"]


def _name(record: Record) -> str:
    return record.name.rpartition(".")[2]
