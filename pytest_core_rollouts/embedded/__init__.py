"""A Core on this machine: the Agents API over loopback, each Session in a sandbox of its own.

It is a process (`python -m pytest_core_rollouts.embedded`) that `launch.EmbeddedCore` starts and ends. The rest of the
package talks to it over HTTP alone.
"""
