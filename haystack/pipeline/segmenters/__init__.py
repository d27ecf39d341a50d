"""Where segments come from, a module each, behind the protocol of ``base``.

``precomputed`` finds records of annotations, ``given`` opens every format that users bring along,
``maskdino`` runs the native model. Nothing heavy is imported here.
"""
