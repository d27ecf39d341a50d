"""One feature vector an image: what decodes it, what looks at it, and how it is worked ahead.

``encoder`` opens the one that the settings name. Nothing heavy is imported here.
"""
