"""From results of models to a report: tables, charts, confusion, examples, one page.

``runs`` reads what was measured, ``render`` writes the folder; the modules between make one part
each, from runs alone. Nothing heavy is imported here.
"""
