"""What slots have in the cache, kept in files: whole and of this model, or refused with a sentence.

`record` is how a file is made up, `origin` where it is good for, `folder` how files are written and found; `files` does
what a request asks for, in a thread beside the decode loop.
"""

from worker.slotfiles.files import SlotFiles
from worker.slotfiles.folder import SlotFolder
from worker.slotfiles.origin import Origin, origin_of

__all__ = ["Origin", "SlotFiles", "SlotFolder", "origin_of"]
