"""The search service: ``create_app(settings)`` gives the FastAPI application; nothing heavy happens at import."""

from search_engine.service.app import create_app
from search_engine.service.settings import ServiceSettings

__all__ = ["ServiceSettings", "create_app"]
