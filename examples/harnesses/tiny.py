"""A whole agent with nothing but the standard library: a shell, and a loop until the model calls it no more."""

import json
import os
import subprocess
import sys
import urllib.request

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
        done = subprocess.run(["bash", "-c", command], stdin=subprocess.DEVNULL, stdout=-1, stderr=-2, text=True)
        output = f"{done.stdout[-8000:]}\n[exit status {done.returncode}]"
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": output})
