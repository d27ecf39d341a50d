"""Relation models: from known objects to predicate logits for every ordered pair.

``inputs`` and ``protocol`` say what a model is given and must give back; ``model`` is the one
that Haystack trains, made of features (``geometry``; ``visual`` for a detector's feature maps)
and a head (``vctree``); ``files`` stores it, ``predict`` runs any model over a data set.
"""
