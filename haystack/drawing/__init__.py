"""Pictures of scene graphs: the photograph with its segments, and the graph beside it.

``scene`` draws; ``placement`` keeps labels apart, ``layout`` finds places for the graph's nodes,
``palette`` holds the colours, and ``fonts`` finds fonts that have the letters. What is drawn is
given as arrays and names: nothing here knows of models or files.
"""
