"""What a task asks its parent: mail for the parent's thread, with the commit of the question's request (D-10).

It enters the parent's journal as the ends of tasks do. The request is the truth: whoever answers first, the parent's model or a
person, answers it, and a letter whose request has an answer is not told any more.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from retinue.damage import UNREADABLE, damaged
from retinue.ids import new_id
from retinue.ledger.port import Ledger
from retinue.ops import PutMail
from retinue.rows import Mail, ThreadKey
from retinue.states import RequestState

__all__ = ["QUESTION_MAIL", "QuestionMail", "open_letters", "question_to", "read_question", "said_of"]

QUESTION_MAIL: Final = "question"
"""The kind of the mail that asks a task's parent."""


class QuestionMail(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The body of a mail of kind `question`."""

    task_id: str
    name: str
    request_id: str
    question: str


_decoder: Final = msgspec.json.Decoder(QuestionMail)


def question_to(key: ThreadKey, asked: QuestionMail, *, at: int) -> PutMail:
    """The op that asks a thread."""
    return PutMail(key, Mail(mail_id=new_id("mail"), kind=QUESTION_MAIL, body=msgspec.Raw(msgspec.json.encode(asked)), at=at))


def read_question(mail: Mail) -> QuestionMail:
    """The question in a mail of its kind.

    Raises:
        LedgerUnavailable: `damaged`.
    """
    try:
        return _decoder.decode(mail.body)
    except UNREADABLE as error:
        raise damaged(f"the row `{mail.mail_id}` of table `mail`, a question,", error) from error


async def open_letters(ledger: Ledger, letters: Sequence[Mail]) -> list[QuestionMail]:
    """The questions among these letters that nobody has answered.

    Raises:
        LedgerUnavailable: `damaged`.
    """
    asked = [read_question(letter) for letter in letters if letter.kind == QUESTION_MAIL]
    rows = [await ledger.request(one.request_id) for one in asked]
    return [one for one, row in zip(asked, rows, strict=True) if row is not None and row.state is RequestState.OPEN]


def said_of(asked: QuestionMail) -> str:
    """What the notice says of a question."""
    head = f"Question of background task {asked.task_id} (`{asked.name}`), which waits for the answer:\n{asked.question}"
    return f'{head}\nAnswer it with `task_answer(task_id="{asked.task_id}", answer="…")`. Ask the user first if you do not know.'
