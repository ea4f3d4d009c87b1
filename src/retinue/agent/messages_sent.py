"""What others send a run while it works: it arrives at its next step, before its model is asked again, and once."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from retinue.damage import UNREADABLE, damaged
from retinue.events import MessageEvent
from retinue.ids import new_id
from retinue.messages import UserMessage
from retinue.ops import PutMail, TakeMail
from retinue.rows import Mail, ThreadKey

if TYPE_CHECKING:
    from retinue.agent.run import Run

__all__ = ["MESSAGE_MAIL", "MessageMail", "message_to", "read_message", "take_messages"]

MESSAGE_MAIL: Final = "message"
"""The kind of the mail that a run is sent while it works."""


class MessageMail(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The body of a mail of kind `message`. `by`: who sent it."""

    text: str
    by: str = ""


_decoder: Final = msgspec.json.Decoder(MessageMail)


def message_to(key: ThreadKey, text: str, *, by: str, at: int) -> PutMail:
    """The op that sends a thread's run a message."""
    body = msgspec.Raw(msgspec.json.encode(MessageMail(text=text, by=by)))
    return PutMail(key, Mail(mail_id=new_id("mail"), kind=MESSAGE_MAIL, body=body, at=at))


def read_message(mail: Mail) -> MessageMail:
    """The message in a mail of its kind.

    Raises:
        LedgerUnavailable: `damaged`.
    """
    try:
        return _decoder.decode(mail.body)
    except UNREADABLE as error:
        raise damaged(f"the row `{mail.mail_id}` of table `mail`, a message,", error) from error


async def take_messages(run: "Run", letters: Sequence[Mail]) -> None:
    """Let the run have what it was sent. It is in the journal before its model is asked.

    Raises:
        LedgerConflict: somebody else took one of them.
    """
    for letter in letters:
        run.journal.stage(MessageEvent(message=UserMessage(id=new_id("msg"), text=read_message(letter).text)))
        run.journal.stage_op(TakeMail(run.row.key, letter.mail_id))
    await run.journal.flush()
