"""Images on their way into prompts: `vision` makes rows of them, `images` is where those stand, and `turnstile` lets
people's go before those of bulk.
"""

from worker.engine.vision.vision import TooManyRows, Vision

__all__ = ["TooManyRows", "Vision"]
