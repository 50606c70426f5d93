"""The sandbox: programs that a model wrote, and verifiers of its text, run here and nowhere else.

`port` has the words, `host_end` starts a sandbox and runs programs in it, `detection` decides which isolation
a host has. `zygote`, `confinement`, `seccomp`, `landlock` and `namespaces` run inside. docs/sandbox.md has
the threat model.
"""
