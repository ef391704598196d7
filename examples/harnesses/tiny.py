"""A whole agent with nothing but the standard library: a shell, and a loop until the model calls it no more."""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

SHELL = {"name": "bash", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}
messages = [{"role": "user", "content": sys.stdin.read()}]
while messages[-1]["role"] != "assistant" or messages[-1].get("tool_calls"):
    body = {"model": os.environ["MODEL"], "messages": messages, "tools": [{"type": "function", "function": SHELL}]}
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}
    url = f"{os.environ['OPENAI_BASE_URL']}/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    message = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    messages.append(message)
    for call in message.get("tool_calls") or []:
        command = json.loads(call["function"]["arguments"])["command"]
        shell = f"exec </dev/null &>/tmp/output\n{command}"  # a pipe could be held open by what the command leaves
        status = subprocess.run(["bash", "-c", shell]).returncode
        text = f"{Path('/tmp/output').read_text(errors='replace')[-8000:]}\n[exit status {status}]"
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
