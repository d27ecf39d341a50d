"""Models in plain PyTorch; the only models that Haystack needs at run time."""
