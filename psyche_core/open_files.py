"""The number of files that the system lets this process open. Every connection is one.

Without room for files a server can accept nobody, and a coordinator can neither hear its members nor save its state.
"""

from __future__ import annotations


def allow_open_files(count: int) -> int:
    """Raise this process's own limit of open files to `count`, or as far as the system permits. Never lowers it.

    Returns how many of `count` files may be open now.
    """
    try:
        import resource
    except ImportError:
        return count  # Windows has no such limit

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted
