"""Watch a whole tree live, answer its questions, and go on with the same session later.

It needs a model: the key of one in OPENAI_API_KEY, or RETINUE_MODEL=http://127.0.0.1:8080/v1#name for a server of your own.
To see it without either, let a script say what the model says:

RETINUE_MODEL=scripted:examples/scripts/watch_and_answer.json python examples/watch_and_answer.py
"""

import asyncio
import os

from retinue import (
    HarnessAgent,
    PermissionRequest,
    RunFinishedEvent,
    RuntimeContext,
    SubAgentInvocationCompletedEvent,
    SubAgentInvocationStartedEvent,
)

MODEL = os.environ.get("RETINUE_MODEL", "openai:gpt-5")


async def main() -> None:
    """Print the tree's life; allow writing below `out/` only."""
    here = RuntimeContext(session_id="example")
    async with HarnessAgent("orchestrator", model=MODEL, workspace=".") as agent:
        async for event in agent.stream("Let a subagent write a haiku into out/haiku.txt.", context=here):
            match event:
                case SubAgentInvocationStartedEvent():
                    print("started", " > ".join((*event.path, event.child_agent_id)))
                case PermissionRequest():
                    allowed = event.tool == "write_file" and '"out/' in event.arguments
                    print(f"{event.agent_id} asks for {event.tool}: {'yes' if allowed else 'no'}")
                    await agent.answer(event, allow=allowed)
                case SubAgentInvocationCompletedEvent():
                    print("done", event.child_agent_id, event.summary)
                case RunFinishedEvent() if event.result is not None:  # the root's, the last of the stream
                    print(event.result)  # how it ended, why and what to do if it failed, and the answer
                case _:
                    pass


if __name__ == "__main__":
    asyncio.run(main())
