"""`python -m streamguard`."""

from streamguard.cli.app import main

if __name__ == "__main__":
    main()
