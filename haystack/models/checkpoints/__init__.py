"""Weights from elsewhere, translated by name and checked strictly; nothing in a file is executed.

``state_dicts`` reads files, ``openpsg`` makes a relation model from one of OpenPSG's checkpoints,
``trunk`` fills the frozen trunk of a model that is to be trained.
"""
