"""`python -m gleaner.supervisor.fork_server FD MODULES PADDING`: started by `client.ForkServer`."""

from gleaner.supervisor.parent import die_with_parent

if __name__ == "__main__":
    die_with_parent()  # before the imports below: they take time, and the parent may be killed meanwhile

import sys

from gleaner.supervisor.fork_server.server import main

if __name__ == "__main__":
    main(sys.argv[1:])
