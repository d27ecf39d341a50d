"""The annotation service: who may ask, what is asked, pictures, and the server.

``app`` puts the application together. Its modules need FastAPI; nothing heavy is imported here.
"""
