"""`python -m roundround` is `roundround`."""

from roundround.cli import main

if __name__ == "__main__":
    main()
