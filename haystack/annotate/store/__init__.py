"""The annotation database: its tables and migrations, opening it, the queue, and the answers.

Its modules need SQLAlchemy; nothing heavy is imported here.
"""
