"""The whole way on this machine, against throwaway engines and a throwaway sshd."""
