"""Rounds of a campaign: retrain on the answers, score and propose again, report.

It wires verbs together, as ``cli`` does: a round is a list of steps, most of them ordinary verbs.
"""
