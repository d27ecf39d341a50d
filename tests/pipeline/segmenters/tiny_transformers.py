"""Tiny models of transformers with random weights that are sure of themselves, in folders."""

from __future__ import annotations

import json

import torch

from haystack.vocabulary import psg_vocabulary

NAMES = dict(enumerate(psg_vocabulary().object_classes))
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def swin():
    from transformers import SwinConfig

    return SwinConfig(
        embed_dim=8,
        depths=[1, 1, 1, 1],
        num_heads=[1, 1, 2, 2],
        window_size=4,
        image_size=64,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )


DECODER = {
    "hidden_dim": 32,
    "encoder_feedforward_dim": 16,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "num_attention_heads": 2,
    "dim_feedforward": 16,
    "num_queries": 30,
}


def mask2former(folder):
    from transformers import (
        Mask2FormerConfig,
        Mask2FormerForUniversalSegmentation,
        Mask2FormerImageProcessor,
    )

    torch.manual_seed(0)
    config = Mask2FormerConfig(
        backbone_config=swin(), feature_size=32, mask_feature_size=32, id2label=NAMES, **DECODER
    )
    _save(Mask2FormerForUniversalSegmentation(config), folder)
    Mask2FormerImageProcessor(size={"height": 64, "width": 96}).save_pretrained(folder)


def eomt(folder):
    from transformers import EomtConfig, EomtForUniversalSegmentation, EomtImageProcessor

    torch.manual_seed(0)
    config = EomtConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=64,
        patch_size=16,
        num_blocks=1,
        num_queries=30,
        num_register_tokens=1,
        num_labels=133,  # nameless, as those that are published
    )
    _save(EomtForUniversalSegmentation(config), folder)
    size = {"shortest_edge": 64, "longest_edge": 64}
    EomtImageProcessor(size=size, do_pad=True).save_pretrained(folder)


def oneformer(folder):
    from transformers import OneFormerConfig, OneFormerForUniversalSegmentation

    torch.manual_seed(0)
    config = OneFormerConfig(
        backbone_config=swin(),
        conv_dim=32,
        mask_dim=32,
        query_dec_layers=1,
        text_encoder_width=16,
        text_encoder_num_layers=1,
        text_encoder_vocab_size=100,
        text_encoder_context_length=12,
        task_seq_len=12,
        is_training=False,
        id2label=NAMES,
        **DECODER,
    )
    _save(OneFormerForUniversalSegmentation(config), folder)
    tokens = [*_LETTERS, *(f"{letter}</w>" for letter in _LETTERS), "<|startoftext|>"]
    vocabulary = {token: number for number, token in enumerate([*tokens, "<|endoftext|>"])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = {"tokenizer_class": "CLIPTokenizer", "model_max_length": 12}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    images = {
        "image_processor_type": "OneFormerImageProcessor",
        "class_info_file": "coco_panoptic.json",  # which is on the hub alone
        "repo_path": "shi-labs/oneformer_demo",
        "size": {"shortest_edge": 64, "longest_edge": 96},
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(images))


def _save(model, folder):
    heads = [
        part
        for name, part in model.named_modules()
        if name.rpartition(".")[2] in ("class_predictor", "class_embed")
    ]
    assert len(heads) == 1
    with torch.no_grad():
        heads[0].weight.normal_(0, 10)
        heads[0].bias[-1] = -1000  # no query finds nothing
    model.save_pretrained(folder)


BUILD = {"mask2former": mask2former, "eomt": eomt, "oneformer": oneformer}
