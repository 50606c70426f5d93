"""Sandbox: the only place for programs and verifiers that use model output.

`port` has the types, `host_end` starts a sandbox and runs programs in it, `detection` decides which isolation
a host has. `zygote`, `confinement`, `seccomp`, `landlock` and `namespaces` run inside. docs/sandbox.md has
the threat model.
"""
