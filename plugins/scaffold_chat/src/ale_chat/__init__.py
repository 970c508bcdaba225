"""The scaffold `chat`: a conversation of one or several turns, with tools and a user that are Python functions."""

from ale_chat.agent import Chat

__all__ = ["Chat"]
