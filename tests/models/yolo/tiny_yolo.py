"""A tiny YOLOv5 with masks, saved whole as its training does, in classes of the modules' names."""

from __future__ import annotations

import sys
import types
from contextlib import contextmanager

import torch
from torch import nn


class Conv(nn.Module):
    def __init__(self, inputs, outputs, kernel=1, stride=1):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        self.bn = nn.BatchNorm2d(outputs, 1e-3)
        self.act = nn.SiLU()

    def forward(self, x):
        return self.act(self.bn(self.conv(x)))


class Bottleneck(nn.Module):
    def __init__(self, channels, add):
        super().__init__()
        self.cv1, self.cv2, self.add = Conv(channels, channels), Conv(channels, channels, 3), add

    def forward(self, x):
        return x + self.cv2(self.cv1(x)) if self.add else self.cv2(self.cv1(x))


class C3(nn.Module):
    def __init__(self, inputs, outputs, add=True):
        super().__init__()
        half = outputs // 2
        self.cv1, self.cv2, self.cv3 = (
            Conv(inputs, half),
            Conv(inputs, half),
            Conv(outputs, outputs),
        )
        self.m = nn.Sequential(Bottleneck(half, add))

    def forward(self, x):
        return self.cv3(torch.cat((self.m(self.cv1(x)), self.cv2(x)), 1))


class SPPF(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.cv1, self.cv2 = Conv(channels, channels // 2), Conv(channels * 2, channels)
        self.m = nn.MaxPool2d(5, 1, 2)

    def forward(self, x):
        a = self.cv1(x)
        b = self.m(a)
        c = self.m(b)
        return self.cv2(torch.cat((a, b, c, self.m(c)), 1))


class Concat(nn.Module):
    def __init__(self):
        super().__init__()
        self.d = 1


class Proto(nn.Module):
    def __init__(self, inputs, masks):
        super().__init__()
        self.cv1, self.upsample = Conv(inputs, 8, 3), nn.Upsample(scale_factor=2, mode="nearest")
        self.cv2, self.cv3 = Conv(8, 8, 3), Conv(8, masks)

    def forward(self, x):
        return self.cv3(self.cv2(self.upsample(self.cv1(x))))


class Segment(nn.Module):
    def __init__(self, classes, masks, inputs):
        super().__init__()
        self.nc, self.nm = classes, masks
        self.m = nn.ModuleList(nn.Conv2d(n, 3 * (5 + classes + masks), 1) for n in inputs)
        self.proto = Proto(inputs[0], masks)
        self.stride = torch.tensor([8.0, 16.0])
        self.register_buffer("anchors", torch.tensor([[[1.0, 2], [2, 1], [2, 3]]] * 2))
        self.grid = [torch.ones(1).expand(1, 3, 4, 4, 2)]  # larger than its storage
        self.detect = getattr(self, "forward", None)  # a bound method in the file


class SegmentationModel(nn.Module):
    def __init__(self, names):
        super().__init__()
        classes = len(names)
        layers = [
            (Conv(3, 8, 3, 2), -1),
            (Conv(8, 8, 3, 2), -1),
            (C3(8, 8), -1),
            (Conv(8, 16, 3, 2), -1),  # 3: stride 8
            (Conv(16, 16, 3, 2), -1),
            (SPPF(16), -1),  # 5: stride 16
            (nn.Upsample(scale_factor=2, mode="nearest"), -1),
            (Concat(), [-1, 3]),
            (C3(32, 16, add=False), -1),
            (Segment(classes, 4, (16, 16)), [8, -4]),  # of 8 and 5
        ]
        for number, (layer, source) in enumerate(layers):
            layer.i, layer.f = number, source
        self.model = nn.Sequential(*(layer for layer, _ in layers))
        self.names = names
        self.yaml = {"nc": classes, "anchors": [[8, 16]]}

    def reference(self, x):
        """Step by step: boxes as centre and size, scores, coefficients, prototypes."""
        m = self.model
        fine = m[3](m[2](m[1](m[0](x))))
        coarse = m[5](m[4](fine))
        maps = [m[8](torch.cat((m[6](coarse), fine), 1)), coarse]
        head, rows = m[9], []
        for level, features in enumerate(maps):
            answer = head.m[level](features)
            stride = head.stride[level]
            for anchor in range(3):
                for row in range(features.shape[2]):
                    for column in range(features.shape[3]):
                        size = 5 + head.nc + head.nm
                        one = answer[0, anchor * size : (anchor + 1) * size, row, column]
                        sure = one[: 5 + head.nc].sigmoid()
                        place = torch.stack([2 * sure[0] - 0.5 + column, 2 * sure[1] - 0.5 + row])
                        sides = (2 * sure[2:4]) ** 2 * head.anchors[level, anchor] * stride
                        rows.append((place * stride, sides, sure[4] * sure[5:], one[5 + head.nc :]))
        return [torch.stack(part) for part in zip(*rows, strict=True)] + [head.proto(maps[0])[0]]


CLASSES = (Conv, Bottleneck, C3, SPPF, Concat, Proto, Segment, SegmentationModel)


@contextmanager
def called_models():
    """The classes under the names that files know them by."""
    owner = {"Segment": "models.yolo", "SegmentationModel": "models.yolo"}
    modules = {name: types.ModuleType(name) for name in ("models", "models.common", "models.yolo")}
    before = {kind: kind.__module__ for kind in CLASSES}
    for kind in CLASSES:
        kind.__module__ = owner.get(kind.__name__, "models.common")
        setattr(modules[kind.__module__], kind.__name__, kind)
    hidden = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, module in hidden.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
        for kind, name in before.items():
            kind.__module__ = name


def build(names, seed=0):
    torch.manual_seed(seed)
    model = SegmentationModel(names).eval()
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.1)
            part.running_var.uniform_(0.5, 2)
    return model


def save(model, path, **changes):
    with called_models():
        torch.save({"epoch": -1, "model": model, "ema": None, **changes}, path)
    return path
