"""The command line that users of EasyR1 know; works from a checkout."""
