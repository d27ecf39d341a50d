"""The proposal pipeline: embed, cluster, segment, score, propose.

Each stage is one module with one pure function; ``jobs`` wires it to the files of a workspace, and
an executor runs the jobs over shards. Nothing heavy is imported here.
"""
