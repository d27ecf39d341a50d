"""Which pairs are most likely to show a predicate, of all pairs of all images, in bounded memory.

``score`` is the stage's pure function; ``candidates`` are what it leaves. Nothing heavy is imported
here.
"""
