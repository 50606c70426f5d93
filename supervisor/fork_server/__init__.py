"""Fork server: a process that has imported what child processes need, and forks them.

A child starts within milliseconds and shares the memory of the imported modules with its siblings. `server`
is the process, `client` what a node agent uses, `protocol` the messages between them.
"""
