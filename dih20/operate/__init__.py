"""Start, watch, ask and stop a server: on this machine, or in the container of a host."""
