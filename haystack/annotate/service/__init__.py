"""The annotation service: who may ask, what is asked, pictures, pages, and the server.

``app`` puts the application together. Every other module is one concern, and a page is one module
``X`` whose ``add_X`` adds its routes, with ``static/X.html`` and ``static/X.js``, at ``/X``.
"""

from haystack.errors import MissingDependencyError

# Here, so that whichever module is imported first says what is missing.
try:
    import fastapi  # noqa: F401
    import sqlalchemy  # noqa: F401
    import uvicorn  # noqa: F401
except ImportError as error:
    raise MissingDependencyError(
        str(error.name), purpose="the annotation page", extra="annotate"
    ) from error
