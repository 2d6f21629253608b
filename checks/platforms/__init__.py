"""The tests under other processors, and the newest versions of the packages."""
