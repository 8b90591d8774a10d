"""Fetches models. Read `source` first: the rest serves it."""

from worker.download.failures import DownloadFailed
from worker.download.order import Order, found
from worker.download.source import ModelFiles

__all__ = ["DownloadFailed", "ModelFiles", "Order", "found"]
