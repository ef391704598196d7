"""An agent with OpenAI's Agents SDK and one tool, a shell."""

import os
import subprocess
import sys

from agents import Agent, Runner, function_tool, set_tracing_disabled

set_tracing_disabled(True)  # it would be sent to a server, and there is no network


@function_tool
def run_shell(command: str) -> str:
    """Run a bash command in the workspace."""
    done = subprocess.run(["bash", "-c", command], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return f"{(done.stdout + done.stderr)[-8000:]}\n[exit status {done.returncode}]"


agent = Agent(name="worker", instructions="Work in /workspace.", model=os.environ["MODEL"], tools=[run_shell])
print(Runner.run_sync(agent, sys.stdin.read(), max_turns=50).final_output)
