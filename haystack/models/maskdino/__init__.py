"""MaskDINO (Li et al., CVPR 2023) for panoptic segmentation, in PyTorch alone, for inference.

``network`` is the model, ``panoptic`` makes segments of its outputs, ``predictor`` does both for
pictures of any size. Official weights are read by ``haystack.models.checkpoints.maskdino``.

Where the official program (github.com/IDEA-Research/MaskDINO) does something that one would not
guess, a comment with the word *quirk* says what and why it is kept: weights were trained with it.
"""
