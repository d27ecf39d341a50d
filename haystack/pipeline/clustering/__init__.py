"""k-means over features that may be larger than memory, and how well a number of clusters does.

``cluster`` is the stage's pure function, ``sweep`` the one that compares numbers of clusters.
Nothing heavy is imported here.
"""
