"""Relation models: from known objects to predicate logits for every ordered pair.

``inputs`` and ``protocol`` say what a model is given and must give back. ``network`` is the one
that Haystack trains: a source of ``features`` and one of the ``heads``, put together by a
``config``. ``files`` stores it, ``predict`` runs any model over a data set.
"""
