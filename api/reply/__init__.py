"""What a model said in a chat, read as it comes, by the form that its worker tells. Knows no family."""

from api.reply.marks import NAME_PATTERN, is_name
from api.reply.reader import Call, CallPiece, Reply, ReplyReader, Said, read_reply

__all__ = ["NAME_PATTERN", "Call", "CallPiece", "Reply", "ReplyReader", "Said", "is_name", "read_reply"]
