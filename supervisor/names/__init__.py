"""Names: the registry, leases, and this process's own names."""
