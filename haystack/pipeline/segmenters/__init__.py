"""Where segments come from, a module each, behind the protocol of ``base``.

``factory`` opens the one that the settings name. ``precomputed`` finds records of annotations and
``given`` opens every format that users bring along; those that run a model share ``model``.
Nothing heavy is imported here.
"""
