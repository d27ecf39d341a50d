"""The stages as jobs, a module each: which files of a workspace they read and write.

Pure functions know no files and jobs know no arithmetic. ``upstream`` checks what a job reads.
Nothing heavy is imported here.
"""
