"""The proposal pipeline: embed, cluster, segment, score, propose, export.

A stage is a pure function (``embed``, ``clustering``, ``segment``, ``scoring``, ``propose``,
``export``); ``jobs`` binds it to the files of a workspace, and an executor runs jobs over shards.
Nothing heavy is imported here.
"""
