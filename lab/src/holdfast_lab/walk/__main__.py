"""See `hops.py`."""

from holdfast_lab.walk.hops import main

if __name__ == "__main__":
    main()
