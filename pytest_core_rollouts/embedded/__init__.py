"""A Core on this machine: the Agents API over loopback, each Session in its own sandbox.

It is a process (`python -m pytest_core_rollouts.embedded`) that `launch.EmbeddedCore` starts and ends. The rest of the
package only talks to it over HTTP.
"""
