"""Fetches models. Read `source` first: the rest serves it."""

from worker.download.failures import DownloadFailed
from worker.download.order import Order
from worker.download.source import ModelFiles

__all__ = ["DownloadFailed", "ModelFiles", "Order"]
