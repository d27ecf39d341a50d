"""The part of detectron2's interface that the segmenter uses, with a model of one tensor."""

from __future__ import annotations

import types

import torch
import yaml

from haystack.vocabulary import PSG_COCO_CATEGORY_IDS, PSG_STUFF_CLASSES, PSG_THING_CLASSES

# As detectron2 0.6 registers them: counted through, and things and stuff apart.
STANDARD = types.SimpleNamespace(
    name="coco_2017_val_panoptic",
    thing_classes=[*PSG_THING_CLASSES, *PSG_STUFF_CLASSES],
    stuff_classes=[*PSG_THING_CLASSES, *PSG_STUFF_CLASSES],
    thing_dataset_id_to_contiguous_id={
        number: place for place, number in enumerate(PSG_COCO_CATEGORY_IDS[:80])
    },
    stuff_dataset_id_to_contiguous_id={
        number: place + 80 for place, number in enumerate(PSG_COCO_CATEGORY_IDS[80:])
    },
)
SEPARATED = types.SimpleNamespace(
    name="coco_2017_val_panoptic_separated",
    thing_classes=list(PSG_THING_CLASSES),
    stuff_classes=[
        "things",
        *(name.replace("-other", "").replace("-merged", "") for name in PSG_STUFF_CLASSES),
    ],
    thing_dataset_id_to_contiguous_id=STANDARD.thing_dataset_id_to_contiguous_id,
    stuff_dataset_id_to_contiguous_id={
        **{number: place + 1 for place, number in enumerate(PSG_COCO_CATEGORY_IDS[80:])},
        0: 0,
    },
)


class CfgNode:
    """Settings by attribute; unknown keys of a file are errors, as yacs has it."""

    def __init__(self, **settings):
        vars(self).update(settings)

    def merge_from_file(self, name, allow_unsafe=True):
        assert not allow_unsafe
        with open(name) as stream:
            self._merge(yaml.safe_load(stream))

    def _merge(self, content):
        for key, value in content.items():
            if key not in vars(self):
                raise KeyError(f"Non-existent config key: {key}")
            if isinstance(value, dict):
                getattr(self, key)._merge(value)
            else:
                setattr(self, key, value)

    def clone(self):
        return CfgNode(
            **{k: v.clone() if isinstance(v, CfgNode) else v for k, v in vars(self).items()}
        )

    def dump(self):
        return yaml.safe_dump(self._plain())

    def _plain(self):
        return {k: v._plain() if isinstance(v, CfgNode) else v for k, v in vars(self).items()}


def get_cfg():
    return CfgNode(
        MODEL=CfgNode(DEVICE="cuda", WEIGHTS="", META_ARCHITECTURE="PanopticFPN"),
        DATASETS=CfgNode(TEST=()),
        INPUT=CfgNode(FORMAT="BGR"),
    )


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.color = torch.nn.Parameter(torch.rand(3))


class DefaultPredictor:
    """What is of the model's colour is a person, all else is sky; both twice."""

    def __init__(self, cfg):
        assert cfg.MODEL.WEIGHTS == "", "detectron2 would unpickle it"
        assert cfg.MODEL.DEVICE == "cpu"
        self.cfg, self.model = cfg, Model()
        print("criterion.weight_dict", {})  # as MaskDINO does

    def __call__(self, original_image):
        assert original_image.dtype == "uint8"
        is_color = (original_image == self.model.color.detach().numpy()).all(-1)
        if self.cfg.MODEL.META_ARCHITECTURE != "PanopticFPN":
            return {"instances": None}
        ids = torch.from_numpy(is_color.astype("int32")) + 1
        segments = [
            {"id": 1, "isthing": False, "category_id": 40, "area": int((~is_color).sum())},
            {"id": 2, "isthing": True, "score": 0.75, "category_id": 0, "instance_id": 0},
        ]
        return {"sem_seg": None, "instances": None, "panoptic_seg": (ids, segments)}


def modules():
    """By their names, for ``sys.modules``."""
    catalog = {entry.name: entry for entry in (STANDARD, SEPARATED)}
    contents = {
        "detectron2": {},
        "detectron2.config": {"get_cfg": get_cfg},
        "detectron2.engine": {"DefaultPredictor": DefaultPredictor},
        "detectron2.data": {
            "MetadataCatalog": types.SimpleNamespace(
                get=lambda name: catalog.get(name, types.SimpleNamespace(name=name))
            )
        },
    }
    found = {}
    for name, members in contents.items():
        found[name] = types.ModuleType(name)
        vars(found[name]).update(members)
        if "." in name:
            setattr(found["detectron2"], name.rpartition(".")[2], found[name])
    return found
